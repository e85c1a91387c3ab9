#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// All of a file. Throws SystemError, and InvalidArgument for a folder or a file beyond `limit`.
std::string read_file(const std::string& path, std::uint64_t limit = std::uint64_t{1} << 40);

/// A file's pages, read when they are touched and shared by all processes that map it. Copies share
/// the mapping. The file must not be cut short meanwhile.
class MappedFile {
 public:
  /// Throws SystemError, and InvalidArgument for a folder.
  explicit MappedFile(const std::string& path);

  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

}  // namespace lockstep
