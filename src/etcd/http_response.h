#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// Reads one HTTP/1.1 response, in whatever pieces its bytes come: a status, and a body whose
/// length is given, that comes in chunks, or that ends with the connection.
///
/// It has no socket. What it reads comes from whoever answers at an address that a user gave, so
/// every length has a limit.
class HttpResponse {
 public:
  static constexpr std::size_t kMaxHeadBytes = 64 << 10;
  static constexpr std::size_t kMaxBodyBytes = 16 << 20;

  /// Throws InvalidArgument for what is no such response, or too long. Bytes after its end are
  /// ignored.
  void take(std::string_view bytes);

  /// The connection has ended. Throws InvalidArgument if the response has not.
  void take_end();

  bool complete() const { return state_ == State::complete; }
  int status() const { return status_; }
  const std::string& body() const { return body_; }

 private:
  enum class State { head, body, chunk_size, chunk, chunk_end, trailer, until_end, complete };

  bool step();
  void read_head(std::string_view head);
  void read_status(std::string_view line);
  void read_field(std::string_view line);
  bool take_body(State next);
  bool take_line(std::string* line);
  void begin_chunk(std::string_view line);

  State state_ = State::head;
  std::string buffer_;
  std::string body_;
  int status_ = 0;
  std::size_t left_ = 0;  // of the body, or of the current chunk
  std::size_t trailer_bytes_ = 0;
  bool has_length_ = false;
  bool is_chunked_ = false;
};

}  // namespace lockstep
