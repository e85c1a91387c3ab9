#include "doctor/doctor_options.h"

#include <functional>
#include <map>

#include "doctor/doctor_command.h"
#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Flag = std::function<void(DoctorOptions&)>;
using Setter = std::function<void(DoctorOptions&, const OptionValue&)>;

const std::map<std::string, Flag>& flags() {
  static const std::map<std::string, Flag> kFlags = {
      {"--insecure", [](DoctorOptions& options) { options.insecure = true; }},
      {"--tls", [](DoctorOptions& options) { options.tls = true; }},
      {"--agent", [](DoctorOptions& options) { options.agent = true; }},
      {"--all-pairs", [](DoctorOptions& options) { options.all_pairs = true; }},
      {"--smoke", [](DoctorOptions& options) { options.smoke = true; }},
      {"--json", [](DoctorOptions& options) { options.json = true; }},
      {"--quiet", [](DoctorOptions& options) { options.detail = ReportDetail::problems; }},
      {"--verbose", [](DoctorOptions& options) { options.detail = ReportDetail::all; }},
      {"--help", [](DoctorOptions& options) { options.help = true; }},
  };
  return kFlags;
}

// An option of lockstep run, which also checks its value.
Setter passed_on() {
  return [](DoctorOptions& options, const OptionValue& value) {
    options.host_words.push_back(concat(value.source, "=", value.text));
    options.seeks_hosts |= value.source == "--hosts" || value.source == "--hostfile";
  };
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> kSetters = {
      {"--nnodes",
       [](DoctorOptions& options, const OptionValue& value) {
         options.seeks_hosts |= value.text == "auto";
         if (value.text == "auto") return options.host_words.push_back("--nnodes=auto");
         options.nodes = parse_int_at_least(value, 1);
       }},
      {"--hosts", passed_on()},
      {"--hostfile", passed_on()},
      {"--include", passed_on()},
      {"--exclude", passed_on()},
      {"--starter", passed_on()},
      {"--ssh-options", passed_on()},
      {"--remote-lockstep", passed_on()},
      {"--export", passed_on()},
      {"--prologue",
       [](DoctorOptions& options, const OptionValue& value) {
         options.host_words.push_back(concat("--prologue=", value.text));
         options.prologue = value.text;
       }},
      {"--brief-file",
       [](DoctorOptions& options, const OptionValue& value) { options.brief_file = value.text; }},
      {"--rdzv-endpoint",
       [](DoctorOptions& options, const OptionValue& value) { options.endpoint = value.text; }},
      {"--secret-file",
       [](DoctorOptions& options, const OptionValue& value) { options.secret_file = value.text; }},
      {"--timeout",
       [](DoctorOptions& options, const OptionValue& value) {
         const auto seconds = parse_positive_seconds(value);
         if (seconds > std::chrono::hours(1)) reject(value, "it must be an hour at most");
         options.join_limit = std::chrono::ceil<std::chrono::milliseconds>(seconds);
       }},
      {"--smoke-program",
       [](DoctorOptions& options, const OptionValue& value) {
         options.smoke = true;
         options.smoke_program = value.text;
       }},
      {"--shared-dir", [](DoctorOptions& options,
                          const OptionValue& value) { options.shared_folder = value.text; }},
  };
  return kSetters;
}

std::string whole_name(const std::string& name) {
  if (name == "-h") return "--help";
  if (name == "-q") return "--quiet";
  if (name == "-v") return "--verbose";
  std::string result = name;  // torchrun has both spellings
  for (char& letter : result) {
    if (letter == '_') letter = '-';
  }
  return result;
}

void check(const DoctorOptions& options) {
  if (options.tls && options.insecure) {
    throw InvalidArgument(
        "--tls and --insecure contradict each other: the key is made from the secret");
  }
  if (options.seeks_hosts || options.agent) return;
  if (!options.host_words.empty()) {
    const std::string& word = options.host_words.front();
    throw InvalidArgument(
        concat(word.substr(0, word.find('=')),
               " is about machines that are started from here, but none is named; "
               "give --hosts, --hostfile or --nnodes auto"));
  }
  if (options.nodes > 1 && options.endpoint.empty()) {
    throw InvalidArgument(concat("--nnodes is ", options.nodes,
                                 ", but no --rdzv-endpoint says where they meet; give the same "
                                 "host:port on all of them"));
  }
  if (options.nodes == 1 && !options.endpoint.empty()) {
    throw InvalidArgument("--rdzv-endpoint is given without --nnodes; how many nodes come there?");
  }
}

}  // namespace

DoctorOptions parse_doctor_options(const std::vector<std::string>& arguments,
                                   const Environment& environment) {
  DoctorOptions options;
  if (const auto text = environment.get("LOCKSTEP_TLS")) {
    options.tls = parse_flag_variable({.source = "LOCKSTEP_TLS", .text = *text});
  }
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    // "--name value" and "--name=value".
    const std::size_t equals = arguments[at].find('=');
    const bool joined = arguments[at].starts_with("--") && equals != std::string::npos;
    const std::string name = whole_name(joined ? arguments[at].substr(0, equals) : arguments[at]);
    if (const auto flag = flags().find(name); flag != flags().end()) {
      if (joined) throw InvalidArgument(concat(name, " takes no value"));
      flag->second(options);
      if (options.help) return options;
      continue;
    }
    const auto setter = setters().find(name);
    if (setter == setters().end()) {
      throw InvalidArgument(concat("doctor has no ", name.starts_with("-") ? "option" : "argument",
                                   " '", arguments[at], "'; see lockstep doctor --help"));
    }
    if (!joined && at + 1 == arguments.size()) {
      throw InvalidArgument(concat(name, " needs a value"));
    }
    const std::string value = joined ? arguments[at].substr(equals + 1) : arguments[++at];
    if (value.empty()) throw InvalidArgument(concat(name, " is empty"));
    setter->second(options, {.source = name, .text = value});
  }
  check(options);
  return options;
}

std::string doctor_option_words() {
  std::string words;
  for (const auto& [name, flag] : flags()) {
    if (name != "--agent") words += concat(words.empty() ? "" : " ", name);
  }
  for (const auto& [name, setter] : setters()) {
    if (name != "--brief-file") words += concat(" ", name, "=");
  }
  return words;
}

std::string doctor_help() {
  return R"(Usage: lockstep doctor [OPTIONS]

Says what would go wrong with a job before it does, and what to do about it: on this machine,
versions, clock, names, interfaces, limits, shared memory, disks, GPUs, NCCL and its variables;
on several nodes also whether they agree, see each other's files, and reach each other, how fast,
and with packets of every size. One line a finding: its level (ok, note, warning, error), the
check, what was found -> the cure.

Several nodes, started from here:
  --hosts=LIST             machines, as lockstep run takes them: a,b,c[1-3]
  --hostfile=FILE          a file with one a line
  --nnodes=auto            those of the job of Slurm, PBS, MPI or Kubernetes that this runs in
  --include=LIST, --exclude=LIST, --starter=NAME, --ssh-options=WORDS, --remote-lockstep=PATH,
  --export=LIST, --prologue=LINES
                           as for lockstep run

Several nodes by hand (the same command on each of them; the one that the endpoint names reports):
  --nnodes=N               how many
  --rdzv-endpoint=HOST:PORT
                           where they meet (port: 29400)

  --secret-file=FILE       what nodes share, as for lockstep run (or LOCKSTEP_SECRET_FILE); where
                           they are started from here, one is made
  --insecure               do without, on a network that you trust
  --tls                    also encrypt what nodes say to each other, on all of them or on none
  --timeout=SECONDS        how long to wait for all of them (60)
  --all-pairs              measure each pair; otherwise, with more than eight nodes, eight a node

  --shared-dir=DIR         also try whether rename, fsync, O_EXCL and flock work in DIR, and
                           whether nodes see each other's files there
  --smoke                  also run a small job through lockstep run: ranks of a Python script add
                           up numbers with NCCL where there are GPUs, else with Gloo
  --smoke-program=PROGRAM  the same with a program of your own, which must end with exit code 0
  --json                   one JSON document on standard output
  -q, --quiet              warnings and errors only
  -v, --verbose            everything
  -h, --help               this text

Exit status: 0 without errors, 1 with some, 2 for a wrong command line.
)";
}

}  // namespace lockstep
