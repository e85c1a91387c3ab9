#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tls_stream.h"
#include "etcd/etcd_api.h"
#include "etcd/http_response.h"
#include "launch/endpoint.h"
#include "launch/etcd_access.h"
#include "launch/event_loop.h"
#include "launch/name_lookup.h"
#include "launch/reach.h"

namespace lockstep {

/// Asks one of several etcd servers, without making the loop wait: the one that answered last, then
/// the others. Each request has a connection of its own. Where there is a user it logs in first,
/// and again when etcd has forgotten it.
class EtcdClient {
 public:
  /// What etcd answered with status 200; or none, and why not.
  using Done = std::function<void(std::optional<std::string> body, const std::string& reason)>;

  /// `patience` is for one server. Throws InvalidArgument where a file of `access` cannot be used.
  EtcdClient(EventLoop& loop, std::vector<Endpoint> servers, EtcdAccess access = {},
             std::chrono::milliseconds patience = std::chrono::milliseconds(2000));
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  /// One at a time. `done` comes from the loop, and may ask again.
  void ask(EtcdRequest request, Done done);

  /// How far the last request has come, at the server where it came furthest.
  Reach reach() const { return reach_; }

 private:
  void try_server();
  void on_addresses(std::vector<IpAddress> addresses, const std::string& reason);
  void try_address();
  void on_event(std::uint32_t events);
  bool begin_talk();
  bool send_output();
  void receive();
  void take(std::string_view bytes);
  void on_response();
  std::string http_text() const;
  void give_up_address(const std::string& reason);
  void give_up_server(const std::string& reason);
  void disconnect();
  void finish(std::optional<std::string> body);
  const Endpoint& server() const { return servers_[server_]; }

  EventLoop& loop_;
  std::vector<Endpoint> servers_;
  EtcdAccess access_;
  std::unique_ptr<TlsTrust> trust_;  // unset: plain HTTP
  std::chrono::milliseconds patience_;
  EtcdRequest request_;
  Done done_;
  std::size_t server_ = 0;  // the one that is asked, or answered last
  std::size_t tried_ = 0;   // for this request
  Reach reach_ = Reach::heard;
  std::string failures_;
  std::optional<NameLookup> lookup_;
  std::vector<IpAddress> addresses_;
  std::size_t next_address_ = 0;
  UniqueFd socket_;
  bool connected_ = false;
  std::optional<TlsStream> tls_;
  std::string token_;           // of the last login
  bool logs_in_ = false;        // that comes before the request
  bool has_logged_in_ = false;  // for this request
  std::string output_;
  HttpResponse response_;
  EventLoop::TimerId begin_{};
  EventLoop::TimerId deadline_{};
};

}  // namespace lockstep
