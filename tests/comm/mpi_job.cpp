// One rank of a job that mpirun starts (mpi_test.py): every collective of the group is compared
// with what the inputs of all ranks, which each rank knows, must give.
#include <unistd.h>
#include <csignal>
#include <functional>
#include <iostream>
#include <string>

#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/error.h"
#include "lockstep/record.h"
#include "lockstep/world.h"

using namespace lockstep;

namespace {

int checks = 0;

void check(bool good, const std::string& what) {
  if (!good) throw Error("mpi_job: wrong: " + what);
  ++checks;
}

// Whole numbers, of which every sum is exact in every type; some of them negative.
at::Tensor input_of(int rank, std::int64_t numel, at::ScalarType type) {
  const at::Tensor numbers = torch::arange(numel, torch::kLong) * (rank + 1) % 5 + rank;
  if (type == at::kBool) return (numbers % 2).to(at::kBool);
  return numbers.to(type);
}

at::Tensor reduced(ReduceOp op, int ranks, std::int64_t numel, at::ScalarType type) {
  at::Tensor result = input_of(0, numel, type);
  for (int rank = 1; rank < ranks; ++rank) {
    const at::Tensor next = input_of(rank, numel, type);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        result = type == at::kBool ? result.logical_or(next) : result + next;
        break;
      case ReduceOp::product:
        result = result * next;
        break;
      case ReduceOp::min:
        result = torch::minimum(result, next);
        break;
      case ReduceOp::max:
        result = torch::maximum(result, next);
        break;
      case ReduceOp::band:
        result = result.bitwise_and(next);
        break;
      case ReduceOp::bor:
        result = result.bitwise_or(next);
        break;
      case ReduceOp::bxor:
        result = result.bitwise_xor(next);
        break;
    }
  }
  if (op == ReduceOp::avg) return result / ranks;
  return result;
}

const std::vector<at::ScalarType> kTypes{at::kByte,   at::kChar,  at::kShort, at::kInt,
                                         at::kLong,   at::kFloat, at::kHalf,  at::kBFloat16,
                                         at::kDouble, at::kBool};

void check_reductions(ProcessGroup& group) {
  const int ranks = group.size();
  for (const std::int64_t numel : {0, 1, 7, 5000}) {
    for (const at::ScalarType type : kTypes) {
      const bool whole = at::isIntegralType(type, /*includeBool=*/true);
      std::vector<ReduceOp> ops{ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max};
      if (whole) {
        ops.insert(ops.end(), {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor});
      } else {
        ops.push_back(ReduceOp::avg);
      }
      for (const ReduceOp op : ops) {
        const std::string what = concat("op ", static_cast<int>(op), " of ", numel, " ", type);
        const at::Tensor expected = reduced(op, ranks, numel, type);
        const at::Tensor all = input_of(group.rank(), numel, type);
        group.all_reduce(all, {.op = op});
        check(torch::equal(all, expected), "all_reduce, " + what);

        const at::Tensor one = input_of(group.rank(), numel, type);
        group.reduce(one, {.op = op, .root = ranks - 1});
        if (group.rank() == ranks - 1) check(torch::equal(one, expected), "reduce, " + what);

        const std::int64_t each = numel / ranks;
        const at::Tensor mine = torch::empty({each}, type);
        group.reduce_scatter_tensor(
            mine, input_of(group.rank(), numel, type).narrow(0, 0, each * ranks), {.op = op});
        check(torch::equal(mine, expected.narrow(0, group.rank() * each, each)),
              "reduce_scatter, " + what);
      }
    }
  }
  const at::Tensor strided = torch::ones({4, 6}).t();
  group.all_reduce(strided);
  check(torch::equal(strided, torch::full({6, 4}, static_cast<double>(ranks))),
        "all_reduce of a tensor that is not contiguous");
}

void check_movements(ProcessGroup& group) {
  const int ranks = group.size(), rank = group.rank();
  for (const at::ScalarType type : kTypes) {
    const std::string what = concat(type);
    const at::Tensor sent = input_of(1, 33, type);
    at::Tensor tensor = rank == 1 ? sent.clone() : torch::zeros({33}, type);
    group.broadcast(tensor, {.root = 1});
    check(torch::equal(tensor, sent), "broadcast, " + what);

    std::vector<at::Tensor> gathered;
    for (int i = 0; i < ranks; ++i) gathered.push_back(torch::zeros({3, 5}, type));
    group.all_gather(gathered, input_of(rank, 15, type).view({3, 5}));
    for (int i = 0; i < ranks; ++i) {
      check(torch::equal(gathered[i], input_of(i, 15, type).view({3, 5})), "all_gather, " + what);
    }
    for (at::Tensor& each : gathered) each.zero_();
    group.gather(rank == 0 ? gathered : std::vector<at::Tensor>{},
                 input_of(rank, 15, type).view({3, 5}));
    for (int i = 0; rank == 0 && i < ranks; ++i) {
      check(torch::equal(gathered[i], input_of(i, 15, type).view({3, 5})), "gather, " + what);
    }
    std::vector<at::Tensor> dealt;
    for (int i = 0; rank == 1 && i < ranks; ++i) dealt.push_back(input_of(i, 9, type));
    const at::Tensor share = torch::zeros({9}, type);
    group.scatter(share, dealt, {.root = 1});
    check(torch::equal(share, input_of(rank, 9, type)), "scatter, " + what);

    // Rank r sends i + 1 rows to rank i.
    std::vector<std::int64_t> to_each, from_each(ranks, rank + 1);
    for (int i = 0; i < ranks; ++i) to_each.push_back(i + 1);
    const std::int64_t rows = ranks * (ranks + 1) / 2;
    const at::Tensor received = torch::zeros({ranks * (rank + 1), 2}, type);
    group.all_to_all_single(received, input_of(rank, 2 * rows, type).view({rows, 2}),
                            {.output_split_sizes = from_each, .input_split_sizes = to_each});
    for (int i = 0; i < ranks; ++i) {
      const at::Tensor theirs =
          input_of(i, 2 * rows, type).view({rows, 2}).narrow(0, rank * (rank + 1) / 2, rank + 1);
      check(torch::equal(received.narrow(0, i * (rank + 1), rank + 1), theirs),
            "all_to_all_single, " + what);
    }
  }
}

void check_messages(ProcessGroup& group) {
  const int ranks = group.size(), rank = group.rank();
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  // The receives come first, so nothing here may wait for its turn.
  const at::Tensor first = torch::zeros({1000}), second = torch::zeros({10});
  Work a = group.irecv(first, {.peer = before, .tag = 1});
  Work b = group.irecv(second, {.peer = before, .tag = 2});
  group.send(torch::full({10}, 20.0 + rank), {.peer = next, .tag = 2});
  group.send(torch::full({1000}, 10.0 + rank), {.peer = next, .tag = 1});
  b.wait();
  a.wait();
  check(first[999].item<float>() == 10 + before && second[9].item<float>() == 20 + before, "recv");
  const at::Tensor anyone = torch::zeros({1});
  Work c = group.irecv_any(anyone, 3);
  group.send(torch::full({1}, 1.0 * rank), {.peer = next, .tag = 3});
  c.wait();
  check(c.source_rank() == before && anyone.item<float>() == before, "recv from any");

  // Many in flight, together with a message that comes last.
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(torch::full({100 + i}, 1.0 + i));
    works.push_back(group.all_reduce(tensors.back(), {.async_op = true}));
  }
  for (int i = 19; i >= 0; --i) works[i].wait();
  for (int i = 0; i < 20; ++i) {
    check((tensors[i] == ranks * (1.0 + i)).all().item<bool>(), "several in flight");
  }
  group.barrier();
}

void check_collectives() {
  World world = init({.backend = "mpi"});
  check(world.group().backend() == "mpi", "the backend");
  check_reductions(world.group());
  check_movements(world.group());
  check_messages(world.group());
  // A subgroup in which ranks have other numbers; the others do not take part.
  std::vector<int> members;
  for (int rank = world.world_size() - 1; rank >= 1; --rank) members.push_back(rank);
  ProcessGroup some = world.new_group({.ranks = members});
  if (some.is_member()) {
    const at::Tensor sum = torch::full({3}, 1.0 * world.rank());
    some.all_reduce(sum);
    const int n = world.world_size();
    check(sum[0].item<double>() == n * (n - 1) / 2, "all_reduce in a subgroup");
  }
  bool refused = false;
  try {
    const at::Tensor sparse = torch::ones({4}).to_sparse();
    world.group().all_reduce(sparse);
  } catch (const Error& error) {
    refused = std::string(error.what()).find("mpi") != std::string::npos;
  }
  check(refused, "a sparse tensor is refused");
  world.barrier();
  if (world.rank() == 0) std::cout << checks << " checks" << std::endl;
}

// Trains a little; prints the sum of the weights as its bits.
void train(Reduction reduction) {
  torch::manual_seed(1);
  World world = init();
  auto model = std::make_shared<torch::nn::SequentialImpl>();
  model->push_back(torch::nn::Linear(40, 300));
  model->push_back(torch::nn::Linear(300, 2));
  DistributedDataParallel ddp(world, model, {.bucket_cap_mb = 0.01, .reduction = reduction});
  for (int step = 0; step < 10; ++step) {
    ddp.zero_grad();
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + world.rank());
    const at::Tensor input = torch::randn({8, 40}, generator);
    ddp.forward(input).square().mean().backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.1);
  }
  std::string weights;
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : model->parameters()) {
    weights +=
        concat(parameter.flatten().view(at::kInt).to(at::kLong).sum().item<std::int64_t>(), " ");
  }
  if (world.rank() == 0) std::cout << world.group().backend() << ": " << weights << std::endl;
}

// Rank 1 dies while the others wait for it.
void die() {
  World world = init({.backend = "mpi"});
  world.barrier();
  if (world.rank() == 1) ::kill(::getpid(), SIGKILL);
  world.group().all_reduce(torch::ones({1000}));
}

// A rank comes too late: the others say so. Afterwards MPI cannot be ended in good order.
void wait_in_vain() {
  World world = init({.backend = "mpi", .timeout = std::chrono::seconds(2)});
  if (world.rank() == 0) {
    try {
      world.group().all_reduce(torch::ones({4}));
    } catch (const Timeout& error) {
      std::cout << "timeout: " << error.what() << std::endl;
    }
    world.store().set("gave_up", "1");
    std::_Exit(3);
  }
  world.store().get("gave_up");
  std::_Exit(0);
}

int run(const std::string& what) {
  torch::set_num_threads(1);
  if (what == "collectives") check_collectives();
  if (what == "ddp_native") train(Reduction::native);
  if (what == "ddp_ordered") train(Reduction::ordered);
  if (what == "die") die();
  if (what == "wait_in_vain") wait_in_vain();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::record([&] { return run(argc > 1 ? argv[1] : ""); });
}
