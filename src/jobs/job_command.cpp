#include "jobs/job_command.h"

#include <filesystem>
#include <ostream>

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
  options.lockstep = options.kind == JobKind::manifest
                         ? "lockstep"
                         : std::filesystem::read_symlink("/proc/self/exe").string();
}

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
  const std::string folder =
      make_unique_directory(std::filesystem::temp_directory_path().string(), "lockstep_job");
  const std::string script = concat(folder, "/", as_file_name(options.job_name));
  replace_file(script, text);
  const int code = submit(tool, script);
  std::filesystem::remove_all(folder);
  return code;
}

}  // namespace lockstep
