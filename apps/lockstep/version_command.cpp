#include "version_command.h"

#include <array>

#include "build_commit.h"
#include "build_features.h"
#include "lockstep/error.h"

namespace {

using lockstep::concat;

struct Feature {
  std::string_view name;
  bool built_in;
};

// TLS, etcd and GPUs need no header and no library to build: OpenSSL's and the driver's libraries
// are loaded where they are used.
constexpr std::array<Feature, 4> kLauncher{
    {{"board", LOCKSTEP_WITH_BOARD != 0}, {"etcd", true}, {"gpu", true}, {"tls", true}}};
constexpr std::array<Feature, 4> kLibrary{{{"arrow", LOCKSTEP_WITH_ARROW != 0},
                                           {"cuda", LOCKSTEP_WITH_CUDA != 0},
                                           {"kernels", LOCKSTEP_WITH_KERNELS != 0},
                                           {"mpi", LOCKSTEP_WITH_MPI != 0}}};
constexpr std::string_view kTorch = LOCKSTEP_WITH_TORCH;  // empty: no library was built beside it
constexpr std::string_view kCommit = LOCKSTEP_COMMIT;     // empty: not known

std::string listed(const std::array<Feature, 4>& features, std::string text = {}) {
  for (const Feature& feature : features) {
    text += concat(text.empty() ? "" : ", ", feature.built_in ? "" : "no ", feature.name);
  }
  return text;
}

std::string as_json(const std::array<Feature, 4>& features) {
  std::string text;
  for (const Feature& feature : features) {
    text += concat(text.empty() ? "" : ", ", "\"", feature.name,
                   "\": ", feature.built_in ? "true" : "false");
  }
  return text;
}

std::string for_people(std::string_view version) {
  return concat("lockstep ", version, kCommit.empty() ? "" : concat(" (commit ", kCommit, ")"),
                "\nlauncher: ", listed(kLauncher), "\nlibrary:  ",
                kTorch.empty() ? "none" : listed(kLibrary, concat("torch ", kTorch)),
                "\nbuilt by: " LOCKSTEP_BUILT_BY ", " LOCKSTEP_BUILD_TYPE "\n");
}

std::string for_programs(std::string_view version) {
  return concat(
      "{\"version\": \"", version,
      "\", \"commit\": ", kCommit.empty() ? "null" : concat("\"", kCommit, "\""),
      ", \"launcher\": {", as_json(kLauncher), "}, \"library\": ",
      kTorch.empty() ? "null" : concat("{\"torch\": \"", kTorch, "\", ", as_json(kLibrary), "}"),
      ", \"compiler\": \"" LOCKSTEP_BUILT_BY "\", \"build_type\": \"" LOCKSTEP_BUILD_TYPE "\"}\n");
}

}  // namespace

std::string version_text(std::string_view version, const std::vector<std::string>& arguments) {
  if (arguments.empty()) return for_people(version);
  if (arguments.size() == 1 && arguments[0] == "--json") return for_programs(version);
  throw lockstep::InvalidArgument(
      concat("version: \"", arguments[0], "\" is not known; there is --json"));
}
