// The C++ half of torch_file_parity.py.
//
//   torch_file_job copy IN.pt OUT.pt                reads a file and writes what it found
//   torch_file_job safetensors IN OUT               the same with safetensors
//   torch_file_job large OUT.pt                     writes more than 4 GiB, and a tensor behind
//   that torch_file_job train IN.pt OUT.pt SNAPSHOTS     loads model and optimizer of Python, makes
//   a step
//                                                   with the gradients of the file, saves both
#include <torch/torch.h>
#include <cstdio>
#include <string>

#include "lockstep/module_state.h"
#include "lockstep/optimizer.h"
#include "lockstep/snapshot.h"
#include "lockstep/torch_file.h"
#include "lockstep/world.h"

using namespace lockstep;

namespace {

struct Net : torch::nn::Module {
  Net() {
    register_module("0", torch::nn::Linear(5, 4));
    register_module("1", torch::nn::BatchNorm1d(4));
    register_module("2", torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false)));
  }
};

void train(const std::string& in, const std::string& out, const std::string& snapshots) {
  const PyValue file = load_pt(in);
  Net net;
  load_module_state(net, file.at("MODEL_STATE").to_state());
  AdamW optimizer(named_parameters(net), {});
  const PyValue& python = file.at("OPTIMIZER");
  optimizer.load_state(from_python({.state = python.at("state").to_tensors_by_number(),
                                    .param_groups = python.at("param_groups").to_json()},
                                   optimizer));
  for (auto& item : net.named_parameters()) {
    item.value().mutable_grad() = file.at("GRADIENTS").at(item.key()).to_tensor();
  }
  optimizer.step();
  const PythonOptimizerState state = to_python(optimizer.state());
  save_pt(out, PyValue::dict({{"MODEL_STATE", module_state(net)},
                              {"OPTIMIZER", PyValue::dict({{"state", state.state},
                                                           {"param_groups", state.param_groups}})},
                              {"EPOCHS_RUN", file.at("EPOCHS_RUN").to_int() + 1}}));
  World world = init();
  SnapshotStore store(world, {.directory = snapshots});
  store.save(
      {.step = 11, .parts = {{"model", module_state(net)}, {"optimizer", optimizer.state()}}});
  store.wait();
  if (!store.last_error().empty()) throw std::runtime_error(store.last_error());
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "copy") {
    save_pt(words[2], load_pt(words[1]));
  } else if (words.size() == 3 && words[0] == "safetensors") {
    save_safetensors(words[2], load_safetensors(words[1]));
  } else if (words.size() == 2 && words[0] == "large") {
    // Zeros that nobody has written to take no memory.
    save_pt(words[1], PyValue::dict({{"zeros", torch::zeros({1'100'000'000})},
                                     {"behind", torch::arange(1000, torch::kLong)}}));
    const PyValue back = load_pt(words[1]);
    if (!torch::equal(back.at("behind").to_tensor(), torch::arange(1000, torch::kLong))) return 3;
  } else if (words.size() == 4 && words[0] == "train") {
    train(words[1], words[2], words[3]);
  } else {
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
