#include <algorithm>
#include <optional>

#include "archive/zip.h"
#include "archive/zip_format.h"
#include "core/crc32.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Bytes = std::span<const std::byte>;

[[noreturn]] void refuse_zip(const std::string& what) {
  throw InvalidArgument(concat("not a sound zip file: ", what));
}

template <typename Number>
Number number_at(Bytes bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(Number))
    refuse_zip("it is cut short");
  std::uint64_t value = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) {
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[offset + i]);
  }
  return static_cast<Number>(value);
}

std::uint16_t u16(Bytes bytes, std::uint64_t offset) {
  return number_at<std::uint16_t>(bytes, offset);
}
std::uint32_t u32(Bytes bytes, std::uint64_t offset) {
  return number_at<std::uint32_t>(bytes, offset);
}
std::uint64_t u64(Bytes bytes, std::uint64_t offset) {
  return number_at<std::uint64_t>(bytes, offset);
}

Bytes part(Bytes bytes, std::uint64_t offset, std::uint64_t length) {
  if (offset > bytes.size() || bytes.size() - offset < length) refuse_zip("it is cut short");
  return bytes.subspan(offset, length);
}

struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
  std::uint64_t end = 0;  // where what follows the directory begins
};

// The record at the file's end; a comment may follow it.
std::uint64_t find_end_record(Bytes file) {
  constexpr std::uint64_t kLongestComment = 0xffff;
  if (file.size() < zip::kEndBytes) refuse_zip(concat("it has ", file.size(), " bytes"));
  const std::uint64_t last = file.size() - zip::kEndBytes;
  const std::uint64_t first = last - std::min(last, kLongestComment);
  for (std::uint64_t at = last + 1; at-- > first;) {
    if (u32(file, at) == zip::kEndSignature &&
        at + zip::kEndBytes + u16(file, at + 20) == file.size()) {
      return at;
    }
  }
  refuse_zip("it has no directory at its end");
}

Directory find_directory(Bytes file) {
  const std::uint64_t end = find_end_record(file);
  Directory found{.offset = u32(file, end + 16),
                  .bytes = u32(file, end + 12),
                  .entries = u16(file, end + 10),
                  .end = end};
  if (u16(file, end + 4) != 0 || u16(file, end + 6) != 0) {
    const bool is_zip64 = u16(file, end + 4) == 0xffff;
    if (!is_zip64) refuse_zip("it is one of several volumes");
  }
  if (end >= zip::kLocatorBytes && u32(file, end - zip::kLocatorBytes) == zip::kLocatorSignature) {
    const std::uint64_t record = u64(file, end - zip::kLocatorBytes + 8);
    if (record > end || u32(file, record) != zip::kEnd64Signature)
      refuse_zip("its ZIP64 record is lost");
    found = {.offset = u64(file, record + 48),
             .bytes = u64(file, record + 40),
             .entries = u64(file, record + 32),
             .end = record};
  }
  if (found.offset > found.end || found.end - found.offset < found.bytes) {
    refuse_zip("its directory lies outside");
  }
  return found;
}

struct Entry {
  std::string name;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;
  std::uint32_t crc = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t header_offset = 0;
  std::uint64_t directory_bytes = 0;  // of this entry itself
};

// Sizes that do not fit into 32 bits are in an extra field, in this order, those alone.
void read_zip64(Bytes extra, Entry& entry) {
  for (std::uint64_t at = 0; at + 4 <= extra.size();) {
    const std::uint16_t kind = u16(extra, at);
    const Bytes field = part(extra, at + 4, u16(extra, at + 2));
    at += 4 + field.size();
    if (kind != zip::kZip64Field) continue;
    std::uint64_t place = 0;
    for (std::uint64_t* number : {&entry.bytes, &entry.stored_bytes, &entry.header_offset}) {
      if (*number != zip::kInZip64) continue;
      *number = u64(field, place);
      place += 8;
    }
    return;
  }
}

Entry read_entry(Bytes directory) {
  if (u32(directory, 0) != zip::kEntrySignature) refuse_zip("its directory is damaged");
  Entry entry{.flags = u16(directory, 8),
              .method = u16(directory, 10),
              .crc = u32(directory, 16),
              .stored_bytes = u32(directory, 20),
              .bytes = u32(directory, 24),
              .header_offset = u32(directory, 42)};
  const std::uint64_t name_bytes = u16(directory, 28);
  const std::uint64_t extra_bytes = u16(directory, 30);
  const std::uint64_t comment_bytes = u16(directory, 32);
  const Bytes name = part(directory, zip::kEntryBytes, name_bytes);
  entry.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  read_zip64(part(directory, zip::kEntryBytes + name_bytes, extra_bytes), entry);
  entry.directory_bytes = zip::kEntryBytes + name_bytes + extra_bytes + comment_bytes;
  part(directory, 0, entry.directory_bytes);
  return entry;
}

// Where the member's bytes begin.
std::uint64_t check_local_header(Bytes file, const Entry& entry, std::uint64_t limit) {
  const std::uint64_t at = entry.header_offset;
  if (at > limit || limit - at < zip::kLocalBytes)
    refuse_zip(concat("'", entry.name, "' lies outside"));
  if (u32(file, at) != zip::kLocalSignature) refuse_zip(concat("'", entry.name, "' has no header"));
  const std::uint64_t name_bytes = u16(file, at + 26);
  const Bytes name = part(file, at + zip::kLocalBytes, name_bytes);
  if (std::string_view(reinterpret_cast<const char*>(name.data()), name.size()) != entry.name) {
    refuse_zip(concat("'", entry.name, "' has another name in its header"));
  }
  const std::uint64_t data = at + zip::kLocalBytes + name_bytes + u16(file, at + 28);
  if (data > limit || limit - data < entry.bytes) {
    refuse_zip(concat("'", entry.name, "' ends beyond the directory"));
  }
  return data;
}

}  // namespace

ZipReader::ZipReader(Bytes file) : file_(file) {
  const Directory directory = find_directory(file);
  Bytes rest = file.subspan(directory.offset, directory.bytes);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    const Entry entry = read_entry(rest);
    rest = rest.subspan(entry.directory_bytes);
    if (entry.flags & 1) refuse_zip(concat("'", entry.name, "' is encrypted"));
    if (entry.method != 0) {
      throw InvalidArgument(concat("'", entry.name, "' is compressed (method ", entry.method,
                                   "); torch.save stores and does not compress"));
    }
    if (entry.stored_bytes != entry.bytes) refuse_zip(concat("'", entry.name, "' has two lengths"));
    const std::uint64_t data = check_local_header(file, entry, directory.offset);
    if (!members_.emplace(entry.name, Member{data, entry.bytes, entry.crc}).second) {
      refuse_zip(concat("it has '", entry.name, "' twice"));
    }
    places.emplace_back(entry.header_offset, data + entry.bytes);
  }
  if (!rest.empty()) refuse_zip("its directory has more than its entries");
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].first < places[i - 1].second) refuse_zip("its members overlap");
  }
}

std::vector<std::string> ZipReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, member] : members_) names.push_back(name);
  return names;
}

Bytes ZipReader::content(const std::string& name, bool check) const {
  const auto found = members_.find(name);
  if (found == members_.end()) throw InvalidArgument(concat("it has no member '", name, "'"));
  const Bytes bytes = file_.subspan(found->second.offset, found->second.bytes);
  if (check && crc32(bytes) != found->second.crc) {
    throw InvalidArgument(concat("its member '", name, "' is damaged: its checksum differs"));
  }
  return bytes;
}

}  // namespace lockstep
