#include "launch/parse_options.h"

#include <csignal>
#include <regex>

#include <gtest/gtest.h>

#include "launch/option_values.h"
#include "lockstep/error.h"

using lockstep::Environment;
using lockstep::InvalidArgument;
using lockstep::RunOptions;
using lockstep::StreamMap;
using lockstep::Streams;
using Words = std::vector<std::string>;

namespace {

RunOptions parse(Words arguments, Environment::Variables variables = {}) {
  return lockstep::parse_run_options(arguments, Environment(std::move(variables)));
}

RunOptions parse_launch(Words arguments) {
  return lockstep::parse_launch_options(arguments, Environment({}));
}

// The message with which the arguments are refused; fails the test if they are not.
std::string refusal(Words arguments, Environment::Variables variables = {}) {
  try {
    parse(std::move(arguments), std::move(variables));
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

#define EXPECT_REFUSED(text, ...)                                               \
  do {                                                                          \
    const std::string message = refusal(__VA_ARGS__);                           \
    EXPECT_NE(message.find(text), std::string::npos) << "message: " << message; \
  } while (false)

Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace

TEST(ParseOptions, our_options_can_be_cut_short_where_torchrun_has_nothing_alike) {
  EXPECT_TRUE(parse({"--qui", "a.py"}).quiet);
  EXPECT_EQ(parse({"--log-", "d", "a.py"}).log_dir, "d");  // and not --log-max-size
  EXPECT_TRUE(parse({"--run-", "a.py"}).run_path);         // and not --run-dir
}

TEST(ParseOptions, an_ambiguous_form_is_refused_with_what_it_could_be) {
  EXPECT_REFUSED(
      "--rdzv is ambiguous: it could be --rdzv-backend, --rdzv-endpoint, --rdzv-id, "
      "--rdzv-conf",
      {"--rdzv", "x", "a.py"});
}

TEST(ParseOptions, an_unknown_option_is_refused_with_the_nearest) {
  EXPECT_REFUSED("there is no option --nnode-rank; did you mean --node-rank?",
                 {"--nnode-rank", "1", "a.py"});
  EXPECT_REFUSED("there is no option --colour; see lockstep run --help", {"--colour=no", "a.py"});
  EXPECT_REFUSED("did you mean --nnodes?", {"-nnodes=2", "a.py"});
  EXPECT_REFUSED("--use-env is for lockstep launch", {"--use-env", "a.py"});
}

TEST(ParseOptions, a_value_must_be_there_and_a_flag_takes_none) {
  EXPECT_REFUSED("--nnodes needs a value: --nnodes=N|MIN:MAX", {"--nnodes"});
  EXPECT_REFUSED("--nnodes needs a value", {"--nnodes", "--standalone", "a.py"});
  EXPECT_REFUSED("--rdzv-conf needs a value", {"--rdzv-conf", "-x", "a.py"});
  EXPECT_REFUSED("-r needs a value: -r STREAMS", {"-r", "--", "a.py"});
  EXPECT_REFUSED("--standalone takes no value, but was given 'yes'", {"--standalone=yes", "a.py"});
  EXPECT_REFUSED("-m takes no value", {"-mfoo", "a.py"});
}

TEST(ParseOptions, letters_can_be_joined_as_argparse_allows) {
  const RunOptions options = parse({"-mr3", "-t", "1", "pkg.train"});
  EXPECT_TRUE(options.module);
  EXPECT_EQ(options.redirects, StreamMap{.all = Streams::both});
  EXPECT_EQ(options.tee, StreamMap{.all = Streams::out});
  EXPECT_EQ(options.script, "pkg.train");
}

TEST(ParseOptions, everything_after_the_script_is_the_scripts) {
  const RunOptions options =
      parse({"--nproc-per-node", "2", "a.py", "--nnodes=9", "-h", "--rdzv", "-t", "x", "--", "y"});
  EXPECT_EQ(options.nproc_per_node, "2");
  EXPECT_EQ(options.max_nodes, 1);
  EXPECT_EQ(options.script_arguments, (Words{"--nnodes=9", "-h", "--rdzv", "-t", "x", "--", "y"}));
}

TEST(ParseOptions, two_dashes_are_dropped_where_argparse_drops_them) {
  EXPECT_EQ(parse({"--", "a.py", "x"}).script, "a.py");
  EXPECT_EQ(parse({"--", "--odd", "x"}).script, "--odd");
  EXPECT_EQ(parse({"a.py", "--", "--x"}).script_arguments, Words{"--x"});
  EXPECT_EQ(parse({"a.py", "--", "--", "x"}).script_arguments, (Words{"--", "x"}));
  EXPECT_EQ(parse({"--", "a.py", "--", "x"}).script_arguments, (Words{"--", "x"}));
  EXPECT_EQ(parse({"a.py", "x", "--", "y"}).script_arguments, (Words{"x", "--", "y"}));
}

TEST(ParseOptions, a_variable_for_a_flag_must_be_a_number) {
  EXPECT_REFUSED("PET_STANDALONE is 'true'; it must be an integer: 0 for off, 1 for on", {"a.py"},
                 {{"PET_STANDALONE", "true"}});
}

TEST(ParseOptions, help_ends_the_parsing) {
  EXPECT_TRUE(parse({"-h"}).help);
  EXPECT_TRUE(parse({"--nnodes=2", "--help", "--bogus"}).help);
  EXPECT_TRUE(parse({"-mh"}).help);
  EXPECT_TRUE(parse({"--help"}, {{"PET_NNODES", "many"}}).help);
  EXPECT_REFUSED("no program was given", {});
}

TEST(ParseOptions, the_last_of_two_values_counts) {
  EXPECT_EQ(parse({"--role=a", "--role=b", "a.py"}).role, "b");
}

TEST(ParseOptions, numbers_are_read_as_python_reads_them) {
  EXPECT_EQ(parse({"--max-restarts", " +1_0 ", "a.py"}).max_restarts, 10);
  EXPECT_EQ(parse({"--nproc-per-node=04", "a.py"}).nproc_per_node, "4");
  EXPECT_REFUSED("--max-restarts is '1__0'", {"--max-restarts=1__0", "a.py"});
  EXPECT_REFUSED("--max-restarts is '-1'; it must be an integer of at least 0",
                 {"--max-restarts", "-1", "a.py"});
  EXPECT_REFUSED("PET_MAX_RESTARTS is 'x'", {"a.py"}, {{"PET_MAX_RESTARTS", "x"}});
}

TEST(ParseOptions, wrong_values_are_refused_with_option_value_and_rule) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--nnodes=0"}, "--nnodes is '0'; it must be N or MIN:MAX, with 0 < MIN <= MAX"},
      {{"--nnodes=3:2"}, "--nnodes is '3:2'"},
      {{"--nnodes=1:2:3"}, "--nnodes is '1:2:3'"},
      {{"--nnodes="}, "--nnodes is ''"},
      {{"--nproc-per-node=0"}, "it must be a number of at least 1, or cpu, gpu or auto"},
      {{"--nproc-per-node=xpu"}, "counting xpu devices is not supported; give their number"},
      {{"--nproc-per-node=tpu"}, "--nproc-per-node is 'tpu'"},
      {{"--rdzv-backend=etcd", "--rdzv-endpoint=a,b:x"}, "its port"},
      {{"--rdzv-backend=etcd", "--rdzv-conf=protocol=ftp"}, "it must be http or https"},
      {{"--rdzv-backend=etcd", "--rdzv-conf=password=x"}, "give password_file=FILE"},
      {{"--rdzv-backend=etcd", "--rdzv-conf=etcd_prefix=x"}, "it must begin with a slash"},
      {{"--rdzv-backend=etcd-v2", "--rdzv-conf=is_host=1"}, "no node is the host from the start"},
      {{"--rdzv-backend=mine"}, "backends from Python plugins are not supported"},
      {{"--rdzv-endpoint=h:x"}, "--rdzv-endpoint is 'h:x'; its port"},
      {{"--rdzv-endpoint=h:70000"}, "its port '70000'"},
      {{"--rdzv-endpoint=a b:1"}, "is neither a host's name nor an address"},
      {{"--rdzv-endpoint=:1"}, "the host before the port is missing"},
      {{"--master-addr=", "--master-port=1"}, "--master-addr is ''"},
      {{"--rdzv-id=a/b"}, "must not contain '/'"},
      {{"--rdzv-conf=a"}, "it must be KEY=VALUE,KEY=VALUE"},
      {{"--rdzv-conf=,"}, "it must be KEY=VALUE,KEY=VALUE"},
      {{"--rdzv-conf=speed=3"}, "has the key 'speed', which the backend"},
      {{"--rdzv-conf=protocol=https"}, "which belongs to etcd"},
      {{"--rdzv-conf=join_timeout=soon"}, "--rdzv-conf join_timeout is 'soon'"},
      {{"--rdzv-conf=join_timeout=0"}, "it must be a number of seconds above 0"},
      {{"--rdzv-conf=timeout=1,join_timeout=2"}, "which mean the same; give one"},
      {{"--rdzv-conf=is_host=maybe"}, "it must be one of 1, true, yes, 0, false, no"},
      {{"--rdzv-conf=store_type=file"}, "only tcp is supported"},
      {{"--rdzv-conf=rank=1"}, "give the rank of this node with --node-rank"},
      {{"--rdzv-conf=keep_alive_max_attempt=0"}, "it must be an integer of at least 1"},
      {{"--monitor-interval=0"}, "it must be a number of seconds above 0"},
      {{"--monitor-interval=nan"}, "it must be a number of seconds above 0"},
      {{"--start-method=thread"}, "it must be spawn, fork or forkserver"},
      {{"--event-log-handler=mine"}, "handlers from Python are not supported"},
      {{"--redirects=4"}, "--redirects is '4'; it must be 0 (none)"},
      {{"-r0:4"}, "--redirects is '0:4'"},
      {{"--tee=0:1,"}, "--tee is '0:1,'"},
      {{"--tee=-1:1"}, "--tee is '-1:1'"},
      {{"--tee="}, "--tee is ''"},
      {{"--local-ranks-filter=0,,1"}, "a list of local ranks with commas between"},
      {{"--local-ranks-filter=a"}, "a list of local ranks with commas between"},
      {{"--node-rank=-1"}, "it must be an integer of at least 0"},
      {{"--node-rank=2", "--nnodes=2"}, "--node-rank is 2; it must be less than --nnodes"},
      {{"--master-port=65536"}, "an integer from 0 to 65535"},
      {{"--local-addr= "}, "it must be an address of this node"},
      {{"--logs-specs=mine"}, "plugins for logs are Python classes and not supported"},
      {{"--numa-binding=near"}, "it must be node, socket, exclusive or core-complex"},
      {{"--signals-to-handle=SIGTERM,SIGFOO"}, "'SIGFOO' is no signal"},
      {{"--signals-to-handle=SIGKILL"}, "no program can handle SIGKILL"},
      {{"--shutdown-timeout=-3"}, "it must be an integer of at least 0"},
      {{"--store=both"}, "it must be shared or local"},
      {{"--log-max-size=0"}, "it must be a number of bytes above 0"},
      {{"--log-max-size=9999999T"}, "it must be a number of bytes above 0"},
      {{"--log-max-size=M"}, "it must be a number of bytes above 0"},
      {{"--log-dir="}, "it must be a path"},
      {{"--module", "--no-python"}, "--module and --no-python contradict each other"},
      {{"--module", "--run-path"}, "--module and --run-path contradict each other"},
      {{"--secret-file=s", "--insecure"}, "--secret-file and --insecure contradict each other"},
      {{"--tls", "--insecure"}, "--tls and --insecure contradict each other"},
      {{"--standalone", "--nnodes=2"}, "--standalone is for one node"},
  };
  for (const auto& [words, expected] : cases) {
    SCOPED_TRACE(words.front());
    EXPECT_REFUSED(expected, words + Words{"a.py"});
  }
}

TEST(ParseOptions, one_node_that_was_told_nowhere_to_meet_meets_nobody) {
  const RunOptions options = parse({"--nproc-per-node=2", "a.py"});
  EXPECT_EQ(options.rdzv_backend, "c10d");
  EXPECT_EQ(options.rdzv_endpoint, "localhost:0");
  EXPECT_TRUE(options.standalone);
  const std::regex uuid("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  EXPECT_TRUE(std::regex_match(options.rdzv_id, uuid)) << options.rdzv_id;
  EXPECT_NE(parse({"a.py"}).rdzv_id, options.rdzv_id);
  EXPECT_TRUE(options.notices.empty());
}

TEST(ParseOptions, a_master_port_makes_it_static_as_in_torchrun) {
  const RunOptions options = parse({"--master-port=29500", "a.py"});
  EXPECT_EQ(options.rdzv_backend, "static");
  EXPECT_EQ(options.rdzv_id, "none");
  EXPECT_EQ(options.node_rank, 0);
}

TEST(ParseOptions, static_nodes_meet_at_the_master_and_all_of_them_are_needed) {
  const RunOptions options =
      parse({"--nnodes=2:3", "--node-rank=1", "--master-addr=[fe80::1]", "a.py"});
  EXPECT_EQ(options.min_nodes, 3);
  EXPECT_EQ(options.rendezvous.join_timeout, std::chrono::seconds(900));
  ASSERT_EQ(options.notices.size(), 1u);
  EXPECT_NE(options.notices[0].find("waits for all of --nnodes"), std::string::npos);
}

TEST(ParseOptions, standalone_overrides_where_to_meet_and_says_so) {
  const RunOptions options = parse({"--standalone", "--nnodes=1:4", "--rdzv-id=mine",
                                    "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "a.py"});
  EXPECT_NE(options.rdzv_id, "mine");
  EXPECT_EQ(options.max_nodes, 1);
  EXPECT_EQ(options.notices.size(), 3u);
}

TEST(ParseOptions, c10d_takes_no_master) {
  const RunOptions options =
      parse({"--rdzv-backend=c10d", "--rdzv-endpoint=h0", "--nnodes=2", "--master-port=7", "a.py"});
  ASSERT_EQ(options.notices.size(), 1u);
  EXPECT_NE(options.notices[0].find("--master-port has no effect"), std::string::npos);
}

TEST(ParseOptions, several_nodes_that_meet_on_loopback_are_told_what_that_means) {
  const RunOptions options = parse({"--rdzv-backend=c10d", "--nnodes=2", "a.py"});
  ASSERT_EQ(options.notices.size(), 1u);
  EXPECT_NE(options.notices[0].find("give --rdzv-endpoint"), std::string::npos);
}

TEST(ParseOptions, the_conf_changes_times) {
  const auto conf = parse({"--rdzv-conf",
                           "timeout=1.5, last_call_timeout=2,close_timeout=3,"
                           "heartbeat_timeout=4,keep_alive_interval=5,keep_alive_max_attempt=6,"
                           "read_timeout=7,is_host=Yes,store_type=tcp",
                           "a.py"})
                        .rendezvous;
  using std::chrono::milliseconds;
  EXPECT_EQ(conf.join_timeout, milliseconds(1500));
  EXPECT_EQ(conf.last_call_timeout, milliseconds(2000));
  EXPECT_EQ(conf.close_timeout, milliseconds(3000));
  EXPECT_EQ(conf.heartbeat_timeout, milliseconds(4000));
  EXPECT_EQ(conf.keep_alive_interval, milliseconds(5000));
  EXPECT_EQ(conf.keep_alive_max_attempt, 6);
  EXPECT_EQ(conf.read_timeout, milliseconds(7000));
}

TEST(ParseOptions, the_shutdown_time_comes_from_the_option_the_variable_or_is_thirty_seconds) {
  using std::chrono::seconds;
  const char* const variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  EXPECT_EQ(parse({"a.py"}).shutdown_timeout, seconds(30));
  EXPECT_EQ(parse({"a.py"}, {{variable, "4"}}).shutdown_timeout, seconds(4));
  EXPECT_EQ(parse({"--shutdown-timeout=2", "a.py"}, {{variable, "4"}}).shutdown_timeout,
            seconds(2));
  EXPECT_REFUSED("TORCH_ELASTIC_SHUTDOWN_TIMEOUT is 'x'", {"a.py"}, {{variable, "x"}});
}

TEST(ParseOptions, torchruns_four_signals_stop_the_job_unless_others_are_named) {
  EXPECT_EQ(parse({"a.py"}).stop_signals, (std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT}));
  EXPECT_EQ(parse({"--signals-to-handle= SIGTERM ,SIGTERM", "a.py"}).stop_signals,
            std::vector<int>{SIGTERM});
  EXPECT_TRUE(parse({"--signals-to-handle=", "a.py"}).stop_signals.empty());
}

TEST(ParseOptions, filters_are_split_at_single_commas) {
  EXPECT_EQ(lockstep::split_filters("a,b"), (Words{"a", "b"}));
  EXPECT_EQ(lockstep::split_filters("a,,b"), Words{"a,b"});
  EXPECT_EQ(lockstep::split_filters("a,,,b"), (Words{"a,", "b"}));
  EXPECT_EQ(lockstep::split_filters(""), Words{""});
}

TEST(ParseOptions, stream_maps_take_local_ranks_of_several_digits) {
  const StreamMap map = parse({"-t", "0:3,10:1", "a.py"}).tee;
  EXPECT_EQ(map.of(0), Streams::both);
  EXPECT_EQ(map.of(1), Streams::none);
  EXPECT_EQ(map.of(10), Streams::out);
}

TEST(ParseOptions, torchruns_prefix_template_is_kept_for_tee) {
  EXPECT_EQ(parse({"a.py"}, {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${rank}]:"}}).tee_prefix,
            "[${rank}]:");
}

TEST(ParseOptions, launch_adds_the_local_rank_unless_the_environment_is_used) {
  EXPECT_FALSE(parse_launch({"a.py"}).use_env);
  EXPECT_TRUE(parse_launch({"--use_env", "a.py"}).use_env);
  EXPECT_TRUE(parse({"a.py"}).use_env);
  EXPECT_THROW(parse_launch({"--no-python", "./x"}), InvalidArgument);
  EXPECT_TRUE(parse_launch({"--no-python", "--use-env", "./x"}).no_python);
}

TEST(ParseOptions, machines_are_named_once_and_in_one_way) {
  EXPECT_TRUE(parse({"--nnodes=auto", "a.py"}).seeks_nodes());
  EXPECT_TRUE(parse({"--hosts=a,b", "a.py"}).seeks_nodes());
  EXPECT_FALSE(parse({"--nnodes=2", "--master-addr=h", "a.py"}).seeks_nodes());
  EXPECT_REFUSED("--hosts and --hostfile contradict", {"--hosts=a", "--hostfile=f", "a.py"});
  EXPECT_REFUSED("--include and --exclude contradict",
                 {"--nnodes=auto", "--include=a", "--exclude=b", "a.py"});
  EXPECT_REFUSED("--include chooses among machines", {"--include=a", "a.py"});
  EXPECT_REFUSED("--standalone is for this machine alone", {"--hosts=a", "--standalone", "a.py"});
  EXPECT_REFUSED("it must be ssh, srun, pbsdsh or local", {"--starter=rsh", "a.py"});
  EXPECT_REFUSED("it must name a machine", {"--hosts= ", "a.py"});
}

TEST(ParseOptions, a_node_that_was_found_out_has_its_place) {
  RunOptions options = parse({"--nnodes=auto", "--rdzv-conf=join_timeout=7", "a.py"});
  lockstep::place_node(options, {.min_nodes = 2,
                                 .max_nodes = 3,
                                 .node_rank = 1,
                                 .endpoint = {.host = "n1", .port = 4711},
                                 .workers = "4"});
  EXPECT_EQ(options.min_nodes, 2);
  EXPECT_EQ(options.max_nodes, 3);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.rdzv_backend, "c10d");
  EXPECT_EQ(options.rdzv_endpoint, "n1:4711");
  EXPECT_EQ(options.rdzv_conf.at("is_host"), "0");
  EXPECT_EQ(options.rendezvous.join_timeout, std::chrono::seconds(7));
  EXPECT_EQ(options.nproc_per_node, "4");

  RunOptions etcd =
      parse({"--nnodes=auto", "--rdzv-backend=etcd", "--rdzv-endpoint=e1:2379,e2:2379", "a.py"});
  lockstep::place_node(etcd, {.min_nodes = 2, .max_nodes = 2, .node_rank = 1});
  EXPECT_EQ(etcd.rdzv_backend, "etcd");
  EXPECT_EQ(etcd.rdzv_endpoint, "e1:2379,e2:2379");
  EXPECT_EQ(etcd.node_rank, 1);
  EXPECT_FALSE(etcd.rdzv_conf.contains("is_host"));

  RunOptions alone = parse({"--nnodes=auto", "a.py"});
  lockstep::place_node(alone, {.endpoint = {.host = "n1", .port = 1}, .hosts = true});
  EXPECT_TRUE(alone.standalone);
  EXPECT_TRUE(alone.one_node());
}
