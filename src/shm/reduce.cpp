#include "shm/reduce.h"

#include "lockstep/error.h"
#include "shm/reduce_variants.h"

namespace lockstep {
namespace {

struct ReduceVariant {
  const char* name;
  void (*reduce)(const ReduceJob& job);
};

ReduceVariant choose_variant() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return {"avx512", reduce_avx512};
  }
  if (__builtin_cpu_supports("avx2")) return {"avx2", reduce_avx2};
#endif
  return {"portable", reduce_portable};
}

const ReduceVariant& chosen_variant() {
  static const ReduceVariant variant = choose_variant();
  return variant;
}

}  // namespace

const char* reduce_instruction_set() {
  return chosen_variant().name;
}

void check_reducible(const ReduceSpec& spec) {
  const bool bitwise = spec.op == ReduceOperator::bit_and || spec.op == ReduceOperator::bit_or ||
                       spec.op == ReduceOperator::bit_xor;
  if (bitwise && is_floating(spec.type)) {
    throw InvalidArgument(concat("reduction ", name_of(spec.op), " of ", name_of(spec.type),
                                 ": only whole numbers have bits to combine"));
  }
}

void reduce_elements(const ReduceSpec& spec, const std::vector<const void*>& parts,
                     std::int64_t count, void* out, void* copy) {
  check_reducible(spec);
  if (count == 0) return;
  chosen_variant().reduce({.spec = spec,
                           .parts = parts.data(),
                           .part_count = static_cast<int>(parts.size()),
                           .count = count,
                           .out = out,
                           .copy = copy});
}

}  // namespace lockstep
