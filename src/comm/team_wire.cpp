#include "comm/team_wire.h"

#include <ctime>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// Of this thread alone: others that use the processor meanwhile do not make packing dearer.
PackPace::Seconds processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return PackPace::Seconds(static_cast<double>(time.tv_sec) +
                           1e-9 * static_cast<double>(time.tv_nsec));
}

}  // namespace

WireMode wire_mode_from_environment() {
  const char* told = std::getenv("LOCKSTEP_WIRE");
  const std::string wanted = told != nullptr ? told : "";
  if (wanted.empty() || wanted == "auto") return WireMode::automatic;
  if (wanted == "packed") return WireMode::packed;
  if (wanted == "plain") return WireMode::plain;
  throw InvalidArgument(
      concat("LOCKSTEP_WIRE is '", wanted, "'; it must be auto, packed or plain"));
}

PackPace::Seconds TeamWire::now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

bool TeamWire::packs(ElementType type, std::size_t bytes) const {
  if (bytes < kLeastBytes || !can_pack(type)) return false;
  return mode_ == WireMode::automatic ? pace_.packs() : mode_ == WireMode::packed;
}

std::size_t TeamWire::pack(ElementType type, const void* data, std::size_t bytes, void* out) {
  const auto start = processor_time();
  const std::size_t packed = packer_.pack(type, data, bytes, out);
  if (packed > 0) {
    pace_.packed({.bytes = bytes, .saved = bytes - packed, .taken = processor_time() - start});
  }
  return packed;
}

TeamWire::Mark TeamWire::leave_mark(void* data, std::size_t bytes) {
  const Mark mark{marks_(), marks_()};
  if (bytes >= kLeastBytes) {
    std::memcpy(static_cast<std::byte*>(data) + bytes - sizeof(mark), &mark, sizeof(mark));
  }
  return mark;
}

void TeamWire::look_at(const Mark& mark, void* data, std::size_t bytes) {
  pace_.received(now());
  if (bytes < kLeastBytes) return;
  const auto* end = static_cast<const std::byte*>(data) + bytes - sizeof(mark);
  if (std::memcmp(end, &mark, sizeof(mark)) != 0) return;
  const std::size_t most = packed_limit(bytes);
  if (packed_.size() < most) packed_.resize(most);
  std::memcpy(packed_.data(), data, most);
  packer_.unpack(packed_.data(), most, data, bytes);
}

}  // namespace lockstep
