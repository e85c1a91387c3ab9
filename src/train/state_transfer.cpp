#include "train/state_transfer.h"

#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "core/checksum.h"

namespace lockstep {
namespace {

using nlohmann::json;

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

at::Tensor find_tensor(const Snapshot& snapshot, const std::string& part, const std::string& name) {
  const auto state = snapshot.parts.find(part);
  if (state == snapshot.parts.end()) return {};
  const auto tensor = state->second.tensors.find(name);
  return tensor == state->second.tensors.end() ? at::Tensor() : tensor->second;
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

}  // namespace

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

std::size_t total_bytes(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

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

Snapshot allocate_state(const json& description, const Snapshot& own) {
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
      const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto type = static_cast<at::ScalarType>(entry.at("type").get<int>());
      tensor = find_tensor(own, name, entry.at("name"));
      const bool fits = tensor.defined() && tensor.sizes() == shape && tensor.scalar_type() == type;
      if (!fits) tensor = at::empty(shape, type);
    }
  }
  return snapshot;
}

void make_room(Optimizer& optimizer, const json& part) {
  State state;
  state.values = part.at("values");
  for (const json& entry : part.at("tensors")) {
    // One element stands for all, and the optimizer copies it into tensors of its own.
    const auto type = static_cast<at::ScalarType>(entry.at("type").get<int>());
    state.tensors[entry.at("name").get<std::string>()] =
        at::zeros({}, type).expand(entry.at("shape").get<std::vector<std::int64_t>>());
  }
  optimizer.load_state(state);
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
