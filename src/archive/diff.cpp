#include "archive/diff.h"

#include <cmath>
#include <cstring>
#include <ostream>

#include "archive/convert.h"
#include "archive/element_value.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Difference {
  std::uint64_t count = 0;
  double largest = 0;  // NaN where a NaN stands against a number
};

Difference compare(const TensorValue& a, const TensorValue& b) {
  Difference difference;
  const std::size_t size = names_of(a.type).bytes;
  for (std::size_t at = 0; at < a.bytes.size(); at += size) {
    const std::byte* left = a.bytes.data() + at;
    const std::byte* right = b.bytes.data() + at;
    if (std::memcmp(left, right, size) == 0) continue;
    ++difference.count;
    const double distance = std::abs(element_value(a.type, left) - element_value(b.type, right));
    if (std::isnan(distance) || distance > difference.largest) difference.largest = distance;
  }
  return difference;
}

class Comparison {
 public:
  explicit Comparison(std::ostream& out) : out_(out) {}

  void compare_parts(const std::string& prefix, const CheckpointPart& a, const CheckpointPart& b) {
    for (const auto& [name, tensor] : a.tensors) {
      const auto other = b.tensors.find(name);
      if (other == b.tensors.end()) {
        note(prefix + name, "only in the first");
      } else {
        compare_tensors(prefix + name, tensor, other->second);
      }
    }
    for (const auto& [name, tensor] : b.tensors) {
      if (!a.tensors.contains(name)) note(prefix + name, "only in the second");
    }
    for (const auto& [name, value] : a.values.items()) {
      if (!b.values.contains(name)) {
        note(prefix + name, "only in the first");
      } else if (b.values[name] != value) {
        note(prefix + name, concat(shorten(value), " against ", shorten(b.values[name])));
      }
    }
    for (const auto& [name, value] : b.values.items()) {
      if (!a.values.contains(name)) note(prefix + name, "only in the second");
    }
  }

  void note(const std::string& name, const std::string& text) {
    out_ << name << ": " << text << "\n";
    ++differences_;
  }

  bool finish() {
    out_ << (differences_ == 0 ? "equal" : "different") << ": " << equal_ << " tensors are equal, "
         << differences_ << " entries differ\n";
    return differences_ > 0;
  }

 private:
  static std::string shorten(const nlohmann::json& value) {
    std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    constexpr std::size_t kMost = 60;
    return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
  }

  void compare_tensors(const std::string& name, const TensorValue& a, const TensorValue& b) {
    if (a.type != b.type || a.shape != b.shape) {
      return note(name, concat(describe(a.type, a.shape), " against ", describe(b.type, b.shape)));
    }
    const Difference difference = compare(a, b);
    if (difference.count == 0) {
      ++equal_;
      return;
    }
    const std::uint64_t elements = a.bytes.size() / names_of(a.type).bytes;
    note(name, concat(difference.count, " of ", elements, " elements differ, by at most ",
                      difference.largest));
  }

  std::ostream& out_;
  std::uint64_t equal_ = 0;
  std::uint64_t differences_ = 0;
};

CheckpointPart stripped(const CheckpointPart& part) {
  CheckpointPart result{.tensors = {}, .values = part.values};
  for (const auto& [name, tensor] : part.tensors) result.tensors[without_wrappers(name)] = tensor;
  return result;
}

}  // namespace

bool print_differences(const Checkpoint& a, const Checkpoint& b, const std::string& part,
                       std::ostream& out) {
  Comparison comparison(out);
  if (!part.empty() || a.manifest.has_value() != b.manifest.has_value()) {
    CheckpointPart left = stripped(choose_part(a, part));
    CheckpointPart right = stripped(choose_part(b, part));
    comparison.compare_parts("", left, right);
    return comparison.finish();
  }
  if (a.manifest && a.manifest->step != b.manifest->step) {
    comparison.note("step", concat(a.manifest->step, " against ", b.manifest->step));
  }
  for (const auto& [name, left] : a.parts) {
    const auto right = b.parts.find(name);
    if (right == b.parts.end()) {
      comparison.note(name, "only in the first");
    } else {
      comparison.compare_parts(name + "/", left, right->second);
    }
  }
  for (const auto& [name, right] : b.parts) {
    if (!a.parts.contains(name)) comparison.note(name, "only in the second");
  }
  return comparison.finish();
}

}  // namespace lockstep
