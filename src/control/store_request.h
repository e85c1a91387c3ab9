#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

/// What a client of torch's TCPStore can ask for; the values are those of the wire.
enum class StoreCommand : std::uint8_t {
  validate,
  set,
  compare_set,
  get,
  add,
  check,
  wait,
  number_of_keys,
  delete_key,
  append,
  multi_get,
  multi_set,
  cancel_wait,
  ping,
  queue_push,
  queue_pop,
  queue_length,
  list_keys,
  barrier,
};
inline constexpr std::size_t kStoreCommands = 19;

/// The command's name as torch writes it: "COMPARE_SET".
std::string_view name_of(StoreCommand command);

/// The first four bytes after VALIDATE.
inline constexpr std::uint32_t kStoreMagic = 0x3C85F7CE;

/// The limits of torch's server, and one on a whole request: without it a client could make the
/// server hold 131,072 values before a single one is stored.
struct StoreRequestLimits {
  std::size_t key_bytes = 8 * 1024;  // with the '/' that torch's client puts before every key
  std::size_t value_bytes = 8 * 1024 * 1024;
  std::size_t keys = 128 * 1024;  // in one request
  std::size_t request_bytes = 256 * 1024 * 1024;
};

/// One request. The views point into the scanner that returned it.
struct StoreRequest {
  StoreCommand command = StoreCommand::validate;
  std::vector<std::string_view> texts;  // keys and values, in the order of the wire
  std::int64_t number = 0;              // of ADD, BARRIER and PING
};

/// Cuts the bytes of one connection into requests. It knows nothing of sockets, goes on where it
/// stopped however the network cuts a request, and refuses a length before it holds what was
/// announced.
///
/// A connection must begin with VALIDATE, which is checked here and not returned. Integers are in
/// the byte order of this machine, as torch sends them. Not thread-safe.
class StoreRequestScanner {
 public:
  explicit StoreRequestScanner(StoreRequestLimits limits = {}) : limits_(limits) {}

  /// Takes what has arrived. Requests returned before are no longer valid.
  void feed(std::string_view bytes);

  /// The next whole request, valid until feed() or the next call; nullptr where more bytes are
  /// needed, and for ever once the connection has broken the protocol.
  const StoreRequest* next();

  /// What the connection did wrong; empty while all is well. Such a connection is to be closed: the
  /// protocol has no way to say so.
  const std::string& problem() const { return problem_; }

  /// Whether VALIDATE has come.
  bool validated() const { return validated_; }

  /// Bytes received that no returned request has used up.
  std::size_t pending_bytes() const { return buffer_.size() - begin_; }

  /// Memory held for the connection's input.
  std::size_t held_bytes() const;

 private:
  enum class Step { done, need_more, refused };

  Step begin_request();
  Step scan_fields();
  Step scan_number(std::size_t size);
  Step scan_count();
  Step scan_text(std::size_t limit, std::string_view what);
  Step refuse(std::string reason);
  void finish_request();
  void drop_used_bytes();

  StoreRequestLimits limits_;
  std::string buffer_;
  std::size_t begin_ = 0;     // where the request under scan begins
  std::size_t position_ = 0;  // how far the scan has come

  // The request under scan.
  bool scanning_ = false;
  std::string_view round_;        // the fields of a round; a list repeats its round
  std::string_view fields_left_;  // in this round
  std::uint64_t rounds_left_ = 0;
  std::vector<std::pair<std::size_t, std::size_t>> texts_;  // offset in buffer_, length

  StoreRequest request_;
  bool validated_ = false;
  std::string problem_;
};

}  // namespace lockstep
