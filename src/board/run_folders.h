#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "board/root_folder.h"

namespace lockstep {

/// Snapshots of a run: step, time, size, and whether all files of the manifest are there in their
/// length. Checksums are `lockstep snapshot verify`'s part: they take reading everything.
nlohmann::json snapshots_of(const RootFolder& root, const std::string& run);

/// Log files of a run, with attempt, rank and stream.
nlohmann::json logs_of(const RootFolder& root, const std::string& run);

/// A part of a log that begins and ends with whole lines.
struct LogQuery {
  std::string file;          // below RUN/logs
  std::int64_t offset = -1;  // -1: the end of the file
  std::int64_t bytes = 65'536;
  std::string find;  // not empty: only lines that contain it, whatever the case, from `offset` on
};
/// null where there is no such file.
nlohmann::json read_log(const RootFolder& root, const std::string& run, const LogQuery& query);

}  // namespace lockstep
