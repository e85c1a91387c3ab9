#include "launch/etcd_link.h"

#include <fcntl.h>
#include <map>
#include <utility>

#include "launch/coordinator_link_parts.h"
#include "launch/etcd_client.h"
#include "launch/leadership.h"
#include "launch/listen.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// A connection to a machine that is gone looks as if it were alive for longer than a lease lasts.
constexpr std::chrono::milliseconds kTouchCheck{500};

class EtcdLink : public CoordinatorLink {
 public:
  EtcdLink(EventLoop& loop, JobPlan& plan, Callbacks callbacks)
      : loop_(loop),
        plan_(plan),
        callbacks_(std::move(callbacks)),
        listener_(listen_on(plan.agent.self.address, 0)),
        client_(loop, plan.etcd.servers, plan.etcd.access),
        leadership_(leadership_options(), monotonic_now()) {
    perform(leadership_.on_time(monotonic_now()));
    check_touch();
  }

  ~EtcdLink() override {
    loop_.cancel(timer_);
    loop_.cancel(touch_timer_);
    loop_.cancel(answer_);
  }

  void connect() override {
    if (inner_) return inner_->connect();
    answer_ = loop_.after({}, [this] {
      callbacks_.disconnected(leadership_.trouble().empty()
                                  ? "etcd names no coordinator yet"
                                  : concat("etcd cannot be asked: ", leadership_.trouble()));
    });
  }
  void disconnect() override {
    connected_ = false;
    if (inner_) inner_->disconnect();
    check_touch();
  }
  // Etcd itself is nothing that the nodes' scheduler starts with them.
  Reach reach() const override {
    if (inner_) return inner_->reach();
    const bool is_in_vain = !leadership_.trouble().empty() && client_.reach() == Reach::nothing;
    return is_in_vain ? Reach::nothing : Reach::heard;
  }
  void send(const Message& message) override {
    if (inner_) inner_->send(message);
  }
  void send_stream(const std::string& message) override {
    if (inner_) inner_->send_stream(message);
  }
  std::size_t queued_bytes() const override { return inner_ ? inner_->queued_bytes() : 0; }
  bool over() override {
    if (inner_ && !inner_->over()) return false;
    if (!std::exchange(resigns_, true)) perform(leadership_.resign(monotonic_now()));
    return leadership_.resigned();
  }

 private:
  LeadershipOptions leadership_options() const {
    return {.keys = {.prefix = plan_.etcd.prefix,
                     .run_id = plan_.options.rdzv_id,
                     .secret = plan_.secret},
            .self = {.term = 0,
                     .id = plan_.agent.self.id,
                     .host = plan_.host,
                     .address = plan_.agent.self.address,
                     .port = port_of(listener_)},
            .lease = plan_.etcd.lease};
  }

  // What the agent hears comes through here, to know whether its coordinator lives.
  Callbacks inner_callbacks() {
    Callbacks inner = callbacks_;
    inner.connected = [this] {
      connected_ = true;
      heard_ = monotonic_now();
      check_touch();
      callbacks_.connected();
    };
    inner.message = [this](const Message& message) {
      heard_ = monotonic_now();
      callbacks_.message(message);
    };
    inner.disconnected = [this](const std::string& reason) {
      connected_ = false;
      check_touch();
      callbacks_.disconnected(reason);
    };
    return inner;
  }

  void check_touch() {
    loop_.cancel(touch_timer_);
    touch_timer_ = loop_.after(kTouchCheck, [this] { check_touch(); });
    const Time silence = monotonic_now() - heard_;
    const bool in_touch =
        connected_ && silence <= 2 * plan_.agent.terms.beat_interval + kTouchCheck;
    if (std::exchange(in_touch_, in_touch) == in_touch) return;
    perform(leadership_.on_touch(in_touch, monotonic_now()));
  }

  void perform(Leadership::Actions actions) {
    for (LeadershipAction& action : actions) {
      std::visit([this](auto& kind) { carry_out(kind); }, action);
    }
    loop_.cancel(timer_);
    const Time deadline = leadership_.next_deadline();
    if (deadline == Time::max()) return;
    timer_ = loop_.at(to_time_point(deadline),
                      [this] { perform(leadership_.on_time(monotonic_now())); });
  }

  void carry_out(AskEtcd& ask) {
    client_.ask(std::move(ask.request), [this](auto body, const std::string& reason) {
      const Time now = monotonic_now();
      perform(body ? leadership_.on_reply(*body, now) : leadership_.on_failure(reason, now));
    });
  }

  // These never come while the link within is at work: they follow an answer of etcd.
  void carry_out(const Lead& lead) {
    CoordinatorOptions options = plan_.coordinator;
    options.record = record_of_this_job(lead.record);
    inner_.reset();
    records_.clear();
    inner_ = make_local_link(
        loop_, options, remote_end(),
        [this](const CoordinatorRecord& record, std::function<void()> kept) {
          records_[++last_record_] = std::move(kept);
          perform(leadership_.keep(to_json(record), last_record_, monotonic_now()));
        },
        inner_callbacks());
    callbacks_.say(concat("this node has the coordinator (term ", lead.term, ")"));
    moved(concat(plan_.host, " (this node)"), /*here=*/true);
  }

  void carry_out(const Follow& follow) {
    const Endpoint endpoint{.host = follow.leader.address, .port = follow.leader.port};
    inner_.reset();
    records_.clear();
    inner_ = make_remote_link(loop_, plan_, endpoint, inner_callbacks());
    moved(concat(follow.leader.host, " (", endpoint.to_string(), ")"), /*here=*/false);
  }

  void carry_out(const GiveUp&) {
    inner_.reset();
    records_.clear();
    moved("another node", /*here=*/false);
  }

  void carry_out(const RecordKept& kept) {
    while (!records_.empty() && records_.begin()->first <= kept.number) {
      const std::function<void()> tell = std::move(records_.begin()->second);
      records_.erase(records_.begin());
      tell();
    }
  }

  void carry_out(const LeadershipSays& says) { callbacks_.say(says.text); }

  void moved(const std::string& where, bool here) {
    connected_ = false;
    in_touch_ = false;
    callbacks_.moved(where, here);
    callbacks_.disconnected(concat("the coordinator is on ", where));
  }

  // This node may lead more than once, always at the same port.
  CoordinatorShell::Remote remote_end() const {
    return {.listener = UniqueFd(::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0)),
            .options = link_server_options(plan_)};
  }

  std::optional<CoordinatorRecord> record_of_this_job(const std::string& text) const {
    auto record = coordinator_record_from_json(text);
    if (!record || record->run_id != plan_.options.rdzv_id) return std::nullopt;
    return record;
  }

  EventLoop& loop_;
  JobPlan& plan_;
  Callbacks callbacks_;
  UniqueFd listener_;
  EtcdClient client_;
  Leadership leadership_;
  std::unique_ptr<CoordinatorLink> inner_;
  std::map<std::uint64_t, std::function<void()>> records_;  // that are not kept yet
  std::uint64_t last_record_ = 0;
  bool connected_ = false;
  bool in_touch_ = false;
  bool resigns_ = false;
  Time heard_{0};
  EventLoop::TimerId timer_{};
  EventLoop::TimerId touch_timer_{};
  EventLoop::TimerId answer_{};
};

}  // namespace

std::unique_ptr<CoordinatorLink> make_etcd_link(EventLoop& loop, JobPlan& plan,
                                                CoordinatorLink::Callbacks callbacks) {
  return std::make_unique<EtcdLink>(loop, plan, std::move(callbacks));
}

}  // namespace lockstep
