#include "train/state_transfer.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "comm/group_impl.h"
#include "core/checksum.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::size_t kChunkBytes = 4 << 20;
constexpr std::size_t kChunksInFlight = 4;
constexpr int kTag = 1;

// Two names of one tensor: it travels once.
using Identity = std::tuple<const void*, std::vector<std::int64_t>, std::vector<std::int64_t>, int>;

Identity identity_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(),
          static_cast<int>(tensor.scalar_type())};
}

void for_each_tensor(const Snapshot& snapshot,
                     const std::function<void(const std::string& part, const std::string& name,
                                              const at::Tensor& tensor)>& visit) {
  for (const auto& [part, state] : snapshot.parts) {
    for (const auto& [name, tensor] : state.tensors) visit(part, name, tensor);
  }
}

// In the order of their names, each once.
std::vector<at::Tensor> distinct_tensors(const Snapshot& snapshot) {
  std::vector<at::Tensor> tensors;
  std::map<Identity, bool> seen;
  for_each_tensor(snapshot, [&](const auto&, const auto&, const at::Tensor& tensor) {
    if (tensor.numel() > 0 && seen.emplace(identity_of(tensor), true).second) {
      tensors.push_back(tensor);
    }
  });
  return tensors;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Where a copy of everything would take too long: any flipped bit changes the sum.
at::Tensor sum_of_words(const at::Tensor& tensor) {
  const auto word = tensor.element_size() == 1   ? at::kByte
                    : tensor.element_size() == 2 ? at::kShort
                    : tensor.element_size() == 4 ? at::kInt
                                                 : at::kLong;
  return tensor.detach().contiguous().flatten().view(word).sum(at::kLong);
}

/// A message: up to kChunkBytes of the stream and a checksum of them, always of the same length.
class Chunk {
 public:
  Chunk() : tensor_(at::empty({kChunkBytes + sizeof(std::uint64_t)}, at::kByte)) {}

  std::byte* data() { return static_cast<std::byte*>(tensor_.mutable_data_ptr()); }
  void seal() {
    const std::uint64_t sum = checksum_of({data(), kChunkBytes});
    std::memcpy(data() + kChunkBytes, &sum, sizeof(sum));
  }
  bool is_intact() {
    std::uint64_t sum = 0;
    std::memcpy(&sum, data() + kChunkBytes, sizeof(sum));
    return sum == checksum_of({data(), kChunkBytes});
  }
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;
};

std::size_t total_bytes(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

/// The bytes of several tensors as one stream.
class TensorStream {
 public:
  explicit TensorStream(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  /// Copies the next `size` bytes out of the tensors.
  void read(std::byte* to, std::size_t size) {
    move(size, [&](std::byte* here, std::size_t bytes) {
      std::memcpy(to, here, bytes);
      to += bytes;
    });
  }
  void write(const std::byte* from, std::size_t size) {
    move(size, [&](std::byte* here, std::size_t bytes) {
      std::memcpy(here, from, bytes);
      from += bytes;
    });
  }

 private:
  template <typename Copy>
  void move(std::size_t size, Copy copy) {
    while (size > 0) {
      if (!current_.defined()) {
        // Those that are received into are contiguous and here already.
        current_ = tensors_.at(next_++).detach().cpu().contiguous();
        offset_ = 0;
      }
      const std::size_t part = std::min(size, current_.nbytes() - offset_);
      copy(static_cast<std::byte*>(current_.mutable_data_ptr()) + offset_, part);
      offset_ += part;
      size -= part;
      if (offset_ == current_.nbytes()) current_ = at::Tensor();
    }
  }

  std::vector<at::Tensor> tensors_;
  std::size_t next_ = 0;
  at::Tensor current_;
  std::size_t offset_ = 0;
};

}  // namespace

json describe_state(const Snapshot& snapshot) {
  json parts = json::object();
  for (const auto& [part, state] : snapshot.parts) {
    parts[part] = {{"values", state.values}, {"tensors", json::array()}};
  }
  std::map<Identity, std::pair<std::string, std::string>> seen;
  for_each_tensor(snapshot, [&](const auto& part, const auto& name, const at::Tensor& tensor) {
    json entry = {{"name", name},
                  {"type", static_cast<int>(tensor.scalar_type())},
                  {"shape", tensor.sizes().vec()}};
    if (tensor.numel() > 0) {
      const auto [known, is_new] = seen.emplace(identity_of(tensor), std::pair(part, name));
      if (!is_new) entry["same_as"] = {known->second.first, known->second.second};
    }
    parts[part]["tensors"].push_back(std::move(entry));
  });
  return {{"step", snapshot.step},
          {"epoch", snapshot.epoch},
          {"slots", snapshot.slots},
          {"seed", snapshot.seed},
          {"parts", std::move(parts)}};
}

Snapshot allocate_state(const json& description) {
  Snapshot snapshot{.step = description.at("step"),
                    .epoch = description.at("epoch"),
                    .slots = description.at("slots"),
                    .seed = description.at("seed")};
  for (const auto& [name, part] : description.at("parts").items()) {
    State& state = snapshot.parts[name];
    state.values = part.at("values");
    for (const json& entry : part.at("tensors")) {
      at::Tensor& tensor = state.tensors[entry.at("name").get<std::string>()];
      if (const auto same = entry.find("same_as"); same != entry.end()) {
        const auto part_name = same->at(0).get<std::string>();
        tensor = snapshot.parts.at(part_name).tensors.at(same->at(1).get<std::string>());
        continue;
      }
      tensor = at::empty(entry.at("shape").get<std::vector<std::int64_t>>(),
                         static_cast<at::ScalarType>(entry.at("type").get<int>()));
    }
  }
  return snapshot;
}

void send_tensors(ProcessGroup& group, const Snapshot& snapshot, const std::vector<int>& takers) {
  const std::vector<at::Tensor> tensors = distinct_tensors(snapshot);
  const at::Device device = group.impl()->small_device();
  TensorStream stream(tensors);
  struct Sent {
    Chunk chunk;
    at::Tensor message = {};
    std::vector<Work> works = {};
  };
  std::deque<Sent> in_flight;
  for (std::size_t left = total_bytes(tensors); left > 0;) {
    Sent sent;
    if (in_flight.size() == kChunksInFlight) {
      for (Work& work : in_flight.front().works) work.wait();
      sent.chunk = std::move(in_flight.front().chunk);
      in_flight.pop_front();
    }
    const std::size_t size = std::min(left, kChunkBytes);
    stream.read(sent.chunk.data(), size);
    std::memset(sent.chunk.data() + size, 0, kChunkBytes - size);
    sent.chunk.seal();
    sent.message = sent.chunk.tensor().to(device);
    for (const int taker : takers) {
      sent.works.push_back(group.isend(sent.message, {.peer = taker, .tag = kTag}));
    }
    in_flight.push_back(std::move(sent));
    left -= size;
  }
  for (Sent& sent : in_flight) {
    for (Work& work : sent.works) work.wait();
  }
}

void receive_tensors(ProcessGroup& group, const Snapshot& snapshot, int source) {
  const std::vector<at::Tensor> tensors = distinct_tensors(snapshot);
  const at::Device device = group.impl()->small_device();
  TensorStream stream(tensors);
  struct Expected {
    at::Tensor message;
    Work work;
  };
  std::deque<Expected> in_flight;
  const std::size_t bytes = total_bytes(tensors);
  const std::size_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
  Chunk chunk;
  for (std::size_t done = 0, asked = 0; done < chunks; ++done) {
    for (; asked < chunks && asked < done + kChunksInFlight; ++asked) {
      const at::Tensor message = at::empty(chunk.tensor().sizes(), chunk.tensor().options());
      Expected expected{.message = message.to(device), .work = {}};
      expected.work = group.irecv(expected.message, {.peer = source, .tag = kTag});
      in_flight.push_back(std::move(expected));
    }
    in_flight.front().work.wait();
    std::memcpy(chunk.data(), in_flight.front().message.cpu().const_data_ptr(),
                chunk.tensor().nbytes());
    in_flight.pop_front();
    if (!chunk.is_intact()) {
      throw SystemError(concat("the state that rank ", source, " sent was damaged on its way (",
                               "chunk ", done, " of ", chunks, ")"));
    }
    stream.write(chunk.data(), std::min(kChunkBytes, bytes - done * kChunkBytes));
  }
}

std::size_t state_bytes(const Snapshot& snapshot) {
  return total_bytes(distinct_tensors(snapshot));
}

std::uint64_t state_checksum(const Snapshot& snapshot) {
  Checksum sum;
  const auto add_text = [&](const std::string& text) {
    sum.update(std::as_bytes(std::span(text.data(), text.size())));
  };
  std::vector<at::Tensor> on_device;
  for (const auto& [part, state] : snapshot.parts) {
    const std::vector<std::uint8_t> values = json::to_cbor(state.values);
    add_text(part);
    sum.update(std::as_bytes(std::span(values)));
  }
  for_each_tensor(snapshot, [&](const auto&, const auto& name, const at::Tensor& tensor) {
    add_text(name);
    if (tensor.is_cpu()) {
      sum.update(bytes_of(tensor.detach().contiguous()));
    } else if (tensor.numel() > 0) {
      on_device.push_back(sum_of_words(tensor));
    }
  });
  if (!on_device.empty()) sum.update(bytes_of(at::stack(on_device).cpu()));
  return sum.value();
}

}  // namespace lockstep
