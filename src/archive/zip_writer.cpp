#include <algorithm>

#include "archive/zip.h"
#include "archive/zip_format.h"
#include "core/crc32.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Little-endian numbers one after the other.
class Record {
 public:
  Record& u16(std::uint64_t value) { return number(value, 2); }
  Record& u32(std::uint64_t value) { return number(value, 4); }
  Record& u64(std::uint64_t value) { return number(value, 8); }
  Record& text(std::string_view text) {
    text_ += text;
    return *this;
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text_)); }

 private:
  Record& number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xff);
    return *this;
  }
  std::string text_;
};

std::uint64_t or_zip64(std::uint64_t value) {
  return std::min<std::uint64_t>(value, zip::kInZip64);
}

struct Placed {
  const ZipMember* member = nullptr;
  std::uint64_t header_offset = 0;
  std::uint32_t crc = 0;

  bool has_large_size() const { return member->bytes.size() >= zip::kInZip64; }
  bool is_zip64() const { return has_large_size() || header_offset >= zip::kInZip64; }
};

// The fields that the local header and the directory have in common.
void add_common(Record& record, const Placed& placed, std::uint64_t extra_bytes) {
  record.u16(placed.is_zip64() ? zip::kZip64Version : zip::kPlainVersion)
      .u16(zip::kUtf8Flag)
      .u16(0)  // stored
      .u16(0)
      .u16(zip::kFirstDay)
      .u32(placed.crc)
      .u32(or_zip64(placed.member->bytes.size()))
      .u32(or_zip64(placed.member->bytes.size()))
      .u16(placed.member->name.size())
      .u16(extra_bytes);
}

Record local_header(const Placed& placed) {
  const std::uint64_t size = placed.member->bytes.size();
  const std::uint64_t zip64_bytes = placed.has_large_size() ? 4 + 16 : 0;
  const std::uint64_t unpadded =
      placed.header_offset + zip::kLocalBytes + placed.member->name.size() + zip64_bytes + 4;
  const std::uint64_t padding = (zip::kAlignment - unpadded % zip::kAlignment) % zip::kAlignment;
  Record record;
  record.u32(zip::kLocalSignature);
  add_common(record, placed, zip64_bytes + 4 + padding);
  record.text(placed.member->name);
  if (zip64_bytes > 0) record.u16(zip::kZip64Field).u16(16).u64(size).u64(size);
  record.u16(zip::kPaddingField).u16(padding).text(std::string(padding, 'Z'));
  return record;
}

Record directory_entry(const Placed& placed) {
  Record extra;
  if (placed.has_large_size()) {
    extra.u64(placed.member->bytes.size()).u64(placed.member->bytes.size());
  }
  if (placed.header_offset >= zip::kInZip64) extra.u64(placed.header_offset);
  const std::uint64_t extra_bytes = extra.bytes().size();
  Record record;
  record.u32(zip::kEntrySignature).u16(zip::kZip64Version);
  add_common(record, placed, extra_bytes > 0 ? 4 + extra_bytes : 0);
  record.u16(0).u16(0).u16(0).u32(0).u32(or_zip64(placed.header_offset));
  record.text(placed.member->name);
  if (extra_bytes > 0) {
    record.u16(zip::kZip64Field).u16(extra_bytes);
    record.text({reinterpret_cast<const char*>(extra.bytes().data()), extra_bytes});
  }
  return record;
}

Record end_records(std::uint64_t entries, std::uint64_t directory_offset,
                   std::uint64_t directory_bytes) {
  Record record;
  if (entries >= 0xffff || directory_offset >= zip::kInZip64 || directory_bytes >= zip::kInZip64) {
    record.u32(zip::kEnd64Signature)
        .u64(zip::kEnd64Bytes - 12)
        .u16(zip::kZip64Version)
        .u16(zip::kZip64Version)
        .u32(0)
        .u32(0)
        .u64(entries)
        .u64(entries)
        .u64(directory_bytes)
        .u64(directory_offset);
    record.u32(zip::kLocatorSignature).u32(0).u64(directory_offset + directory_bytes).u32(1);
  }
  const std::uint64_t shown = std::min<std::uint64_t>(entries, 0xffff);
  record.u32(zip::kEndSignature)
      .u16(0)
      .u16(0)
      .u16(shown)
      .u16(shown)
      .u32(or_zip64(directory_bytes))
      .u32(or_zip64(directory_offset))
      .u16(0);
  return record;
}

// Returns the length of the file. Only the length, where `append` is null.
std::uint64_t write_all(std::span<const ZipMember> members,
                        const std::function<void(std::span<const std::byte>)>& append) {
  std::uint64_t offset = 0;
  const auto write = [&](std::span<const std::byte> bytes) {
    if (append) append(bytes);
    offset += bytes.size();
  };
  std::vector<Placed> all;
  for (const ZipMember& member : members) {
    LOCKSTEP_CHECK(member.name.size() <= 0xffff, "a name of ", member.name.size(), " bytes");
    all.push_back(
        {.member = &member, .header_offset = offset, .crc = append ? crc32(member.bytes) : 0});
    write(local_header(all.back()).bytes());
    write(member.bytes);
  }
  const std::uint64_t directory_offset = offset;
  for (const Placed& each : all) write(directory_entry(each).bytes());
  write(end_records(all.size(), directory_offset, offset - directory_offset).bytes());
  return offset;
}

}  // namespace

std::uint64_t zip_bytes(std::span<const ZipMember> members) {
  return write_all(members, nullptr);
}

void write_zip(std::span<const ZipMember> members,
               const std::function<void(std::span<const std::byte>)>& append) {
  write_all(members, append);
}

}  // namespace lockstep
