// The store's scanner and data, driven as the server drives them: several clients, whose bytes come
// in pieces and in turn. An input is a row of pieces: a byte that names the client, a byte with the
// length of the piece, the piece.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "control/store_data.h"
#include "control/store_request.h"
#include "lockstep/error.h"

namespace {

using namespace lockstep;

constexpr StoreRequestLimits kRequestLimits = {
    .key_bytes = 64, .value_bytes = 256, .keys = 16, .request_bytes = 1024};
constexpr StoreDataLimits kDataLimits = {.bytes = 8192, .reply_bytes = 1024};

struct Client {
  StoreRequestScanner scanner{kRequestLimits};
  std::string received;
  std::size_t requests = 0;  // that the scanner returned
  bool open = true;
};

std::size_t count_requests(std::string_view stream) {
  StoreRequestScanner scanner(kRequestLimits);
  scanner.feed(stream);
  std::size_t count = 0;
  while (scanner.next()) ++count;
  return count;
}

class Server {
 public:
  Server() {
    // Most clients have introduced themselves; an input needs not find the magic number first.
    const std::uint32_t magic = kStoreMagic;
    std::string validate(1, '\0');
    validate.append(reinterpret_cast<const char*>(&magic), sizeof magic);
    for (std::size_t i = 1; i < clients_.size(); ++i) receive(i, validate);
  }

  void receive(std::size_t index, std::string_view bytes) {
    Client& client = clients_[index % clients_.size()];
    if (!client.open) return;
    client.received += bytes;
    client.scanner.feed(bytes);
    while (const StoreRequest* request = client.scanner.next()) {
      ++client.requests;
      const StoreOutcome outcome = data_.execute(index % clients_.size(), *request);
      for (const StoreReply& reply : outcome.replies) {
        LOCKSTEP_CHECK(reply.client < clients_.size() && clients_[reply.client].open, reply.client);
        LOCKSTEP_CHECK(!reply.bytes.empty() || request->texts.empty());
      }
      LOCKSTEP_CHECK(data_.bytes() <= kDataLimits.bytes, data_.bytes());
      if (!outcome.problem.empty()) return close(client, index % clients_.size());
    }
    LOCKSTEP_CHECK(client.scanner.pending_bytes() <= kRequestLimits.request_bytes + 256);
    if (!client.scanner.problem().empty()) {
      // However the bytes were cut, they are the same requests.
      LOCKSTEP_CHECK(count_requests(client.received) == client.requests, client.requests);
      close(client, index % clients_.size());
    }
  }

  // What is left when everybody has gone and every key is deleted is nothing.
  void finish() {
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (clients_[i].open) {
        LOCKSTEP_CHECK(count_requests(clients_[i].received) == clients_[i].requests, i);
      }
      close(clients_[i], i);
      LOCKSTEP_CHECK(data_.awaited_keys(i).empty());
    }
    std::vector<std::string> keys;
    data_.for_each_key([&](const std::string& key) { keys.push_back(key); });
    LOCKSTEP_CHECK(keys.size() == data_.number_of_keys());
    for (const std::string& key : keys) {
      data_.execute(0, {.command = StoreCommand::delete_key, .texts = {key}});
    }
    LOCKSTEP_CHECK(data_.number_of_keys() == 0);
  }

 private:
  void close(Client& client, std::size_t id) {
    client.open = false;
    data_.remove_client(id);
  }

  std::array<Client, 4> clients_;
  StoreData data_{kDataLimits};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Server server;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  while (input.size() >= 2) {
    const auto client = static_cast<std::uint8_t>(input[0]);
    const auto length = static_cast<std::uint8_t>(input[1]);
    input.remove_prefix(2);
    server.receive(client, input.substr(0, length));
    input.remove_prefix(std::min<std::size_t>(length, input.size()));
  }
  server.finish();
  return 0;
}
