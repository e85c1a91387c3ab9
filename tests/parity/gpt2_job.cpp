// The C++ half of gpt2_parity.py and of bench/gpt2_curve.
//
//   forward MODEL IN.pt OUT.pt               logits, loss, gradients for the file's ids and labels
//   copy MODEL OUT [BYTES]                   loads a directory and saves it, in shards of BYTES
//   train MODEL IN.pt OUT.pt [DEVICE TYPE]   AdamW and cosine over the file's batches; the losses;
//                                            TYPE is fp32, bf16 or autocast
//   tokens VOCABULARY COUNT OUT.pt           so many tokens of the embedded instructions
//   generate MODEL IN.pt OUT.pt              the likeliest continuation of the file's ids
//   scratch NAME OUT [SEED]                  saves a new model
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/embedded_instructions.h"
#include "lockstep/generate.h"
#include "lockstep/gpt2.h"
#include "lockstep/lr_schedule.h"
#include "lockstep/optimizer.h"
#include "lockstep/text_records.h"
#include "lockstep/tokenizer.h"
#include "lockstep/torch_file.h"

using namespace lockstep;

namespace {

void forward(Gpt2 model, const PyValue& in, const std::string& out) {
  model->eval();
  const at::Tensor& ids = in.at("ids").to_tensor();
  const Gpt2Loss loss = model->forward(ids, in.at("labels").to_tensor());
  (loss.sum / loss.count).backward();
  std::map<std::string, at::Tensor> gradients;
  PyValue::List names;
  for (const auto& item : model->named_parameters()) {
    gradients[item.key()] = item.value().grad();
    names.items.emplace_back(item.key());
  }
  const torch::NoGradGuard no_graph;
  save_pt(out, PyValue::dict({{"logits", model->forward(ids)},
                              {"loss", (loss.sum / loss.count).detach()},
                              {"names", names},
                              {"gradients", gradients}}));
}

constexpr std::int64_t kNotTimed = 5;  // the first steps

double now() {
  if (torch::cuda::is_available()) torch::cuda::synchronize();
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

void train(Gpt2 model, const PyValue& in, const std::string& out, const std::string& device,
           const std::string& type) {
  model->train();
  model->to(torch::Device(device), type == "bf16" ? torch::kBFloat16 : torch::kFloat);
  const AutocastOptions autocast_options{.device_type = torch::Device(device).type(),
                                         .enabled = type == "autocast"};
  const at::Tensor ids = in.at("ids").to_tensor().to(torch::Device(device));  // [steps, B, T + 1]
  const std::int64_t steps = ids.size(0), tokens = ids.size(2) - 1;
  AdamW optimizer(named_parameters(*model), {.lr = in.at("lr").to_double(), .weight_decay = 0.1});
  const LRSchedule schedule(
      CosineSchedule{.warmup_steps = in.at("warm_up").to_int(), .total_steps = steps});
  at::Tensor losses = torch::empty({steps}, ids.options().dtype(torch::kFloat));
  double start = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step == kNotTimed) start = now();
    schedule.apply(optimizer, step);
    const at::Tensor batch = ids[step];
    Gpt2Loss loss;
    {
      const Autocast autocast(autocast_options);
      loss = model->forward(batch.narrow(1, 0, tokens), batch.narrow(1, 1, tokens).contiguous());
    }
    const at::Tensor mean = loss.sum / loss.count;
    mean.backward();
    optimizer.step();
    optimizer.zero_grad();
    losses[step] = mean.detach();
  }
  const double seconds = (now() - start) / static_cast<double>(steps - kNotTimed);
  save_pt(out, PyValue::dict({{"losses", losses.cpu()}, {"seconds", seconds}}));
}

void embedded_tokens(int vocabulary, std::int64_t count, const std::string& out) {
  const PromptTemplate prompt = PromptTemplate::brief();
  std::vector<std::string> texts;
  std::size_t bytes = 0;
  // A token is at least a byte, so there are enough.
  for (std::uint64_t seed = 1; bytes < static_cast<std::size_t>(count); ++seed) {
    for (const TextRecord& record : embedded_instructions({.seed = seed, .letters = 26}).train) {
      texts.push_back(prompt.prompt_of(record) + record.output + "\n");
      bytes += texts.back().size();
    }
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const Tokenizer tokenizer = train_tokenizer(views, {.vocab_size = vocabulary});
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; static_cast<std::int64_t>(tokens.size()) < count;
       i = (i + 1) % texts.size()) {
    for (const std::int32_t token : tokenizer.encode(texts[i])) tokens.push_back(token);
  }
  tokens.resize(static_cast<std::size_t>(count));
  save_pt(out, PyValue::dict({{"tokens", torch::tensor(tokens, torch::kLong)}}));
}

void continue_text(Gpt2 model, const PyValue& in, const std::string& out) {
  const at::Tensor ids = in.at("ids").to_tensor();
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int64_t row = 0; row < ids.size(0); ++row) {
    const auto* first = ids[row].const_data_ptr<std::int64_t>();
    prompts.emplace_back(first, first + ids.size(1));
  }
  const std::int64_t count = in.at("count").to_int();
  const auto results = generate(model, prompts, {.max_new_tokens = count, .temperature = 0});
  at::Tensor tokens = torch::empty({ids.size(0), count}, torch::kLong);
  for (std::int64_t row = 0; row < ids.size(0); ++row) {
    tokens[row] = torch::tensor(results[static_cast<std::size_t>(row)].tokens, torch::kLong);
  }
  save_pt(out, PyValue::dict({{"tokens", tokens}}));
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  torch::set_num_threads(1);
  const std::string& command = words.at(0);
  if (command == "copy") {
    Gpt2SaveOptions options;
    if (words.size() > 3) options.max_shard_bytes = std::stoll(words[3]);
    save_gpt2(load_gpt2(words.at(1)), words.at(2), options);
  } else if (command == "scratch") {
    Gpt2Options options;
    if (words.size() > 3) options.seed = std::stoull(words[3]);
    save_gpt2(Gpt2(Gpt2Config::named(words.at(1)), options), words.at(2));
  } else if (command == "tokens") {
    embedded_tokens(std::stoi(words.at(1)), std::stoll(words.at(2)), words.at(3));
  } else {
    const Gpt2 model = load_gpt2(words.at(1));
    const PyValue in = load_pt(words.at(2));
    if (command == "forward") forward(model, in, words.at(3));
    if (command == "train") {
      const bool placed = words.size() > 5;
      train(model, in, words.at(3), placed ? words[4] : "cpu", placed ? words[5] : "fp32");
    }
    if (command == "generate") continue_text(model, in, words.at(3));
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpt2_job: %s\n", error.what());
  return 1;
}
