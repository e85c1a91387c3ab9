#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "board/root_folder.h"
#include "board/run_index.h"

namespace lockstep {

struct BoardAnswer {
  int status = 200;
  std::string body;  // JSON
};

using BoardQuery = std::multimap<std::string, std::string>;

/// What the page asks for (docs/board.md). Only reads. Thread-safe.
class BoardApi {
 public:
  BoardApi(const RootFolder& root, const RunIndex::Options& options = {});

  /// `path` begins with "/api/". An answer may be half a second old, and as old as it takes to make
  /// a new one.
  std::shared_ptr<const BoardAnswer> get(const std::string& path, const BoardQuery& query);

  /// What changes when a run does, as JSON; of all runs where `id` is nullptr. "" for no such run.
  std::string pulse(const std::string* id);

 private:
  struct Recent {
    std::mutex
        working;  // one computes; the others take what there was, or wait where there is none
    std::mutex holding;  // for what follows
    std::shared_ptr<const BoardAnswer> answer;
    std::string fingerprint;  // of the files that it was made of; empty: it depends on the clock
    std::chrono::steady_clock::time_point looked{};
  };

  BoardAnswer answer(const std::string& path, const BoardQuery& query);
  nlohmann::json runs();
  nlohmann::json of_run(RunView& run, std::string_view what, const BoardQuery& query);
  std::shared_ptr<Recent> recent(const std::string& key);
  std::string fingerprint_of(const std::string& path, const BoardQuery& query) const;

  const RootFolder& root_;
  RunIndex index_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Recent>> recent_;
};

}  // namespace lockstep
