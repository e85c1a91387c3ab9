#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "corpus.h"
#include "lockstep/beam_search.h"
#include "lockstep/callback.h"
#include "lockstep/process_group.h"
#include "lockstep/world.h"

namespace translate {

/// What a model makes of the held-out sources: each rank translates its share, all learn the whole.
class Translations {
 public:
  /// Both outlive it.
  Translations(lockstep::Transformer& model, const Corpus& corpus, lockstep::SearchOptions search);

  /// Of the pairs of a batch.
  void add(const PairBatch& batch);

  /// On every rank, after the last batch: BLEU, chrF, CER and WER over all ranks' translations.
  std::map<std::string, double> conclude(lockstep::ProcessGroup& group);

  /// The first `count` pairs with what was made of them, as the tutorial shows them. Empty before
  /// the first conclude().
  std::string examples(std::int64_t count) const;

 private:
  lockstep::Transformer& model_;
  const Corpus& corpus_;
  lockstep::SearchOptions search_;
  std::map<std::int64_t, std::vector<std::int32_t>> found_;  // by index, since the last conclude()
  std::map<std::int64_t, std::string> predicted_;            // by index, of all ranks
};

/// Shows how a validation went, and hands examples to the tracker.
class ValidationReport : public lockstep::Callback {
 public:
  /// Both outlive it.
  ValidationReport(const lockstep::World& world, const Translations& translations,
                   std::int64_t examples)
      : world_(world), translations_(translations), examples_(examples) {}

  void on_tracker(lockstep::Tracker* tracker) override { tracker_ = tracker; }
  void on_step(const lockstep::StepReport& report) override { epoch_ = report.epoch + 1; }
  void on_evaluation(std::int64_t step, const std::map<std::string, double>& metrics) override;

 private:
  const lockstep::World& world_;
  const Translations& translations_;
  std::int64_t examples_;
  std::int64_t epoch_ = 0;  // of the last step, counted from 1
  lockstep::Tracker* tracker_ = nullptr;
};

}  // namespace translate
