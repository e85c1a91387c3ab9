#include "board/metric_scan.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "board/bounded_json.h"
#include "track/metrics_file.h"

namespace lockstep {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

// Reads {"name": number, ...} without white space surprises. Says no wherever it is in doubt.
class FlatObject {
 public:
  explicit FlatObject(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  bool take(char wanted) {
    skip_blanks();
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    return true;
  }

  bool name(std::string_view& found) {
    if (!take('"')) return false;
    const char* begin = at_;
    for (; at_ != end_ && *at_ != '"'; ++at_) {
      // Escapes and what may be no UTF-8 are for the parser that knows about them.
      if (*at_ == '\\' || static_cast<unsigned char>(*at_) < 0x20 ||
          static_cast<unsigned char>(*at_) >= 0x80) {
        return false;
      }
    }
    found = {begin, static_cast<std::size_t>(at_ - begin)};
    return take('"');
  }

  // A number or null. `whole` tells an integer, which a step has to be.
  bool number(double& found, std::int64_t& integer, bool& whole) {
    skip_blanks();
    if (end_ - at_ >= 4 && std::string_view(at_, 4) == "null") {
      at_ += 4;
      found = kNoNumber;
      whole = false;
      return true;
    }
    // from_chars takes more than JSON has: "inf", "nan", ".5", "1."
    if (at_ == end_ || !(*at_ == '-' || (*at_ >= '0' && *at_ <= '9'))) return false;
    const char* begin = at_;
    const char* digits = *at_ == '-' ? at_ + 1 : at_;
    if (digits == end_ || *digits < '0' || *digits > '9') return false;
    if (*digits == '0' && digits + 1 != end_ && digits[1] >= '0' && digits[1] <= '9') return false;
    const auto [after, error] = std::from_chars(begin, end_, found);
    if (error != std::errc() || after[-1] == '.') return false;
    for (const char* each = digits; each != after; ++each) {
      if (*each == '.' && (each + 1 == after || each[1] < '0' || each[1] > '9')) return false;
    }
    const auto [integer_end, integer_error] = std::from_chars(begin, end_, integer);
    whole = integer_error == std::errc() && integer_end == after;
    at_ = after;
    return true;
  }

  bool ended() {
    skip_blanks();
    return at_ == end_;
  }

 private:
  void skip_blanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  const char* at_;
  const char* end_;
};

bool scan_flat(std::string_view line, ScannedMetrics& found) {
  FlatObject object(line);
  bool has_step = false, has_time = false;
  if (!object.take('{')) return false;
  do {
    std::string_view name;
    double value = 0;
    std::int64_t integer = 0;
    bool whole = false;
    if (!object.name(name) || !object.take(':') || !object.number(value, integer, whole)) {
      return false;
    }
    if (name == "step") {
      if (has_step || !whole) return false;
      has_step = true;
      found.step = integer;
    } else if (name == "time") {
      if (has_time || std::isnan(value)) return false;
      has_time = true;
      found.time = value;
    } else if (name == "kind") {
      return false;
    } else {
      found.values.emplace_back(name, value);
    }
  } while (object.take(','));
  return object.take('}') && object.ended() && has_step && has_time;
}

}  // namespace

bool scan_metrics(std::string_view line, ScannedMetrics& found) {
  found.values.clear();
  found.owned.clear();
  if (scan_flat(line, found)) return true;
  found.values.clear();
  const auto parsed = parse_metric_line(line);
  if (!parsed) return false;
  found.step = parsed->step;
  found.time = parsed->time;
  for (const auto& [name, value] : parsed->values.items()) {
    if (!value.is_number() && !value.is_null()) continue;
    found.owned.push_back(name);
    found.values.emplace_back(found.owned.back(),
                              value.is_number() ? value.get<double>() : kNoNumber);
  }
  return true;
}

}  // namespace lockstep
