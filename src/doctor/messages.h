#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "doctor/finding.h"

namespace lockstep {

/// What the nodes that a doctor looks at and the one that asks them say to each other, over
/// authenticated links. One of them, the head, asks; each question has a number, and so has its
/// answer.

/// Where a node listens for the probes of others.
struct ProbeListener {
  std::string address;
  int prefix_bits = 32;
  int port = 0;

  bool operator==(const ProbeListener&) const = default;
};

/// The first word of a node, without a question.
struct NodeHello {
  std::string id;  // random; proves that a probe has reached the right node
  std::string host;
  Findings findings;
  std::map<std::string, std::string> traits;
  std::vector<ProbeListener> listeners;
  std::string python;  // with torch; empty: none
  int gpus = 0;

  bool operator==(const NodeHello&) const = default;
};

/// The node's clock.
struct ClockQuestion {
  bool operator==(const ClockQuestion&) const = default;
};
struct ClockAnswer {
  std::int64_t wall_ns = 0;  // since 1970
  bool operator==(const ClockAnswer&) const = default;
};

/// What the node's resolver says about names.
struct NamesQuestion {
  std::vector<std::string> hosts;
  bool operator==(const NamesQuestion&) const = default;
};
struct NamesAnswer {
  struct Name {
    std::vector<std::string> addresses;
    std::string problem;
    bool operator==(const Name&) const = default;
  };
  std::vector<Name> names;  // as many as were asked for
  bool operator==(const NamesAnswer&) const = default;
};

/// To measure the way to another node.
struct WayTarget {
  std::string address;
  int port = 0;
  bool measure = false;  // bandwidth, too
  bool operator==(const WayTarget&) const = default;
};
struct ProbeQuestion {
  std::string id;  // the other node's
  std::vector<WayTarget> targets;
  bool operator==(const ProbeQuestion&) const = default;
};
struct ProbeAnswer {
  struct Way {
    std::string problem;  // empty: it was reached
    double latency_us = 0;
    double least_latency_us = 0;
    std::optional<double> bytes_per_second;
    int path_mtu = 0;
    bool stalled = false;
    bool operator==(const Way&) const = default;
  };
  std::vector<Way> ways;  // as many as were asked for
  bool operator==(const ProbeAnswer&) const = default;
};

/// A file in the shared folder.
enum class MarkAction { write, look, remove };
struct MarkQuestion {
  MarkAction action = MarkAction::look;
  std::string name;  // of letters, digits and dashes
  std::string text;
  int limit_ms = 0;  // how long to look
  bool operator==(const MarkQuestion&) const = default;
};
struct MarkAnswer {
  std::string problem;  // empty: done, or seen with the right text
  int after_ms = 0;
  bool operator==(const MarkAnswer&) const = default;
};

/// A port that is free now, for a job's coordinator.
struct PortQuestion {
  bool operator==(const PortQuestion&) const = default;
};
struct PortAnswer {
  int port = 0;
  bool operator==(const PortAnswer&) const = default;
};

/// To take part in a small job.
struct SmokeQuestion {
  std::string endpoint;
  std::string run_id;
  int nodes = 1;
  int workers = 1;  // on this node
  int limit_ms = 0;
  bool operator==(const SmokeQuestion&) const = default;
};
struct SmokeAnswer {
  int code = 0;
  std::string said;  // what its rank 0 printed, or why it failed
  bool operator==(const SmokeAnswer&) const = default;
};

/// All is over.
struct DoctorEnd {
  int code = 0;
  std::string summary;
  bool operator==(const DoctorEnd&) const = default;
};

using DoctorContent =
    std::variant<NodeHello, ClockQuestion, ClockAnswer, NamesQuestion, NamesAnswer, ProbeQuestion,
                 ProbeAnswer, MarkQuestion, MarkAnswer, PortQuestion, PortAnswer, SmokeQuestion,
                 SmokeAnswer, DoctorEnd>;

struct DoctorMessage {
  std::uint64_t number = 0;  // of the question; 0 where there is none
  DoctorContent content;

  bool operator==(const DoctorMessage&) const = default;
};

std::string encode_doctor_message(const DoctorMessage& message);

/// Throws InvalidArgument for anything that encode_doctor_message() does not make. Texts are
/// clipped, and lists that are too long refused.
DoctorMessage decode_doctor_message(std::string_view text);

}  // namespace lockstep
