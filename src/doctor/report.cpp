#include "doctor/report.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "doctor/pair_table.h"
#include "launch/terminal_text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// The same finding of several nodes.
struct Shared {
  const Finding* finding;
  std::vector<std::string> nodes;
};

std::vector<Shared> merged(const Findings& findings) {
  std::vector<Shared> list;
  for (const Finding& each : findings) {
    const auto same = std::ranges::find_if(list, [&](const Shared& known) {
      return known.finding->check == each.check && known.finding->level == each.level &&
             known.finding->what == each.what && known.finding->cure == each.cure;
    });
    if (same == list.end()) {
      list.push_back({.finding = &each, .nodes = {each.node}});
    } else {
      same->nodes.push_back(each.node);
    }
  }
  std::ranges::stable_sort(list, {}, [](const Shared& each) { return each.finding->level; });
  return list;
}

// "all nodes", "n1, n2", "n1 and 6 others".
std::string name_nodes(const std::vector<std::string>& nodes, std::size_t all) {
  constexpr std::size_t kNamed = 3;
  if (all > 1 && nodes.size() >= all) return "all nodes";
  if (nodes.size() > kNamed) return concat(nodes.front(), " and ", nodes.size() - 1, " others");
  std::string text;
  for (const std::string& node : nodes) text += concat(text.empty() ? "" : ", ", node);
  return text;
}

std::string padded(std::string_view text, std::size_t width) {
  std::string result(text);
  if (result.size() < width) result.resize(width, ' ');
  return result;
}

// What is well on several nodes, in a line: "ok       versions, clock, limits".
std::string line_of_what_is_well(const DoctorReport& report) {
  std::vector<std::string> checks;
  for (const Finding& each : report.findings) {
    const bool known = std::ranges::find(checks, each.check) != checks.end();
    if (each.level == FindingLevel::ok && !known) checks.push_back(each.check);
  }
  std::erase_if(checks, [&](const std::string& check) {
    return std::ranges::any_of(report.findings, [&](const Finding& each) {
      return each.check == check && each.level != FindingLevel::ok;
    });
  });
  std::string text;
  for (const std::string& check : checks) text += concat(text.empty() ? "" : ", ", check);
  return text.empty() ? "" : concat("  ok       all nodes: ", text, "\n");
}

std::string counted(int count, std::string_view word) {
  return concat(count, " ", word, count == 1 ? "" : "s");
}

}  // namespace

int DoctorReport::count(FindingLevel level) const {
  return static_cast<int>(std::ranges::count(findings, level, &Finding::level));
}

std::string to_text(const DoctorReport& report, ReportDetail detail) {
  const bool several = report.nodes.size() > 1;
  std::string text;
  if (several && detail == ReportDetail::usual) text += line_of_what_is_well(report);
  for (const Shared& each : merged(report.findings)) {
    const Finding& finding = *each.finding;
    const bool well = finding.level == FindingLevel::ok;
    if (well && several && detail != ReportDetail::all) continue;
    if (finding.level < FindingLevel::warning && detail == ReportDetail::problems) continue;
    // What other nodes say must not move the cursor.
    text += without_controls(concat(
        "  ", padded(to_string(finding.level), 9),
        several ? concat(name_nodes(each.nodes, report.nodes.size()), ": ") : "", finding.check,
        ": ", finding.what, finding.cure.empty() ? "" : concat(" -> ", finding.cure)));
    text += "\n";
  }
  if (detail != ReportDetail::problems) text += pair_table(report.nodes, report.pairs);
  return text + summary_line(report) + "\n";
}

std::string summary_line(const DoctorReport& report) {
  const int errors = report.count(FindingLevel::error);
  const int warnings = report.count(FindingLevel::warning);
  std::string found;
  if (errors > 0) found = counted(errors, "error");
  if (warnings > 0) found += concat(found.empty() ? "" : ", ", counted(warnings, "warning"));
  if (found.empty()) found = "all is well";
  std::array<char, 32> seconds;
  std::snprintf(seconds.data(), seconds.size(), "%.1f", report.seconds);
  return concat("doctor: ", found, " on ", counted(static_cast<int>(report.nodes.size()), "node"),
                " (", seconds.data(), " s)");
}

}  // namespace lockstep
