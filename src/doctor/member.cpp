#include "doctor/member.h"

#include <chrono>

#include "core/hmac.h"
#include "doctor/bounded.h"
#include "doctor/probe_client.h"
#include "doctor/shared_mark.h"
#include "launch/ip_address.h"
#include "launch/listen.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kNameLimit{3000};

// A machine with nothing but loopback still has neighbours on itself.
std::vector<InterfaceAddress> probed_addresses(const NetworkFacts& network) {
  auto addresses = network.outer_addresses();
  if (addresses.empty()) {
    addresses.push_back({.address = IpAddress::parse("127.0.0.1").value(), .prefix_bits = 8});
  }
  return addresses;
}

NamesAnswer look_up(const NamesQuestion& question) {
  NamesAnswer answer;
  for (const std::string& host : question.hosts) {
    auto name = run_bounded(kNameLimit, [host] {
      NamesAnswer::Name found;
      for (const IpAddress& each : resolve(host, &found.problem)) {
        found.addresses.push_back(each.to_string());
      }
      return found;
    });
    answer.names.push_back(
        name ? *std::move(name)
             : NamesAnswer::Name{.addresses = {}, .problem = "the resolver does not answer"});
  }
  return answer;
}

// For a job that is to meet here in a moment.
int free_port(const std::vector<ProbeListener>& listeners) {
  std::vector<std::string> addresses;
  for (const ProbeListener& each : listeners) addresses.push_back(each.address);
  if (addresses.empty()) addresses.emplace_back("127.0.0.1");
  return port_of(listen_on_each(addresses, 0).front());
}

std::int64_t wall_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

DoctorMember::DoctorMember(EventLoop& loop, const LocalReport& report, MemberOptions options,
                           std::function<void(std::string)> send)
    : options_(std::move(options)),
      send_(std::move(send)),
      hello_({.id = to_hex(random_bytes(16)),
              .host = report.host,
              .findings = report.findings,
              .traits = report.traits,
              .python = report.python,
              .gpus = report.gpus}),
      server_(probed_addresses(report.network),
              {.secret = options_.secret, .tls = options_.tls, .id = hello_.id}),
      work_(loop) {
  hello_.listeners = server_.listeners();
}

void DoctorMember::greet() {
  answer(0, hello_);
}

void DoctorMember::answer(std::uint64_t number, DoctorContent content) {
  send_(encode_doctor_message({.number = number, .content = std::move(content)}));
}

void DoctorMember::answer_with(std::uint64_t number, std::function<DoctorContent()> work) {
  work_.start([this, number, work = std::move(work)]() -> BackgroundWork::Then {
    return [this, number, content = work()] { answer(number, content); };
  });
}

void DoctorMember::on_message(std::string_view text) {
  const DoctorMessage message = decode_doctor_message(text);
  const DoctorContent& content = message.content;
  if (std::holds_alternative<ClockQuestion>(content)) {
    answer(message.number, ClockAnswer{.wall_ns = wall_nanoseconds()});
  } else if (const auto* names = std::get_if<NamesQuestion>(&content)) {
    answer_with(message.number, [question = *names] { return look_up(question); });
  } else if (const auto* ways = std::get_if<ProbeQuestion>(&content)) {
    answer_with(message.number, [question = *ways, secret = options_.secret, tls = options_.tls] {
      return probe(question, {.secret = secret, .tls = tls});
    });
  } else if (const auto* mark = std::get_if<MarkQuestion>(&content)) {
    answer_with(message.number, [question = *mark, folder = options_.shared_folder] {
      return do_mark(folder, question);
    });
  } else if (std::holds_alternative<PortQuestion>(content)) {
    answer(message.number, PortAnswer{.port = free_port(hello_.listeners)});
  } else if (const auto* smoke = std::get_if<SmokeQuestion>(&content)) {
    answer_with(message.number,
                [question = *smoke, setup = options_.smoke] { return run_smoke(question, setup); });
  } else if (const auto* end = std::get_if<DoctorEnd>(&content)) {
    end_ = *end;
  } else {
    throw InvalidArgument("a message of the doctor is not for a node");
  }
}

}  // namespace lockstep
