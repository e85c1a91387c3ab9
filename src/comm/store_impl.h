#pragma once

#include <optional>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/store.h"

namespace lockstep {

class Store::Impl {
 public:
  c10::intrusive_ptr<c10d::Store> native;
  int port = 0;
  std::int64_t worlds_formed = 0;  // on this store by this process; see InitOptions::epoch
};

/// `count_as_worker_of`: the world's size, for a client whose server may be a Python rank.
c10::intrusive_ptr<c10d::Store> connect_tcp_store(const TcpStoreOptions& options,
                                                  std::optional<int> count_as_worker_of,
                                                  int* port = nullptr);

}  // namespace lockstep
