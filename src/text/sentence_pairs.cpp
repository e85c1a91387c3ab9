#include "lockstep/sentence_pairs.h"

#include <utility>

#include "lockstep/error.h"
#include "text/files.h"
#include "text/pair_lines.h"
#include "text/record_fields.h"
#include "text/source_files.h"

namespace lockstep {
namespace {

struct PairFieldNames {
  std::string source, target;
};

PairFieldNames field_names(const SentencePairOptions& options) {
  PairFieldNames names{options.source_language, options.target_language};
  if (names.source.empty()) names.source = "source";
  if (names.target.empty()) names.target = "target";
  if (names.source == names.target) {
    throw InvalidArgument(concat("source_language and target_language are both '", names.source,
                                 "'; a pair has two different fields"));
  }
  return names;
}

// Records carry a pair as an instruction with its answer. OPUS has the languages one level down.
RecordFields pair_fields(const PairFieldNames& names) {
  const auto way = [&names](const std::string& prefix) {
    return std::vector<RecordFields::Field>{{prefix + names.source, &TextRecord::instruction, true},
                                            {prefix + names.target, &TextRecord::output, true}};
  };
  return RecordFields({way(""), way("translation.")});
}

void read_pair_file(const SourceFile& file, const PairFieldNames& names, RecordFields& fields,
                    const TakePair& take) {
  const TakeRecord take_record = [&take](TextRecord&& record) {
    SentencePair pair{std::string(trimmed_sentence(record.instruction)),
                      std::string(trimmed_sentence(record.output))};
    if (!pair.source.empty() || !pair.target.empty()) take(std::move(pair));
  };
  switch (file.format) {
    case TextFormat::json:
      read_json_records(file.path, fields, take_record);
      break;
    case TextFormat::arrow:
      read_arrow_records(file.path, fields, take_record);
      break;
    case TextFormat::plain:
    case TextFormat::table:
      const MappedFile mapped(file.path);
      parse_pair_table({mapped.text(), file.path}, names.source, names.target, take);
      break;
  }
}

}  // namespace

std::vector<SentencePair> read_sentence_pairs(const SentencePairOptions& options) {
  const PairFieldNames names = field_names(options);
  std::vector<SentencePair> pairs;
  const TakePair take = [&pairs](SentencePair&& pair) { pairs.push_back(std::move(pair)); };
  if (options.target_path.empty()) {
    RecordFields fields = pair_fields(names);
    for (const SourceFile& file : find_source_files(options.path, options.split, Tables::read)) {
      read_pair_file(file, names, fields, take);
    }
  } else {
    const MappedFile sources(options.path), targets(options.target_path);
    parse_parallel_lines({sources.text(), options.path}, {targets.text(), options.target_path},
                         take);
  }
  if (pairs.empty()) {
    throw InvalidArgument(concat("the data set '", options.path, "' has no pair of sentences"));
  }
  return pairs;
}

}  // namespace lockstep
