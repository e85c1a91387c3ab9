#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/environment.h"
#include "lockstep/world.h"

namespace lockstep {

/// The outcome of meeting: who this process is, and the store that all ranks share.
struct Meeting {
  RankEnvironment place;
  c10::intrusive_ptr<c10d::Store> store;  // as the ranks of other languages see it
  bool prefixed = true;      // Python puts its keys under "default_pg" unless a store was given
  bool one_machine = false;  // all ranks are certain to be here
  bool hosts_store = false;  // the store ends with this process
  int store_port = 0;
};

/// Decides rank and world size from options, URL and environment, and connects to the store.
Meeting meet(const InitOptions& options, const Environment& environment);

}  // namespace lockstep
