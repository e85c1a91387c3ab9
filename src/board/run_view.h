#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "board/events_view.h"
#include "board/metrics_view.h"
#include "board/rank_map.h"
#include "board/records_view.h"
#include "board/root_folder.h"
#include "board/run_glance.h"

namespace lockstep {

/// What the head of a job on several machines has written there, beside the nodes' launchers.
inline constexpr const char* kHeadEvents = "head.jsonl";

/// A run directory as the page sees it. Files are read when somebody asks, from where the last look
/// ended. Thread-safe: what it hands out are copies, as JSON.
class RunView {
 public:
  /// `id` is the path of the run below the root; "" where the root is a run itself.
  RunView(const RootFolder& root, std::string id);

  const std::string& id() const { return id_; }

  nlohmann::json summary();  // a line of the list
  nlohmann::json overview();
  nlohmann::json series(int rank, const std::vector<std::string>& names, const CurveRange& range,
                        std::size_t points);
  nlohmann::json system(int rank);
  nlohmann::json events();
  nlohmann::json texts();
  nlohmann::json config();

  /// Changes with anything that the page may want to show; for live updates.
  nlohmann::json pulse();

  std::vector<RankFile> rank_files() const;
  std::size_t bytes() const { return bytes_; }  // of memory

 private:
  // With the lock held.
  MetricsView& metrics_of(int rank);
  RecordsView& records_of(int rank);
  void look();
  EventsView::Job job() const;
  std::string state() const;
  double changed() const;
  bool launcher_lives() const;
  void note_bytes();
  std::string file(std::string_view name) const { return join_path(id_, name); }
  std::string metrics_file(int rank) const;
  std::string records_file(int rank) const;
  std::vector<int> ranks_in(std::string_view folder) const;

  const RootFolder& root_;
  const std::string id_;
  std::mutex mutex_;
  EventsView events_;
  EventsView head_;
  RunGlance glance_;
  nlohmann::json job_ = nlohmann::json::object();
  std::map<int, MetricsView> metrics_;  // of those that were asked for
  std::map<int, RecordsView> records_;
  std::atomic<std::size_t> bytes_ = 0;
};

}  // namespace lockstep
