#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class FindingLevel {
  ok,
  note,     // good to know; nothing will fail
  warning,  // slower than it could be, or fails in some jobs
  error,    // jobs will fail
};

std::string_view to_string(FindingLevel level);

/// One thing that the doctor has to say about a node.
struct Finding {
  std::string node;  // its host's name
  std::string check;
  FindingLevel level = FindingLevel::ok;
  std::string what;
  std::string cure;  // what to do; empty where nothing is to be done

  bool operator==(const Finding&) const = default;
};

using Findings = std::vector<Finding>;

/// Adds findings of one check on one node, so that judgements need not repeat both.
class FindingList {
 public:
  FindingList(std::string node, Findings& findings)
      : node_(std::move(node)), findings_(&findings) {}

  void ok(std::string_view check, std::string what);
  void note(std::string_view check, std::string what, std::string cure = "");
  void warning(std::string_view check, std::string what, std::string cure);
  void error(std::string_view check, std::string what, std::string cure);

 private:
  void add(std::string_view check, FindingLevel level, std::string what, std::string cure);

  std::string node_;
  Findings* findings_;
};

}  // namespace lockstep
