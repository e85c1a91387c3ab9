#include "jobs/job_options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

#include "launch/manual_text.h"
#include "launch/option_values.h"
#include "launch/parse_options.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr unsigned kSbatch = 1, kQsub = 2, kManifest = 4, kScripts = 3, kAll = 7;

unsigned bit_of(JobKind kind) {
  return 1U << static_cast<unsigned>(kind);
}

struct JobOption {
  std::string_view name;         // without dashes
  std::string_view placeholder;  // empty: a flag
  unsigned kinds;
  std::string_view help;
  void (*set)(JobOptions&, const OptionValue&);
};

int number(const OptionValue& value, int least) {
  return parse_int_at_least(value, least);
}

// Values go into lines of a script or of a manifest.
std::string one_line(const OptionValue& value) {
  if (value.text.empty()) throw InvalidArgument(concat(value.source, " is empty"));
  const bool breaks = std::ranges::any_of(
      value.text, [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; });
  if (breaks) {
    throw InvalidArgument(concat(value.source,
                                 " has a line break or another control character: "
                                 "no scheduler reads such a value"));
  }
  return value.text;
}

template <auto Member>
void set_line(JobOptions& options, const OptionValue& value) {
  options.*Member = one_line(value);
}

template <auto Member>
void add_line(JobOptions& options, const OptionValue& value) {
  (options.*Member).push_back(one_line(value));
}

template <auto Member, int Least>
void set_number(JobOptions& options, const OptionValue& value) {
  options.*Member = number(value, Least);
}

bool is_variable_name(std::string_view name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::ranges::all_of(name, [](char c) {
           return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
         });
}

void add_variable(JobOptions& options, const OptionValue& value) {
  const std::size_t equals = value.text.find('=');
  const std::string name = value.text.substr(0, equals);
  if (equals == std::string::npos || !is_variable_name(name)) {
    throw InvalidArgument(concat(value.source, " is '", value.text, "'; write NAME=VALUE"));
  }
  options.environment.emplace_back(name, value.text.substr(equals + 1));
}

void add_volume(JobOptions& options, const OptionValue& value) {
  const std::string text = one_line(value);
  const std::size_t colon = text.find(':');
  if (colon == 0 || colon == std::string::npos || text.substr(colon + 1, 1) != "/") {
    throw InvalidArgument(concat(value.source, " is '", text,
                                 "'; write CLAIM:/PATH, with a path that begins with '/'"));
  }
  options.volumes.emplace_back(text.substr(0, colon), text.substr(colon + 1));
}

void set_dialect(JobOptions& options, const OptionValue& value) {
  if (value.text != "pbs" && value.text != "torque") {
    throw InvalidArgument(concat(value.source, " is '", value.text, "'; there are pbs and torque"));
  }
  options.dialect = value.text == "pbs" ? PbsDialect::pbs : PbsDialect::torque;
}

// The rows' order is that of the help.
constexpr auto kOptions = std::to_array<JobOption>({
    {"job-name", "NAME", kAll, "Name of the job; after the program where it is not given.",
     set_line<&JobOptions::job_name>},
    {"nodes", "N", kAll, "Number of nodes, each with one launcher; 1 where it is not given.",
     set_number<&JobOptions::nodes, 1>},
    {"time", "TIME", kScripts, "How long the job may take, as the scheduler writes it.",
     set_line<&JobOptions::time>},
    {"partition", "NAME", kSbatch, "Slurm's partition.", set_line<&JobOptions::queue>},
    {"queue", "NAME", kQsub, "The queue.", set_line<&JobOptions::queue>},
    {"account", "NAME", kScripts, "Whom the time is charged to.", set_line<&JobOptions::account>},
    {"qos", "NAME", kSbatch, "Quality of service.", set_line<&JobOptions::qos>},
    {"constraint", "LIST", kSbatch, "Features that nodes must have.",
     set_line<&JobOptions::constraint>},
    {"exclusive", "", kSbatch, "No other job on these nodes.",
     [](JobOptions& options, const OptionValue&) { options.exclusive = true; }},
    {"gpus-per-node", "N", kAll, "GPUs of each node.", set_number<&JobOptions::gpus_per_node, 0>},
    {"cpus-per-node", "N", kAll, "Processors of each node.",
     set_number<&JobOptions::cpus_per_node, 1>},
    {"mem", "SIZE", kAll, "Memory of each node, as the scheduler writes it: 64G, 64gb, 64Gi.",
     set_line<&JobOptions::memory>},
    {"output", "FILE", kScripts, "Where output goes, as the scheduler writes it.",
     set_line<&JobOptions::output>},
    {"sbatch-arg", "WORD", kSbatch,
     "Another option of sbatch, one word: --sbatch-arg=--mail-type=END. May be repeated.",
     add_line<&JobOptions::scheduler_arguments>},
    {"qsub-arg", "TEXT", kQsub,
     "Other options of qsub, as in a line of a script: --qsub-arg='-m e'. May be repeated.",
     add_line<&JobOptions::scheduler_arguments>},
    {"dialect", "NAME", kQsub, "pbs (PBS Pro, OpenPBS), which is the default, or torque.",
     set_dialect},
    {"image", "IMAGE", kManifest, "The container, which has lockstep and the program.",
     set_line<&JobOptions::image>},
    {"namespace", "NAME", kManifest, "The namespace of the job.",
     set_line<&JobOptions::name_space>},
    {"secret", "NAME", kManifest,
     "The Kubernetes Secret that has the job's secret as 'secret'; NAME-secret, after the job, "
     "where it is not given.",
     set_line<&JobOptions::secret>},
    {"port", "N", kManifest, "Where the nodes meet; 29400 where it is not given.",
     [](JobOptions& options, const OptionValue& value) {
       options.port = number(value, 1);
       if (options.port > 65535) throw InvalidArgument(concat(value.source, " is above 65535"));
     }},
    {"volume", "CLAIM:PATH", kManifest,
     "A PersistentVolumeClaim and where the program finds it. May be repeated.", add_volume},
    {"shm-size", "SIZE", kManifest,
     "The size of /dev/shm: 16Gi. Half of the memory where not given.",
     set_line<&JobOptions::shared_memory>},
    {"module", "NAME", kScripts, "A module to load first. May be repeated.",
     add_line<&JobOptions::modules>},
    {"venv", "DIR", kScripts, "A virtual environment of Python to activate.",
     set_line<&JobOptions::venv>},
    {"setup", "COMMANDS", kScripts,
     "Lines of shell that run before the job, after modules. May be repeated.",
     [](JobOptions& options, const OptionValue& value) { options.setup.push_back(value.text); }},
    {"env", "NAME=VALUE", kAll, "A variable for the job. May be repeated.", add_variable},
    {"warn", "SECONDS", kAll,
     "How long before the end all ranks are told; 60 where it is not given. In Kubernetes, the "
     "time between the request to stop and the end.",
     [](JobOptions& options, const OptionValue& value) {
       options.warning = std::chrono::seconds(number(value, 1));
       // With more the launcher takes the signal for something else.
       if (options.warning > std::chrono::hours(1)) {
         throw InvalidArgument(concat(value.source, " is ", value.text, "; it is 3600 at most"));
       }
     }},
    {"requeue", "", kAll,
     "What is the case anyway: a job that ends with 75 (saved, start me "
     "again) is started again.",
     [](JobOptions& options, const OptionValue&) { options.requeue = true; }},
    {"no-requeue", "", kAll, "A job that ends with 75 is left at that.",
     [](JobOptions& options, const OptionValue&) { options.requeue = false; }},
    {"max-requeues", "N", kAll, "How often at most; 20 where it is not given.",
     set_number<&JobOptions::max_requeues, 1>},
    {"lockstep", "PATH", kAll,
     "This program on the nodes, if not where it is here (in an image: "
     "'lockstep').",
     set_line<&JobOptions::lockstep>},
    {"script", "FILE", kAll, "Writes the job's script, or the manifest, to this file, too.",
     set_line<&JobOptions::script>},
    {"print", "", kScripts, "Prints the script and submits nothing.",
     [](JobOptions& options, const OptionValue&) { options.print = true; }},
    {"dry-run", "", kScripts, "The same.",
     [](JobOptions& options, const OptionValue&) { options.print = true; }},
    {"help", "", kAll, "Prints this.",
     [](JobOptions& options, const OptionValue&) { options.help = true; }},
});

const JobOption& find_option(JobKind kind, const std::string& word, std::string_view name) {
  for (const JobOption& option : kOptions) {
    if (option.name == name && (option.kinds & bit_of(kind)) != 0) return option;
  }
  const std::string_view more = kind == JobKind::sbatch ? "; --sbatch-arg passes any on to sbatch"
                                : kind == JobKind::qsub ? "; --qsub-arg passes any on to qsub"
                                                        : "";
  throw InvalidArgument(concat(to_string(kind), " has no option '", word, "'", more,
                               ", and options of `lockstep run` come after --"));
}

// A job's name after the file of its program: "train" for "src/train.py".
std::string name_after(const std::string& program) {
  std::string name = std::filesystem::path(program).stem().string();
  std::erase_if(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-' && c != '.';
  });
  return name.empty() ? "lockstep" : name;
}

// What can be known to be wrong now should not wait in a queue.
void check_run_words(JobOptions& options) {
  if (options.run_words.empty()) {
    throw InvalidArgument(concat(to_string(options.kind),
                                 " needs the job after --: options of `lockstep run`, the program "
                                 "and its arguments"));
  }
  const RunOptions run = parse_run_options(options.run_words, Environment({}));
  for (const char* name : {"nnodes", "node-rank", "rdzv-endpoint", "rdzv-backend", "rdzv-id",
                           "standalone", "master-addr", "secret-file", "hosts", "hostfile"}) {
    if (!run.given.contains(name)) continue;
    throw InvalidArgument(concat("--", name, " is not for a job of ", to_string(options.kind),
                                 ": the nodes are those that --nodes asks for"));
  }
  if (options.job_name.empty()) options.job_name = name_after(run.script);
}

}  // namespace

std::string_view to_string(JobKind kind) {
  switch (kind) {
    case JobKind::sbatch:
      return "sbatch";
    case JobKind::qsub:
      return "qsub";
    case JobKind::manifest:
      return "manifest";
  }
  return "";
}

JobOptions parse_job_options(JobKind kind, const std::vector<std::string>& arguments) {
  JobOptions options;
  options.kind = kind;
  std::size_t at = 0;
  for (; at < arguments.size() && arguments[at] != "--"; ++at) {
    const std::string& word = arguments[at];
    if (!word.starts_with("--")) {
      throw InvalidArgument(
          concat("'", word, "' is no option of ", to_string(kind), "; the job comes after --"));
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const JobOption& option = find_option(kind, word, name);
    OptionValue value{.source = "--" + name, .text = ""};
    if (option.placeholder.empty()) {
      if (equals != std::string::npos) throw InvalidArgument(concat("--", name, " takes no value"));
    } else if (equals != std::string::npos) {
      value.text = word.substr(equals + 1);
    } else if (at + 1 < arguments.size() && arguments[at + 1] != "--") {
      value.text = arguments[++at];
    } else {
      throw InvalidArgument(concat("--", name, " needs a value: ", option.placeholder));
    }
    option.set(options, value);
    if (options.help) return options;
  }
  if (at < arguments.size()) {
    options.run_words.assign(arguments.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                             arguments.end());
  }
  check_run_words(options);
  return options;
}

std::string job_help(JobKind kind) {
  const std::string_view what =
      kind == JobKind::sbatch ? "Writes a job script for Slurm and submits it with sbatch."
      : kind == JobKind::qsub ? "Writes a job script for PBS or Torque and submits it with qsub."
                              : "Prints a Kubernetes JobSet of pods that run `lockstep run`.";
  std::string text =
      concat("usage: lockstep ", to_string(kind),
             " [options] -- [options of lockstep run] PROGRAM [arguments]\n\n", what, "\n\n");
  for (const JobOption& option : kOptions) {
    if ((option.kinds & bit_of(kind)) == 0) continue;
    text += concat("  --", option.name, option.placeholder.empty() ? "" : " ", option.placeholder,
                   "\n", wrap(option.help, 8, 96));
  }
  return text;
}

}  // namespace lockstep
