#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "lockstep/snapshot.h"

namespace lockstep::testing {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Keeps what a store reports.
class Lines {
 public:
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<std::string> all() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// Different for each step, of several types, with an empty tensor, a scalar and a view.
inline Snapshot some_snapshot(std::int64_t step) {
  Snapshot snapshot{.step = step, .epoch = 2, .slots = 4, .seed = 1234567890123456789ull};
  const auto number = static_cast<double>(step);
  snapshot.parts["model"].tensors = {
      {"weight", at::full({2, 3}, number)},
      {"bias", at::arange(40, at::kDouble) + number},
      {"transposed", at::arange(12, at::kInt).reshape({3, 4}).t() + step},
      {"half", at::full({5}, number, at::kBFloat16)},
      {"flags", at::ones({3}, at::kBool)},
      {"counter", at::full({}, step, at::kLong)},
      {"empty", at::zeros({0, 4})},
  };
  snapshot.parts["optimizer"].tensors = {{"weight.exp_avg", at::full({2, 3}, number / 3)}};
  snapshot.parts["optimizer"].values = {{"type", "AdamW"}, {"groups", {{{"lr", 0.1}}}}};
  snapshot.parts["trainer"].values = {{"step", step}, {"loss", number / 7}};
  return snapshot;
}

inline Snapshot deep_copy(const Snapshot& snapshot) {
  Snapshot copy = snapshot;
  for (auto& [name, part] : copy.parts) {
    for (auto& [tensor_name, tensor] : part.tensors) tensor = tensor.clone();
  }
  return copy;
}

inline void expect_same(const Snapshot& a, const Snapshot& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.slots, b.slots);
  EXPECT_EQ(a.seed, b.seed);
  ASSERT_EQ(a.parts.size(), b.parts.size());
  for (const auto& [name, part] : a.parts) {
    ASSERT_TRUE(b.parts.contains(name)) << name;
    const State& other = b.parts.at(name);
    EXPECT_EQ(part.values, other.values) << name;
    ASSERT_EQ(part.tensors.size(), other.tensors.size()) << name;
    for (const auto& [tensor_name, tensor] : part.tensors) {
      ASSERT_TRUE(other.tensors.contains(tensor_name)) << tensor_name;
      const at::Tensor& twin = other.tensors.at(tensor_name);
      EXPECT_EQ(tensor.scalar_type(), twin.scalar_type()) << tensor_name;
      EXPECT_TRUE(at::equal(tensor, twin)) << name << " " << tensor_name;
    }
  }
}

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline void flip_bit(const std::string& path, std::int64_t byte, int bit = 0) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(byte);
  const char changed = static_cast<char>(file.get() ^ (1 << bit));
  file.seekp(byte);
  file.put(changed);
  ASSERT_TRUE(file.good()) << path << " has no byte " << byte;
}

}  // namespace lockstep::testing
