#include "doctor/desk.h"

#include <algorithm>
#include <tuple>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kProgressInterval{5};
constexpr milliseconds kDeskStep{50};
// A first word takes milliseconds; a link of which nothing arrives breaks after ten seconds.
constexpr std::chrono::seconds kFirstWordLimit{7};

bool is_loopback_text(const std::string& address) {
  const auto parsed = IpAddress::parse(address);
  return parsed && parsed->is_loopback();
}

}  // namespace

DoctorDesk::DoctorDesk(EventLoop& loop, std::vector<UniqueFd> listeners, DeskOptions options)
    : loop_(loop), options_(std::move(options)) {
  LinkServer::Callbacks callbacks;
  callbacks.on_open = [this](LinkServer::Id id, const std::string& peer, const std::string& local) {
    on_open(id, peer, local);
  };
  callbacks.on_message = [this](LinkServer::Id id, const std::string& text) {
    on_message(id, text);
  };
  callbacks.on_close = [this](LinkServer::Id id, const std::string& reason) {
    on_close(id, reason);
  };
  callbacks.on_refused = [this](const std::string& address, const std::string& reason) {
    say(address.empty() ? reason : concat("a connection from ", address, " was refused: ", reason));
  };
  callbacks.on_left = [this](const std::string& address, const std::string& reason) {
    say(concat(address, " left before the handshake was over: ", reason));
  };
  server_ = std::make_unique<LinkServer>(
      loop_, std::move(listeners.at(0)),
      LinkServerOptions{.secret = options_.secret, .tls = options_.tls, .run_id = kDoctorProtocol},
      callbacks);
  for (std::size_t more = 1; more < listeners.size(); ++more) {
    server_->also_listen(std::move(listeners[more]));
  }
}

void DoctorDesk::seat_local(const LocalReport& report, const MemberOptions& options) {
  local_.emplace(loop_, report, options, [this](std::string text) {
    loop_.after(milliseconds(0), [this, text = std::move(text)] {
      const DoctorMessage message = decode_doctor_message(text);
      if (const auto* hello = std::get_if<NodeHello>(&message.content)) {
        take_hello(0, *hello);
      } else {
        take(0, message);
      }
    });
  });
  local_->greet();
  while (nodes_.empty()) loop_.run_once(kDeskStep);
}

void DoctorDesk::on_open(LinkServer::Id id, const std::string& peer, const std::string& local) {
  newcomers_[id] = {.address = peer, .since = Clock::now()};
  if (reached_at_.empty() && !is_loopback_text(peer)) reached_at_ = local;
}

void DoctorDesk::on_message(LinkServer::Id id, const std::string& text) {
  try {
    const DoctorMessage message = decode_doctor_message(text);
    const auto link = std::ranges::find(links_, id);
    if (link != links_.end()) {
      return take(static_cast<std::size_t>(link - links_.begin()), message);
    }
    const auto* hello = std::get_if<NodeHello>(&message.content);
    if (hello == nullptr) throw InvalidArgument("the first message is not a hello");
    if (gathering_) return take_hello(id, *hello);
    throw InvalidArgument("all nodes are here already; one more than --nnodes was started");
  } catch (const InvalidArgument& error) {
    const auto newcomer = newcomers_.find(id);
    say(concat(newcomer == newcomers_.end() ? "a node" : newcomer->second.address,
               " was sent away: ", error.what()));
    server_->close(id);
    newcomers_.erase(id);
  }
}

void DoctorDesk::take_hello(LinkServer::Id id, NodeHello hello) {
  DeskNode node;
  node.hello = std::move(hello);
  const auto& listeners = node.hello.listeners;
  const std::string peer = id == 0 ? "" : newcomers_[id].address;
  newcomers_.erase(id);
  const bool known = std::ranges::any_of(
      listeners, [&](const ProbeListener& each) { return each.address == peer; });
  if (known) node.main_address = peer;
  node.translated = !known && id != 0 && !is_loopback_text(peer);
  nodes_.push_back(std::move(node));
  links_.push_back(id);
}

void DoctorDesk::on_close(LinkServer::Id id, const std::string& reason) {
  newcomers_.erase(id);
  const auto link = std::ranges::find(links_, id);
  if (link == links_.end()) return;
  nodes_[static_cast<std::size_t>(link - links_.begin())].lost = reason;
}

void DoctorDesk::take(std::size_t node, const DoctorMessage& message) {
  const auto found = waiting_.find(message.number);
  if (found == waiting_.end() || found->second.node != node) return;  // too late
  found->second.answer = message.content;
}

void DoctorDesk::send(std::size_t node, const std::string& text) {
  if (links_[node] == 0) {
    loop_.after(milliseconds(0), [this, text] { local_->on_message(text); });
  } else {
    server_->send(links_[node], text);
  }
}

std::string DoctorDesk::names_of_nodes() const {
  std::string names;
  for (const DeskNode& node : nodes_) {
    names += concat(names.empty() ? "" : ", ", node.hello.host);
  }
  return names;
}

std::vector<std::string> DoctorDesk::silent() const {
  std::vector<std::string> addresses;
  for (const auto& [id, newcomer] : newcomers_) {
    if (Clock::now() - newcomer.since > kFirstWordLimit) addresses.push_back(newcomer.address);
  }
  return addresses;
}

void DoctorDesk::gather(int nodes, milliseconds limit, const std::function<bool()>& given_up) {
  const auto wanted = static_cast<std::size_t>(nodes);
  const auto deadline = Clock::now() + limit;
  auto next_word = Clock::now() + kProgressInterval;
  while (nodes_.size() + silent().size() < wanted && Clock::now() < deadline) {
    loop_.run_once(kDeskStep);
    if (given_up && given_up()) break;
    if (Clock::now() < next_word) continue;
    next_word += kProgressInterval;
    const auto left = std::chrono::ceil<std::chrono::seconds>(deadline - Clock::now());
    say(concat(nodes_.size(), " of ", nodes, " nodes are here (", names_of_nodes(),
               "); waiting for ", left.count(), " s more"));
  }
  gathering_ = false;
  settle_main_addresses();
  sort_by_name();
}

// A node on this machine is where other nodes reach this machine.
void DoctorDesk::settle_main_addresses() {
  for (DeskNode& node : nodes_) {
    const auto& listeners = node.hello.listeners;
    if (!node.main_address.empty() || listeners.empty()) continue;
    const bool known = std::ranges::any_of(
        listeners, [&](const ProbeListener& each) { return each.address == reached_at_; });
    node.main_address = known ? reached_at_ : listeners.front().address;
  }
}

// Whoever came first is chance; a node without a link stays the first.
void DoctorDesk::sort_by_name() {
  const std::size_t first = local_ ? 1 : 0;
  std::vector<std::pair<DeskNode, LinkServer::Id>> others;
  for (std::size_t at = first; at < nodes_.size(); ++at) {
    others.emplace_back(std::move(nodes_[at]), links_[at]);
  }
  std::ranges::stable_sort(others, {}, [](const auto& each) { return each.first.hello.host; });
  for (std::size_t at = first; at < nodes_.size(); ++at) {
    std::tie(nodes_[at], links_[at]) = std::move(others[at - first]);
  }
}

std::vector<std::optional<DoctorContent>> DoctorDesk::ask(
    const std::vector<std::optional<DoctorContent>>& questions, milliseconds limit) {
  waiting_.clear();
  for (std::size_t node = 0; node < questions.size(); ++node) {
    if (!questions[node] || !nodes_[node].lost.empty()) continue;
    waiting_[++last_number_] = {.node = node, .answer = std::nullopt};
    send(node, encode_doctor_message({.number = last_number_, .content = *questions[node]}));
  }
  const auto deadline = Clock::now() + limit;
  const auto is_open = [&](const auto& each) {
    return !each.second.answer && nodes_[each.second.node].lost.empty();
  };
  while (std::ranges::any_of(waiting_, is_open) && Clock::now() < deadline)
    loop_.run_once(kDeskStep);
  std::vector<std::optional<DoctorContent>> answers(questions.size());
  for (auto& [number, waiting] : waiting_) {
    std::string& lost = nodes_[waiting.node].lost;  // it is not waited for a second time
    if (!waiting.answer && lost.empty()) {
      lost = concat("no answer within ", limit.count() / 1000, " s");
    }
    answers[waiting.node] = std::move(waiting.answer);
  }
  waiting_.clear();
  return answers;
}

std::optional<DoctorContent> DoctorDesk::ask_one(std::size_t node, const DoctorContent& question,
                                                 milliseconds limit) {
  std::vector<std::optional<DoctorContent>> questions(nodes_.size());
  questions[node] = question;
  return ask(questions, limit)[node];
}

void DoctorDesk::end(const DoctorEnd& end) {
  const std::string text = encode_doctor_message({.number = 0, .content = end});
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (links_[node] == 0 || !nodes_[node].lost.empty()) continue;
    server_->send(links_[node], text);
    server_->close(links_[node]);
  }
  const auto deadline = Clock::now() + std::chrono::seconds(2);
  while (server_->queued_bytes() > 0 && Clock::now() < deadline) loop_.run_once(kDeskStep);
}

}  // namespace lockstep
