#pragma once

#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "archive/value.h"
#include "lockstep/error.h"
#include "tests/support/refusal.h"

namespace lockstep::testing {

inline std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A tensor that owns its elements.
template <typename Number>
TensorValue tensor_of(ElementType type, std::vector<std::int64_t> shape,
                      std::vector<Number> numbers) {
  auto memory = std::make_shared<std::vector<Number>>(std::move(numbers));
  return {.type = type,
          .shape = std::move(shape),
          .bytes = std::as_bytes(std::span(*memory)),
          .owner = memory};
}

inline TensorValue floats(std::vector<float> numbers) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  return tensor_of<float>(ElementType::float32, {count}, std::move(numbers));
}

inline std::vector<float> floats_in(const TensorValue& tensor) {
  std::vector<float> numbers(tensor.bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), tensor.bytes.data(), tensor.bytes.size());
  return numbers;
}

}  // namespace lockstep::testing
