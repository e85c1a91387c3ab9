#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/text_records.h"

namespace lockstep {

using TakeRecord = std::function<void(TextRecord&&)>;

/// A record of a file, for messages.
struct RecordPlace {
  const std::string& file;
  std::int64_t number;  // the first is 1

  /// "'data.jsonl': record 12"
  std::string text() const;
};

/// Which fields the records of a source have. The first record decides, for all files.
class RecordFields {
 public:
  explicit RecordFields(const TextSourceOptions& options) : options_(options) {}

  struct Field {
    std::string name;  // "a.b": the field b of the object that is field a
    std::string TextRecord::*member;
    bool needed = true;
  };

  /// The fields of the first of these ways that the first record has; all of them are needed.
  /// Records may be empty.
  explicit RecordFields(std::vector<std::vector<Field>> ways) : ways_(std::move(ways)) {}

  /// The fields to read of a record that has fields of these names. Throws InvalidArgument when
  /// the first record has not what it needs; later ones are checked by whoever reads them.
  const std::vector<Field>& choose(const std::vector<std::string>& names, const RecordPlace& place);

  bool chosen() const { return !fields_.empty(); }
  const std::vector<Field>& fields() const { return fields_; }

  /// A record of which neither text nor answer has anything in it teaches nothing. Throws
  /// InvalidArgument unless records may be empty.
  void check_not_empty(const TextRecord& record, const RecordPlace& place) const;

  [[noreturn]] static void throw_missing(const std::string& field,
                                         const std::vector<std::string>& names,
                                         const RecordPlace& place);

 private:
  void choose_way(const std::vector<std::string>& names, const RecordPlace& place);

  TextSourceOptions options_;
  std::vector<std::vector<Field>> ways_;
  std::vector<Field> fields_;
};

// Readers of one file. Each throws InvalidArgument with the file and the record.
void parse_json_records(std::string_view text, const std::string& path, RecordFields& fields,
                        const TakeRecord& take);
void read_json_records(const std::string& path, RecordFields& fields, const TakeRecord& take);
void read_plain_text(const std::string& path, TextSourceOptions::Documents documents,
                     const TakeRecord& take);
void read_arrow_records(const std::string& path, RecordFields& fields, const TakeRecord& take);

}  // namespace lockstep
