#include "cluster/agent_place.h"

#include <algorithm>

#include "cluster/brief_channel.h"
#include "launch/option_table.h"
#include "lockstep/error.h"

namespace lockstep {

Environment::Variables variables_for(const Brief& brief, const Environment& own) {
  Environment::Variables variables = own.variables();
  for (const Option& option : all_options()) variables.erase(std::string(option.variable));
  std::erase_if(variables, [](const auto& entry) {
    return entry.first.starts_with("LOCKSTEP_SECRET") || entry.first == kBriefVariable;
  });
  for (const auto& [name, value] : brief.environment) variables[name] = value;
  if (!brief.gpus.empty()) {
    std::string list;
    for (const int gpu : brief.gpus) list += concat(list.empty() ? "" : ",", gpu);
    variables["CUDA_VISIBLE_DEVICES"] = list;
  }
  return variables;
}

std::vector<Endpoint> endpoints_for(const Brief& brief, const Environment& own) {
  std::vector<Endpoint> endpoints = brief.endpoints;
  const std::string connection = own.get("SSH_CONNECTION").value_or("");
  const Endpoint seen{.host = connection.substr(0, connection.find(' ')),
                      .port = endpoints.front().port};
  const bool known = std::ranges::find(endpoints, seen) != endpoints.end();
  if (!seen.host.empty() && !known) endpoints.insert(endpoints.begin(), seen);
  return endpoints;
}

}  // namespace lockstep
