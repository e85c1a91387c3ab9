// What etcd, or whoever listens in its place, answers: bytes in, a response and what it says out,
// or InvalidArgument. The first byte says in how large pieces they come.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "etcd/base64.h"
#include "etcd/etcd_api.h"
#include "etcd/http_response.h"
#include "lockstep/error.h"

namespace {

template <typename Read>
void attempt(Read read) {
  try {
    read();
  } catch (const lockstep::InvalidArgument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t piece = data[0] == 0 ? size : data[0];
  lockstep::HttpResponse response;
  attempt([&] {
    while (!text.empty()) {
      response.take(text.substr(0, piece));
      text.remove_prefix(std::min(piece, text.size()));
    }
    response.take_end();
  });
  if (response.body().size() > lockstep::HttpResponse::kMaxBodyBytes) __builtin_trap();
  attempt([&] { lockstep::read_range(response.body()); });
  attempt([&] { lockstep::read_granted_lease(response.body()); });
  attempt([&] { lockstep::read_kept_lease(response.body()); });
  attempt([&] { lockstep::read_txn(response.body()); });
  attempt([&] {
    const std::string token = lockstep::read_token(response.body());
    if (token.find_first_of("\r\n ") != std::string::npos) __builtin_trap();
  });
  lockstep::read_error(response.status(), response.body());
  const auto bytes = lockstep::from_base64(response.body());
  if (bytes && lockstep::to_base64(*bytes) != response.body()) __builtin_trap();
  return 0;
}
