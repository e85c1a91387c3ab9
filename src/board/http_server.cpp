// The only source with the HTTP library in it.
#include "board/http_server.h"

#include <pthread.h>
#include <sys/socket.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>

#include <httplib.h>

#include "board/board_api.h"
#include "board/page_files.h"
#include "core/hmac.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// A connection has a thread for as long as it lives: browsers keep six open, and a live page one
// more for its events.
constexpr std::size_t kConnections = 160;
constexpr int kMostStreams = 48;
constexpr int kWaiting = 512;
constexpr auto kLookEvery = std::chrono::milliseconds(500);
constexpr int kLooksPerSignOfLife = 20;

// Nothing but what this program serves: no inline scripts, no styles in attributes, no other hosts.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

class BoardServer {
 public:
  explicit BoardServer(const BoardOptions& options)
      : options_(options), token_(board_token(options)), root_(options.directory), api_(root_) {}

  int run() {
    set_up();
    listen();
    cookie_ = concat("lockstep_board_", port_);
    const std::string host = options_.host.find(':') == std::string::npos
                                 ? options_.host
                                 : concat("[", options_.host, "]");
    std::printf("lockstep: the runs in %s: http://%s:%d/?token=%s\n", root_.path().c_str(),
                host.c_str(), port_, token_.c_str());
    std::fflush(stdout);
    // Threads inherit the mask, so that the signals come to the one that waits for them.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::thread waits([&] {
      int number = 0;
      sigwait(&signals, &number);
      stop();
    });
    const bool served = server_.listen_after_bind();
    if (!stopping_) ::pthread_kill(waits.native_handle(), SIGTERM);
    waits.join();
    return served ? 0 : 1;
  }

 private:
  void listen() {
    // The library's own choice would let a second program share the port, and get half of the
    // connections.
    server_.set_socket_options([this](socket_t socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      listener_ = socket;
    });
    const char* host = options_.host.c_str();
    if (options_.port != 0 && server_.bind_to_port(host, options_.port)) {
      port_ = options_.port;
    } else if (options_.port == 0 || !options_.port_given) {
      port_ = server_.bind_to_any_port(host);
    }
    // The library lets five wait to be accepted. Where more come at once, the kernel drops what
    // they send, and they try again after seconds.
    if (port_ > 0) ::listen(listener_, kWaiting);
    if (port_ <= 0) {
      throw SystemError(concat("board: cannot listen on ", options_.host, " port ", options_.port,
                               "; choose another with --port, or --port 0 for a free one"));
    }
  }

  void set_up() {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
    server_.set_keep_alive_max_count(10'000);
    server_.set_keep_alive_timeout(10);
    server_.set_read_timeout(5);
    server_.set_write_timeout(10);
    server_.set_payload_max_length(0);
    server_.set_tcp_nodelay(true);
    server_.set_default_headers({{"Content-Security-Policy", kPolicy},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"X-Frame-Options", "DENY"},
                                 {"Referrer-Policy", "no-referrer"},
                                 {"Cross-Origin-Resource-Policy", "same-origin"},
                                 {"Cross-Origin-Opener-Policy", "same-origin"},
                                 {"Cache-Control", "no-store"}});
    // All is answered here: the library's own way to a handler tries one regular expression after
    // the other, which would take longer than most answers.
    server_.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          const bool answered = !let_in(request, response) || answer(request, response);
          return answered ? httplib::Server::HandlerResponse::Handled
                          : httplib::Server::HandlerResponse::Unhandled;
        });
    server_.set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          refuse(response, 500, "this could not be read");
        });
  }

  // Returns false where there is nothing of that name.
  bool answer(const httplib::Request& request, httplib::Response& response) {
    if (request.path == "/api/live") {
      stream(request, response);
      return true;
    }
    if (request.path.starts_with("/api/")) {
      const auto found = api_.get(request.path, request.params);
      response.status = found->status;
      response.set_content(found->body, "application/json");
      return true;
    }
    const auto& files = page_files();
    const auto file = std::ranges::find(files, request.path, &PageFile::path);
    if (file == files.end()) return false;
    response.set_content(file->content.data(), file->content.size(), std::string(file->type));
    return true;
  }

  static void refuse(httplib::Response& response, int status, const std::string& why) {
    response.status = status;
    response.set_content(why + "\n", "text/plain; charset=utf-8");
  }

  // Whoever has the address with the token gets a cookie for it, and the token leaves the address.
  bool let_in(const httplib::Request& request, httplib::Response& response) const {
    if (request.method != "GET" && request.method != "HEAD") {
      response.set_header("Allow", "GET, HEAD");
      refuse(response, 405, "this page is for reading only");
      return false;
    }
    if (request.path == "/" && request.has_param("token") &&
        equal_in_constant_time(request.get_param_value("token"), token_)) {
      response.set_header("Set-Cookie",
                          concat(cookie_, "=", token_, "; Path=/; HttpOnly; SameSite=Strict"));
      response.set_redirect("/", 303);
      return false;
    }
    const std::string given = cookie_value(request.get_header_value("Cookie"), cookie_);
    if (equal_in_constant_time(given, token_)) return true;
    refuse(response, 403,
           "Open the address that `lockstep board` has printed: it has a token in it.");
    return false;
  }

  void stream(const httplib::Request& request, httplib::Response& response) {
    if (streams_.fetch_add(1) >= kMostStreams) {
      --streams_;
      return refuse(response, 503, "too many pages are open");
    }
    const bool one = request.has_param("run");
    response.set_header("X-Accel-Buffering", "no");
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, one, id = request.get_param_value("run"), last = std::string()](
            std::size_t, httplib::DataSink& sink) mutable {
          for (int look = 0; look < kLooksPerSignOfLife; ++look) {
            const std::string now = api_.pulse(one ? &id : nullptr);
            if (now.empty()) return false;
            if (now != last) {
              last = now;
              const std::string event = concat("event: change\ndata: ", now, "\n\n");
              return sink.write(event.data(), event.size());
            }
            if (pause()) return false;
          }
          constexpr std::string_view kSignOfLife = ": still here\n\n";
          return sink.write(kSignOfLife.data(), kSignOfLife.size());
        },
        [this](bool) { --streams_; });
  }

  // Returns whether the server ends.
  bool pause() {
    std::unique_lock lock(mutex_);
    return ends_.wait_for(lock, kLookEvery, [this] { return stopping_.load(); });
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    ends_.notify_all();
    server_.stop();
  }

  const BoardOptions options_;
  const std::string token_;
  const RootFolder root_;
  BoardApi api_;
  std::string cookie_;
  int port_ = 0;
  socket_t listener_ = -1;  // the library's
  httplib::Server server_;
  std::mutex mutex_;
  std::condition_variable ends_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> streams_ = 0;
};

}  // namespace

int serve_board(const BoardOptions& options) {
  return BoardServer(options).run();
}

}  // namespace lockstep
