#include "comm/segment_agreement.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "comm/messages.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTextBytes = 512;  // of a message
const std::string kAgreed = "agreed";

at::Tensor empty_text() {
  return at::zeros({kTextBytes}, at::kByte);
}

at::Tensor pack_text(const std::string& text) {
  at::Tensor bytes = empty_text();
  std::memcpy(bytes.mutable_data_ptr(), text.data(),
              std::min<std::size_t>(text.size(), kTextBytes - 1));
  return bytes;
}

std::string unpack_text(const at::Tensor& bytes) {
  return static_cast<const char*>(bytes.const_data_ptr());
}

// Ranks that answer put this into their word of the segment, so that the first rank sees that they
// write to the same memory.
std::uint64_t answer_to(std::uint64_t mark, int place) {
  return mark + static_cast<std::uint64_t>(place);
}

volatile std::uint64_t* words_in(const SharedSegment& segment) {
  return reinterpret_cast<std::uint64_t*>(segment.data());
}

AgreedSegment offer_segment(const Circle& circle, std::size_t bytes,
                            const SharedSegment::Range& own, const std::function<void()>& check) {
  AgreedSegment result;
  SegmentOffer offered;
  UniqueFd descriptor;
  try {
    check();
    result.segment.emplace(SharedSegment::create(bytes, own));
    descriptor = result.segment->take_descriptor();
    offered = SegmentOffer::of_this_process(descriptor.get());
    result.mark = offered.mark;
    words_in(*result.segment)[0] = offered.mark;
  } catch (const Error& error) {
    result.refusal = error.what();
  }
  circle.from_first(result.refusal.empty() ? offered.to_text() : "");

  const auto answers = circle.to_first("");
  for (int place = 1; place < circle.size() && result.refusal.empty(); ++place) {
    const std::string& answer = answers[static_cast<std::size_t>(place)];
    const std::string who = concat("rank ", circle.names[static_cast<std::size_t>(place)], ": ");
    if (answer != kAgreed) {
      result.refusal = who + without_mark(answer);
    } else if (words_in(*result.segment)[place] != answer_to(offered.mark, place)) {
      result.refusal = who + "what it writes there does not arrive";
    }
  }
  if (result.segment) {
    std::memset(result.segment->data(), 0,
                static_cast<std::size_t>(circle.size()) * sizeof(std::uint64_t));
  }
  return result;
}

AgreedSegment accept_segment(const Circle& circle, std::size_t bytes,
                             const SharedSegment::Range& own, const std::function<void()>& check) {
  AgreedSegment result;
  std::string answer = kAgreed;
  const std::string text = circle.from_first("");
  if (!text.empty()) {
    try {
      check();
      const SegmentOffer offered = SegmentOffer::parse(text);
      result.mark = offered.mark;
      result.segment.emplace(
          SharedSegment::open(offered.process_id, offered.descriptor, bytes, own));
      if (words_in(*result.segment)[0] != offered.mark) {
        throw Error("the memory is not the first rank's");
      }
      words_in(*result.segment)[circle.place()] = answer_to(offered.mark, circle.place());
    } catch (const Error& error) {
      answer = error.what();
    }
  }
  circle.to_first(answer);
  return result;
}

}  // namespace

std::string without_mark(const std::string& reason) {
  return reason.starts_with(kNotWanted) ? reason.substr(kNotWanted.size()) : reason;
}

int Circle::place() const {
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

std::string Circle::from_first(const std::string& text) const {
  Messages messages(gloo, tag);
  const at::Tensor bytes = is_first() ? pack_text(text) : empty_text();
  for (const int peer : ranks) {
    if (is_first() && peer != rank) messages.send(bytes, peer);
  }
  if (!is_first()) messages.receive(bytes, ranks.front());
  messages.wait();
  return unpack_text(bytes);
}

std::vector<std::string> Circle::to_first(const std::string& text) const {
  Messages messages(gloo, tag);
  std::vector<at::Tensor> all{pack_text(text)};
  if (is_first()) {
    for (std::size_t place = 1; place < ranks.size(); ++place) {
      all.push_back(empty_text());
      messages.receive(all.back(), ranks[place]);
    }
  } else {
    messages.send(all[0], ranks.front());
  }
  messages.wait();
  std::vector<std::string> texts;
  std::ranges::transform(all, std::back_inserter(texts), unpack_text);
  return texts;
}

AgreedSegment agree_on_segment(const Circle& circle, std::size_t bytes,
                               const SharedSegment::Range& own,
                               const std::function<void()>& check) {
  return circle.is_first() ? offer_segment(circle, bytes, own, check)
                           : accept_segment(circle, bytes, own, check);
}

}  // namespace lockstep
