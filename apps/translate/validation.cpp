#include "validation.h"

#include <unistd.h>
#include <cstdio>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "lockstep/tracker.h"
#include "lockstep/translation_metrics.h"

namespace translate {
namespace {

using lockstep::concat;

std::string number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

}  // namespace

Translations::Translations(lockstep::Transformer& model, const Corpus& corpus,
                           lockstep::SearchOptions search)
    : model_(model), corpus_(corpus), search_(search) {}

void Translations::add(const PairBatch& batch) {
  const at::Tensor indices = batch.indices.cpu();
  std::vector<std::vector<std::int32_t>> sources;
  for (std::int64_t row = 0; row < indices.size(0); ++row) {
    const std::int64_t index = indices.const_data_ptr<std::int64_t>()[row];
    sources.push_back(with_marks(corpus_.validation->get(index).source));
  }
  auto found = lockstep::search_targets(model_, sources, search_);
  for (std::size_t row = 0; row < sources.size(); ++row) {
    found_[indices.const_data_ptr<std::int64_t>()[row]] = std::move(found[row].tokens);
  }
}

std::map<std::string, double> Translations::conclude(lockstep::ProcessGroup& group) {
  nlohmann::json mine = nlohmann::json::array();
  for (const auto& [index, tokens] : found_) mine.push_back({index, tokens});
  predicted_.clear();
  for (const nlohmann::json& theirs : group.all_gather_json(mine)) {
    for (const nlohmann::json& item : theirs) {
      predicted_[item.at(0)] = corpus_.target.decode(item.at(1).get<std::vector<std::int32_t>>());
    }
  }
  found_.clear();
  lockstep::TranslationCounts counts;
  for (const auto& [index, text] : predicted_) {
    counts.add(text, corpus_.held_out.at(static_cast<std::size_t>(index)).target);
  }
  return {{"bleu", counts.bleu()},
          {"chrf", counts.chrf()},
          {"cer", counts.character_error_rate()},
          {"wer", counts.word_error_rate()}};
}

std::string Translations::examples(std::int64_t count) const {
  std::string text;
  for (const auto& [index, predicted] : predicted_) {
    if (index >= count) break;
    const lockstep::SentencePair& pair = corpus_.held_out.at(static_cast<std::size_t>(index));
    text +=
        concat("    SOURCE: ", on_one_line(pair.source), "\n    TARGET: ", on_one_line(pair.target),
               "\n PREDICTED: ", on_one_line(predicted), "\n");
  }
  return text;
}

void ValidationReport::on_evaluation(std::int64_t step,
                                     const std::map<std::string, double>& metrics) {
  const std::string examples = translations_.examples(examples_);
  if (tracker_ != nullptr && !examples.empty()) tracker_->text(step, "translations", examples);
  if (world_.rank() != 0) return;
  const auto value = [&](const char* name, int digits) {
    const auto found = metrics.find(name);
    return found == metrics.end() ? std::string("-") : number(found->second, digits);
  };
  // Where standard error is a terminal, the progress bar may stand on this line.
  const bool bar = ::isatty(STDERR_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
  const std::string line =
      concat("epoch ", epoch_, " | step ", step, " | validation loss ", value("eval/loss", 4),
             " | BLEU ", value("eval/bleu", 2), " | chrF ", value("eval/chrf", 2), " | CER ",
             value("eval/cer", 4), " | WER ", value("eval/wer", 4), "\n");
  std::printf("%s%s%s", bar ? "\r\x1b[K" : "", examples.c_str(), line.c_str());
  std::fflush(stdout);
  if (tracker_ != nullptr) tracker_->console(line);
}

}  // namespace translate
