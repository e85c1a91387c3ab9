#pragma once

#include <c10/util/intrusive_ptr.h>

#include "lockstep/process_group.h"
#include "lockstep/store.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

/// Bridges to PyTorch's own types, for code that already holds or needs them. The only public
/// header that names c10d.
namespace lockstep {

Store wrap_store(c10::intrusive_ptr<c10d::Store> store);
c10::intrusive_ptr<c10d::Store> unwrap(const Store& store);
c10::intrusive_ptr<c10d::ProcessGroup> unwrap(const ProcessGroup& group);

}  // namespace lockstep
