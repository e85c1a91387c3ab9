#include "doctor/doctor_command.h"

#include <chrono>
#include <ostream>

#include "doctor/doctor_options.h"
#include "doctor/local_checks.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

DoctorReport check_alone(const DoctorOptions& options, const Environment& environment,
                         const std::string& version) {
  const LocalReport local = check_this_machine(
      {.lockstep_version = version, .shared_folder = options.shared_folder}, environment);
  DoctorReport report;
  report.nodes = {local.host};
  report.findings = local.findings;
  return report;
}

}  // namespace

int doctor_command(const std::vector<std::string>& arguments, const Environment& environment,
                   const std::string& version, std::ostream& out) {
  const DoctorOptions options = parse_doctor_options(arguments);
  if (options.help) {
    out << doctor_help();
    return 0;
  }
  const auto begin = Clock::now();
  DoctorReport report = check_alone(options, environment, version);
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  out << (options.json ? to_json(report) + "\n" : to_text(report, options.detail));
  return report.exit_code();
}

}  // namespace lockstep
