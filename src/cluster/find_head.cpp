#include "cluster/find_head.h"

#include <memory>
#include <optional>
#include <set>

#include "launch/coordinator_link.h"
#include "launch/event_loop.h"
#include "launch/link_client.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Each has this long before the next is tried, too.
constexpr std::chrono::milliseconds kHeadStart{300};
// For attempts that are under way when one has succeeded: one that breaks off would be reported.
constexpr std::chrono::milliseconds kFarewell{1000};
constexpr std::chrono::milliseconds kRetry{500};

class Search {
 public:
  Search(const std::vector<Endpoint>& endpoints, const FindHeadOptions& options)
      : endpoints_(endpoints),
        options_(options),
        clients_(endpoints.size()),
        reasons_(endpoints.size()) {}

  std::optional<Endpoint> run() {
    for (std::size_t i = 0; i < endpoints_.size(); ++i) {
      loop_.after(kHeadStart * static_cast<int>(i), [this, i] { attempt(i); });
    }
    loop_.after(options_.patience, [this] { loop_.stop(); });
    loop_.run();
    clients_.clear();
    if (best_) return endpoints_[*best_];
    return std::nullopt;
  }

  std::string reasons() const {
    std::string text;
    for (std::size_t i = 0; i < endpoints_.size(); ++i) {
      text += concat(text.empty() ? "" : "; ", endpoints_[i].to_string(), ": ",
                     reasons_[i].empty() ? "no answer" : reasons_[i]);
    }
    return text;
  }

 private:
  void attempt(std::size_t index) {
    if (best_) return;
    under_way_.insert(index);
    LinkClient::Callbacks events;
    events.on_open = [this, index](const std::string&, const std::string&) { found(index); };
    events.on_message = [](const std::string&) {};
    events.on_close = [this, index](const std::string& reason) {
      under_way_.erase(index);
      if (best_) return stop_if_quiet();
      reasons_[index] = reason;
      loop_.after(kRetry, [this, index] { attempt(index); });
    };
    clients_[index] = std::make_unique<LinkClient>(loop_,
                                                   LinkClientOptions{.server = endpoints_[index],
                                                                     .secret = options_.secret,
                                                                     .tls = options_.tls,
                                                                     .run_id = kLinkProtocol},
                                                   std::move(events));
  }

  void found(std::size_t index) {
    under_way_.erase(index);
    if (!best_) {
      best_ = index;
      loop_.after(kFarewell, [this] { loop_.stop(); });
    }
    stop_if_quiet();
  }

  void stop_if_quiet() {
    if (under_way_.empty()) loop_.stop();
  }

  EventLoop loop_;
  const std::vector<Endpoint>& endpoints_;
  const FindHeadOptions& options_;
  std::vector<std::unique_ptr<LinkClient>> clients_;
  std::vector<std::string> reasons_;
  std::set<std::size_t> under_way_;
  std::optional<std::size_t> best_;
};

}  // namespace

Endpoint find_head(const std::vector<Endpoint>& endpoints, const FindHeadOptions& options) {
  Search search(endpoints, options);
  if (const auto found = search.run()) return *found;
  throw SystemError(
      concat("the machine on which `lockstep run` was started cannot be reached from "
             "here (",
             search.reasons(),
             "); let this machine connect to it, or name an address and an open port "
             "of it with --rdzv-endpoint HOST:PORT"));
}

}  // namespace lockstep
