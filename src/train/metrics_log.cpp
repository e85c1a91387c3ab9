#include "train/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "core/durable_file.h"
#include "lockstep/error.h"

namespace lockstep {

MetricsLog::MetricsLog(std::string path) : path_(std::move(path)) {
  std::error_code problem;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), problem);
  if (problem) {
    throw SystemError(concat("cannot make the folder of ", path_, ": ", problem.message()));
  }
  open();
}

void MetricsLog::open() {
  file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!file_) throw_errno(concat("cannot open ", path_));
}

void MetricsLog::keep(std::int64_t lines, std::int64_t step) {
  std::string kept;
  lines_ = 0;
  std::ifstream file(path_);
  for (std::string line; lines_ < lines && std::getline(file, line);) {
    if (file.eof()) break;  // a crash has cut it short
    const auto value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!value.is_object() || value.value("step", std::int64_t{-1}) > step) break;
    kept += line + "\n";
    ++lines_;
  }
  file.close();
  write_durably(path_, kept);
  open();
}

void MetricsLog::append(std::int64_t step, const nlohmann::json& values) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json line = {{"step", step}, {"time", now.count()}};
  for (const auto& [name, value] : values.items()) line[name] = value;
  const std::string text = line.dump() + "\n";
  const auto written = ::write(file_.get(), text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) {
    ++lines_;
  } else if (written > 0) {  // a disk that is just full; half a line would spoil the next
    const off_t end = ::lseek(file_.get(), 0, SEEK_END);
    [[maybe_unused]] const int result = ::ftruncate(file_.get(), end - written);
  }
}

}  // namespace lockstep
