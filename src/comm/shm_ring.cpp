#include "comm/shm_ring.h"

#include <chrono>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kSleep{20};  // then it is checked whether to wait on
constexpr std::size_t kAlignment = 4096;

constexpr std::size_t rounded_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

struct ShmRing::Control {
  std::uint64_t mark;
  SharedCounter written;
  SharedCounter read[kMostReaders];
};

namespace {

constexpr std::size_t kControlBytes = rounded_up(16 << 10);

std::size_t bytes_of(const ShmRing::Shape& shape) {
  return kControlBytes + ShmRing::kBlocks * rounded_up(shape.block_bytes);
}

}  // namespace

ShmRing::ShmRing(SharedSegment segment, const Shape& shape, int reader)
    : segment_(std::move(segment)), shape_(shape), reader_(reader) {
  static_assert(sizeof(Control) <= kControlBytes);
}

ShmRing ShmRing::create(const Shape& shape) {
  if (shape.readers > kMostReaders) throw Error(concat(shape.readers, " readers are too many"));
  ShmRing ring(SharedSegment::create(bytes_of(shape)), shape, 0);
  ring.descriptor_ = ring.segment_.take_descriptor();
  ring.offer_ = SegmentOffer::of_this_process(ring.descriptor_.get());
  ring.control().mark = ring.offer_.mark;
  return ring;
}

ShmRing ShmRing::open(const SegmentOffer& offer, const Shape& shape, int reader) {
  ShmRing ring(SharedSegment::open(offer.process_id, offer.descriptor, bytes_of(shape)), shape,
               reader);
  if (ring.control().mark != offer.mark) throw Error("it is the memory of somebody else");
  return ring;
}

ShmRing::Control& ShmRing::control() const {
  return *reinterpret_cast<Control*>(segment_.data());
}

std::byte* ShmRing::block(std::uint32_t number) const {
  return segment_.data() + kControlBytes + number % kBlocks * rounded_up(shape_.block_bytes);
}

std::byte* ShmRing::begin_write(const Check& check) {
  for (int reader = 0; reader < shape_.readers; ++reader) {
    wait_for(control().read[reader], number_ + 1 - kBlocks, check);
  }
  return block(number_);
}

void ShmRing::end_write() {
  control().written.publish(++number_);
}

const std::byte* ShmRing::begin_read(const Check& check) {
  wait_for(control().written, number_ + 1, check);
  return block(number_);
}

void ShmRing::end_read() {
  control().read[reader_].publish(++number_);
}

void ShmRing::wait_for(SharedCounter& counter, std::uint32_t wanted, const Check& check) {
  while (!counter.reached(wanted)) {
    counter.sleep(wanted, kSleep);
    if (counter.reached(wanted)) return;
    check();
  }
}

}  // namespace lockstep
