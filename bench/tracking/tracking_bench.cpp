// A loop of steps that take 5 ms, with a line of 15 metrics after each or without:
// tracking_bench FOLDER STEPS ROUNDS. Prints a JSON line per round: milliseconds of a step, both
// ways.
#include <time.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/tracker.h"
#include "track/system_sampler.h"

using namespace lockstep;
using Clock = std::chrono::steady_clock;

namespace {

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

volatile double result;  // so that the work cannot be left out

double work(long iterations) {
  double value = result;
  for (long i = 0; i < iterations; ++i) value = value * 0.999999 + 1e-6;
  return value;
}

// Time that this thread, or all of them, had a processor: what other programs do does not count.
double cpu_ms(clockid_t whose) {
  timespec time = {};
  ::clock_gettime(whose, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

struct Times {
  double step = 0, wall = 0, call = 0;  // milliseconds
};

Times run(Tracker* tracker, long first, long steps, long iterations) {
  const double begin = cpu_ms(CLOCK_THREAD_CPUTIME_ID);
  const auto wall_begin = Clock::now();
  Times times;
  for (long step = first; step < first + steps; ++step) {
    const double loss = work(iterations);
    result = loss;
    if (tracker == nullptr) continue;
    const double told = cpu_ms(CLOCK_THREAD_CPUTIME_ID);
    nlohmann::json line = {{"loss", loss}, {"lr", 1e-3}, {"grad_norm", 0.5}, {"epoch", 1}};
    for (const char* name :
         {"time/data", "time/forward", "time/backward", "time/reduce", "time/update", "time/total",
          "tok/s", "tok/s_rank", "mem/host_gb", "mfu", "accuracy"}) {
      line[name] = loss * 0.37;
    }
    tracker->metrics(step, std::move(line));
    times.call += cpu_ms(CLOCK_THREAD_CPUTIME_ID) - told;
  }
  const auto count = static_cast<double>(steps);
  times.step = (cpu_ms(CLOCK_THREAD_CPUTIME_ID) - begin) / count;
  times.wall = ms_since(wall_begin) / count;
  times.call /= count;
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string folder = argv[1];
  const long steps = std::atol(argv[2]), rounds = std::atol(argv[3]);
  long iterations = 100'000;  // of 5 ms
  double shortest = 1e9;
  for (int i = 0; i < 5; ++i) {
    shortest = std::min(shortest, run(nullptr, 0, 3, iterations).step);
  }
  iterations = static_cast<long>(static_cast<double>(iterations) * 5 / shortest);
  Tracker tracker({.directory = folder,
                   .tracking = {.tensorboard = true, .wandb = true, .config = {{"lr", 1e-3}}}});
  const SystemSampler sampler(tracker, {.every = std::chrono::seconds(1), .host = true});
  long done = 0;
  for (long round = 0; round < rounds; ++round) {
    const double begin = cpu_ms(CLOCK_PROCESS_CPUTIME_ID);
    const Times without = run(nullptr, 0, steps, iterations);
    const double middle = cpu_ms(CLOCK_PROCESS_CPUTIME_ID);
    const Times with = run(&tracker, done + 1, steps, iterations);
    tracker.flush();
    const double cpu =
        (cpu_ms(CLOCK_PROCESS_CPUTIME_ID) - middle - (middle - begin)) / static_cast<double>(steps);
    done += steps;
    std::printf(
        "{\"without_ms\": %.6f, \"with_ms\": %.6f, \"call_ms\": %.6f, \"cpu_ms\": %.6f, "
        "\"wall\": %.6f}\n",
        without.step, with.step, with.call, cpu, with.wall / without.wall);
    std::fflush(stdout);
  }
  tracker.finish(true);
  std::printf("{\"lines\": %ld, \"dropped\": %llu}\n", done,
              static_cast<unsigned long long>(tracker.dropped()));
  return 0;
}
