#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// What a worker wrote to $TORCHELASTIC_ERROR_FILE before it died, in torchelastic's schema:
///
///     {"message": {"message": "ValueError: ...", "errorCode": 1,
///                  "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}}}
///
/// or {"message": "text", "timestamp": 1700000000}. Each part may be missing.
struct ErrorFile {
  std::string path;
  std::string message;
  std::string callstack;                  // lines; may be empty
  std::optional<std::int64_t> timestamp;  // seconds since 1970
  std::optional<std::int64_t> error_code;
  std::string json;       // the file as it was; empty if malformed or longer than kMaxErrorFileCopy
  std::string malformed;  // empty: well formed; else what is wrong with it

  bool operator==(const ErrorFile&) const = default;
};

/// A file longer than this is not kept word for word.
inline constexpr std::size_t kMaxErrorFileCopy = 64 << 10;

/// std::nullopt if there is no such file. Never throws for what stands in the file: one that cannot
/// be read or understood comes back with `malformed` set.
std::optional<ErrorFile> read_error_file(const std::string& path);

/// What read_error_file() makes of a file with this content.
ErrorFile parse_error_file(std::string_view content);

/// The file's content as torchrun passes it on to whoever started it: the same JSON, with errorCode
/// set, where `message` is an object, to the exit code or to minus the signal.
std::string error_file_for_parent(const ErrorFile& error, int error_code);

}  // namespace lockstep
