#include "jobs/job_command.h"

#include <filesystem>
#include <ostream>

#include "cluster/own_place.h"
#include "core/durable_file.h"
#include "core/exec_process.h"
#include "core/subprocess.h"
#include "jobs/job_script.h"
#include "launch/unique_directory.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string text_of(const JobOptions& options) {
  switch (options.kind) {
    case JobKind::sbatch:
      return slurm_script(options);
    case JobKind::qsub:
      return pbs_script(options);
    case JobKind::manifest:
      return kubernetes_manifest(options);
  }
  return "";
}

// Nodes find this program where it is here, unless they are containers.
void find_lockstep(JobOptions& options) {
  if (!options.lockstep.empty()) return;
  options.lockstep = options.kind == JobKind::manifest ? "lockstep" : own_program();
}

// A file that is gone when the scheduler has its copy, or has refused it.
class TemporaryScript {
 public:
  TemporaryScript(const std::string& name, const std::string& text)
      : folder_(
            make_unique_directory(std::filesystem::temp_directory_path().string(), "lockstep_job")),
        path_(concat(folder_, "/", as_file_name(name))) {
    replace_file(path_, text);
  }
  ~TemporaryScript() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TemporaryScript(const TemporaryScript&) = delete;
  TemporaryScript& operator=(const TemporaryScript&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string folder_;
  std::string path_;
};

int submit(const std::string& tool, const std::string& script) {
  try {
    Subprocess process({.argv = {tool, script},
                        .set_environment = {},
                        .unset_environment = {},
                        .stdout_path = "",
                        .stderr_path = ""});
    const ExitStatus status = process.wait();
    return status.signal != 0 ? 128 + status.signal : status.exit_code;
  } catch (const StartError& error) {
    throw SystemError(
        concat(error.what(), "; where it is not installed, --print shows the script"));
  }
}

}  // namespace

int job_command(JobKind kind, const std::vector<std::string>& arguments, std::ostream& out) {
  JobOptions options = parse_job_options(kind, arguments);
  if (options.help) {
    out << job_help(kind);
    return 0;
  }
  find_lockstep(options);
  // PBS has no copy that a job could submit again.
  if (kind == JobKind::qsub) {
    options.script = std::filesystem::absolute(options.script.value_or(options.job_name + ".pbs"));
  }
  const std::string text = text_of(options);
  if (options.print || kind == JobKind::manifest) out << text;
  const bool keeps = options.script && !(options.print && kind == JobKind::qsub);
  if (keeps) write_durably(*options.script, text);
  if (options.print || kind == JobKind::manifest) return 0;
  const std::string tool(to_string(kind));
  if (keeps) return submit(tool, *options.script);
  const TemporaryScript script(options.job_name, text);
  return submit(tool, script.path());
}

}  // namespace lockstep
