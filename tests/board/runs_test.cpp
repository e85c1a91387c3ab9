#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "board/board_access.h"
#include "board/board_api.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;
using lockstep::testing::TemporaryFolder;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

const char* const kRecovery =
    R"({"time":100.0,"epoch":0,"slot":null,"kind":"job_start","workers":2}
{"time":100.1,"epoch":1,"slot":null,"kind":"epoch_start","world_size":2}
{"time":110.0,"epoch":1,"slot":1,"kind":"worker_failed","failure":{"signal":9}}
{"time":110.001,"epoch":2,"slot":null,"kind":"revoked","lost":"1","reason":"rank 1 was ended by SIGKILL"}
{"time":110.01,"epoch":2,"slot":1,"kind":"worker_start","pid":5}
{"time":110.5,"epoch":2,"slot":1,"kind":"recovers","step":17}
{"time":110.6,"epoch":2,"slot":0,"kind":"recovers","step":17}
{"time":110.7,"epoch":2,"slot":null,"kind":"recovered","step":17,"ms_since_loss":700.5}
)";

class Board : public ::testing::Test {
 protected:
  json get(const std::string& what, const BoardQuery& query, int status = 200) {
    const BoardAnswer answer = *api().get("/api/" + what, query);
    EXPECT_EQ(answer.status, status) << what << ": " << answer.body;
    return json::parse(answer.body);
  }
  BoardApi& api() {
    if (!api_) {
      root_.emplace(folder_.path().string());
      api_.emplace(*root_, RunIndex::Options{.scan_every = std::chrono::milliseconds(0)});
    }
    return *api_;
  }
  fs::path path() const { return folder_.path(); }

  const TemporaryFolder folder_;
  std::optional<RootFolder> root_;
  std::optional<BoardApi> api_;
};

}  // namespace

TEST(RootFolder, only_plain_relative_paths_are_opened) {
  for (const char* path : {"a", "a/b.c", "..a", "a/...", "<script>"}) {
    EXPECT_TRUE(is_plain_path(path)) << path;
  }
  for (const std::string path :
       {"", "/", "/etc/passwd", "..", "../a", "a/..", "a/../b", "a//b", "a/", "./a", "."}) {
    EXPECT_FALSE(is_plain_path(path)) << path;
  }
  EXPECT_FALSE(is_plain_path(std::string("a\0b", 3)));
  EXPECT_FALSE(is_plain_path(std::string(5000, 'a')));
}

TEST(RootFolder, links_lead_nowhere) {
  const TemporaryFolder outside, folder;
  put(fs::path(outside.path()) / "secret", "42");
  put(fs::path(folder.path()) / "own", "1");
  fs::create_symlink(fs::path(outside.path()) / "secret", fs::path(folder.path()) / "file");
  fs::create_directory_symlink(outside.path(), fs::path(folder.path()) / "folder");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  const RootFolder root(folder.path().string());
  EXPECT_TRUE(root.open_file("own"));
  EXPECT_EQ(root.read("own", 10), "1");
  for (const char* path : {"file", "folder/secret", "fifo", "folder", "missing"}) {
    EXPECT_FALSE(root.open_file(path)) << path;
  }
  EXPECT_TRUE(root.list("folder").empty());
  EXPECT_EQ(root.list("").size(), 4u);
  EXPECT_THROW(RootFolder(folder / "missing"), InvalidArgument);
}

TEST_F(Board, runs_are_found_at_any_depth_and_links_are_not_followed) {
  const TemporaryFolder outside;
  put(fs::path(outside.path()) / "run" / "job.json", "{}");
  put(path() / "a" / "job.json", "{}");
  put(path() / "group" / "<script>alert(1)" / "metrics" / "rank_0.jsonl", "");
  put(path() / "group" / "empty" / "file", "");
  fs::create_directory_symlink(outside.path(), path() / "link");
  const json runs = get("runs", {})["runs"];
  ASSERT_EQ(runs.size(), 2u) << runs;
  EXPECT_EQ(api().get("/api/run", {{"run", "link/run"}})->status, 404);
  EXPECT_EQ(api().get("/api/run", {{"run", "../run"}})->status, 404);
  EXPECT_EQ(api().get("/api/run", {})->status, 404);
  EXPECT_EQ(get("run", {{"run", "group/<script>alert(1)"}})["name"], "group/<script>alert(1)");
}

TEST_F(Board, a_recovery_is_told_with_its_stages) {
  put(path() / "r" / "events.jsonl", kRecovery);
  const json told = get("events", {{"run", "r"}});
  EXPECT_EQ(told["events"].size(), 8u);
  ASSERT_EQ(told["recoveries"].size(), 1u);
  const json& story = told["recoveries"][0];
  EXPECT_EQ(story["time"], 110.0);
  EXPECT_EQ(story["lost"], "1");
  EXPECT_EQ(story["done"], true);
  EXPECT_EQ(story["step"], 17);
  EXPECT_EQ(story["ms"], 700.5);
  ASSERT_EQ(story["stages"].size(), 4u);
  EXPECT_EQ(story["stages"][2]["name"], "state received");
  EXPECT_NEAR(story["stages"][2]["at_ms"].get<double>(), 600, 1);  // the last rank counts
}

TEST_F(Board, a_run_has_a_state) {
  put(path() / "failed" / "events.jsonl",
      std::string(kRecovery) + R"({"time":120,"kind":"job_end","exit_code":3,"reason":"rank 0"})"
                               "\n");
  put(path() / "lost" / "events.jsonl", kRecovery);
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  put(path() / "lost" / "job.json", json{{"host", host}, {"pid", 1}, {"start_time", 7}}.dump());
  put(path() / "done" / "records" / "rank_0.jsonl",
      "{\"kind\":\"start\",\"time\":1,\"step\":0,\"config\":{\"max_steps\":40}}\n"
      "{\"kind\":\"end\",\"time\":2,\"succeeded\":true}\n");
  put(path() / "speaks" / "metrics" / "rank_0.jsonl", "{\"step\":4,\"time\":1,\"loss\":2}\n");
  std::map<std::string, json> states;
  const json all = get("runs", {});
  for (const json& run : all["runs"]) states[run["id"]] = run;
  EXPECT_EQ(states["failed"]["state"], "failed");
  EXPECT_EQ(states["failed"]["failures"], 1);
  EXPECT_EQ(states["lost"]["state"], "lost");
  EXPECT_EQ(states["done"]["state"], "finished");
  EXPECT_EQ(states["done"]["total_steps"], 40);
  EXPECT_EQ(states["speaks"]["state"], "running");
  EXPECT_EQ(states["speaks"]["latest"]["loss"], 2);
}

TEST_F(Board, what_the_head_of_a_job_says_is_part_of_the_run) {
  const auto write_head = [&](const std::string& run, double end) {
    put(path() / run / "head.jsonl",
        R"({"time":99,"kind":"job_start","nodes":2})"
        "\n"
        R"({"time":111,"kind":"node_lost","node":"b","reason":"it went silent"})"
        "\n" +
            json{{"time", end}, {"kind", "job_end"}, {"exit_code", 0}}.dump() + "\n");
  };
  // The launcher of this folder was lost; the job has ended well without it.
  put(path() / "left" / "events.jsonl", kRecovery);
  write_head("left", 200);
  // Of a job before the present one.
  put(path() / "old" / "events.jsonl", kRecovery);
  write_head("old", 99.5);
  write_head("alone", 200);
  const json told = get("events", {{"run", "left"}})["events"];
  ASSERT_EQ(told.size(), 10u) << told;  // one of the two beginnings
  EXPECT_EQ(std::ranges::count(told, "node_lost", [](const json& each) { return each["kind"]; }),
            1);
  EXPECT_EQ(told.back()["kind"], "job_end");
  EXPECT_EQ(get("run", {{"run", "left"}})["state"], "finished");
  EXPECT_NE(get("run", {{"run", "old"}})["state"], "finished");
  EXPECT_EQ(get("run", {{"run", "alone"}})["state"], "finished");
  EXPECT_EQ(get("events", {{"run", "alone"}})["events"].size(), 3u);
}

TEST_F(Board, hostile_records_are_skipped_or_text) {
  std::string deep(100'000, '[');
  put(path() / "r" / "events.jsonl",
      deep + "\n{\"kind\":5,\"time\":\"x\"}\nnot json\n" + kRecovery);
  put(path() / "r" / "job.json", "[1");
  put(path() / "r" / "records" / "rank_0.jsonl",
      "{\"kind\":\"start\",\"step\":1e300,\"config\":7}\n{\"kind\":\"text\",\"text\":7}\n"
      "{\"kind\":\"system\",\"time\":1,\"cpu\":\"<b>\"}\n\xff\xfe\n");
  put(path() / "r" / "metrics" / "rank_0.jsonl",
      "{\"step\":1,\"time\":2,\"\xff<i>\":1}\n{\"step\"");
  put(path() / "r" / "metrics" / "rank_x.jsonl", "");
  for (const char* what : {"run", "events", "config", "texts", "system", "snapshots", "logs"}) {
    get(what, {{"run", "r"}});
  }
  EXPECT_EQ(get("events", {{"run", "r"}})["recoveries"].size(), 1u);
  get("series", {{"run", "r"}, {"rank", "5"}}, 404);
  get("series", {{"run", "r"}, {"rank", "x"}}, 400);
  get("series", {{"run", "r"}, {"from", "nan"}}, 400);
  get("nothing", {{"run", "r"}}, 404);
}

TEST_F(Board, logs_are_read_in_parts_and_searched) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += concat("line ", i, i == 4321 ? " ERROR <x>" : "", "\n");
  put(path() / "r" / "job.json", "{}");
  put(path() / "secret", "42");
  put(path() / "r" / "logs" / "attempt_1" / "0" / "stderr.log", text);
  const json logs = get("logs", {{"run", "r"}})["logs"];
  ASSERT_EQ(logs.size(), 1u);
  EXPECT_EQ(logs[0]["rank"], 0);
  const std::string file = logs[0]["file"];
  const json end = get("log", {{"run", "r"}, {"file", file}, {"bytes", "100"}});
  EXPECT_TRUE(end["text"].get<std::string>().starts_with("line 49"));
  EXPECT_EQ(end["next"], end["size"]);
  const json begin = get("log", {{"run", "r"}, {"file", file}, {"offset", "0"}, {"bytes", "7"}});
  EXPECT_EQ(begin["text"], "line 0\n");
  const json found = get("log", {{"run", "r"}, {"file", file}, {"find", "error <"}});
  ASSERT_EQ(found["matches"].size(), 1u);
  EXPECT_EQ(found["matches"][0]["text"], "line 4321 ERROR <x>");
  const std::size_t offset = found["matches"][0]["offset"];
  EXPECT_EQ(text.substr(offset, 9), "line 4321");
  for (const char* bad : {"../../../secret", "/etc/passwd", "", "attempt_1/0"}) {
    get("log", {{"run", "r"}, {"file", bad}}, 404);
  }
}

TEST_F(Board, a_snapshot_that_lacks_something_is_marked) {
  const std::string manifest = R"({"step":7,"files":{"model.safetensors":{"bytes":3}}})";
  put(path() / "r" / "job.json", "{}");
  for (const char* name : {"step_7", "step_8", "step_9"}) {
    put(path() / "r" / "snapshots" / name / "manifest.json", manifest);
  }
  put(path() / "r" / "snapshots" / "step_7" / "model.safetensors", "abc");
  put(path() / "r" / "snapshots" / "step_8" / "model.safetensors", "ab");
  fs::create_directory_symlink("step_7", path() / "r" / "snapshots" / "latest");
  std::map<std::string, json> by_name;
  const json all = get("snapshots", {{"run", "r"}});
  for (const json& each : all["snapshots"]) by_name[each["name"]] = each;
  ASSERT_EQ(by_name.size(), 3u);
  EXPECT_EQ(by_name["step_7"]["damage"], "");
  EXPECT_EQ(by_name["step_7"]["latest"], true);
  EXPECT_NE(by_name["step_8"]["damage"], "");
  EXPECT_NE(by_name["step_9"]["damage"], "");
}

TEST_F(Board, many_ask_at_once_while_a_run_grows) {
  put(path() / "r" / "events.jsonl", kRecovery);
  put(path() / "r" / "metrics" / "rank_0.jsonl", "{\"step\":1,\"time\":1,\"loss\":1}\n");
  api();
  std::atomic<bool> done = false;
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      const std::string id = "r";
      while (!done) {
        for (const char* what : {"runs", "run", "events", "series", "ranks", "texts"}) {
          // Another number of points is another answer: not all come from memory.
          const BoardQuery query{
              {"run", id}, {"name", "loss"}, {"points", std::to_string(10 + number)}};
          if (api().get(std::string("/api/") + what, query)->status != 200) ++refused;
        }
        if (api().pulse(&id).empty() || api().pulse(nullptr).empty()) ++refused;
      }
    });
  }
  for (int step = 2; step <= 200; ++step) {
    put(path() / "r" / "metrics" / "rank_0.jsonl",
        concat("{\"step\":", step, ",\"time\":1,\"loss\":1}\n"));
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(get("run", {{"run", "r"}, {"fresh", "1"}})["step"], 200);
}

TEST_F(Board, runs_that_nobody_looks_at_are_forgotten) {
  const RootFolder root(folder_.path().string());
  for (const char* id : {"a", "b", "c"}) {
    put(path() / id / "metrics" / "rank_0.jsonl", "{\"step\":1,\"time\":1,\"loss\":1}\n");
  }
  RunIndex index(root, {.most_bytes = 1});
  for (const char* id : {"a", "b", "c", "a"}) {
    const auto run = index.find(id);
    ASSERT_TRUE(run);
    EXPECT_EQ(run->overview()["step"], 1);
  }
  EXPECT_LT(index.bytes(), 10'000u);
}

TEST(BoardOptions, other_hosts_need_a_token_file) {
  EXPECT_EQ(parse_board_options({"runs"}).host, "127.0.0.1");
  EXPECT_EQ(parse_board_options({"--port=0", "runs"}).port, 0);
  EXPECT_TRUE(parse_board_options({"--help"}).help);
  EXPECT_EQ(parse_board_options({"--host", "0.0.0.0", "--token-file", "t", "r"}).token_file, "t");
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{},
                                             {"a", "b"},
                                             {"a", "--port"},
                                             {"a", "--port", "70000"},
                                             {"a", "--host", "0.0.0.0"},
                                             {"a", "--host", "127.evil.example"},
                                             {"a", "--frob"}}) {
    EXPECT_THROW(parse_board_options(bad), InvalidArgument);
  }
}

TEST(BoardOptions, a_token_is_long_and_its_owners_alone) {
  const TemporaryFolder folder;
  BoardOptions options{.token_file = folder / "token"};
  EXPECT_EQ(board_token({}).size(), 32u);
  EXPECT_NE(board_token({}), board_token({}));
  EXPECT_THROW(board_token(options), InvalidArgument);
  put(options.token_file, "0123456789abcdef\n");
  ::chmod(options.token_file.c_str(), 0644);
  EXPECT_THROW(board_token(options), InvalidArgument);
  ::chmod(options.token_file.c_str(), 0600);
  EXPECT_EQ(board_token(options), "0123456789abcdef");
  fs::resize_file(options.token_file, 5);
  EXPECT_THROW(board_token(options), InvalidArgument);
}

TEST(BoardOptions, a_cookie_is_found_among_others) {
  EXPECT_EQ(cookie_value("a=1; board=xyz; c=2", "board"), "xyz");
  EXPECT_EQ(cookie_value("boarder=1", "board"), "");
  EXPECT_EQ(cookie_value("", "board"), "");
  EXPECT_EQ(cookie_value(";;=;board", "board"), "");
}
