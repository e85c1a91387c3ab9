#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A zip file whose members are stored and not compressed, as torch.save writes it.
class ZipReader {
 public:
  /// Checks all structures and that members lie apart, within the file. The bytes must outlive the
  /// reader. Throws InvalidArgument.
  explicit ZipReader(std::span<const std::byte> file);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return members_.contains(name); }

  /// A member's bytes. `check`: compare its checksum, which reads all of it. Throws
  /// InvalidArgument.
  std::span<const std::byte> content(const std::string& name, bool check = true) const;

 private:
  struct Member {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
  };

  std::span<const std::byte> file_;
  std::map<std::string, Member> members_;
};

/// A member of a zip file to be written.
struct ZipMember {
  std::string name;
  std::span<const std::byte> bytes;
};

/// Writes a zip file through `append`. Each member begins at a multiple of 64 bytes, so that
/// readers can use it where it lies. ZIP64 where sizes or numbers ask for it.
void write_zip(std::span<const ZipMember> members,
               const std::function<void(std::span<const std::byte>)>& append);

/// How long that file is.
std::uint64_t zip_bytes(std::span<const ZipMember> members);

}  // namespace lockstep
