#include "core/parse_integer.h"
#include "ddp/compression_impl.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr const char* kCompressions =
    "none, bf16, fp16, int8, powersgd, powersgd:RANK or powersgd:RANK:START";

std::int64_t compression_number(const std::string& text, const std::string& part) {
  const auto number = parse_integer<std::int64_t>(part);
  if (!number || *number < 0) {
    throw InvalidArgument(
        concat("compression is '", text, "'; it must be ", kCompressions, ", in whole numbers"));
  }
  return *number;
}

}  // namespace

CompressionOptions parse_compression(const std::string& text) {
  if (text == "none") return {};
  if (text == "bf16") return CommHook::bf16_compress;
  if (text == "fp16") return CommHook::fp16_compress;
  if (text == "int8") return Int8Options{};
  const std::string name = "powersgd";
  if (text != name && !text.starts_with(name + ":")) {
    throw InvalidArgument(concat("compression is '", text, "'; it must be ", kCompressions));
  }
  PowerSGDOptions options;
  if (text == name) return options;
  const std::string rest = text.substr(name.size() + 1);
  const auto colon = rest.find(':');
  options.matrix_approximation_rank = compression_number(text, rest.substr(0, colon));
  if (colon != std::string::npos) {
    options.start_powerSGD_iter = compression_number(text, rest.substr(colon + 1));
  }
  if (options.matrix_approximation_rank < 1) {
    throw InvalidArgument(concat("compression is '", text, "'; the rank must be 1 or more"));
  }
  return options;
}

bool keeps_error(const CompressionOptions& options) {
  if (const auto* int8 = std::get_if<Int8Options>(&options)) return int8->error_feedback;
  const auto* power_sgd = std::get_if<PowerSGDOptions>(&options);
  return power_sgd != nullptr && power_sgd->use_error_feedback;
}

std::string describe_compression(const CompressionOptions& options) {
  if (const auto* int8 = std::get_if<Int8Options>(&options)) {
    return int8->error_feedback ? "int8" : "int8 without error feedback";
  }
  const auto* power_sgd = std::get_if<PowerSGDOptions>(&options);
  if (power_sgd == nullptr) return "a hook without memory";
  return concat("powersgd rank ", power_sgd->matrix_approximation_rank, " from step ",
                power_sgd->start_powerSGD_iter, ", at least ", power_sgd->min_compression_rate,
                power_sgd->use_error_feedback ? ", error feedback" : "",
                power_sgd->warm_start ? ", warm start" : "", ", epsilon ",
                power_sgd->orthogonalization_epsilon, ", seed ", power_sgd->random_seed);
}

}  // namespace lockstep
