#include "launch/keeper_protocol.h"

#include <cstring>
#include <string_view>
#include <type_traits>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// Both sides are one program in one state, so numbers travel as they lie in memory.
class Writer {
 public:
  template <typename Number>
  requires std::is_arithmetic_v<Number> Writer& add(Number number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }

  Writer& add(const std::string& text) {
    add(text.size());
    bytes_ += text;
    return *this;
  }

  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number number() {
    Number value = {};
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
    return value;
  }

  std::string text() { return std::string(next(number<std::size_t>())); }

 private:
  std::string_view next(std::size_t count) {
    LOCKSTEP_CHECK(count <= bytes_.size(), "a message of the keeper ends ", count - bytes_.size(),
                   " bytes early");
    const std::string_view part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }

  std::string_view bytes_;
};

void add_spec(Writer& writer, const WorkerSpec& spec) {
  writer.add(spec.argv.size());
  for (const std::string& argument : spec.argv) {
    writer.add(argument);
  }
  writer.add(spec.environment.size());
  for (const auto& [name, value] : spec.environment) {
    writer.add(name).add(value);
  }
  writer.add(spec.cpus.size());
  for (const int cpu : spec.cpus) {
    writer.add(cpu);
  }
  writer.add(spec.working_directory).add(spec.stdout_path).add(spec.stderr_path);
  writer.add(spec.stdout_fd >= 0).add(spec.stderr_fd >= 0);
}

WorkerSpec read_spec(Reader& reader, const std::vector<UniqueFd>& fds) {
  WorkerSpec spec;
  for (auto left = reader.number<std::size_t>(); left > 0; --left) {
    spec.argv.push_back(reader.text());
  }
  for (auto left = reader.number<std::size_t>(); left > 0; --left) {
    std::string name = reader.text();
    spec.environment.emplace_hint(spec.environment.end(), std::move(name), reader.text());
  }
  for (auto left = reader.number<std::size_t>(); left > 0; --left) {
    spec.cpus.push_back(reader.number<int>());
  }
  spec.working_directory = reader.text();
  spec.stdout_path = reader.text();
  spec.stderr_path = reader.text();
  auto fd = fds.begin();
  for (int* place : {&spec.stdout_fd, &spec.stderr_fd}) {
    if (reader.number<bool>()) {
      LOCKSTEP_CHECK(fd != fds.end(), "a worker's descriptors did not arrive");
      *place = (fd++)->get();
    }
  }
  return spec;
}

struct Encoder {
  Writer writer;

  void operator()(const StartWorker& command) {
    writer.add(command.id);
    add_spec(writer, command.spec);
  }
  void operator()(const SignalWorker& command) { writer.add(command.id).add(command.number); }
  void operator()(const KillLeftovers& command) { writer.add(command.request); }

  void operator()(const WorkerStarted& event) { writer.add(event.id).add(event.pid); }
  void operator()(const WorkerStartFailed& event) {
    writer.add(event.id).add(event.reason).add(event.error);
  }
  void operator()(const WorkerExited& event) {
    writer.add(event.id).add(event.pid);
    writer.add(event.status.exit_code).add(event.status.signal).add(event.monotonic_ns);
  }
  void operator()(const AllGone& event) { writer.add(event.request); }
  void operator()(const StuckProcesses& event) {
    writer.add(event.request).add(event.processes.size());
    for (const StuckProcess& process : event.processes) {
      writer.add(process.pid).add(process.description);
    }
  }
  void operator()(const KeeperLost&) {
    LOCKSTEP_CHECK(false, "KeeperLost is what the other side concludes; it is not sent");
  }
};

template <typename Variant>
std::string encode_variant(const Variant& value) {
  Encoder encoder;
  encoder.writer.add(value.index());
  std::visit(encoder, value);
  return encoder.writer.take();
}

// The index by which `Alternative` is told in a message.
template <typename Alternative, typename... Types>
constexpr std::size_t index_in(std::variant<Types...>*) {
  std::size_t index = 0;
  const bool found = ((std::is_same_v<Alternative, Types> || (++index, false)) || ...);
  return found ? index : sizeof...(Types);
}

template <typename Alternative>
constexpr std::size_t kCommand = index_in<Alternative>(static_cast<KeeperCommand*>(nullptr));
template <typename Alternative>
constexpr std::size_t kEvent = index_in<Alternative>(static_cast<KeeperEvent*>(nullptr));

StuckProcesses read_stuck(Reader& reader) {
  StuckProcesses event;
  event.request = reader.number<std::uint64_t>();
  for (auto left = reader.number<std::size_t>(); left > 0; --left) {
    const pid_t pid = reader.number<pid_t>();
    event.processes.push_back({.pid = pid, .description = reader.text()});
  }
  return event;
}

WorkerExited read_exited(Reader& reader) {
  WorkerExited event;
  event.id = reader.number<std::uint64_t>();
  event.pid = reader.number<pid_t>();
  event.status.exit_code = reader.number<int>();
  event.status.signal = reader.number<int>();
  event.monotonic_ns = reader.number<std::int64_t>();
  return event;
}

}  // namespace

std::string encode(const KeeperCommand& command) {
  return encode_variant(command);
}

std::string encode(const KeeperEvent& event) {
  return encode_variant(event);
}

std::vector<int> attached_fds(const KeeperCommand& command) {
  std::vector<int> fds;
  if (const auto* start = std::get_if<StartWorker>(&command)) {
    for (const int fd : {start->spec.stdout_fd, start->spec.stderr_fd}) {
      if (fd >= 0) {
        fds.push_back(fd);
      }
    }
  }
  return fds;
}

KeeperCommand decode_command(const ChannelMessage& message) {
  Reader reader(message.bytes);
  const auto kind = reader.number<std::size_t>();
  const auto id = reader.number<std::uint64_t>();
  if (kind == kCommand<StartWorker>) {
    return StartWorker{.id = id, .spec = read_spec(reader, message.fds)};
  }
  if (kind == kCommand<SignalWorker>) {
    return SignalWorker{.id = id, .number = reader.number<int>()};
  }
  LOCKSTEP_CHECK(kind == kCommand<KillLeftovers>, "a command of kind ", kind);
  return KillLeftovers{.request = id};
}

KeeperEvent decode_event(const ChannelMessage& message) {
  Reader reader(message.bytes);
  const auto kind = reader.number<std::size_t>();
  if (kind == kEvent<WorkerStarted>) {
    const auto id = reader.number<std::uint64_t>();
    return WorkerStarted{.id = id, .pid = reader.number<pid_t>()};
  }
  if (kind == kEvent<WorkerStartFailed>) {
    const auto id = reader.number<std::uint64_t>();
    std::string reason = reader.text();
    return WorkerStartFailed{.id = id, .reason = std::move(reason), .error = reader.number<int>()};
  }
  if (kind == kEvent<WorkerExited>) {
    return read_exited(reader);
  }
  if (kind == kEvent<AllGone>) {
    return AllGone{.request = reader.number<std::uint64_t>()};
  }
  LOCKSTEP_CHECK(kind == kEvent<StuckProcesses>, "an event of kind ", kind);
  return read_stuck(reader);
}

}  // namespace lockstep
