#include "launch/unique_directory.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <array>
#include <cerrno>
#include <filesystem>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxLength = 64;

std::string eight_random_letters() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::array<unsigned char, 8> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("getrandom");
  }
  std::string letters;
  for (const unsigned char byte : bytes) letters += kLetters[byte % kLetters.size()];
  return letters;
}

}  // namespace

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (std::filesystem::is_directory(path)) return;
  if (std::filesystem::exists(std::filesystem::symlink_status(path))) {
    throw InvalidArgument(concat("'", path, "' must be a folder and is something else"));
  }
  throw SystemError(concat("cannot make the folder '", path, "': ", error.message()));
}

std::string make_unique_directory(const std::string& parent, std::string_view prefix) {
  for (;;) {
    std::string path = concat(parent, "/", prefix, "_", eight_random_letters());
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) throw_errno(concat("cannot make a folder in '", parent, "'"));
  }
}

std::string as_file_name(std::string_view name) {
  std::string result(name.substr(0, kMaxLength));
  for (char& letter : result) {
    if (letter == '/' || static_cast<unsigned char>(letter) <= ' ' || letter == '\x7f') {
      letter = '_';
    }
  }
  return result;
}

}  // namespace lockstep
