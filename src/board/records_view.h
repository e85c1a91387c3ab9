#pragma once

#include <deque>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "board/curve.h"
#include "board/growing_file.h"

namespace lockstep {

/// What a rank has told beside metrics: configuration, events, texts, samples of the machine, its
/// end. The newest of each kind are kept. Not thread-safe.
class RecordsView {
 public:
  struct Text {
    std::int64_t step = 0;
    double time = 0;
    std::string name;
    std::string text;
  };
  enum class End { none, succeeded, failed };

  explicit RecordsView(std::string path) : file_(std::move(path)) {}

  bool poll(const RootFolder& root);

  const nlohmann::json& config() const { return config_; }
  const std::deque<Text>& texts() const { return texts_; }
  const std::deque<nlohmann::json>& events() const { return events_; }
  const std::map<std::string, Curve>& system() const { return system_; }
  End end() const { return end_; }  // of the last start
  double changed() const { return file_.changed(); }
  std::size_t bytes() const;

 private:
  void forget();
  void add(const nlohmann::json& record);

  GrowingFile file_;
  nlohmann::json config_ = nlohmann::json::object();
  std::deque<Text> texts_;
  std::deque<nlohmann::json> events_;
  std::map<std::string, Curve> system_;
  End end_ = End::none;
  std::size_t text_bytes_ = 0;
};

}  // namespace lockstep
