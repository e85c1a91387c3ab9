#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "board/root_folder.h"
#include "board/run_view.h"

namespace lockstep {

/// The runs below a directory. A directory is a run when it has job.json, events.jsonl, or a folder
/// metrics or records with a rank in it. Thread-safe.
class RunIndex {
 public:
  struct Options {
    int deepest = 5;
    std::size_t most_runs = 5000;
    std::size_t most_bytes = std::size_t{256} << 20;  // of what is kept of runs
    std::chrono::milliseconds scan_every{1000};
  };

  RunIndex(const RootFolder& root, const Options& options) : root_(root), options_(options) {}

  /// Paths below the root, in order. The folders are looked at again when the last look is old.
  std::vector<std::string> ids();

  /// nullptr where there is no such run. Runs that nobody has asked about for longest are forgotten
  /// when all together take too much memory, and read again when they are asked about.
  std::shared_ptr<RunView> find(const std::string& id);

  std::size_t bytes();

 private:
  struct Kept {
    std::shared_ptr<RunView> run;
    std::list<std::string>::iterator place;
  };

  bool is_run(const std::string& id) const;
  void scan(const std::string& folder, int depth, std::vector<std::string>& found) const;
  void forget_some();

  const RootFolder& root_;
  const Options options_;
  std::mutex mutex_;
  std::vector<std::string> ids_;
  std::chrono::steady_clock::time_point scanned_{};
  std::unordered_map<std::string, Kept> runs_;
  std::list<std::string> newest_first_;
};

}  // namespace lockstep
