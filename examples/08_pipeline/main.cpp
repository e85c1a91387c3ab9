// Chapter 8: a model in parts, on devices of one process and on ranks:
//   08_pipeline devices
//   lockstep run --nproc-per-node 2 08_pipeline stages
//   lockstep run --nproc-per-node 4 08_pipeline mesh
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/device_chain.h"
#include "lockstep/error.h"
#include "lockstep/mesh.h"
#include "lockstep/optimizer.h"
#include "lockstep/pipeline.h"
#include "lockstep/record.h"
#include "lockstep/world.h"

// A part with weights; eight of them make the model.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up{256, 512}, down{512, 256};
};
TORCH_MODULE(Block);

torch::Tensor loss_of(const lockstep::Tensors& outputs, const lockstep::Tensors& targets) {
  return torch::mse_loss(outputs[0], targets[0]);
}

// The two halves of a model on two devices of one process.
void devices() {
  const bool gpus = torch::cuda::device_count() >= 2;
  const std::string one = gpus ? "cuda:0" : "cpu:0", other = gpus ? "cuda:1" : "cpu:1";
  std::vector<lockstep::PlacedPart> parts;
  for (int i = 0; i < 8; ++i) parts.push_back({lockstep::model_part(Block()), i < 4 ? one : other});
  lockstep::DeviceChain chain(parts);
  torch::optim::SGD optimizer(chain.module()->parameters(), /*lr=*/1e-3);

  const auto input = torch::rand({64, 256});
  const auto whole = chain.forward({input}).front();                // one device after the other
  const auto pieces = chain.forward_in_pieces({input}, 4).front();  // both at a time, on GPUs
  pieces.square().mean().backward();
  optimizer.step();
  std::cout << "part " << chain.borders().front() << " is the first on " << other << "; "
            << (torch::allclose(whole, pieces, 1e-4, 1e-5) ? "the same" : "not the same")
            << " in pieces\n";
}

// A stage of the model on each rank; with a mesh, two ranks for each stage.
void stages(lockstep::World& world, int data_parallel) {
  lockstep::Mesh mesh(world,
                      {{"pipeline", world.world_size() / data_parallel}, {"data", data_parallel}});
  std::vector<lockstep::PipelinePart> parts;
  for (int i = 0; i < 8; ++i) {
    parts.push_back({"block" + std::to_string(i), [] { return lockstep::model_part(Block()); }});
  }
  lockstep::Pipeline pipeline(
      mesh.group("pipeline"), parts,
      {.micro_batches = 4, .loss = loss_of, .data_group = mesh.group("data")});
  lockstep::AdamW optimizer(lockstep::named_parameters(*pipeline.module()), {.lr = 1e-3});
  const std::string who = "[rank" + std::to_string(world.rank()) + "] ";
  std::cout << who + "stage " + std::to_string(pipeline.stage()) + ": " + pipeline.parts().front() +
                   " to " + pipeline.parts().back() + "\n"
            << std::flush;

  lockstep::PipelineResult result;
  double loss = 0;
  for (int step = 0; step < 10; ++step) {
    torch::manual_seed(100 * step + mesh.coordinate("data"));  // each pipeline has its own batch
    const auto input = torch::rand({32, 256});
    pipeline.zero_grad();
    result = pipeline.train_step({input}, {input.flip(1)});
    optimizer.step();
    loss = pipeline.mean_loss(result);
  }
  const auto times = pipeline.gather_times(result.times);
  if (world.rank() != 0) return;
  const lockstep::PipelineShape shape{.stages = pipeline.stages(), .micro_batches = 4};
  std::cout << lockstep::timeline_text(
      lockstep::pipeline_timeline(lockstep::PipelineSchedule::one_forward_one_backward, shape));
  std::printf("loss %.6f; bubble %.2f by the formula, %.2f measured\n", loss,
              lockstep::bubble_share(shape), lockstep::measured_bubble(times));
}

int main(int argc, char** argv) {
  return lockstep::record([&] {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "devices") {
      devices();
    } else if (what == "stages" || what == "mesh") {
      lockstep::World world = lockstep::init();
      stages(world, what == "mesh" ? 2 : 1);
    } else {
      throw lockstep::InvalidArgument("usage: 08_pipeline devices|stages|mesh");
    }
    return 0;
  });
}
