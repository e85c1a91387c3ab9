#include "cluster/own_place.h"

#include <unistd.h>
#include <array>
#include <climits>
#include <cstdlib>
#include <filesystem>

#include "lockstep/error.h"

namespace lockstep {

std::string own_program() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw_errno("cannot find out where this program is");
  return {path.data(), static_cast<std::size_t>(length)};
}

std::string working_directory(const Environment& environment) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::current_path();
  const std::filesystem::path said = environment.get("PWD").value_or("");
  if (said.is_absolute() && std::filesystem::equivalent(said, real, error)) return said.string();
  return real.string();
}

void replace_environment(const Environment::Variables& variables) {
  ::clearenv();
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace lockstep
