#include "lockstep/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "lockstep/error.h"
#include "models/decoding_state.h"

namespace lockstep {
namespace {

void check_search(const SearchOptions& options, const TransformerConfig& config) {
  const auto refuse = [](const char* name, auto value, const std::string& rule) {
    throw InvalidArgument(concat("search_targets: ", name, " is ", value, "; it must be ", rule));
  };
  if (options.beam < 1) refuse("beam", options.beam, "at least 1");
  if (!std::isfinite(options.length_penalty)) {
    refuse("length_penalty", options.length_penalty, "a number");
  }
  if (options.max_tokens < 0 || options.max_tokens > config.target_seq_len) {
    refuse("max_tokens", options.max_tokens,
           concat("0 to the model's target_seq_len, ", config.target_seq_len));
  }
}

/// All sources side by side, filled up to the longest.
at::Tensor padded_rows(const std::vector<std::vector<std::int32_t>>& rows, std::int64_t pad) {
  std::size_t longest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].empty()) throw InvalidArgument(concat("search_targets: source ", i, " is empty"));
    longest = std::max(longest, rows[i].size());
  }
  at::Tensor padded =
      at::full({std::ssize(rows), static_cast<std::int64_t>(longest)}, pad, at::kLong);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(),
              padded.mutable_data_ptr<std::int64_t>() + i * longest);
  }
  return padded;
}

class SearchMode {
 public:
  explicit SearchMode(TransformerImpl& model) : model_(model), before_(model.is_training()) {
    model_.eval();
  }
  SearchMode(const SearchMode&) = delete;
  SearchMode& operator=(const SearchMode&) = delete;
  ~SearchMode() { model_.train(before_); }

 private:
  TransformerImpl& model_;
  bool before_;
};

/// A sentence that goes on.
struct Growing {
  std::vector<std::int32_t> tokens;
  double log_probability = 0;
};

/// A token that may follow row `parent`.
struct Candidate {
  std::int64_t parent = 0;
  std::int32_t token = 0;
  double log_probability = 0;
};

class Search {
 public:
  Search(TransformerImpl& model, const std::vector<std::vector<std::int32_t>>& sources,
         const SearchOptions& options)
      : model_(model),
        options_(options),
        device_(model.parameters().front().device()),
        sources_(padded_rows(sources, model.config().pad_id).to(device_)),
        ended_(sources.size()),
        unfinished_(sources.size()) {
    if (options_.max_tokens == 0) options_.max_tokens = model.config().target_seq_len;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      rows_.emplace_back();
      source_of_.push_back(i);
    }
  }

  std::vector<Found> run() {
    if (options_.use_cache) {
      state_ = model_.begin_decoding(sources_);
    } else {
      memory_ = model_.encode(sources_);
    }
    for (std::int64_t length = 1; !rows_.empty() && length <= options_.max_tokens; ++length) {
      grow(log_probabilities(), /*last=*/length == options_.max_tokens);
    }
    std::vector<Found> results;
    for (std::size_t i = 0; i < ended_.size(); ++i) results.push_back(best_of(i));
    return results;
  }

 private:
  // Of the token that follows, [rows, vocabulary].
  at::Tensor log_probabilities() {
    at::Tensor logits;
    if (options_.use_cache) {
      std::vector<std::int64_t> last;
      for (const Growing& row : rows_) {
        last.push_back(row.tokens.empty() ? options_.start_id : row.tokens.back());
      }
      logits = model_.next_logits(at::tensor(last, at::kLong).to(device_), *state_);
    } else {
      std::vector<std::vector<std::int32_t>> targets;
      std::vector<std::int64_t> of;
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        targets.push_back({options_.start_id});
        targets.back().insert(targets.back().end(), rows_[i].tokens.begin(), rows_[i].tokens.end());
        of.push_back(static_cast<std::int64_t>(source_of_[i]));
      }
      const at::Tensor index = at::tensor(of, at::kLong).to(device_);
      const at::Tensor decoded =
          model_.decode(memory_.index_select(0, index), sources_.index_select(0, index),
                        padded_rows(targets, model_.config().pad_id).to(device_));
      logits = model_.project(decoded.select(1, decoded.size(1) - 1));
    }
    at::Tensor result = at::log_softmax(logits.to(at::kFloat), -1);
    // Nobody could look at it afterwards.
    result.select(1, model_.config().pad_id).fill_(-std::numeric_limits<double>::infinity());
    return result;
  }

  // One token more for each row: rows end, go on or are left behind.
  void grow(const at::Tensor& log_probabilities, bool last) {
    // Of these some may end a sentence; as many must be left that do not.
    const std::int64_t wanted = std::min(2 * options_.beam, model_.config().target_vocab_size);
    const auto [values, tokens] = log_probabilities.topk(wanted, -1);
    const at::Tensor top = values.to(at::kCPU, at::kDouble).contiguous();
    const at::Tensor ids = tokens.to(at::kCPU).contiguous();
    std::vector<Growing> next;
    std::vector<std::size_t> next_source;
    std::vector<std::int64_t> parents;
    for (std::size_t first = 0; first < rows_.size();) {
      std::size_t end = first;
      std::vector<Candidate> candidates;
      for (; end < rows_.size() && source_of_[end] == source_of_[first]; ++end) {
        for (std::int64_t k = 0; k < wanted; ++k) {
          const std::int64_t at = static_cast<std::int64_t>(end) * wanted + k;
          candidates.push_back(
              {.parent = static_cast<std::int64_t>(end),
               .token = static_cast<std::int32_t>(ids.const_data_ptr<std::int64_t>()[at]),
               .log_probability = rows_[end].log_probability + top.const_data_ptr<double>()[at]});
        }
      }
      std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::log_probability);
      choose(source_of_[first], candidates, last, next, next_source, parents);
      first = end;
    }
    const bool same_memory = next_source == source_of_;
    rows_ = std::move(next);
    source_of_ = std::move(next_source);
    if (options_.use_cache && !rows_.empty()) {
      state_->choose_rows(at::tensor(parents, at::kLong).to(device_), same_memory);
    }
  }

  // Among what may follow the rows of one source, best first.
  void choose(std::size_t source, const std::vector<Candidate>& candidates, bool last,
              std::vector<Growing>& next, std::vector<std::size_t>& next_source,
              std::vector<std::int64_t>& parents) {
    const auto beam = static_cast<std::size_t>(options_.beam);
    std::vector<const Candidate*> go_on;
    for (std::size_t rank = 0; rank < candidates.size() && go_on.size() < beam; ++rank) {
      const Candidate& candidate = candidates[rank];
      if (std::isinf(candidate.log_probability)) break;  // only padding is left
      if (candidate.token != options_.end_id) {
        go_on.push_back(&candidate);
      } else if (rank < beam) {
        const Growing& row = rows_[static_cast<std::size_t>(candidate.parent)];
        ended_[source].push_back(
            {.tokens = row.tokens, .log_probability = candidate.log_probability, .ended = true});
      }
    }
    if (ended_[source].size() >= beam) return;
    for (const Candidate* candidate : go_on) {
      Growing row = rows_[static_cast<std::size_t>(candidate->parent)];
      row.tokens.push_back(candidate->token);
      row.log_probability = candidate->log_probability;
      if (last) {
        unfinished_[source].push_back(
            {.tokens = std::move(row.tokens), .log_probability = row.log_probability});
        continue;
      }
      next.push_back(std::move(row));
      next_source.push_back(source);
      parents.push_back(candidate->parent);
    }
  }

  double score(const Found& found) const {
    const auto length = static_cast<double>(found.tokens.size() + (found.ended ? 1 : 0));
    return found.log_probability / std::pow((5 + length) / 6, options_.length_penalty);
  }

  // A sentence that has ended is better than any that has not.
  Found best_of(std::size_t source) const {
    const std::vector<Found>& from = ended_[source].empty() ? unfinished_[source] : ended_[source];
    LOCKSTEP_CHECK(!from.empty(), "source ", source);
    return *std::ranges::max_element(from, {}, [this](const Found& found) { return score(found); });
  }

  TransformerImpl& model_;
  SearchOptions options_;
  c10::Device device_;
  at::Tensor sources_;  // [sources, S]
  at::Tensor memory_;   // without a cache: of all sources
  std::shared_ptr<DecodingState> state_;
  std::vector<Growing> rows_;                           // those of one source side by side
  std::vector<std::size_t> source_of_;                  // by row
  std::vector<std::vector<Found>> ended_, unfinished_;  // by source
};

}  // namespace

std::vector<Found> search_targets(Transformer& model,
                                  const std::vector<std::vector<std::int32_t>>& sources,
                                  const SearchOptions& options) {
  check_search(options, model->config());
  if (sources.empty()) return {};
  const at::NoGradGuard no_graph;
  const SearchMode mode(*model);
  return Search(*model, sources, options).run();
}

}  // namespace lockstep
