#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

// libtorch is built with a Gloo whose Store has the second generation of calls.
#define GLOO_STORE_HAS_STORE_V2 1

namespace gloo::rendezvous {

// The order of these functions is that of the table of virtual functions in libtorch.
class Store {
 public:
  using Bytes = std::vector<char>;

  virtual ~Store() = default;
  virtual void set(const std::string& key, const Bytes& value) = 0;
  virtual Bytes get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
  virtual bool has_v2_support() = 0;
  virtual std::vector<Bytes> multi_get(const std::vector<std::string>& keys) = 0;
  virtual void multi_set(const std::vector<std::string>& keys,
                         const std::vector<Bytes>& values) = 0;
  virtual void append(const std::string& key, const Bytes& value) = 0;
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
};

}  // namespace gloo::rendezvous
