#include "etcd/http_response.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxLineBytes = 4096;  // of a chunk's size, or a trailer

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument(concat("no HTTP response: ", what));
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::size_t parse_size(std::string_view text, int base, const char* what) {
  std::size_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size, base);
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse(concat(what, " is '", text.substr(0, 40), "'"));
  }
  return size;
}

}  // namespace

void HttpResponse::take(std::string_view bytes) {
  if (complete()) return;
  buffer_ += bytes;
  while (step()) {
  }
}

void HttpResponse::take_end() {
  if (state_ == State::until_end) state_ = State::complete;
  if (!complete()) refuse("the connection ended in the middle of it");
}

// One part of the response; false: its bytes have not all come.
bool HttpResponse::step() {
  std::string line;
  switch (state_) {
    case State::head: {
      const std::size_t end = buffer_.find("\r\n\r\n");
      if (std::min(end, buffer_.size()) > kMaxHeadBytes) refuse("its head is too long");
      if (end == std::string::npos) return false;
      const std::string head = buffer_.substr(0, end);
      buffer_.erase(0, end + 4);
      read_head(head);
      return true;
    }
    case State::body:
      return take_body(State::complete);
    case State::until_end:
      left_ = buffer_.size();
      take_body(State::until_end);
      return false;
    case State::chunk_size:
      if (!take_line(&line)) return false;
      begin_chunk(line);
      return true;
    case State::chunk:
      return take_body(State::chunk_end);
    case State::chunk_end:
      if (!take_line(&line)) return false;
      if (!line.empty()) refuse("a chunk is longer than it said");
      state_ = State::chunk_size;
      return true;
    case State::trailer:
      if (!take_line(&line)) return false;
      trailer_bytes_ += line.size();
      if (trailer_bytes_ > kMaxHeadBytes) refuse("its trailer is too long");
      if (line.empty()) state_ = State::complete;
      return true;
    case State::complete:
      buffer_.clear();
      return false;
  }
  return false;
}

void HttpResponse::read_head(std::string_view head) {
  std::size_t begin = 0;
  bool is_first = true;
  while (begin <= head.size()) {
    const std::size_t end = std::min(head.find("\r\n", begin), head.size());
    const std::string_view line = head.substr(begin, end - begin);
    is_first ? read_status(line) : read_field(line);
    is_first = false;
    begin = end + 2;
  }
  if (status_ == 204 || status_ == 304) {
    state_ = State::complete;
  } else if (is_chunked_) {
    state_ = State::chunk_size;
  } else if (has_length_) {
    state_ = State::body;
  } else {
    state_ = State::until_end;
  }
}

void HttpResponse::read_status(std::string_view line) {
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ') {
    refuse(concat("it begins with '", line.substr(0, 40), "'"));
  }
  status_ = static_cast<int>(parse_size(line.substr(9, 3), 10, "its status"));
  if (status_ < 200) refuse(concat("its status is ", status_));
}

void HttpResponse::read_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) refuse("a line of its head has no name");
  const std::string name = lower(line.substr(0, colon));
  const std::string_view value = trim(line.substr(colon + 1));
  if (name == "transfer-encoding") {
    if (lower(value) != "chunked") refuse(concat("its encoding is '", value.substr(0, 40), "'"));
    is_chunked_ = true;
  } else if (name == "content-length") {
    has_length_ = true;
    left_ = parse_size(value, 10, "its length");
    if (left_ > kMaxBodyBytes) refuse(concat("its length is ", left_));
  }
}

bool HttpResponse::take_body(State next) {
  const std::size_t size = std::min(left_, buffer_.size());
  if (body_.size() + size > kMaxBodyBytes) refuse("its body is too long");
  body_.append(buffer_, 0, size);
  buffer_.erase(0, size);
  left_ -= size;
  if (left_ != 0) return false;
  state_ = next;
  return true;
}

bool HttpResponse::take_line(std::string* line) {
  const std::size_t end = buffer_.find("\r\n");
  if (std::min(end, buffer_.size()) > kMaxLineBytes) refuse("a line of it is too long");
  if (end == std::string::npos) return false;
  *line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return true;
}

void HttpResponse::begin_chunk(std::string_view line) {
  left_ = parse_size(trim(line.substr(0, line.find(';'))), 16, "the size of a chunk");
  if (left_ > kMaxBodyBytes) refuse(concat("a chunk has ", left_, " bytes"));
  state_ = left_ == 0 ? State::trailer : State::chunk;
}

}  // namespace lockstep
