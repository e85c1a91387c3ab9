#pragma once

#include <functional>

#include <c10/util/intrusive_ptr.h>

namespace c10::ivalue {
struct Future;
}
namespace c10d {
class GradBucket;
}

namespace lockstep {

/// Ready-made ways to reduce a bucket of gradients.
enum class CommHook {
  allreduce,      // the mean over all ranks
  fp16_compress,  // the same, travelling as float16
  bf16_compress,  // the same, travelling as bfloat16
};

/// A way of your own. Called when a bucket is complete, in the same order on every rank, from the
/// thread that runs backward. The bucket is not divided by the world size. The future must come to
/// hold one tensor shaped like the bucket's buffer.
using CommHookFunction =
    std::function<c10::intrusive_ptr<c10::ivalue::Future>(c10d::GradBucket& bucket)>;

}  // namespace lockstep
