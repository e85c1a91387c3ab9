#include "launch/option_table.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <functional>

#include <gtest/gtest.h>

#include "launch/parse_options.h"
#include "lockstep/error.h"

using lockstep::all_options;
using lockstep::Environment;
using lockstep::InvalidArgument;
using lockstep::NumaBinding;
using lockstep::Option;
using lockstep::OptionOrigin;
using lockstep::RecoveryMode;
using lockstep::RunOptions;
using lockstep::StoreMode;
using lockstep::Streams;
using Words = std::vector<std::string>;

namespace {

RunOptions parse_alone(Words arguments, Environment::Variables variables = {}) {
  return lockstep::parse_run_options(arguments, Environment(std::move(variables)));
}

// An option, a value that is not its default, and how to see that it arrived.
struct Case {
  const char* name;
  const char* value;
  std::function<bool(const RunOptions&)> arrived;
};

const std::vector<Case>& value_cases() {
  static const std::vector<Case> cases{
      {"nnodes", "1:4", [](const auto& o) { return o.given.contains("nnodes"); }},
      {"nproc-per-node", "gpu", [](const auto& o) { return o.nproc_per_node == "gpu"; }},
      {"rdzv-backend", "c10d", [](const auto& o) { return o.rdzv_backend == "c10d"; }},
      {"rdzv-endpoint", "n1:1234", [](const auto& o) { return o.rdzv_endpoint == "n1:1234"; }},
      {"rdzv-id", "job7", [](const auto& o) { return o.rdzv_id == "job7"; }},
      {"rdzv-conf", "join_timeout=7",
       [](const auto& o) { return o.rendezvous.join_timeout == std::chrono::seconds(7); }},
      {"max-restarts", "3", [](const auto& o) { return o.max_restarts == 3; }},
      {"monitor-interval", "0.5", [](const auto& o) { return o.monitor_interval.count() == 0.5; }},
      {"start-method", "fork", [](const auto& o) { return o.start_method == "fork"; }},
      {"event-log-handler", "console",
       [](const auto& o) { return o.event_log_handler == "console"; }},
      {"role", "trainer", [](const auto& o) { return o.role == "trainer"; }},
      {"log-dir", "logs", [](const auto& o) { return o.log_dir == "logs"; }},
      {"redirects", "3", [](const auto& o) { return o.redirects.of(5) == Streams::both; }},
      {"tee", "0:1,12:2", [](const auto& o) { return o.tee.of(12) == Streams::err; }},
      {"local-ranks-filter", "0,2",
       [](const auto& o) {
         return o.local_ranks_filter == std::set<int>{0, 2};
       }},
      {"duplicate-stdout-filters", "a,b",
       [](const auto& o) {
         return o.duplicate_stdout_filters == Words{"a", "b"};
       }},
      {"duplicate-stderr-filters", "a,,b",
       [](const auto& o) { return o.duplicate_stderr_filters == Words{"a,b"}; }},
      {"node-rank", "1", [](const auto& o) { return o.node_rank == 1; }},
      {"master-addr", "h0", [](const auto& o) { return o.master_addr == "h0"; }},
      {"master-port", "4000", [](const auto& o) { return o.master_port == 4000; }},
      {"local-addr", "10.0.0.9", [](const auto& o) { return o.local_addr == "10.0.0.9"; }},
      {"numa-binding", "core-complex",
       [](const auto& o) { return o.numa_binding == NumaBinding::core_complex; }},
      {"signals-to-handle", "SIGUSR1,SIGTERM",
       [](const auto& o) {
         return o.stop_signals == std::vector<int>{SIGUSR1, SIGTERM} &&
                o.signals_to_handle == "SIGUSR1,SIGTERM";
       }},
      {"shutdown-timeout", "5",
       [](const auto& o) { return o.shutdown_timeout == std::chrono::seconds(5); }},
      {"run-dir", "runs/1", [](const auto& o) { return o.run_dir == "runs/1"; }},
      {"secret-file", "s", [](const auto& o) { return o.secret_file == "s"; }},
      {"recovery", "restart", [](const auto& o) { return o.recovery == RecoveryMode::restart; }},
      {"max-replacements", "7", [](const auto& o) { return o.max_replacements == 7; }},
      {"min-world", "3", [](const auto& o) { return o.min_world == 3; }},
      {"rejoin-after", "4",
       [](const auto& o) { return o.rejoin_after == std::chrono::seconds(4); }},
      {"spares", "2", [](const auto& o) { return o.spares == 2; }},
      {"hang-timeout", "5",
       [](const auto& o) { return o.hang_timeout == std::chrono::seconds(5); }},
      {"straggler-time", "7",
       [](const auto& o) { return o.straggler_time == std::chrono::seconds(7); }},
      {"store", "local", [](const auto& o) { return o.store == StoreMode::local; }},
      {"hosts", "n1,n2:4", [](const auto& o) { return o.hosts == "n1,n2:4"; }},
      {"hostfile", "hosts.txt", [](const auto& o) { return o.hostfile == "hosts.txt"; }},
      {"include", "n1@n2:0", [](const auto& o) { return o.include == "n1@n2:0"; }},
      {"exclude", "n3", [](const auto& o) { return o.exclude == "n3"; }},
      {"starter", "srun", [](const auto& o) { return o.starter == "srun"; }},
      {"ssh-options", "x y", [](const auto& o) { return o.ssh_options == "x y"; }},
      {"export", "A,B=1", [](const auto& o) { return o.export_list == "A,B=1"; }},
      {"prologue", "module load x", [](const auto& o) { return o.prologue == "module load x"; }},
      {"remote-lockstep", "/opt/l", [](const auto& o) { return o.remote_lockstep == "/opt/l"; }},
      {"network-check", "off", [](const auto& o) { return !o.network_check; }},
      {"start-timeout", "9",
       [](const auto& o) { return o.start_timeout == std::chrono::seconds(9); }},
      {"prefix", "[${rank}]", [](const auto& o) { return o.prefix == "[${rank}]"; }},
      {"log-max-size", "2M", [](const auto& o) { return o.log_max_bytes == 2u << 20; }},
  };
  return cases;
}

// Arguments under which every option keeps its value: a job on one node would replace the id.
Words base_for(const std::string& name) {
  if (name == "rdzv-backend" || name == "rdzv-endpoint") {
    return {"--rdzv-id=x"};
  }
  if (name == "include" || name == "exclude") {
    return {"--nnodes=auto"};
  }
  return {"--rdzv-endpoint=h:1", "--nnodes=2"};
}

const Case* case_of(std::string_view name) {
  for (const Case& known : value_cases()) {
    if (known.name == name) {
      return &known;
    }
  }
  return nullptr;
}

Words joined(Words words, const Words& others, const Words& last = {}) {
  words.insert(words.end(), others.begin(), others.end());
  words.insert(words.end(), last.begin(), last.end());
  return words;
}

std::string with_underscores(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace

TEST(OptionTable, the_table_has_torchruns_thirty_options_and_its_variables) {
  int torchrun = 0;
  int variables = 0;
  for (const Option& option : all_options()) {
    const bool theirs = option.origin == OptionOrigin::torchrun && option.name != "help";
    torchrun += theirs ? 1 : 0;
    variables += theirs && !option.variable.empty() ? 1 : 0;
    if (theirs && !option.variable.empty()) {
      std::string expected = "PET_" + with_underscores(std::string(option.name));
      std::ranges::transform(expected, expected.begin(),
                             [](unsigned char c) { return toupper(c); });
      EXPECT_EQ(option.variable, expected);
    }
  }
  EXPECT_EQ(torchrun, 30);
  EXPECT_EQ(variables, 28);
}

TEST(OptionTable, every_value_option_arrives_in_every_spelling) {
  for (const Option& option : all_options()) {
    if (!option.takes_value() || option.name == "logs-specs") {
      continue;
    }
    const std::string name(option.name);
    SCOPED_TRACE(name);
    const Case* known = case_of(name);
    ASSERT_NE(known, nullptr) << "no case in this test for a new option";
    const std::string value = known->value;
    const Words base = base_for(name);
    const std::string other = with_underscores(name);
    std::vector<Words> spellings{{"--" + name, value},
                                 {"--" + name + "=" + value},
                                 {"--" + other, value},
                                 {"--" + other + "=" + value}};
    if (option.letter != 0) {
      const std::string letter{'-', option.letter};
      spellings.insert(spellings.end(),
                       {{letter, value}, {letter + value}, {letter + "=" + value}});
    }
    for (const Words& spelling : spellings) {
      SCOPED_TRACE(spelling.front());
      const RunOptions options = parse_alone(joined(base, spelling, {"train.py", "--x"}));
      EXPECT_TRUE(known->arrived(options));
      EXPECT_TRUE(options.given.contains(name));
      EXPECT_EQ(options.script, "train.py");
      EXPECT_EQ(options.script_arguments, Words{"--x"});
      EXPECT_FALSE(
          known->arrived(parse_alone({"--rdzv-backend=static", "--master-port=1", "train.py"})));
    }
  }
}

TEST(OptionTable, every_variable_stands_for_its_option_and_the_command_line_comes_first) {
  for (const Option& option : all_options()) {
    if (!option.takes_value() || option.variable.empty()) {
      continue;
    }
    const std::string name(option.name);
    SCOPED_TRACE(name);
    const Case* known = case_of(name);
    ASSERT_NE(known, nullptr);
    const std::string variable(option.variable);
    EXPECT_TRUE(
        known->arrived(parse_alone(joined(base_for(name), {"a.py"}), {{variable, known->value}})));
    const RunOptions both = parse_alone(joined(base_for(name), {"--" + name, known->value, "a.py"}),
                                        {{variable, "no value of anything!"}});
    EXPECT_TRUE(known->arrived(both)) << "the variable must not even be looked at";
  }
}

TEST(OptionTable, every_flag_arrives_by_name_and_by_variable) {
  for (const Option& option : all_options()) {
    if (option.takes_value() || option.name == "help" || option.name == "use-env") {
      continue;
    }
    const std::string name(option.name);
    SCOPED_TRACE(name);
    const auto is_set = [&](const RunOptions& options) { return options.*(option.flag); };
    EXPECT_FALSE(is_set(parse_alone({"--master-port=1", "a.py"})));
    EXPECT_TRUE(is_set(parse_alone({"--" + name, "a.py"})));
    EXPECT_TRUE(is_set(parse_alone({"--" + with_underscores(name), "a.py"})));
    if (option.letter != 0) {
      EXPECT_TRUE(is_set(parse_alone({std::string{'-', option.letter}, "a.py"})));
    }
    if (option.variable.empty()) {
      continue;
    }
    const std::string variable(option.variable);
    EXPECT_TRUE(is_set(parse_alone({"a.py"}, {{variable, "1"}})));
    EXPECT_FALSE(is_set(parse_alone({"--master-port=1", "a.py"}, {{variable, "0"}})));
    EXPECT_TRUE(is_set(parse_alone({"--" + name, "a.py"}, {{variable, "0"}})));
    for (const char* word : {"true", "yes", ""}) {
      EXPECT_THROW(parse_alone({"a.py"}, {{variable, word}}), InvalidArgument) << word;
    }
  }
}

TEST(OptionTable, every_shortest_unambiguous_form_of_torchruns_options_means_that_option) {
  for (const Option& option : all_options()) {
    if (option.origin != OptionOrigin::torchrun || option.name == "logs-specs" ||
        option.name == "help") {
      continue;
    }
    // Cut as far as no other option of torchrun begins alike.
    const auto others_begin_with = [&](std::string_view text) {
      return std::ranges::any_of(all_options(), [&](const Option& other) {
        return &other != &option && other.origin == OptionOrigin::torchrun &&
               other.name.starts_with(text);
      });
    };
    for (std::size_t length = option.name.size() - 1; length > 0; --length) {
      const std::string_view cut = option.name.substr(0, length);
      if (others_begin_with(cut)) {
        break;
      }
      SCOPED_TRACE(cut);
      Words words{"--" + std::string(cut)};
      if (option.takes_value()) {
        words.push_back(case_of(option.name)->value);
        words = joined(base_for(std::string(option.name)), words);
      }
      const RunOptions options = parse_alone(joined(words, {"a.py"}));
      EXPECT_TRUE(options.given.contains(std::string(option.name)));
    }
  }
}
