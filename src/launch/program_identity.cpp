#include "launch/program_identity.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include "core/checksum.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{64} << 20;

bool is_regular(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Empty: none that says what runs.
std::string file_of(const RunOptions& options, const WorkerCommand& command) {
  const std::string& script = options.script;
  const bool is_native = fs::path(command.words.front()).filename() == fs::path(script).filename();
  if (!is_native) return script;  // Python's
  if (script.find('/') != std::string::npos || command.words.front() == "./" + script) {
    return command.words.front();
  }
  const auto& arguments = options.script_arguments;
  return !arguments.empty() && is_regular(arguments.front()) ? arguments.front() : "";
}

std::string digest_of(const std::string& path) {
  std::error_code error;
  // Not a pipe: its contents can be read only once.
  if (!is_regular(path)) return "";
  std::ifstream file(path, std::ios::binary);
  Checksum checksum;
  std::vector<char> buffer(1 << 20);
  for (std::uintmax_t done = 0; file && done < kMostBytes;) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const auto count = static_cast<std::size_t>(file.gcount());
    checksum.update(std::as_bytes(std::span(buffer.data(), count)));
    done += count;
  }
  if (file.bad()) return "";
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? "" : concat(checksum_text(checksum.value()), " ", size);
}

// Words are kept apart by a byte that none of them can hold.
std::string digest_of(const std::vector<std::string>& arguments) {
  std::string all;
  for (const std::string& each : arguments) all += each + '\0';
  return checksum_text(checksum_of(all));
}

}  // namespace

ProgramIdentity identify_program(const RunOptions& options, const WorkerCommand& command) {
  ProgramIdentity program{.name = fs::path(options.script).filename().string(),
                          .digest = "",
                          .arguments = digest_of(options.script_arguments)};
  if (options.module || options.script == "-") return program;
  const std::string file = file_of(options, command);
  if (file.empty()) return program;
  program.name = fs::path(file).filename().string();
  program.digest = digest_of(file);
  return program;
}

}  // namespace lockstep
