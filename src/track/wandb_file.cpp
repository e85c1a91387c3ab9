#include "track/wandb_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/crc32.h"
#include "track/protobuf.h"
#include "track/wandb_fields.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kBlock = 32768;
constexpr std::uint64_t kChunkHeader = 7;
constexpr std::string_view kFileHeader(":W&B\xe1\xbe\0", 7);  // its version is 0

enum ChunkType : unsigned char { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

std::uint32_t chunk_checksum(char type, std::string_view data) {
  return crc32(data, crc32(std::string_view(&type, 1)));
}

void add_chunk(std::string& bytes, ChunkType chunk_type, std::string_view data) {
  const char type = static_cast<char>(chunk_type);
  const std::uint32_t checksum = chunk_checksum(type, data);
  const auto size = static_cast<std::uint16_t>(data.size());
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += type;
  bytes += data;
}

std::int64_t json_integer(std::string_view text, std::int64_t otherwise) {
  std::int64_t value = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::string wandb_file_header() {
  return std::string(kFileHeader);
}

std::string wandb_chunks(std::string_view record, std::uint64_t offset) {
  std::string bytes;
  for (bool first = true;; first = false) {
    std::uint64_t left = kBlock - (offset + bytes.size()) % kBlock;
    if (left < kChunkHeader) {  // too little for a chunk: filled up
      bytes.append(left, '\0');
      left = kBlock;
    }
    const std::uint64_t room = left - kChunkHeader;
    if (record.size() <= room) {
      add_chunk(bytes, first ? kFull : kLast, record);
      return bytes;
    }
    add_chunk(bytes, first ? kFirst : kMiddle, record.substr(0, room));
    record.remove_prefix(room);
  }
}

std::vector<WandbRecord> parse_wandb_file(std::string_view file) {
  std::vector<WandbRecord> records;
  if (!file.starts_with(kFileHeader)) return records;
  std::uint64_t offset = kFileHeader.size();
  WandbRecord record;
  bool inside = false;
  while (offset < file.size()) {
    const std::uint64_t left = kBlock - offset % kBlock;
    if (left < kChunkHeader) {
      offset += left;
      continue;
    }
    if (file.size() - offset < kChunkHeader) break;
    std::uint32_t checksum = 0;
    std::uint16_t size = 0;
    std::memcpy(&checksum, file.data() + offset, sizeof checksum);
    std::memcpy(&size, file.data() + offset + 4, sizeof size);
    const char type = file[offset + 6];
    if (size > left - kChunkHeader || size > file.size() - offset - kChunkHeader) break;
    const std::string_view data = file.substr(offset + kChunkHeader, size);
    if (chunk_checksum(type, data) != checksum) break;
    const bool begins = type == kFull || type == kFirst;
    if (begins == inside || type < kFull || type > kLast) break;
    if (begins) record = {.offset = offset, .bytes = {}};
    record.bytes += data;
    inside = type == kFirst || type == kMiddle;
    if (!inside) records.push_back(std::move(record));
    offset += kChunkHeader + size;
  }
  return records;
}

std::optional<WandbRow> wandb_row(std::string_view record) {
  for (ProtoFields fields(record); fields.next();) {
    if (fields.field() != wandb::kHistory) continue;
    WandbRow row;
    for (ProtoFields history(fields.text()); history.next();) {
      if (history.field() == wandb::kHistoryStep) {
        for (ProtoFields step(history.text()); step.next();) {
          if (step.field() == 1) row.number = step.integer();
        }
      } else if (history.field() == wandb::kHistoryItem) {
        std::string_view key, value;
        for (ProtoFields item(history.text()); item.next();) {
          if (item.field() == wandb::kItemKey) key = item.text();
          if (item.field() == wandb::kItemValue) value = item.text();
        }
        if (key == "step") row.step = json_integer(value, row.step);
      }
    }
    return row;
  }
  return std::nullopt;
}

std::uint64_t wandb_end(const std::vector<WandbRecord>& records, std::uint64_t size,
                        std::int64_t rows, std::int64_t step) {
  for (const WandbRecord& record : records) {
    const auto row = wandb_row(record.bytes);
    if (row && (row->number >= rows || row->step > step)) return record.offset;
    // The end that a run has said is no end when it goes on.
    bool is_exit = false;
    for (ProtoFields fields(record.bytes); fields.next();) {
      is_exit = is_exit || fields.field() == wandb::kExit;
    }
    if (is_exit) return record.offset;
  }
  return size;
}

}  // namespace lockstep
