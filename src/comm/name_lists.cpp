#include "comm/name_lists.h"

#include <set>

#include "lockstep/error.h"

namespace lockstep {

nlohmann::json join_name_lists(ProcessGroup group, const nlohmann::json& mine,
                               const std::vector<std::string>& order, const char* complaint) {
  std::vector<std::set<std::string>> names(mine.size());
  for (const nlohmann::json& of_rank : group.all_gather_json(mine)) {
    if (of_rank.size() != names.size()) throw InvalidArgument(complaint);
    for (std::size_t i = 0; i < names.size(); ++i) {
      for (const nlohmann::json& name : of_rank[i]) names[i].insert(name.get<std::string>());
    }
  }
  nlohmann::json joined = nlohmann::json::array();
  for (const std::set<std::string>& each : names) {
    nlohmann::json& list = joined.emplace_back(nlohmann::json::array());
    for (const std::string& name : order) {
      if (each.contains(name)) list.push_back(name);
    }
  }
  return joined;
}

}  // namespace lockstep
