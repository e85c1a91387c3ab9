#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "control/store_request.h"

/// Requests and replies of the store's protocol as a client writes them, for tests.
namespace lockstep::wire {

template <typename Integer>
std::string integer(Integer value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline std::string text(std::string_view bytes) {
  return integer<std::uint64_t>(bytes.size()).append(bytes);
}

inline std::string command(StoreCommand command) {
  return std::string(1, static_cast<char>(command));
}

inline std::string validate() {
  return command(StoreCommand::validate) + integer(kStoreMagic);
}

/// A command with a fixed number of keys and values.
inline std::string request(StoreCommand code, const std::vector<std::string_view>& texts) {
  std::string bytes = command(code);
  for (const std::string_view each : texts) bytes += text(each);
  return bytes;
}

/// ADD and BARRIER.
inline std::string request(StoreCommand code, std::string_view key, std::int64_t number) {
  return command(code) + text(key) + integer(number);
}

/// CHECK, WAIT, MULTI_GET, and MULTI_SET with keys and values in turn.
inline std::string list(StoreCommand code, const std::vector<std::string_view>& texts) {
  const std::uint64_t count = code == StoreCommand::multi_set ? texts.size() / 2 : texts.size();
  std::string bytes = command(code) + integer(count);
  for (const std::string_view each : texts) bytes += text(each);
  return bytes;
}

inline std::string ping(std::uint32_t nonce) {
  return command(StoreCommand::ping) + integer(nonce);
}

}  // namespace lockstep::wire
