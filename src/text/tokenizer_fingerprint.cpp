#include <algorithm>
#include <span>
#include <string_view>

#include "core/checksum.h"
#include "text/tokenizer_spec.h"

namespace lockstep {
namespace {

// Texts and numbers with their lengths: what follows one another cannot be taken for something
// else.
class Fingerprint {
 public:
  void add(std::string_view text) {
    add(static_cast<std::int64_t>(text.size()));
    checksum_.update(std::as_bytes(std::span(text)));
  }

  void add(std::int64_t number) { checksum_.update(std::as_bytes(std::span(&number, 1))); }

  std::uint64_t value() const { return checksum_.value(); }

 private:
  Checksum checksum_;
};

void add_vocabulary(Fingerprint& print, const TokenizerSpec& spec) {
  // In the order of ids, whatever the order in the file.
  std::vector<const std::pair<std::string, std::int32_t>*> entries;
  for (const auto& entry : spec.vocabulary) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(),
            [](const auto* a, const auto* b) { return a->second < b->second; });
  print.add(static_cast<std::int64_t>(entries.size()));
  for (const auto* entry : entries) {
    print.add(entry->first);
    print.add(std::int64_t{entry->second});
  }
  print.add(static_cast<std::int64_t>(spec.merges.size()));
  for (const auto& [left, right] : spec.merges) {
    print.add(left);
    print.add(right);
  }
}

}  // namespace

std::uint64_t fingerprint_of(const TokenizerSpec& spec) {
  Fingerprint print;
  add_vocabulary(print, spec);
  print.add(static_cast<std::int64_t>(spec.added.size()));
  for (const AddedToken& token : spec.added) {
    print.add(token.content);
    print.add(std::int64_t{token.id});
    print.add(std::int64_t{token.special} | token.left_strip << 1 | token.right_strip << 2 |
              token.normalized << 3);
  }
  print.add(static_cast<std::int64_t>(spec.stages.size()));
  for (const SplitStage& stage : spec.stages) {
    print.add(static_cast<std::int64_t>(stage.kind));
    print.add(stage.text);
    print.add(std::int64_t{stage.invert} | stage.remove << 1 | stage.each_digit << 2);
  }
  print.add(spec.unknown.value_or(""));
  print.add(std::int64_t{spec.ignore_merges});
  for (const auto* ids : {&spec.before, &spec.after}) {
    print.add(static_cast<std::int64_t>(ids->size()));
    for (const std::int32_t id : *ids) print.add(std::int64_t{id});
  }
  return print.value();
}

}  // namespace lockstep
