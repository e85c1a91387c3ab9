#include "cluster/start_failure.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Symptom {
  std::string_view words;  // in a line of standard error
  std::string_view meaning;
  std::string_view cure;
};

// Words of OpenSSH and of Slurm.
constexpr auto kSymptoms = std::to_array<Symptom>({
    {"Could not resolve hostname", "its name is not known here",
     "check the spelling, DNS, /etc/hosts or ~/.ssh/config"},
    {"Host key verification failed", "ssh does not know its host key",
     "connect once by hand (ssh HOST true), or give --ssh-options='-o "
     "StrictHostKeyChecking=accept-new'"},
    {"Permission denied", "ssh may not log in",
     "set up a key that needs no password (ssh-copy-id HOST), or name it with --ssh-options='-i "
     "KEY'"},
    {"Too many authentication failures", "ssh may not log in",
     "name the key with --ssh-options='-i KEY -o IdentitiesOnly=yes'"},
    {"Connection refused", "no ssh server listens there",
     "start sshd, or give its port with --ssh-options='-p PORT'"},
    {"Connection timed out", "it does not answer",
     "check that it is up and no firewall is between"},
    {"No route to host", "it cannot be reached", "check that it is up, and the network"},
    {"Network is unreachable", "it cannot be reached", "check the network of this machine"},
    {"Connection closed by", "its ssh server closed the connection",
     "look into that server's log; MaxStartups limits how many connect at once"},
    {"Exec format error", "the program there is for another kind of machine",
     "build lockstep for that machine and give --remote-lockstep PATH"},
    {"cannot execute binary file", "the program there is for another kind of machine",
     "build lockstep for that machine and give --remote-lockstep PATH"},
    {"GLIBC", "the program there needs a newer C library than the machine has",
     "build lockstep on that machine and give --remote-lockstep PATH"},
    {"GLIBCXX", "the program there needs a newer C++ library than the machine has",
     "build lockstep on that machine and give --remote-lockstep PATH"},
    {"Invalid node name specified", "Slurm does not know a node of this name",
     "name nodes as sinfo does"},
    {"Requested node configuration is not available", "Slurm does not give it to this job",
     "name nodes of the job only"},
    {"Requested nodes are busy", "another step of the job holds it",
     "end that step, or start lockstep in the job script"},
});

std::optional<Symptom> symptom_in(const std::vector<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    for (const Symptom& symptom : kSymptoms) {
      if (line->find(symptom.words) != std::string::npos) return symptom;
    }
  }
  return std::nullopt;
}

std::string with_host(std::string_view cure, const std::string& host) {
  std::string text(cure);
  if (const std::size_t at = text.find("HOST"); at != std::string::npos) text.replace(at, 4, host);
  return text;
}

}  // namespace

std::string explain_start_failure(StarterKind kind, const std::string& host,
                                  const std::string& lockstep, const ExitStatus& status,
                                  const std::vector<std::string>& stderr_lines) {
  const auto line = [&](std::string_view meaning, std::string_view cure) {
    return concat("node ", host, " could not be started: ", meaning, " (", to_string(kind), ": ",
                  status.describe(), "); ", with_host(cure, host));
  };
  // The launcher there has spoken for itself, and said last why it ended; unless it was killed.
  const auto own =
      std::find_if(stderr_lines.rbegin(), stderr_lines.rend(),
                   [](const std::string& text) { return text.starts_with("lockstep"); });
  if (own != stderr_lines.rend() && status.exit_code != 255 && status.signal == 0) {
    const std::size_t colon = own->find(": ");
    return concat("node ", host, " could not be started: ",
                  colon == std::string::npos ? *own : own->substr(colon + 2));
  }
  if (const auto symptom = symptom_in(stderr_lines)) return line(symptom->meaning, symptom->cure);
  if (status.exit_code == 127 || status.exit_code == 126) {
    return line(concat("'", lockstep, "' ",
                       status.exit_code == 127 ? "is not there" : "cannot be executed there"),
                "install lockstep there, or give its place with --remote-lockstep PATH");
  }
  if (kind == StarterKind::ssh && status.exit_code == 255) {
    return line("ssh failed", "try `ssh HOST true` by hand");
  }
  return line("its launcher ended before the job began", "what it said follows");
}

}  // namespace lockstep
