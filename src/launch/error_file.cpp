#include "launch/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <cerrno>
#include <system_error>

#include "core/parse_integer.h"
#include "core/unique_fd.h"
#include "launch/json_fields.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxFile = 4 << 20;
constexpr std::size_t kMaxMessage = 16 << 10;
constexpr std::size_t kMaxCallstack = 16 << 10;

// Python writes the number as a string in one form of the schema and as a number in the other.
std::optional<std::int64_t> lenient_integer(const Json& object, const char* name) {
  if (const auto number = integer_field(object, name)) return number;
  const auto text = string_field(object, name, 32);
  return text ? parse_integer<std::int64_t>(*text) : std::nullopt;
}

ErrorFile malformed(std::string why) {
  ErrorFile error;
  error.malformed = std::move(why);
  return error;
}

void read_message_object(const Json& message, ErrorFile& error) {
  error.message = string_field(message, "message", kMaxMessage).value_or("");
  error.error_code = lenient_integer(message, "errorCode");
  if (const Json* extra = field(message, "extraInfo")) {
    error.callstack = string_field(*extra, "py_callstack", kMaxCallstack).value_or("");
    error.timestamp = lenient_integer(*extra, "timestamp");
  }
}

// At most kMaxFile bytes; an error number instead when the file cannot be read.
std::optional<std::string> read_all(int fd) {
  std::string content;
  char buffer[16 << 10];
  for (;;) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    content.append(buffer, static_cast<std::size_t>(count));
    if (count == 0 || content.size() > kMaxFile) return content;
  }
}

std::string text_of_errno() {
  return std::generic_category().message(errno);
}

}  // namespace

ErrorFile parse_error_file(std::string_view content) {
  if (content.empty()) return malformed("it is empty");
  if (content.size() > kMaxFile) return malformed(concat("it is longer than ", kMaxFile, " bytes"));
  const std::optional<Json> json = parse_json(content);
  if (!json) return malformed("it is not JSON");
  const Json* message = field(*json, "message");
  if (message == nullptr) return malformed("it has no field 'message'");

  ErrorFile error;
  if (message->is_string()) {
    error.message = clipped(message->get_ref<const std::string&>(), kMaxMessage);
    error.timestamp = lenient_integer(*json, "timestamp");
  } else if (message->is_object()) {
    read_message_object(*message, error);
  } else {
    return malformed("its 'message' is neither a text nor an object");
  }
  if (content.size() <= kMaxErrorFileCopy) error.json = content;
  return error;
}

std::optional<ErrorFile> read_error_file(const std::string& path) {
  // Not blocking: a worker may have put a named pipe there.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  ErrorFile error;
  struct stat status = {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    error = malformed(concat("it cannot be opened: ", text_of_errno()));
  } else if (S_ISCHR(status.st_mode)) {
    return std::nullopt;  // the null device
  } else if (!S_ISREG(status.st_mode)) {
    error = malformed("it is not a plain file");
  } else if (const auto content = read_all(fd.get())) {
    error = parse_error_file(*content);
  } else {
    error = malformed(concat("it cannot be read: ", text_of_errno()));
  }
  error.path = path;
  return error;
}

std::string error_file_for_parent(const ErrorFile& error, int error_code) {
  if (auto json = parse_json(error.json)) {
    if (error_code != 0 && json->is_object() && (*json)["message"].is_object()) {
      (*json)["message"]["errorCode"] = error_code;
    }
    return dump_json(*json) + "\n";
  }
  Json extra = {{"py_callstack", error.callstack}};
  // torchrun insists on a time in this place, as a string.
  extra["timestamp"] = std::to_string(error.timestamp.value_or(0));
  const Json json = {
      {"message",
       {{"message", error.message}, {"errorCode", error_code}, {"extraInfo", std::move(extra)}}}};
  return dump_json(json) + "\n";
}

}  // namespace lockstep
