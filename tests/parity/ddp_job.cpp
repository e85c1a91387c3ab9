// One rank of a DDP job in C++, for comparison with ddp_job.py: same options, same output, every
// number as its bits.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include <torch/torch.h>

#include "lockstep/compression.h"
#include "lockstep/ddp.h"
#include "lockstep/error.h"
#include "lockstep/local_sgd.h"
#include "lockstep/state.h"
#include "lockstep/world.h"
#include "models.h"

namespace {

struct Options {
  std::string model;
  int steps = 50;
  int accumulate = 1;
  std::string bucket_cap_mb = "default";
  bool view = false;
  bool static_graph = false;
  std::string hook = "none";
  std::string init;
  std::string out;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (++i == argc) throw lockstep::InvalidArgument(flag + " needs a value");
      return argv[i];
    };
    if (flag == "--model") {
      options.model = value();
    } else if (flag == "--steps") {
      options.steps = std::stoi(value());
    } else if (flag == "--accumulate") {
      options.accumulate = std::stoi(value());
    } else if (flag == "--bucket-cap-mb") {
      options.bucket_cap_mb = value();
    } else if (flag == "--view") {
      options.view = true;
    } else if (flag == "--static-graph") {
      options.static_graph = true;
    } else if (flag == "--hook") {
      options.hook = value();
    } else if (flag == "--init") {
      options.init = value();
    } else if (flag == "--out") {
      options.out = value();
    } else {
      throw lockstep::InvalidArgument("unknown option " + flag);
    }
  }
  return options;
}

std::string bits(const torch::Tensor& tensor) {
  const torch::Tensor whole = tensor.detach().contiguous();
  const auto* bytes = static_cast<const unsigned char*>(whole.const_data_ptr());
  static const char* digits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * whole.nbytes());
  for (std::size_t i = 0; i < whole.nbytes(); ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

std::string python_name(torch::ScalarType type) {
  return type == torch::kFloat ? "float32" : type == torch::kLong ? "int64" : toString(type);
}

void write_tensor(const char* kind, const std::string& name, const torch::Tensor& tensor,
                  std::ostream& out) {
  out << kind << ' ' << name << ' ' << python_name(tensor.scalar_type()) << ' ';
  if (tensor.dim() == 0) out << "scalar";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) out << (i == 0 ? "" : "x") << tensor.size(i);
  out << ' ' << bits(tensor) << '\n';
}

void load(torch::nn::Module& model, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw lockstep::InvalidArgument("--init: cannot open " + path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const auto weights = torch::pickle_load(bytes).toGenericDict();
  torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) item.value().copy_(weights.at(item.key()).toTensor());
  for (auto& item : model.named_buffers()) item.value().copy_(weights.at(item.key()).toTensor());
}

// Tied weights appear once, under their first name, as in Python.
torch::OrderedDict<std::string, torch::Tensor> unique_parameters(torch::nn::Module& model) {
  torch::OrderedDict<std::string, torch::Tensor> unique;
  std::set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      unique.insert(item.key(), item.value());
    }
  }
  return unique;
}

lockstep::DistributedDataParallelOptions ddp_options(const Options& options) {
  lockstep::DistributedDataParallelOptions ddp{
      .find_unused_parameters = options.model == "unused",
      .static_graph = options.static_graph,
      .gradient_as_bucket_view = options.view,
      // With two ranks both have the same bits.
      .reduction = std::getenv("REDUCTION") != nullptr ? lockstep::Reduction::ordered
                                                       : lockstep::Reduction::native,
  };
  if (options.bucket_cap_mb != "default") ddp.bucket_cap_mb = std::stod(options.bucket_cap_mb);
  return ddp;
}

// "powersgd:RANK", with the first Q that ddp_job.py gives Python's hook: a function of its shape.
std::shared_ptr<lockstep::GradientCompression> power_sgd(const std::string& hook,
                                                         const torch::nn::Module& model) {
  lockstep::PowerSGDOptions wanted{.matrix_approximation_rank = std::stoll(hook.substr(9)),
                                   .start_powerSGD_iter = 5,
                                   .min_compression_rate = 1.2};
  auto compression = std::make_shared<lockstep::GradientCompression>(model, wanted);
  lockstep::State state = compression->state();
  for (const auto& item : model.named_parameters()) {
    const std::int64_t rows = item.value().size(0), columns = item.value().numel() / rows;
    const std::int64_t rank = std::min({rows, columns, wanted.matrix_approximation_rank});
    state.tensors["q." + item.key()] =
        torch::sin(torch::arange(columns * rank, torch::kFloat) * 1.7 + 0.3)
            .view({1, columns, rank});
  }
  compression->load_state(state);
  return compression;
}

// `loss_of` is one of the losses of models.h.
template <typename Model, typename LossOf>
void run(const Options& options, lockstep::World& world, LossOf loss_of) {
  auto model = std::make_shared<Model>();
  load(*model, options.init);
  lockstep::DistributedDataParallel<Model> ddp(world, model, ddp_options(options));
  if (options.hook == "fp16") ddp.register_comm_hook(lockstep::CommHook::fp16_compress);
  if (options.hook.starts_with("powersgd:"))
    ddp.register_comm_hook(power_sgd(options.hook, *model));
  if (options.hook == "bf16") ddp.register_comm_hook(lockstep::CommHook::bf16_compress);

  // Each rank is a subgroup of its own.
  std::optional<lockstep::PeriodicModelAverager> averager;
  if (options.hook == "local_sgd") {
    const auto first = world.new_group({.ranks = {0}}), second = world.new_group({.ranks = {1}});
    const lockstep::PostLocalSGD local(world, world.rank() == 0 ? first : second,
                                       {.start_localSGD_iter = 10});
    ddp.register_comm_hook(local.hook());
    averager.emplace(world,
                     lockstep::PeriodicModelAveragerOptions{.period = 4, .warmup_steps = 10});
  }

  const auto parameters = unique_parameters(*model);
  torch::optim::SGD optimizer(parameters.values(), torch::optim::SGDOptions(0.05));
  std::ofstream out(options.out);
  for (int step = 0; step < options.steps; ++step) {
    for (int micro = 0; micro < options.accumulate; ++micro) {
      auto data = at::make_generator<at::CPUGeneratorImpl>(
          (step * options.accumulate + micro) * 1000 + world.rank());
      std::optional<lockstep::NoSync> no_sync;
      if (micro + 1 < options.accumulate) no_sync.emplace(ddp.engine());
      const torch::Tensor loss = loss_of(ddp, data, step, world.rank());
      (loss / options.accumulate).backward();
      out << "loss " << step << '.' << micro << ' ' << bits(loss) << '\n';
    }
    optimizer.step();
    if (averager) averager->average_parameters(parameters.values());
    ddp.zero_grad();
  }

  for (const auto& item : parameters) write_tensor("parameter", item.key(), item.value(), out);
  for (const auto& item : model->named_buffers()) {
    write_tensor("buffer", item.key(), item.value(), out);
  }
  const auto logged = ddp.logging_data();
  const auto buckets = logged.find("rebuilt_bucket_sizes");
  out << "buckets " << (buckets == logged.end() ? "" : buckets->second) << '\n';
}

void run(const Options& options) {
  at::set_num_threads(1);
  const char* asked = std::getenv("LOCKSTEP_BACKEND");
  const std::string wanted = asked ? asked : "gloo";
  lockstep::World world = lockstep::init({.backend = wanted, .device = "cpu"});
  if (world.group().backend() != wanted) {
    throw lockstep::Error("ddp_job: the backend is " + world.group().backend());
  }
  if (options.model == "mlp") {
    run<parity::Mlp>(options, world, [](auto&&... a) { return parity::mlp_loss(a...); });
  } else if (options.model == "convnet") {
    run<parity::ConvNet>(options, world, [](auto&&... a) { return parity::convnet_loss(a...); });
  } else if (options.model == "gpt") {
    run<parity::Gpt>(options, world, [](auto&&... a) { return parity::gpt_loss(a...); });
  } else if (options.model == "unused") {
    run<parity::Branches>(options, world, [](auto&&... a) { return parity::unused_loss(a...); });
  } else if (options.model == "sparse") {
    run<parity::SparseBag>(options, world, [](auto&&... a) { return parity::sparse_loss(a...); });
  } else {
    throw lockstep::InvalidArgument("--model: there is no model \"" + options.model + "\"");
  }
}

}  // namespace

int main(int argc, char** argv) try {
  run(parse(argc, argv));
} catch (const std::exception& error) {
  std::cerr << "ddp_job: " << error.what() << '\n';
  return 1;
}
