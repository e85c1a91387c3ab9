#include "doctor/python_facts.h"

#include <chrono>
#include <csignal>
#include <optional>
#include <sstream>

#include "doctor/run_program.h"
#include "launch/options.h"
#include "launch/worker_command.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kPythonLimit{10000};

// find_spec() of a top-level name does not import it. version.py is a few assignments.
constexpr const char* kQuestion = R"py(
import glob, importlib.util, os, platform, re, sys
print('python', platform.python_version())
spec = importlib.util.find_spec('torch')
places = list(spec.submodule_search_locations or []) if spec else []
if places:
    folder = places[0]
    print('torch_folder', folder)
    try:
        with open(os.path.join(folder, 'version.py')) as file:
            text = file.read()
    except OSError:
        text = ''
    for name in ('__version__', 'cuda'):
        found = re.search(r"^" + name + r"\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.M)
        if found:
            print('torch_' + name.strip('_'), found.group(1))
    beside = os.path.dirname(folder)
    for pattern in ('nvidia/nccl/lib/libnccl.so.2', 'torch/lib/libnccl.so.2'):
        for path in glob.glob(os.path.join(beside, pattern)):
            print('nccl', path)
)py";

}  // namespace

void read_python_answer(std::string_view text, PythonFacts& facts) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    const std::string name = line.substr(0, blank);
    const std::string value = line.substr(blank + 1);
    if (name == "python") facts.version = value;
    if (name == "torch_folder") facts.torch_folder = value;
    if (name == "torch_version") facts.torch_version = value;
    if (name == "torch_cuda") facts.torch_cuda = value;
    if (name == "nccl" && facts.nccl_library.empty()) facts.nccl_library = value;
  }
}

PythonFacts read_python(const Environment& environment) {
  PythonFacts facts;
  RunOptions options;
  options.module = true;  // needs a Python and no file
  options.script = "torch";
  try {
    facts.python = find_worker_command(options, environment).words.front();
  } catch (const InvalidArgument& error) {
    facts.problem = error.what();
    return facts;
  }
  const ProgramOutput answer = run_program({facts.python, "-c", kQuestion}, kPythonLimit);
  read_python_answer(answer.out, facts);
  if (!answer.in_time) {
    facts.problem = concat("it did not answer within ", kPythonLimit.count() / 1000, " s");
  } else if (!answer.status.success()) {
    facts.problem =
        concat("it ended with ", answer.status.describe(), ": ", answer.last_error_line());
  }
  return facts;
}

void judge_python(const PythonFacts& facts, FindingList& list) {
  if (facts.python.empty()) {
    list.note("python", concat("no Python was found: ", facts.problem),
              "native programs need none");
  } else if (!facts.problem.empty()) {
    list.error("python", concat(facts.python, " does not work: ", facts.problem),
               "repair it, or choose another with PYTHON_EXEC");
  } else if (!facts.has_torch()) {
    list.note("python", concat("Python ", facts.version, " (", facts.python, ") has no torch"),
              "activate the environment that has it, or name its Python in PYTHON_EXEC; native "
              "programs need none");
  } else {
    list.ok("python",
            concat("Python ", facts.version, " (", facts.python, "), torch ", facts.torch_version,
                   facts.torch_cuda.empty() ? std::string(" without CUDA")
                                            : concat(" for CUDA ", facts.torch_cuda)));
  }
}

}  // namespace lockstep
