#include <utility>

#include "core/checksum.h"
#include "lockstep/error.h"
#include "lockstep/text_records.h"
#include "text/files.h"
#include "text/record_fields.h"
#include "text/source_files.h"

namespace lockstep {
namespace {

// Texts one after the other could be cut in other places and look the same.
void add_text(Checksum& checksum, std::string_view text) {
  const std::string length = concat(text.size(), ":");
  checksum.update(std::as_bytes(std::span(length)));
  checksum.update(std::as_bytes(std::span(text)));
}

}  // namespace

struct TextSource::Impl {
  std::string name;
  TextSourceOptions options;
  std::vector<SourceFile> files;
  std::vector<std::string> paths;
  std::vector<TextRecord> records;
};

TextSource::TextSource(const std::string& path, const TextSourceOptions& options) {
  Impl impl{.name = path, .options = options, .files = find_source_files(path, options.split)};
  for (const SourceFile& file : impl.files) impl.paths.push_back(file.path);
  impl_ = std::make_shared<const Impl>(std::move(impl));
}

TextSource::TextSource(std::vector<TextRecord> records)
    : impl_(std::make_shared<const Impl>(
          Impl{.name = "records in memory", .records = std::move(records)})) {}

void TextSource::for_each(const std::function<void(TextRecord&&)>& take) const {
  bool any = false;
  const TakeRecord counted = [&](TextRecord&& record) {
    any = true;
    take(std::move(record));
  };
  RecordFields fields(impl_->options);
  for (const SourceFile& file : impl_->files) {
    switch (file.format) {
      case TextFormat::json:
        read_json_records(file.path, fields, counted);
        break;
      case TextFormat::plain:
        read_plain_text(file.path, impl_->options.documents, counted);
        break;
      case TextFormat::arrow:
        read_arrow_records(file.path, fields, counted);
        break;
      case TextFormat::table:  // not looked for
        break;
    }
  }
  for (const TextRecord& record : impl_->records) counted(TextRecord(record));
  if (!any) {
    throw InvalidArgument(concat("the data set '", impl_->name, "' is empty: it has no record"));
  }
}

std::vector<TextRecord> TextSource::read_all() const {
  std::vector<TextRecord> records;
  for_each([&records](TextRecord&& record) { records.push_back(std::move(record)); });
  return records;
}

const std::vector<std::string>& TextSource::files() const {
  return impl_->paths;
}

const std::string& TextSource::name() const {
  return impl_->name;
}

std::uint64_t TextSource::fingerprint() const {
  Checksum checksum;
  const TextSourceOptions& options = impl_->options;
  for (const std::string* field : {&options.instruction_field, &options.input_field,
                                   &options.output_field, &options.text_field}) {
    add_text(checksum, *field);
  }
  add_text(checksum,
           concat(static_cast<int>(options.kind), " ", static_cast<int>(options.documents)));
  for (const SourceFile& file : impl_->files) {
    add_text(checksum, concat(static_cast<int>(file.format)));
    add_text(checksum, MappedFile(file.path).text());
  }
  for (const TextRecord& record : impl_->records) {
    for (const std::string* field :
         {&record.instruction, &record.input, &record.output, &record.text}) {
      add_text(checksum, *field);
    }
  }
  return checksum.value();
}

}  // namespace lockstep
