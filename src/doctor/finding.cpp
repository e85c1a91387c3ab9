#include "doctor/finding.h"

#include <utility>

namespace lockstep {

std::string_view to_string(FindingLevel level) {
  switch (level) {
    case FindingLevel::ok:
      return "ok";
    case FindingLevel::note:
      return "note";
    case FindingLevel::warning:
      return "warning";
    case FindingLevel::error:
      return "error";
  }
  return "error";
}

void FindingList::ok(std::string_view check, std::string what) {
  add(check, FindingLevel::ok, std::move(what), "");
}

void FindingList::note(std::string_view check, std::string what, std::string cure) {
  add(check, FindingLevel::note, std::move(what), std::move(cure));
}

void FindingList::warning(std::string_view check, std::string what, std::string cure) {
  add(check, FindingLevel::warning, std::move(what), std::move(cure));
}

void FindingList::error(std::string_view check, std::string what, std::string cure) {
  add(check, FindingLevel::error, std::move(what), std::move(cure));
}

void FindingList::add(std::string_view check, FindingLevel level, std::string what,
                      std::string cure) {
  findings_->push_back({.node = node_,
                        .check = std::string(check),
                        .level = level,
                        .what = std::move(what),
                        .cure = std::move(cure)});
}

}  // namespace lockstep
