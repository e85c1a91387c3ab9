#include "doctor/smoke.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cluster/own_place.h"
#include "doctor/run_program.h"
#include "launch/terminal_text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Every rank must get the sum of all, also of more than a packet.
constexpr const char* kScript = R"py(
import datetime, os, time
import torch
import torch.distributed as dist

# NCCL takes a GPU for each rank; two ranks beside one GPU add up on the processor.
cuda = torch.cuda.is_available() and int(os.environ['LOCAL_WORLD_SIZE']) <= torch.cuda.device_count()
if cuda:
    torch.cuda.set_device(int(os.environ['LOCAL_RANK']) % torch.cuda.device_count())
device = torch.device('cuda') if cuda else torch.device('cpu')
dist.init_process_group('nccl' if cuda else 'gloo', timeout=datetime.timedelta(seconds=60))
world = dist.get_world_size()
best = float('inf')
for attempt in range(5):
    values = torch.full((1 << 20,), float(dist.get_rank() + 1), device=device)
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(values)
    if cuda:
        torch.cuda.synchronize()
    best = min(best, time.perf_counter() - begin)
    expected = world * (world + 1) / 2
    if not bool((values == expected).all()):
        raise SystemExit(f'the sum over {world} ranks is {values[0].item()}, not {expected}')
if dist.get_rank() == 0:
    backend = dist.get_backend()
    print(f'smoke: an all-reduce of 4 MiB over {world} ranks ({backend}) takes {best * 1e3:.2f} ms', flush=True)
dist.destroy_process_group()
)py";

// A file in a folder of its own, gone with this object.
class ScriptFile {
 public:
  ScriptFile() : folder_(concat(temporary_folder(), "/lockstep-doctor-XXXXXX")) {
    if (::mkdtemp(folder_.data()) == nullptr) throw_errno("cannot make a folder for a script");
    std::ofstream(path()) << kScript;
  }
  ~ScriptFile() {
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  ScriptFile(const ScriptFile&) = delete;
  ScriptFile& operator=(const ScriptFile&) = delete;

  std::string path() const { return folder_ + "/smoke.py"; }

 private:
  static std::string temporary_folder() {
    const char* given = std::getenv("TMPDIR");
    return given != nullptr && *given != '\0' ? given : "/tmp";
  }

  std::string folder_;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t begin = line.find_first_not_of(" \r\t");
    if (begin != std::string::npos) lines.push_back(line.substr(begin));
  }
  return lines;
}

}  // namespace

std::vector<std::string> smoke_command(const SmokeQuestion& question, const SmokeSetup& setup,
                                       const std::string& lockstep, const std::string& script) {
  std::vector<std::string> words = {lockstep, "run", "--nproc-per-node",
                                    std::to_string(question.workers)};
  if (question.nodes == 1) {
    words.push_back("--standalone");
  } else {
    words.insert(words.end(), {"--nnodes", std::to_string(question.nodes), "--rdzv-backend", "c10d",
                               "--rdzv-endpoint", question.endpoint, "--rdzv-id", question.run_id,
                               "--rdzv-conf", "join_timeout=30"});
    if (setup.secret.empty()) words.emplace_back("--insecure");
    if (setup.tls) words.emplace_back("--tls");
  }
  words.push_back(setup.program.empty() ? script : setup.program);
  return words;
}

std::string smoke_words(int code, const std::string& out, const std::string& err) {
  constexpr std::string_view kMark = "smoke: ";
  for (const std::string& line : lines_of(out)) {
    if (code == 0 && line.starts_with(kMark)) return without_controls(line.substr(kMark.size()));
  }
  const auto said = lines_of(code == 0 ? out : err);
  if (said.empty()) return code == 0 ? "all ranks ended well" : "it said nothing";
  // A report of a failure names the exception in a line of its own.
  const auto told = std::ranges::find_if(said, [](const std::string& line) {
    return line.find("Error: ") != std::string::npos || line.find("error: ") != std::string::npos;
  });
  return clipped(without_controls(code != 0 && told != said.end() ? *told : said.back()), 400);
}

SmokeAnswer run_smoke(const SmokeQuestion& question, const SmokeSetup& setup) {
  if (!setup.enabled) return {.code = 2, .said = "this node was not started with --smoke"};
  if (!setup.can_run()) return {.code = 2, .said = "this node has no Python with torch"};
  try {
    const ScriptFile script;
    std::map<std::string, std::string> environment;
    if (!setup.secret.empty()) environment["LOCKSTEP_SECRET"] = setup.secret;
    if (!setup.python.empty()) environment["PYTHON_EXEC"] = setup.python;
    const ProgramOutput output =
        run_program(smoke_command(question, setup, own_program(), script.path()),
                    std::chrono::milliseconds(question.limit_ms), environment);
    if (!output.in_time) {
      return {.code = 1, .said = concat("it did not end within ", question.limit_ms / 1000, " s")};
    }
    const int code =
        output.status.signal != 0 ? 128 + output.status.signal : output.status.exit_code;
    return {.code = code, .said = smoke_words(code, output.out, output.err)};
  } catch (const Error& error) {
    return {.code = 1, .said = error.what()};
  }
}

void judge_smoke(const SmokeAnswer& answer, FindingList& list) {
  if (answer.code == 0) {
    list.ok("smoke", answer.said);
  } else if (answer.code == 2) {
    list.error(
        "smoke", concat("the small job could not be started: ", answer.said),
        "activate the environment that has torch, or give --smoke-program, with --smoke on all "
        "nodes");
  } else {
    list.error("smoke",
               concat("a small job failed with exit code ", answer.code, ": ", answer.said),
               "try it by hand: lockstep run with the same nodes and a program that does little");
  }
}

}  // namespace lockstep
