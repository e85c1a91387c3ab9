#pragma once

#include <functional>
#include <optional>
#include <string>

#include "doctor/background_work.h"
#include "doctor/local_checks.h"
#include "doctor/messages.h"
#include "doctor/probe_server.h"
#include "doctor/smoke.h"

namespace lockstep {

struct MemberOptions {
  std::string secret;
  bool tls = false;
  std::string shared_folder;
  SmokeSetup smoke;
};

/// A node that is looked at: says what it knows about itself, and answers the head's questions.
/// What blocks runs in threads beside the loop.
class DoctorMember {
 public:
  DoctorMember(EventLoop& loop, const LocalReport& report, MemberOptions options,
               std::function<void(std::string)> send);

  /// The first message: when there is somebody to hear it.
  void greet();

  /// A message of the head. Throws InvalidArgument for one that makes no sense.
  void on_message(std::string_view text);

  /// What the head said last.
  const std::optional<DoctorEnd>& end() const { return end_; }

 private:
  void answer_with(std::uint64_t number, std::function<DoctorContent()> work);
  void answer(std::uint64_t number, DoctorContent content);

  MemberOptions options_;
  std::function<void(std::string)> send_;
  NodeHello hello_;
  ProbeServer server_;
  BackgroundWork work_;
  std::optional<DoctorEnd> end_;
};

}  // namespace lockstep
