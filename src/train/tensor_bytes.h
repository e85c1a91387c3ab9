#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// The bytes of several tensors as one stream, from their beginning to their end. Tensors that are
/// on a device, or whose elements do not lie in a row, pass through a copy of one at a time.
class TensorBytes {
 public:
  explicit TensorBytes(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}
  ~TensorBytes() = default;
  TensorBytes(const TensorBytes&) = delete;
  TensorBytes& operator=(const TensorBytes&) = delete;

  /// Copies the next `size` bytes out of the tensors.
  void read(std::byte* to, std::size_t size) {
    move(size, [&](std::size_t part) {
      if (!here_.defined()) here_ = tensor().detach().cpu().contiguous();
      std::memcpy(to, data() + offset_, part);
      to += part;
    });
  }

  /// Copies them into the tensors. A tensor has them when its last one has come.
  void write(const std::byte* from, std::size_t size) {
    move(size, [&](std::size_t part) {
      if (!here_.defined()) {
        const bool direct = tensor().is_cpu() && tensor().is_contiguous();
        here_ = direct ? tensor().detach() : tensor().detach().cpu().contiguous().clone();
      }
      std::memcpy(data() + offset_, from, part);
      from += part;
      const bool whole = offset_ + part == tensor().nbytes();
      if (whole && here_.const_data_ptr() != tensor().const_data_ptr()) {
        tensor().detach().copy_(here_);
      }
    });
  }

  void skip(std::size_t size) {
    move(size, [](std::size_t) {});
  }

 private:
  const at::Tensor& tensor() const { return tensors_.at(next_); }
  std::byte* data() { return static_cast<std::byte*>(here_.mutable_data_ptr()); }

  template <typename Copy>
  void move(std::size_t size, Copy copy) {
    while (size > 0) {
      const std::size_t part = std::min(size, tensor().nbytes() - offset_);
      copy(part);
      offset_ += part;
      size -= part;
      if (offset_ < tensor().nbytes()) continue;
      here_ = at::Tensor();
      offset_ = 0;
      ++next_;
    }
  }

  std::vector<at::Tensor> tensors_;
  std::size_t next_ = 0;
  std::size_t offset_ = 0;
  at::Tensor here_;  // what stands for the tensor on the CPU, once it is needed
};

}  // namespace lockstep
