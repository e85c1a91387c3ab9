#include "comm/shared_tensors.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <c10/core/Allocator.h>

#include "comm/messages.h"
#include "comm/rank_layout.h"
#include "comm/segment_agreement.h"
#include "comm/shm_formation.h"
#include "lockstep/error.h"
#include "shm/shared_block.h"

namespace lockstep {
namespace {

// What a tensor's memory holds on to.
struct BlockUse {
  std::shared_ptr<SharedBlocks> blocks;
  std::shared_ptr<const SharedBlock> block;
};

void end_use(void* context) {
  const auto* use = static_cast<BlockUse*>(context);
  use->blocks->remove(use->block->mark());
  delete use;
}

bool all_on_one_machine(const GroupImpl& group) {
  const auto layout = find_layout(group);
  const auto* found = std::get_if<RankLayout>(&layout);
  return found != nullptr && found->machine_count() == 1;
}

// Null where one rank cannot.
std::shared_ptr<const SharedBlock> agree_on_block(const GroupImpl& group, std::size_t bytes) {
  const Circle circle = circle_of_all(group, group.gloo, kSharedTensorTag);
  const SharedBlock::Shape shape{.ranks = group.size(), .bytes = bytes};
  const auto own = SharedBlock::own_range(shape, group.rank);
  AgreedSegment agreed = agree_on_segment(circle, SharedBlock::bytes_needed(shape), own, [&] {
    if (!may_share_memory()) throw Error("LOCKSTEP_SHM is 0");
    if (bytes == 0) throw Error("the tensor is empty");
  });
  if (!circle.from_first(agreed.refusal).empty()) return nullptr;
  // All pages at once, and not one by one in the first reduction; a kernel that does not know this
  // does the latter.
  madvise(agreed.segment->data(), agreed.segment->bytes(), MADV_POPULATE_WRITE);
  return std::make_shared<const SharedBlock>(std::move(*agreed.segment), shape, group.rank,
                                             agreed.mark);
}

}  // namespace

bool move_to_shared_memory(GroupImpl& group, const at::Tensor& tensor) {
  constexpr const char* kOperation = "shared_memory";
  if (group.size() == 1 || !group.gloo || !tensor.is_cpu() || tensor.layout() != c10::kStrided ||
      !all_on_one_machine(group)) {
    return false;
  }
  group.guard->check_usable(kOperation);
  const GroupGuard::Waiting waiting(*group.guard, kOperation);
  try {
    const auto block = agree_on_block(group, tensor.storage().nbytes());
    if (!block) return false;
    std::memcpy(block->own(), tensor.storage().data(), block->bytes());
    group.blocks->add(block);
    auto use = std::make_unique<BlockUse>(BlockUse{.blocks = group.blocks, .block = block});
    tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::DataPtr(block->own(), use.release(), &end_use, c10::Device(c10::kCPU)));
    return true;
  } catch (...) {
    group.guard->rethrow(std::current_exception(), kOperation);
  }
}

at::Tensor ProcessGroup::shared_empty_like(const at::Tensor& like) {
  if (!like.defined()) throw InvalidArgument("shared_empty_like: the tensor is undefined");
  GroupImpl& group = get("shared_empty_like");
  const at::Tensor tensor = at::empty_like(like.detach(), at::MemoryFormat::Contiguous);
  move_to_shared_memory(group, tensor);
  return tensor;
}

}  // namespace lockstep
