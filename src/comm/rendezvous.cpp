#include "comm/rendezvous.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <sstream>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/store_impl.h"
#include "core/tcp_probe.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Url {
  std::string scheme;
  std::string host;
  int port = 0;
  std::string path;
  std::map<std::string, std::string> query;
};

int parse_int(const std::string& what, const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw InvalidArgument(concat("init_method: ", what, " is '", text, "'; it must be a number"));
  }
  return value;
}

Url parse_url(const std::string& text) {
  const auto scheme_end = text.find("://");
  if (scheme_end == std::string::npos) {
    throw InvalidArgument(
        concat("init_method is '", text, "'; it must be env://, tcp://host:port or file:///path"));
  }
  Url url{.scheme = text.substr(0, scheme_end)};
  std::string rest = text.substr(scheme_end + 3);
  if (const auto mark = rest.find('?'); mark != std::string::npos) {
    std::istringstream pairs(rest.substr(mark + 1));
    for (std::string pair; std::getline(pairs, pair, '&');) {
      const auto equals = pair.find('=');
      url.query[pair.substr(0, equals)] =
          equals == std::string::npos ? "" : pair.substr(equals + 1);
    }
    rest.resize(mark);
  }
  if (url.scheme == "tcp") {
    const auto colon = rest.rfind(':');
    if (colon == std::string::npos || colon == 0) {
      throw InvalidArgument(concat("init_method is '", text, "'; tcp:// needs host:port"));
    }
    url.host = rest.substr(0, colon);
    if (url.host.front() == '[' && url.host.back() == ']') {
      url.host = url.host.substr(1, url.host.size() - 2);
    }
    url.port = parse_int("the port", rest.substr(colon + 1));
  } else {
    url.path = rest;
  }
  return url;
}

std::optional<int> in_query(const Url& url, const std::string& name) {
  const auto found = url.query.find(name);
  if (found == url.query.end()) return std::nullopt;
  return parse_int(name, found->second);
}

// Options come before the URL, the URL before the environment.
RankEnvironment find_place(const InitOptions& options, const Url& url,
                           const Environment& environment) {
  const auto rank = options.rank ? options.rank : in_query(url, "rank");
  const auto world_size = options.world_size ? options.world_size : in_query(url, "world_size");

  if (rank && world_size) {
    RankEnvironment place{.rank = *rank, .world_size = *world_size};
    if (url.scheme == "env" && !options.store) {
      place.master_addr = environment.get("MASTER_ADDR").value_or("");
      if (auto port = environment.get("MASTER_PORT")) {
        place.master_port = parse_int("MASTER_PORT", *port);
      }
      place.use_agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True";
    }
    const std::string& host = url.host.empty() ? place.master_addr : url.host;
    place.local_world_size = is_loopback(host) ? *world_size : 1;
    place.local_rank = is_loopback(host) ? *rank : 0;
    // Where on the machine a rank sits does not change when the world does.
    if (auto local_rank = environment.get("LOCAL_RANK")) {
      place.local_rank = parse_int("LOCAL_RANK", *local_rank);
      if (auto local_size = environment.get("LOCAL_WORLD_SIZE")) {
        place.local_world_size = parse_int("LOCAL_WORLD_SIZE", *local_size);
      }
      place.node_rank = parse_int("GROUP_RANK", environment.get("GROUP_RANK").value_or("0"));
    }
    return place;
  }
  if (rank || world_size) {
    throw InvalidArgument(concat("init: ", rank ? "rank" : "world_size", " is given but ",
                                 rank ? "world_size" : "rank", " is not; give both or neither"));
  }
  if (options.store || url.scheme != "env") {
    throw InvalidArgument(concat("init: ", options.store ? "a given store" : options.init_method,
                                 " needs rank and world_size (options, or ?rank=R&world_size=N)"));
  }
  // Started by hand, alone: a world of one.
  return detect_environment(environment).value_or(RankEnvironment{});
}

// Whether all ranks are certain to be on this machine, so that loopback will do. An environment
// without LOCAL_WORLD_SIZE says nothing about it, nor does a file or a given store.
bool on_one_machine(const RankEnvironment& place, const Url& url, const InitOptions& options,
                    const Environment& environment) {
  if (place.world_size == 1) return true;
  const bool known = place.launcher != Launcher::torchrun && place.launcher != Launcher::none;
  const bool stated = known || environment.has("LOCAL_WORLD_SIZE");
  // Before the address: with `lockstep run --store local` every node has the store on loopback.
  if (stated && place.local_world_size < place.world_size) return false;
  return stated || (!options.store && is_loopback(url.host.empty() ? place.master_addr : url.host));
}

void check_place(const RankEnvironment& place) {
  if (place.world_size <= 0) {
    throw InvalidArgument(
        concat("init: world_size is ", place.world_size, "; it must be positive"));
  }
  if (place.rank < 0 || place.rank >= place.world_size) {
    throw InvalidArgument(concat("init: rank ", place.rank,
                                 " is outside [0, world_size) with world_size ", place.world_size));
  }
}

void use_tcp_store(Meeting& meeting, const InitOptions& options, const std::string& host,
                   int port) {
  const bool serve = meeting.place.rank == 0 && !meeting.place.use_agent_store;
  meeting.hosts_store = serve;
  try {
    meeting.store = connect_tcp_store(
        {.host = host, .port = port, .serve = serve, .timeout = options.rendezvous_timeout},
        meeting.place.world_size, &meeting.store_port);
  } catch (const Timeout& timeout) {
    throw Timeout(concat("init: rank ", meeting.place.rank, ": ",
                         meeting.place.use_agent_store ? "the launcher's store" : "rank 0",
                         " did not arrive: ", timeout.what()),
                  meeting.place.use_agent_store ? std::vector<int>{} : std::vector<int>{0});
  }
}

}  // namespace

Meeting meet(const InitOptions& options, const Environment& environment) {
  const Url url = parse_url(options.init_method);
  Meeting meeting{.place = find_place(options, url, environment)};
  check_place(meeting.place);
  meeting.one_machine = on_one_machine(meeting.place, url, options, environment);

  if (options.store) {
    meeting.store = options.store->impl()->native;
    meeting.store_port = options.store->port();
    meeting.prefixed = false;
  } else if (url.scheme == "tcp") {
    use_tcp_store(meeting, options, url.host, url.port);
  } else if (url.scheme == "file") {
    const auto folder = std::filesystem::path(url.path).parent_path();
    if (url.path.empty() || !std::filesystem::is_directory(folder)) {
      throw InvalidArgument(concat("init_method is '", options.init_method,
                                   "'; it must name a file in a folder that exists"));
    }
    meeting.store = c10::make_intrusive<c10d::FileStore>(url.path, meeting.place.world_size);
    meeting.store->setTimeout(options.rendezvous_timeout);
  } else if (url.scheme != "env") {
    throw InvalidArgument(concat("init_method is '", options.init_method,
                                 "'; it must be env://, tcp://host:port or file:///path"));
  } else if (meeting.place.world_size == 1 && meeting.place.master_addr.empty()) {
    meeting.store = c10::make_intrusive<c10d::HashStore>();
  } else if (meeting.place.master_addr.empty() || !meeting.place.master_port) {
    throw InvalidArgument(
        concat("init: ", meeting.place.master_addr.empty() ? "MASTER_ADDR" : "MASTER_PORT",
               " is not set; with env:// it says where rank 0 can be reached"));
  } else {
    use_tcp_store(meeting, options, meeting.place.master_addr, *meeting.place.master_port);
  }
  return meeting;
}

}  // namespace lockstep
