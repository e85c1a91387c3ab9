#include "comm/shm_tensors.h"

#include <numeric>
#include <type_traits>
#include <utility>

#include "comm/element_types.h"
#include "lockstep/error.h"
#include "shm/reduce.h"

namespace lockstep::shm_operation {

void check_here(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) throw InvalidArgument(concat(operation, ": a tensor is undefined"));
  if (!tensor.is_cpu() || tensor.layout() != c10::kStrided) {
    throw InvalidArgument(concat(operation, ": backend shm moves dense tensors of the CPU, not ",
                                 tensor.layout(), " ones of ", tensor.device().str()));
  }
}

at::Tensor dense(const at::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg().contiguous();
}

namespace {

void check_all_here(const char* operation, const Tensors& tensors) {
  for (const auto& tensor : tensors) check_here(operation, tensor);
}

void check_like(const char* operation, const at::Tensor& one, const at::Tensor& other) {
  if (one.numel() == other.numel() && one.scalar_type() == other.scalar_type()) return;
  throw InvalidArgument(concat(operation, ": a tensor has ", one.numel(), " elements of ",
                               one.scalar_type(), ", another ", other.numel(), " of ",
                               other.scalar_type(), "; they must be alike"));
}

Tensors all_dense(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) result.push_back(dense(tensor));
  return result;
}

void put_back(const at::Tensor& tensor, const at::Tensor& dense_one) {
  if (!dense_one.is_same(tensor)) tensor.copy_(dense_one);
}

void put_all_back(const Tensors& tensors, const Tensors& dense_ones) {
  for (std::size_t i = 0; i < tensors.size(); ++i) put_back(tensors[i], dense_ones[i]);
}

template <typename Pointer>
std::vector<Pointer> addresses(const Tensors& tensors) {
  std::vector<Pointer> result;
  for (const auto& tensor : tensors) {
    if constexpr (std::is_const_v<std::remove_pointer_t<Pointer>>) {
      result.push_back(tensor.const_data_ptr());
    } else {
      result.push_back(tensor.mutable_data_ptr());
    }
  }
  return result;
}

GroupTeam::Bytes bytes_in(const at::Tensor& tensor) {
  return {.data = tensor.mutable_data_ptr(), .size = tensor.nbytes()};
}

GroupTeam::ConstBytes const_bytes_in(const at::Tensor& tensor) {
  return {.data = tensor.const_data_ptr(), .size = tensor.nbytes()};
}

ReduceOperator reduce_operator(const char* operation, const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
      return ReduceOperator::sum;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOperator::product;
    case c10d::ReduceOp::MIN:
      return ReduceOperator::min;
    case c10d::ReduceOp::MAX:
      return ReduceOperator::max;
    case c10d::ReduceOp::BAND:
      return ReduceOperator::bit_and;
    case c10d::ReduceOp::BOR:
      return ReduceOperator::bit_or;
    case c10d::ReduceOp::BXOR:
      return ReduceOperator::bit_xor;
    default:
      throw InvalidArgument(concat(operation, ": backend shm does not know reduction number ",
                                   static_cast<int>(op.op_)));
  }
}

ReduceSpec spec_for(const char* operation, const at::Tensor& tensor, const c10d::ReduceOp& op,
                    int ranks) {
  const auto type = element_type(c10::toRealValueType(tensor.scalar_type()));
  if (!type) {
    throw InvalidArgument(
        concat(operation, ": backend shm does not reduce ", tensor.scalar_type()));
  }
  const ReduceSpec spec{.type = *type,
                        .op = reduce_operator(operation, op),
                        .divisor = op.op_ == c10d::ReduceOp::AVG ? double(ranks) : 1.0};
  // Complex numbers add like pairs of reals; nothing else is that simple.
  if (tensor.is_complex() && spec.op != ReduceOperator::sum) {
    throw InvalidArgument(
        concat(operation, ": complex numbers can be added, not ", name_of(spec.op)));
  }
  check_reducible(spec);
  return spec;
}

std::int64_t real_count(const at::Tensor& tensor) {
  return tensor.numel() * (tensor.is_complex() ? 2 : 1);
}

}  // namespace

Tensors split(const char* operation, const at::Tensor& tensor, int ranks,
              const std::vector<std::int64_t>& rows) {
  check_here(operation, tensor);
  const std::int64_t all = tensor.dim() == 0 ? 0 : tensor.size(0);
  Tensors parts;
  if (rows.empty()) {
    const at::Tensor flat = tensor.is_contiguous() ? tensor.view({-1}) : tensor;
    const std::int64_t length = flat.dim() == 0 ? 0 : flat.size(0);
    if (length % ranks != 0) {
      throw InvalidArgument(concat(operation, ": ", length, " elements or rows cannot be cut into ",
                                   ranks, " equal parts"));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      parts.push_back(flat.narrow(0, length / ranks * rank, length / ranks));
    }
    return parts;
  }
  if (static_cast<int>(rows.size()) != ranks ||
      std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) != all) {
    throw InvalidArgument(concat(operation, ": the split sizes of a tensor with ", all,
                                 " rows must be ", ranks, " numbers that add up to it"));
  }
  std::int64_t begin = 0;
  for (const std::int64_t count : rows) {
    parts.push_back(tensor.narrow(0, begin, count));
    begin += count;
  }
  return parts;
}

Call broadcast(const Tensors& tensors, int root) {
  check_all_here("broadcast", tensors);
  return [tensors, root](GroupTeam& team) {
    for (const auto& tensor : tensors) {
      const at::Tensor data = dense(tensor);
      team.broadcast(bytes_in(data), root);
      if (team.rank() != root) put_back(tensor, data);
    }
  };
}

Call all_reduce(const Tensors& tensors, const c10d::ReduceOp& op, int ranks) {
  std::vector<ReduceSpec> specs;
  for (const auto& tensor : tensors) {
    check_here("all_reduce", tensor);
    specs.push_back(spec_for("all_reduce", tensor, op, ranks));
  }
  return [tensors, specs](GroupTeam& team) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor data = dense(tensors[i]);
      team.all_reduce(data.mutable_data_ptr(), real_count(data), specs[i]);
      put_back(tensors[i], data);
    }
  };
}

Call reduce(const Tensors& tensors, const c10d::ReduceOp& op, int ranks, int root) {
  const at::Tensor tensor = tensors.at(0);
  check_here("reduce", tensor);
  const ReduceSpec spec = spec_for("reduce", tensor, op, ranks);
  return [tensor, spec, root](GroupTeam& team) {
    const at::Tensor data = dense(tensor);
    team.reduce(data.mutable_data_ptr(), real_count(data), spec, root);
    if (team.rank() == root) put_back(tensor, data);
  };
}

Call all_gather(const std::vector<Tensors>& outputs, const Tensors& inputs) {
  check_all_here("all_gather", inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_all_here("all_gather", outputs.at(i));
    for (const auto& output : outputs[i]) check_like("all_gather", output, inputs[i]);
  }
  return [outputs, inputs](GroupTeam& team) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor input = dense(inputs[i]);
      const Tensors gathered = all_dense(outputs[i]);
      team.all_gather(const_bytes_in(input), addresses<void*>(gathered));
      put_all_back(outputs[i], gathered);
    }
  };
}

Call gather(const Tensors& outputs, const at::Tensor& input, int root) {
  check_here("gather", input);
  check_all_here("gather", outputs);
  for (const auto& output : outputs) check_like("gather", output, input);
  return [outputs, input, root](GroupTeam& team) {
    const at::Tensor sent = dense(input);
    const Tensors gathered = all_dense(outputs);
    team.gather(const_bytes_in(sent), addresses<void*>(gathered), root);
    put_all_back(outputs, gathered);
  };
}

Call scatter(const at::Tensor& output, const Tensors& inputs, int root) {
  check_here("scatter", output);
  check_all_here("scatter", inputs);
  for (const auto& input : inputs) check_like("scatter", input, output);
  return [output, inputs, root](GroupTeam& team) {
    const at::Tensor received = dense(output);
    const Tensors sent = all_dense(inputs);
    team.scatter(addresses<const void*>(sent), bytes_in(received), root);
    put_back(output, received);
  };
}

Call reduce_scatter(const Tensors& outputs, const std::vector<Tensors>& inputs,
                    const c10d::ReduceOp& op, int ranks) {
  std::vector<ReduceSpec> specs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_here("reduce_scatter", outputs[i]);
    check_all_here("reduce_scatter", inputs.at(i));
    for (const auto& input : inputs[i]) check_like("reduce_scatter", input, outputs[i]);
    specs.push_back(spec_for("reduce_scatter", outputs[i], op, ranks));
  }
  return [outputs, inputs, specs](GroupTeam& team) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor result = dense(outputs[i]);
      const Tensors parts = all_dense(inputs[i]);
      team.reduce_scatter(addresses<const void*>(parts), result.mutable_data_ptr(),
                          real_count(result), specs[i]);
      put_back(outputs[i], result);
    }
  };
}

Call all_to_all(const Tensors& outputs, const Tensors& inputs) {
  check_all_here("all_to_all", outputs);
  check_all_here("all_to_all", inputs);
  return [outputs, inputs](GroupTeam& team) {
    const Tensors sent = all_dense(inputs), received = all_dense(outputs);
    std::vector<GroupTeam::ConstBytes> from;
    std::vector<GroupTeam::Bytes> to;
    for (const auto& tensor : sent) from.push_back(const_bytes_in(tensor));
    for (const auto& tensor : received) to.push_back(bytes_in(tensor));
    team.all_to_all(from, to);
    put_all_back(outputs, received);
  };
}

}  // namespace lockstep::shm_operation
