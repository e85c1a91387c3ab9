#include "doctor/doctor_options.h"

#include "lockstep/error.h"

namespace lockstep {

DoctorOptions parse_doctor_options(const std::vector<std::string>& arguments) {
  DoctorOptions options;
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    std::string name = arguments[at];
    // "--name value" and "--name=value".
    const std::size_t equals = name.find('=');
    const bool joined = name.starts_with("--") && equals != std::string::npos;
    std::string value = joined ? name.substr(equals + 1) : "";
    if (joined) name.resize(equals);
    const auto flag = [&] {
      if (joined) throw InvalidArgument(concat(name, " takes no value"));
    };
    const auto needed = [&] {
      if (!joined) {
        if (at + 1 == arguments.size()) throw InvalidArgument(concat(name, " needs a value"));
        value = arguments[++at];
      }
      if (value.empty()) throw InvalidArgument(concat(name, " is empty"));
      return value;
    };
    if (name == "-h" || name == "--help") {
      options.help = true;
      return options;
    } else if (name == "--shared-dir") {
      options.shared_folder = needed();
    } else if (name == "--json") {
      flag();
      options.json = true;
    } else if (name == "-q" || name == "--quiet") {
      flag();
      options.detail = ReportDetail::problems;
    } else if (name == "-v" || name == "--verbose") {
      flag();
      options.detail = ReportDetail::all;
    } else {
      throw InvalidArgument(concat("doctor has no ", name.starts_with("-") ? "option" : "argument",
                                   " '", name, "'; see lockstep doctor --help"));
    }
  }
  return options;
}

std::string doctor_help() {
  return R"(Usage: lockstep doctor [OPTIONS]

Says what would go wrong with a job on this machine before it does, and what to do about it:
versions, clock, names, interfaces, limits, shared memory, disks, GPUs, NCCL and its variables.
One line a finding: its level (ok, note, warning, error), the check, what was found -> the cure.

  --shared-dir=DIR   also try whether rename, fsync, O_EXCL and flock work in DIR
  --json             one JSON document on standard output
  -q, --quiet        warnings and errors only
  -v, --verbose      everything

Exit status: 0 without errors, 1 with some, 2 for a wrong command line.
)";
}

}  // namespace lockstep
