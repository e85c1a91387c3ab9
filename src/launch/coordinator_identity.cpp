// Whether nodes run the same thing.
#include "launch/coordinator.h"
#include "launch/version.h"
#include "lockstep/error.h"

namespace lockstep {

// Whom others are compared with: the coordinator's own node, else who came first.
const Coordinator::Node* Coordinator::model_node(const NodeInfo& info) const {
  for (const auto& [is_elsewhere, joined, id] : elders_) {
    if (id != info.id) return &nodes_.at(id);
  }
  return nullptr;
}

std::optional<std::string> Coordinator::reason_of_identity(const NodeInfo& info) const {
  const Node* model = model_node(info);
  if (model == nullptr) return std::nullopt;
  if (info.version != model->info.version) return unequal_versions(info.host, info.version);
  const ProgramIdentity &ours = model->info.program, &theirs = info.program;
  const bool is_known = !ours.digest.empty() && !theirs.digest.empty();
  // Another name is another program, on purpose.
  if (ours.name != theirs.name || !is_known || ours.digest == theirs.digest) return std::nullopt;
  return concat(theirs.name, " on ", info.host, " (", theirs.digest, " bytes) is not the one on ",
                model->info.host, " (", ours.digest,
                " bytes): copy one of them to all nodes, or give them different names if both are "
                "meant");
}

void Coordinator::say_what_differs(const NodeInfo& info) {
  const Node* model = model_node(info);
  if (model == nullptr || model->info.role != info.role) return;
  const ProgramIdentity &ours = model->info.program, &theirs = info.program;
  if (ours.name != theirs.name) {
    actions_.push_back(Say{concat("node ", info.host, " runs ", theirs.name, ", and ",
                                  model->info.host, " runs ", ours.name)});
  } else if (ours.arguments != theirs.arguments) {
    actions_.push_back(Say{concat("the arguments of ", theirs.name, " on ", info.host,
                                  " are not those on ", model->info.host)});
  }
}

}  // namespace lockstep
