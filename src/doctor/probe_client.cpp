#include "doctor/probe_client.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "doctor/probe_server.h"
#include "launch/link_socket.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = ProbeSession::Clock;
using std::chrono::milliseconds;

constexpr std::size_t kFirstBurst = std::size_t{64} << 10;
constexpr std::size_t kGrowth = 8;

UniqueFd connect_within(const WayTarget& target, milliseconds limit) {
  const auto address = IpAddress::parse(target.address);
  if (!address) throw SystemError("it is no address");
  UniqueFd socket = begin_connect(*address, target.port);
  pollfd waiting{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  if (::poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) {
    throw SystemError(concat("no answer within ", limit.count() / 1000.0, " s"));
  }
  if (const int error = connect_error(socket.get())) throw SystemError(std::strerror(error));
  return socket;
}

int path_mtu_of(int socket, const std::string& address) {
  const bool v6 = address.find(':') != std::string::npos;
  int mtu = 0;
  socklen_t size = sizeof mtu;
  const int level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;
  const int option = v6 ? IPV6_MTU : IP_MTU;
  return ::getsockopt(socket, level, option, &mtu, &size) == 0 ? std::max(mtu, 0) : 0;
}

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

void measure_latency(ProbeSession& session, const ProbeLimits& limits, ProbeAnswer::Way& way) {
  const auto deadline = Clock::now() + limits.connect;
  std::vector<double> times;
  for (int round = 0; round < limits.round_trips; ++round) {
    const auto begin = Clock::now();
    session.send("echo", deadline);
    session.receive(deadline);
    times.push_back(microseconds_since(begin));
  }
  std::ranges::sort(times);
  way.least_latency_us = times.front();
  way.latency_us = times[times.size() / 2];
}

// Bursts that grow until one takes long enough to be believed. A first one that does not arrive
// where small messages did is what an MTU looks like that somebody on the way does not keep.
void measure_bandwidth(ProbeSession& session, const ProbeLimits& limits, ProbeAnswer::Way& way) {
  for (std::size_t bytes = kFirstBurst; bytes <= kMostProbeBytes; bytes *= kGrowth) {
    const auto deadline = Clock::now() + limits.stall;
    session.send(concat("take ", bytes), deadline);
    session.receive(deadline);
    const auto begin = Clock::now();
    try {
      session.send_raw(bytes, deadline);
      session.receive(deadline);
    } catch (const SystemError&) {
      if (bytes == kFirstBurst) way.stalled = true;
      return;  // the burst before says how fast it is
    }
    const double time = microseconds_since(begin);
    way.bytes_per_second = static_cast<double>(bytes) / time * 1e6;
    if (time > std::chrono::duration<double, std::micro>(limits.measure).count()) return;
  }
}

struct Attempt {
  ProbeAnswer::Way way;
  std::unique_ptr<ProbeSession> session;
};

void reach(const ProbeQuestion& question, const WayTarget& target, const ProbeTrust& trust,
           const ProbeLimits& limits, Attempt& attempt) {
  try {
    UniqueFd socket = connect_within(target, limits.connect);
    const auto deadline = Clock::now() + limits.connect;
    attempt.session =
        std::make_unique<ProbeSession>(std::move(socket), LinkRole::client, trust, deadline);
    attempt.session->send("who", deadline);
    if (attempt.session->receive(deadline) != question.id) {
      throw SystemError("another node answers there");
    }
    attempt.way.path_mtu = path_mtu_of(attempt.session->fd(), target.address);
    measure_latency(*attempt.session, limits, attempt.way);
  } catch (const Error& error) {
    attempt.way.problem = first_line(error.what());
  }
}

}  // namespace

ProbeAnswer probe(const ProbeQuestion& question, const ProbeTrust& trust,
                  const ProbeLimits& limits) {
  std::vector<Attempt> attempts(question.targets.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t at = 0; at < attempts.size(); ++at) {
      const auto work = [&, at] {
        reach(question, question.targets[at], trust, limits, attempts[at]);
      };
      try {
        threads.emplace_back(work);
      } catch (const std::system_error&) {  // no thread is left: one after another
        work();
      }
    }
  }
  ProbeAnswer answer;
  for (std::size_t at = 0; at < attempts.size(); ++at) {
    Attempt& attempt = attempts[at];
    if (question.targets[at].measure && attempt.way.problem.empty()) {
      try {
        measure_bandwidth(*attempt.session, limits, attempt.way);
      } catch (const Error& error) {
        attempt.way.problem = first_line(error.what());
      }
    }
    attempt.session.reset();
    answer.ways.push_back(std::move(attempt.way));
  }
  return answer;
}

}  // namespace lockstep
