#include "doctor/run_program.h"

#include "launch/terminal_text.h"
#include "lockstep/error.h"

namespace lockstep {

std::string ProgramOutput::last_error_line() const {
  std::size_t end = err.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "it said nothing";
  const std::size_t begin = err.rfind('\n', end);
  const std::size_t first = begin == std::string::npos ? 0 : begin + 1;
  return clipped(without_controls(std::string_view(err).substr(first, end + 1 - first)), 300);
}

ProgramOutput run_program(const std::vector<std::string>& argv, std::chrono::milliseconds limit,
                          const std::map<std::string, std::string>& environment) {
  ProgramOutput result;
  try {
    static_cast<CapturedProgram&>(result) =
        run_captured({.argv = argv,
                      .limit = limit,
                      .set_environment = environment,
                      .unset_environment = {"LOCKSTEP_SECRET", "LOCKSTEP_SECRET_FILE"}});
  } catch (const Error& error) {
    result.status.exit_code = 127;
    result.err = error.what();
  }
  return result;
}

}  // namespace lockstep
