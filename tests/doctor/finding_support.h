#pragma once

#include <algorithm>
#include <string>

#include "doctor/finding.h"

namespace lockstep {

/// Findings of a check on a made-up node.
class Judged {
 public:
  FindingList& list() { return list_; }
  const Findings& all() const { return findings_; }

  /// The worst that was found by a check; ok if it said nothing.
  FindingLevel worst(const std::string& check) const {
    FindingLevel worst = FindingLevel::ok;
    for (const Finding& each : findings_) {
      if (each.check == check) worst = std::max(worst, each.level);
    }
    return worst;
  }

  /// What the worst finding of a check says, and the cure.
  std::string text(const std::string& check) const {
    for (const Finding& each : findings_) {
      if (each.check == check && each.level == worst(check)) return each.what + " -> " + each.cure;
    }
    return "";
  }

  /// Whoever is told of a problem is told what to do.
  bool every_problem_has_a_cure() const {
    return std::ranges::all_of(findings_, [](const Finding& each) {
      return each.level < FindingLevel::warning || !each.cure.empty();
    });
  }

 private:
  Findings findings_;
  FindingList list_{"node1", findings_};
};

}  // namespace lockstep
