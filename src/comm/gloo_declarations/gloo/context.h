#pragma once

#include <chrono>

namespace gloo {

// Only ever handled through pointers that libtorch made, so its members do not matter here.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
