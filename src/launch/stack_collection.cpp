#include "launch/stack_collection.h"

#include <utility>
#include <vector>

namespace lockstep {

StackCollection::StackCollection(EventLoop& loop, Send send)
    : loop_(loop), send_(std::move(send)) {}

StackCollection::~StackCollection() {
  for (const auto& [id, round] : rounds_) loop_.cancel(round.limit);
}

void StackCollection::ask(LinkId asker, const AskStacks& ask,
                          const std::map<LinkId, std::string>& hosts) {
  const std::uint64_t id = ++last_id_;
  rounds_[id] = {.asker = asker,
                 .asked_as = ask.id,
                 .awaited = hosts,
                 .gone = {},
                 .limit = loop_.after(ask.limit, [this, id] { finish(id); })};
  for (const auto& [link, host] : hosts) send_(link, FindStacks{id, ask.limit});
  finish_if_complete(id);
}

void StackCollection::on_found(LinkId from, const FoundStacks& found) {
  const auto round = rounds_.find(found.id);
  if (round == rounds_.end() || round->second.awaited.erase(from) == 0) return;
  send_(round->second.asker, FoundStacks{round->second.asked_as, found.stacks});
  finish_if_complete(found.id);
}

void StackCollection::on_closed(LinkId link) {
  std::vector<std::uint64_t> changed;
  for (auto& [id, round] : rounds_) {
    if (auto awaited = round.awaited.extract(link)) {
      round.gone.push_back(std::move(awaited.mapped()));
      changed.push_back(id);
    }
  }
  std::erase_if(rounds_, [&](const auto& entry) {
    if (entry.second.asker != link) return false;
    loop_.cancel(entry.second.limit);
    return true;
  });
  for (const std::uint64_t id : changed) finish_if_complete(id);
}

void StackCollection::finish_if_complete(std::uint64_t id) {
  const auto round = rounds_.find(id);
  if (round != rounds_.end() && round->second.awaited.empty()) finish(id);
}

void StackCollection::finish(std::uint64_t id) {
  Round round = std::move(rounds_.at(id));
  rounds_.erase(id);
  loop_.cancel(round.limit);
  for (const auto& [link, host] : round.awaited) round.gone.push_back(host);
  send_(round.asker, StacksDone{round.asked_as, std::move(round.gone)});
}

}  // namespace lockstep
