#include "infer.h"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "corpus.h"
#include "lockstep/beam_search.h"
#include "lockstep/error.h"
#include "lockstep/module_state.h"
#include "lockstep/snapshot.h"
#include "run_directory.h"
#include "weight_files.h"

namespace translate {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;

constexpr std::size_t kAtATime = 64;  // sentences

/// A model that has been trained, and what it takes to use it.
struct Translator {
  Options options;  // of its run
  Vocabulary source;
  Vocabulary target;
  lockstep::Transformer model;
  std::string what;
};

// The newest snapshot, or where there is none the newest file of an epoch.
std::pair<lockstep::State, std::string> weights_of(const RunDirectory& run,
                                                   const std::string& which) {
  if (which == "latest" && run.newest_snapshot()) {
    lockstep::Snapshot snapshot = lockstep::read_snapshot(run.snapshots());
    return {std::move(snapshot.parts.at("model")), concat("step ", snapshot.step)};
  }
  const auto epoch = which == "latest" ? newest_weight_file(run.weights()) : epoch_number(which);
  const std::string path = epoch ? weight_file_path(run.weights(), *epoch) : "";
  if (path.empty() || !std::filesystem::exists(path)) {
    throw InvalidArgument(concat("--run ", run.path(), " has ",
                                 epoch ? concat("no ", path) : "neither snapshots nor weights yet",
                                 "; train first, or choose other --weights"));
  }
  return {read_weight_file(path).model, path};
}

Translator load_translator(const Invocation& invocation) {
  const RunDirectory run(invocation.options.run);
  if (!run.has_config()) {
    throw InvalidArgument(concat("--run is \"", run.path(),
                                 "\", which is no run of translate: there is no config.json"));
  }
  const Options options = run.stored_options();
  Vocabulary source = Vocabulary::load(run.path(), options.lang_src, options);
  Vocabulary target = Vocabulary::load(run.path(), options.lang_tgt, options);
  lockstep::Transformer model(model_config(options, source, target));
  auto [weights, what] = weights_of(run, invocation.options.weights);
  lockstep::load_module_state(*model, weights);
  if (!invocation.options.device.empty()) model->to(at::Device(invocation.options.device));
  return {.options = options,
          .source = std::move(source),
          .target = std::move(target),
          .model = std::move(model),
          .what = concat(what, " of ", run.path())};
}

void translate_some(Translator& translator, const std::vector<std::string>& sentences,
                    std::size_t first_number, const lockstep::SearchOptions& search) {
  std::vector<std::vector<std::int32_t>> sources;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    const auto tokens = translator.source.encode(sentences[i]);
    check_length(concat("sentence ", first_number + i), "source", sentences[i], tokens.size(),
                 translator.options, "the run was trained with that: make it shorter");
    sources.push_back(with_marks(tokens));
  }
  // Not before the first sentences are accepted.
  if (first_number == 1) std::fprintf(stderr, "translate: %s\n", translator.what.c_str());
  for (const lockstep::Found& found : lockstep::search_targets(translator.model, sources, search)) {
    std::printf("%s\n", on_one_line(translator.target.decode(found.tokens)).c_str());
  }
  std::fflush(stdout);
}

}  // namespace

int infer(const Invocation& invocation) {
  Translator translator = load_translator(invocation);
  const lockstep::SearchOptions search{.beam = invocation.options.beam,
                                       .length_penalty = invocation.options.length_penalty,
                                       .start_id = kStart,
                                       .end_id = kEnd};
  if (!invocation.sentences.empty()) {
    translate_some(translator, invocation.sentences, 1, search);
    return 0;
  }
  std::size_t number = 1;
  std::vector<std::string> sentences;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.ends_with('\r')) line.pop_back();
    sentences.push_back(std::move(line));
    // Somebody who types waits for each answer.
    if (sentences.size() < kAtATime && std::cin.rdbuf()->in_avail() > 0) continue;
    translate_some(translator, sentences, number, search);
    number += sentences.size();
    sentences.clear();
  }
  if (!sentences.empty()) translate_some(translator, sentences, number, search);
  return 0;
}

}  // namespace translate
