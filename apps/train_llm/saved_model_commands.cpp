#include "saved_model_commands.h"

#include <algorithm>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include "corpus.h"
#include "lockstep/error.h"
#include "lockstep/generate.h"
#include "saved_model.h"
#include "text/utf8.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;

constexpr const char* kDefaultRun = "outputs/train_llm";

std::string snapshot_of(const Options& options) {
  return options.snapshot.empty() ? kDefaultRun : options.snapshot;
}

c10::Device chosen_device(const std::string& name) {
  try {
    return c10::Device(name.empty() ? "cpu" : name);
  } catch (const c10::Error&) {
    throw InvalidArgument(concat("--device is \"", name, "\"; it must be cpu, cuda or cuda:N"));
  }
}

/// Prints bytes as they come, as valid UTF-8: what is no character becomes U+FFFD, and a letter
/// that is made of several tokens waits until it is whole.
class Utf8Printer {
 public:
  void add(std::string_view bytes) {
    waiting_ += bytes;
    print(/*all=*/waiting_.size() > kLongest);
  }
  void finish() { print(/*all=*/true); }

 private:
  static constexpr std::size_t kLongest = 3;  // bytes of a letter that lacks one

  void print(bool all) {
    std::size_t done = 0;
    const auto* data = reinterpret_cast<const unsigned char*>(waiting_.data());
    while (done < waiting_.size()) {
      const auto letter = lockstep::decode_utf8(data + done, data + waiting_.size());
      const bool may_come = letter.bytes == 0 && data[done] >= 0xC2 && !all;
      if (may_come && waiting_.size() - done <= kLongest) break;
      std::cout << (letter.bytes == 0 ? "\uFFFD" : waiting_.substr(done, letter.bytes));
      done += std::max(letter.bytes, 1U);
    }
    waiting_.erase(0, done);
    std::cout << std::flush;
  }

  std::string waiting_;
};

}  // namespace

int generate_text(const Options& options) {
  SavedModel saved = load_saved_model(snapshot_of(options));
  saved.model->to(chosen_device(options.device));
  const std::string prompt = options.instruction.empty()
                                 ? options.prompt
                                 : prompt_text(saved.options, options.instruction, options.input);
  const std::vector<std::int32_t> ids = saved.tokenizer.encode(prompt);
  std::cerr << "train_llm: " << saved.what << "\n";
  const bool one = options.num_samples == 1;
  const bool shows_prompt = options.instruction.empty();
  Utf8Printer printer;
  lockstep::GenerateOptions generating{.max_new_tokens = options.max_new_tokens,
                                       .temperature = options.temperature,
                                       .top_k = options.top_k,
                                       .top_p = options.top_p,
                                       .seed = static_cast<std::uint64_t>(options.seed),
                                       .stop_token = saved.tokenizer.end_of_text()};
  if (one) {
    if (shows_prompt) std::cout << prompt;
    generating.on_token = [&](std::size_t, std::int32_t token) {
      printer.add(saved.tokenizer.decode(std::span(&token, 1)));
    };
  }
  const std::vector<std::vector<std::int32_t>> prompts(
      static_cast<std::size_t>(options.num_samples), ids);
  const auto texts = lockstep::generate(saved.model, prompts, generating);
  if (one) {
    printer.finish();
    std::cout << "\n";
    return 0;
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::cout << "--- " << i + 1 << "\n" << (shows_prompt ? prompt : "");
    printer.add(saved.tokenizer.decode(texts[i].tokens));
    printer.finish();
    std::cout << "\n";
  }
  return 0;
}

int export_model(const Options& options, const std::string& target) {
  const SavedModel saved = load_saved_model(snapshot_of(options));
  lockstep::save_gpt2(saved.model, target);
  saved.tokenizer.save(target);
  std::cout << "wrote " << saved.what << " to " << target
            << " (AutoModelForCausalLM.from_pretrained(\"" << target << "\") loads it)\n";
  return 0;
}

}  // namespace train_llm
