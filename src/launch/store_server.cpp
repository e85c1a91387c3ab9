#include "launch/store_server.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <cerrno>
#include <chrono>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "launch/ip_address.h"
#include "launch/listen.h"
#include "launch/store_service.h"
#include "lockstep/error.h"

namespace lockstep {

/// The thread that owns the service; others ask it by call().
class StoreServer::Thread {
 public:
  explicit Thread(StoreServerOptions options)
      : service_(std::move(options.listener), options.max_bytes, std::move(options.log)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) throw_errno("eventfd");
    service_.loop().watch(wake_.get(), EPOLLIN, [this](std::uint32_t) { run_calls(); });
    // Signals are the main thread's business.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    ::pthread_setname_np(thread_.native_handle(), "lockstep-store");
  }

  ~Thread() {
    call([this](StoreService&) { stopping_ = true; });
    thread_.join();
  }

  /// Runs the task on the thread and waits for its end.
  void call(std::function<void(StoreService&)> task) {
    // Shared, because the thread may still be in it when the result is there.
    const auto packaged = std::make_shared<std::packaged_task<void()>>([&] { task(service_); });
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back(packaged);
    }
    LOCKSTEP_CHECK(::eventfd_write(wake_.get(), 1) == 0, "errno ", errno);
    packaged->get_future().get();
  }

 private:
  void run() {
    while (!stopping_) service_.turn(std::chrono::hours(1));
  }

  void run_calls() {
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
    std::vector<std::shared_ptr<std::packaged_task<void()>>> calls;
    {
      const std::lock_guard lock(mutex_);
      calls.swap(calls_);
    }
    for (const auto& call : calls) (*call)();
  }

  StoreService service_;
  UniqueFd wake_;
  bool stopping_ = false;  // the thread's own
  std::mutex mutex_;
  std::vector<std::shared_ptr<std::packaged_task<void()>>> calls_;  // guarded by mutex_
  std::thread thread_;
};

StoreServer::StoreServer(StoreServerOptions options)
    : port_(port_of(options.listener)), thread_(std::make_unique<Thread>(std::move(options))) {}

StoreServer::~StoreServer() = default;

void StoreServer::new_keyspace(std::uint64_t epoch) {
  thread_->call([&](StoreService& service) { service.new_keyspace(epoch); });
}

void StoreServer::allow(const std::vector<std::string>& numeric_addresses) {
  std::set<IpAddress> addresses;
  for (const std::string& text : numeric_addresses) {
    const auto address = IpAddress::parse(text);
    if (!address) {
      throw InvalidArgument(concat("'", text, "' is no numeric address; the store compares those"));
    }
    addresses.insert(*address);
  }
  thread_->call([&](StoreService& service) { service.allow(std::move(addresses)); });
}

UniqueFd StoreServer::connect(const std::string& numeric_address) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    throw_errno("socketpair");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  const IpAddress address =
      IpAddress::parse(numeric_address).value_or(*IpAddress::parse("127.0.0.1"));
  thread_->call([&](StoreService& service) {
    service.add(std::move(theirs), {.address = address, .reached_at = address, .port = 0});
  });
  return ours;
}

StoreStatus StoreServer::status() const {
  StoreStatus status;
  thread_->call([&](StoreService& service) { status = service.status(); });
  return status;
}

}  // namespace lockstep
