#include "step_log.h"

#include <unistd.h>
#include <cmath>
#include <cstdio>

#include "devices.h"
#include "lockstep/error.h"
#include "lockstep/progress.h"
#include "lockstep/tracker.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::short_number;
using lockstep::StepReport;
using lockstep::StepTimes;

constexpr const char* kEvaluationLoss = "eval/loss";
constexpr const char* kPerplexity = "eval/perplexity";

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string general(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.3g", value);
  return text;
}

}  // namespace

StepLog::StepLog(const lockstep::World& world, const lockstep::LoaderBase& data,
                 const StepLogOptions& options)
    : world_(world), data_(data), options_(options) {}

std::map<std::string, double> StepLog::log_values(const StepReport& report) {
  values_ = memory_in_use(world_.device());
  if (!report.times || report.times->total <= 0) return values_;
  const StepTimes& times = *report.times;
  const auto tokens = static_cast<double>(options_.tokens_per_slot);
  values_["tok/s"] = tokens * data_.dealt().slots / times.total;
  values_["tok/s_rank"] = tokens * static_cast<double>(data_.dealt().mine.size()) / times.total;
  if (options_.peak_flops) {
    values_["mfu"] = options_.flops_per_token * values_["tok/s_rank"] / *options_.peak_flops;
  }
  return values_;
}

void StepLog::on_step(const StepReport& report) {
  if (!report.loss || world_.rank() != 0) return;
  const std::string of =
      options_.total_steps > 0 ? concat("/", options_.total_steps) : std::string();
  std::string line = concat("step ", report.step, of, " | epoch ", report.epoch + 1, " | loss ",
                            fixed(*report.loss, 4), " | lr ", general(report.lr), " | grad norm ",
                            general(report.grad_norm));
  if (values_.contains("tok/s")) {
    // The mean over the ranks that are there now; some may have more slots than others.
    line += concat(" | ", short_number(values_["tok/s"]), " tok/s (",
                   short_number(values_["tok/s"] / world_.world_size()), " per rank)");
  }
  if (const auto& times = report.times) {
    line += concat(" | ms: data ", fixed(1000 * times->data, 1), " forward ",
                   fixed(1000 * times->forward, 1), " backward ", fixed(1000 * times->backward, 1),
                   " reduce ", fixed(1000 * times->reduce, 1), " update ",
                   fixed(1000 * times->update, 1));
  }
  line += concat(" | mem ", fixed(values_["mem/host_gb"], 2), " GB");
  if (values_.contains("mem/device_peak_gb")) {
    line += concat(", device ", fixed(values_["mem/device_gb"], 2), " GB (peak ",
                   fixed(values_["mem/device_peak_gb"], 2), ")");
  }
  if (values_.contains("mfu")) line += concat(" | mfu ", fixed(100 * values_["mfu"], 1), " %");
  say(line);
}

std::map<std::string, double> StepLog::evaluation_values(
    const std::map<std::string, double>& metrics) {
  const auto loss = metrics.find(kEvaluationLoss);
  if (loss == metrics.end()) return {};
  return {{kPerplexity, std::exp(loss->second)}};
}

void StepLog::on_evaluation(std::int64_t step, const std::map<std::string, double>& metrics) {
  const auto loss = metrics.find(kEvaluationLoss);
  if (loss == metrics.end() || world_.rank() != 0) return;
  say(concat("step ", step, " | validation loss ", fixed(loss->second, 4), " | perplexity ",
             fixed(metrics.at(kPerplexity), 2)));
}

// Where standard error is a terminal, the progress bar may stand on this line.
void StepLog::say(const std::string& line) const {
  const bool bar = ::isatty(STDERR_FILENO) != 0;
  if (bar && ::isatty(STDOUT_FILENO) != 0) std::fputs("\r\x1b[K", stdout);
  std::printf("%s\n", line.c_str());
  if (tracker_ != nullptr) tracker_->console(line + "\n");
  std::fflush(stdout);
}

}  // namespace train_llm
