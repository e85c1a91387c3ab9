#include "doctor/report.h"
#include "launch/json_fields.h"

namespace lockstep {

std::string to_json(const DoctorReport& report) {
  Json findings = Json::array();
  for (const Finding& each : report.findings) {
    findings.push_back({{"node", each.node},
                        {"check", each.check},
                        {"level", to_string(each.level)},
                        {"what", each.what},
                        {"cure", each.cure}});
  }
  Json pairs = Json::array();
  for (const PairResult& each : report.pairs) {
    Json pair = {{"from", report.nodes.at(static_cast<std::size_t>(each.from))},
                 {"to", report.nodes.at(static_cast<std::size_t>(each.to))},
                 {"address", each.address},
                 {"main", each.main},
                 {"reached", each.reached()}};
    if (each.reached()) {
      pair["latency_us"] = each.latency_us;
      pair["least_latency_us"] = each.least_latency_us;
      pair["path_mtu"] = each.path_mtu;
      pair["stalled"] = each.stalled;
      if (each.bytes_per_second) pair["bytes_per_second"] = *each.bytes_per_second;
    } else {
      pair["problem"] = each.problem;
    }
    pairs.push_back(std::move(pair));
  }
  return dump_json({{"nodes", report.nodes},
                    {"findings", std::move(findings)},
                    {"pairs", std::move(pairs)},
                    {"errors", report.count(FindingLevel::error)},
                    {"warnings", report.count(FindingLevel::warning)},
                    {"seconds", report.seconds}});
}

}  // namespace lockstep
