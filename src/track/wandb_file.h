#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The bytes with which a file of W&B begins.
std::string wandb_file_header();

/// A record as it stands in a file that has `offset` bytes so far: in blocks of 32 KiB, cut into
/// chunks where it does not fit into one, each with its checksum (the log format of LevelDB, with
/// another checksum).
std::string wandb_chunks(std::string_view record, std::uint64_t offset);

struct WandbRecord {
  std::uint64_t offset = 0;  // in the file
  std::string bytes;         // a message wandb_internal.Record
};

/// The whole records of a file, up to the first that is damaged or cut short. A file of another
/// kind has none.
std::vector<WandbRecord> parse_wandb_file(std::string_view file);

/// What a row of the history says about its place.
struct WandbRow {
  std::int64_t number = 0;  // W&B's own step
  std::int64_t step = 0;    // of the run
};

/// std::nullopt: the record is no row of the history.
std::optional<WandbRow> wandb_row(std::string_view record);

/// The offset behind the last record that counts where a run goes on with row `rows` after `step`.
std::uint64_t wandb_end(const std::vector<WandbRecord>& records, std::uint64_t size,
                        std::int64_t rows, std::int64_t step);

}  // namespace lockstep
