#include "control/store_request.h"

#include <array>
#include <cstring>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Shape {
  std::string_view name;
  // k: a key, v: a value, 4 and 8: an integer of that many bytes, n: a count; what follows n comes
  // that many times.
  std::string_view fields;
};

constexpr std::array<Shape, kStoreCommands> kShapes = {{
    {"VALIDATE", "4"},   {"SET", "kv"},     {"COMPARE_SET", "kvv"}, {"GET", "k"},
    {"ADD", "k8"},       {"CHECK", "nk"},   {"WAIT", "nk"},         {"GETNUMKEYS", ""},
    {"DELETE_KEY", "k"}, {"APPEND", "kv"},  {"MULTI_GET", "nk"},    {"MULTI_SET", "nkv"},
    {"CANCEL_WAIT", ""}, {"PING", "4"},     {"QUEUE_PUSH", "kv"},   {"QUEUE_POP", "k"},
    {"QUEUE_LEN", "k"},  {"LIST_KEYS", ""}, {"BARRIER", "k8"},
}};

const Shape& shape_of(StoreCommand command) {
  return kShapes[static_cast<std::size_t>(command)];
}

template <typename Integer>
Integer load(const char* bytes) {
  Integer value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// What one large request has blown up beyond this is given back after it.
constexpr std::size_t kKeptBufferBytes = 256 * 1024;
constexpr std::size_t kKeptTexts = 1024;

}  // namespace

std::string_view name_of(StoreCommand command) {
  return shape_of(command).name;
}

void StoreRequestScanner::feed(std::string_view bytes) {
  if (!problem_.empty()) return;
  if (!scanning_ && texts_.capacity() > kKeptTexts) {
    texts_.clear();
    texts_.shrink_to_fit();
    request_.texts.clear();
    request_.texts.shrink_to_fit();
  }
  if (begin_ > 0) drop_used_bytes();
  buffer_.append(bytes);
}

// Also in the middle of a request: a client that only sends SETs may never be seen between two.
void StoreRequestScanner::drop_used_bytes() {
  buffer_.erase(0, begin_);
  if (buffer_.empty() && buffer_.capacity() > kKeptBufferBytes) buffer_.shrink_to_fit();
  position_ -= begin_;
  if (scanning_) {
    for (auto& [offset, length] : texts_) offset -= begin_;
  }
  begin_ = 0;
}

const StoreRequest* StoreRequestScanner::next() {
  while (problem_.empty()) {
    if (!scanning_ && begin_request() != Step::done) return nullptr;
    if (scan_fields() != Step::done) return nullptr;
    scanning_ = false;
    begin_ = position_;
    if (request_.command != StoreCommand::validate) {
      finish_request();
      return &request_;
    }
    validated_ = true;
  }
  return nullptr;
}

std::size_t StoreRequestScanner::held_bytes() const {
  return buffer_.capacity() + texts_.capacity() * sizeof(texts_[0]) +
         request_.texts.capacity() * sizeof(request_.texts[0]);
}

StoreRequestScanner::Step StoreRequestScanner::begin_request() {
  if (position_ == buffer_.size()) return Step::need_more;
  const auto code = static_cast<std::uint8_t>(buffer_[position_]);
  if (!validated_ && code != static_cast<std::uint8_t>(StoreCommand::validate)) {
    return refuse(concat("its first byte is ", int{code},
                         " and not VALIDATE's: it does not speak TCPStore's protocol"));
  }
  if (code >= kStoreCommands) {
    return refuse(concat("command ", int{code}, " does not exist"));
  }
  request_.command = static_cast<StoreCommand>(code);
  if (validated_ && request_.command == StoreCommand::validate) {
    return refuse("a second VALIDATE");
  }
  ++position_;
  scanning_ = true;
  texts_.clear();
  round_ = fields_left_ = shape_of(request_.command).fields;
  rounds_left_ = 1;
  return Step::done;
}

StoreRequestScanner::Step StoreRequestScanner::scan_fields() {
  for (; rounds_left_ > 0; --rounds_left_, fields_left_ = round_) {
    while (!fields_left_.empty()) {
      const char field = fields_left_.front();
      Step step = Step::done;
      if (field == '4' || field == '8') {
        step = scan_number(field == '4' ? 4 : 8);
      } else if (field == 'n') {
        step = scan_count();
        if (step == Step::done && rounds_left_ == 0) return step;
      } else if (field == 'k') {
        step = scan_text(limits_.key_bytes, "key");
      } else {
        step = scan_text(limits_.value_bytes, "value");
      }
      if (step != Step::done) return step;
      fields_left_.remove_prefix(1);
    }
  }
  return Step::done;
}

StoreRequestScanner::Step StoreRequestScanner::scan_number(std::size_t size) {
  if (buffer_.size() - position_ < size) return Step::need_more;
  const char* bytes = buffer_.data() + position_;
  request_.number =
      size == 4 ? std::int64_t{load<std::uint32_t>(bytes)} : load<std::int64_t>(bytes);
  position_ += size;
  if (request_.command == StoreCommand::validate && request_.number != kStoreMagic) {
    return refuse(concat("VALIDATE with ", request_.number, " instead of ", kStoreMagic,
                         ": it does not speak TCPStore's protocol"));
  }
  return Step::done;
}

StoreRequestScanner::Step StoreRequestScanner::scan_count() {
  if (buffer_.size() - position_ < sizeof(std::uint64_t)) return Step::need_more;
  const auto count = load<std::uint64_t>(buffer_.data() + position_);
  if (count > limits_.keys) {
    return refuse(
        concat(name_of(request_.command), " of ", count, " keys; the limit is ", limits_.keys));
  }
  position_ += sizeof(count);
  round_ = fields_left_.substr(1);
  rounds_left_ = count;
  return Step::done;
}

StoreRequestScanner::Step StoreRequestScanner::scan_text(std::size_t limit, std::string_view what) {
  const std::size_t available = buffer_.size() - position_;
  if (available < sizeof(std::uint64_t)) return Step::need_more;
  const auto length = load<std::uint64_t>(buffer_.data() + position_);
  if (length > limit) {
    return refuse(concat(name_of(request_.command), " with a ", what, " of ", length,
                         " bytes; the limit is ", limit));
  }
  const std::size_t whole = sizeof(length) + length;
  if (position_ - begin_ + whole > limits_.request_bytes) {
    return refuse(concat(name_of(request_.command), " of more than ", limits_.request_bytes,
                         " bytes in all"));
  }
  if (available < whole) return Step::need_more;
  texts_.emplace_back(position_ + sizeof(length), length);
  position_ += whole;
  return Step::done;
}

StoreRequestScanner::Step StoreRequestScanner::refuse(std::string reason) {
  problem_ = std::move(reason);
  buffer_.clear();
  buffer_.shrink_to_fit();
  begin_ = position_ = 0;
  return Step::refused;
}

void StoreRequestScanner::finish_request() {
  const std::string_view bytes = buffer_;
  request_.texts.clear();
  for (const auto& [offset, length] : texts_)
    request_.texts.push_back(bytes.substr(offset, length));
}

}  // namespace lockstep
