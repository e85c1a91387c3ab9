#include "lockstep/rpc_codec.h"

#include "lockstep/rpc_error.h"

namespace lockstep::rpc {

std::string_view Reader::raw(std::size_t bytes) {
  if (bytes > rest_.size()) fail("the values end too early");
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

std::size_t Reader::count(std::size_t bytes_each) {
  const auto count = number<std::uint64_t>();
  if (count > rest_.size() / bytes_each) fail("a list is longer than what was sent");
  return count;
}

Blob Reader::blob() {
  if (next_blob_ >= payload_.blobs.size()) fail("a blob is missing");
  return payload_.blobs[next_blob_++];
}

void Reader::expect_end() const {
  if (!rest_.empty() || next_blob_ != payload_.blobs.size()) {
    fail("there are more values than the types say");
  }
}

void Reader::fail(const std::string& why) {
  throw BadMessage(concat("rpc: ", why));
}

}  // namespace lockstep::rpc
