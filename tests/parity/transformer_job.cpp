// The C++ half of transformer_parity.py.
//
//   scratch CONFIG.pt OUT.pt   the state of a new model
//   forward IN.pt OUT.pt       logits, loss and gradients for the file's weights and tokens
//   train IN.pt OUT.pt         Adam over the file's batches; the losses
//   search IN.pt OUT.pt        what is found for the sources, for each beam up to the largest,
//                              with and without a cache
#include <cstdio>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/beam_search.h"
#include "lockstep/module_state.h"
#include "lockstep/optimizer.h"
#include "lockstep/torch_file.h"
#include "lockstep/transformer.h"

using namespace lockstep;

namespace {

TransformerConfig config_of(const PyValue& file) {
  const PyValue& sizes = file.at("config");
  const auto size = [&](const char* name) { return sizes.at(name).to_int(); };
  return {.source_vocab_size = size("src_vocab_size"),
          .target_vocab_size = size("tgt_vocab_size"),
          .source_seq_len = size("src_seq_len"),
          .target_seq_len = size("tgt_seq_len"),
          .d_model = size("d_model"),
          .layers = size("N"),
          .heads = size("h"),
          .d_ff = size("d_ff"),
          .dropout = 0};
}

Transformer model_of(const PyValue& file) {
  Transformer model(config_of(file));
  load_module_state(*model, file.at("weights").to_state());
  return model;
}

std::vector<std::vector<std::int32_t>> rows_of(const at::Tensor& padded) {
  std::vector<std::vector<std::int32_t>> rows;
  for (std::int64_t i = 0; i < padded.size(0); ++i) {
    rows.emplace_back();
    for (std::int64_t k = 0; k < padded.size(1); ++k) {
      const auto token = padded[i][k].item<std::int32_t>();
      if (token != 1) rows.back().push_back(token);
    }
  }
  return rows;
}

void forward(const PyValue& in, const std::string& out) {
  Transformer model = model_of(in);
  const auto tensor = [&](const char* name) { return in.at(name).to_tensor(); };
  const TransformerLoss loss = model->forward(tensor("source"), tensor("target"), tensor("labels"));
  const at::Tensor mean = loss.sum / loss.count;
  mean.backward();
  std::map<std::string, at::Tensor> gradients;
  PyValue::List names;
  for (const auto& item : model->named_parameters()) {
    gradients[item.key()] = item.value().grad();
    names.items.emplace_back(item.key());
  }
  save_pt(out,
          PyValue::dict({{"logits", model->forward(tensor("source"), tensor("target")).detach()},
                         {"loss", mean.detach()},
                         {"count", loss.count},
                         {"gradients", gradients},
                         {"names", names}}));
}

void train(const PyValue& in, const std::string& out) {
  Transformer model = model_of(in);
  const at::Tensor sources = in.at("sources").to_tensor(), targets = in.at("targets").to_tensor(),
                   labels = in.at("labels").to_tensor();
  Adam optimizer(named_parameters(*model), {.lr = in.at("lr").to_double(), .eps = 1e-9});
  at::Tensor losses = torch::empty({sources.size(0)});
  for (std::int64_t step = 0; step < sources.size(0); ++step) {
    const TransformerLoss loss = model->forward(sources[step], targets[step], labels[step]);
    const at::Tensor mean = loss.sum / loss.count;
    mean.backward();
    optimizer.step();
    optimizer.zero_grad();
    losses[step] = mean.detach();
  }
  save_pt(out, PyValue::dict({{"losses", losses}}));
}

void search(const PyValue& in, const std::string& out) {
  Transformer model = model_of(in);
  const auto sources = rows_of(in.at("source").to_tensor());
  PyValue::List results;
  for (const std::int64_t beam : {1, 2, 4, 100}) {
    if (beam > in.at("largest_beam").to_int()) break;
    for (const bool use_cache : {true, false}) {
      PyValue::List found;
      for (const Found& target :
           search_targets(model, sources,
                          {.beam = beam,
                          .length_penalty = in.at("length_penalty").to_double(),
                          .max_tokens = in.at("max_tokens").to_int(),
                          .use_cache = use_cache})) {
        PyValue::List tokens;
        for (const std::int32_t token : target.tokens) tokens.items.emplace_back(token);
        found.items.push_back(PyValue::dict({{"tokens", tokens},
                                             {"log_probability", target.log_probability},
                                             {"ended", target.ended}}));
      }
      results.items.push_back(
          PyValue::dict({{"beam", beam}, {"use_cache", use_cache}, {"found", found}}));
    }
  }
  save_pt(out, PyValue::dict({{"results", results}}));
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  torch::set_num_threads(1);
  const std::string& command = words.at(0);
  const PyValue in = load_pt(words.at(1));
  if (command == "scratch") {
    const Transformer model(config_of(in), {.seed = 5});
    save_pt(words.at(2), module_state(*model));
  }
  if (command == "forward") forward(in, words.at(2));
  if (command == "train") train(in, words.at(2));
  if (command == "search") search(in, words.at(2));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "transformer_job: %s\n", error.what());
  return 1;
}
