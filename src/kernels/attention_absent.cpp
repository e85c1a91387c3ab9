#include <stdexcept>

#include "kernels/attention.h"

// Where cuDNN's headers were not found.
namespace lockstep::kernels {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("attention: lockstep was built without cuDNN's headers");
}

}  // namespace

struct Attention::State {};

Attention::Attention() = default;
Attention::~Attention() = default;

bool Attention::takes(const AttentionShape&) {
  return false;
}
std::int64_t Attention::forward_scratch(const AttentionShape&) {
  refuse();
}
std::int64_t Attention::backward_scratch(const AttentionShape&) {
  refuse();
}
void Attention::forward(const AttentionShape&, const AttentionForward&, void*, Stream) {
  refuse();
}
void Attention::backward(const AttentionShape&, const AttentionBackward&, void*, Stream) {
  refuse();
}

}  // namespace lockstep::kernels
