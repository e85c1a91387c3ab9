#include "cluster/slurm_address.h"

#include <chrono>

#include "core/captured_program.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kScontrolLimit{10};

}  // namespace

std::optional<std::string> node_address_in(std::string_view text) {
  constexpr std::string_view kField = " NodeAddr=";
  const std::size_t field = text.find(kField);
  if (field == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(field + kField.size());
  const std::string_view value = rest.substr(0, rest.find_first_of(" \n"));
  if (value.empty()) return std::nullopt;
  return std::string(value);
}

std::optional<std::string> slurm_address_of(const std::string& node) {
  try {
    const CapturedProgram answer = run_captured(
        {.argv = {"scontrol", "--oneliner", "show", "node", node}, .limit = kScontrolLimit});
    return node_address_in(answer.out);
  } catch (const Error&) {
    return std::nullopt;  // there is no scontrol in most containers
  }
}

}  // namespace lockstep
