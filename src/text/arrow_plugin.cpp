// Reads Parquet and Arrow files with Arrow's own libraries: a shared library of its own.
#include "text/arrow_plugin.h"

#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <parquet/arrow/reader.h>

namespace {

using Batches = std::shared_ptr<arrow::RecordBatchReader>;
using File = std::shared_ptr<arrow::io::RandomAccessFile>;

void need(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename Value>
Value need(arrow::Result<Value> result) {
  need(result.status());
  return std::move(result).ValueUnsafe();
}

std::string first_bytes(const File& file, std::int64_t count) {
  const auto buffer = need(file->Read(count));
  need(file->Seek(0));
  return buffer->ToString();
}

bool is_text(const arrow::DataType& type) {
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING ||
         type.id() == arrow::Type::STRING_VIEW;
}

// A column, or a field of a column that is a struct.
struct Column {
  int index = 0;
  int inner = -1;    // the field in the struct
  std::string name;  // "translation.en" for such a field
  std::shared_ptr<arrow::DataType> type;

  std::shared_ptr<arrow::Array> of(const arrow::RecordBatch& batch) const {
    const auto& column = batch.column(index);
    if (inner < 0) return column;
    // Flattened, a field is null where its struct is.
    return need(static_cast<const arrow::StructArray&>(*column).GetFlattenedField(inner));
  }
};

std::vector<Column> columns_of(const arrow::Schema& schema) {
  std::vector<Column> columns;
  for (int i = 0; i < schema.num_fields(); ++i) {
    const auto& field = schema.field(i);
    if (field->type()->id() != arrow::Type::STRUCT || field->type()->num_fields() == 0) {
      columns.push_back({i, -1, field->name(), field->type()});
      continue;
    }
    for (int k = 0; k < field->type()->num_fields(); ++k) {
      const auto& inner = field->type()->field(k);
      columns.push_back({i, k, field->name() + "." + inner->name(), inner->type()});
    }
  }
  return columns;
}

// The columns that the caller wants; empty for a stop.
std::vector<Column> ask_for_columns(const arrow::Schema& schema,
                                    const LockstepArrowReader& reader) {
  const std::vector<Column> all = columns_of(schema);
  std::vector<const char*> names;
  for (const Column& column : all) names.push_back(column.name.c_str());
  // Not std::vector<bool>: an array is asked for.
  const auto wanted = std::make_unique<bool[]>(names.size() + 1);
  if (!reader.columns(reader.context, names.data(), names.size(), wanted.get())) return {};
  std::vector<Column> columns;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!wanted[i]) continue;
    if (!is_text(*all[i].type)) {
      throw std::runtime_error("column '" + all[i].name + "' is of type " +
                               all[i].type->ToString() + "; it must be a text");
    }
    columns.push_back(all[i]);
  }
  return columns;
}

LockstepArrowText text_at(const arrow::Array& array, std::int64_t row) {
  if (array.IsNull(row)) return {nullptr, 0};
  std::string_view text;
  switch (array.type_id()) {
    case arrow::Type::STRING:
      text = static_cast<const arrow::StringArray&>(array).GetView(row);
      break;
    case arrow::Type::LARGE_STRING:
      text = static_cast<const arrow::LargeStringArray&>(array).GetView(row);
      break;
    default:
      text = static_cast<const arrow::StringViewArray&>(array).GetView(row);
  }
  return {text.data() == nullptr ? "" : text.data(), text.size()};
}

// False for a stop.
bool give_rows(const arrow::RecordBatch& batch, const std::vector<Column>& columns,
               const LockstepArrowReader& reader) {
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const Column& column : columns) arrays.push_back(column.of(batch));
  std::vector<LockstepArrowText> values(columns.size());
  for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
    for (std::size_t i = 0; i < arrays.size(); ++i) values[i] = text_at(*arrays[i], row);
    if (!reader.row(reader.context, values.data(), values.size())) return false;
  }
  return true;
}

void read_batches(arrow::RecordBatchReader& batches, const std::vector<Column>& columns,
                  const LockstepArrowReader& reader) {
  while (true) {
    std::shared_ptr<arrow::RecordBatch> batch;
    need(batches.ReadNext(&batch));
    if (batch == nullptr) return;
    need(batch->ValidateFull());  // what comes from a file may point anywhere
    if (!give_rows(*batch, columns, reader)) return;
  }
}

void read_parquet(const File& file, const LockstepArrowReader& reader) {
  const auto parquet = need(parquet::arrow::OpenFile(file, arrow::default_memory_pool()));
  std::shared_ptr<arrow::Schema> schema;
  need(parquet->GetSchema(&schema));
  const std::vector<Column> columns = ask_for_columns(*schema, reader);
  if (columns.empty()) return;
  const auto batches = need(parquet->GetRecordBatchReader());
  read_batches(*batches, columns, reader);
}

void read_arrow_file(const File& file, const LockstepArrowReader& reader) {
  const auto batches = need(arrow::ipc::RecordBatchFileReader::Open(file));
  const std::vector<Column> columns = ask_for_columns(*batches->schema(), reader);
  if (columns.empty()) return;
  for (int i = 0; i < batches->num_record_batches(); ++i) {
    const auto batch = need(batches->ReadRecordBatch(i));
    need(batch->ValidateFull());
    if (!give_rows(*batch, columns, reader)) return;
  }
}

// What `datasets` writes: batches one after the other.
void read_arrow_stream(const File& file, const LockstepArrowReader& reader) {
  const auto batches = need(arrow::ipc::RecordBatchStreamReader::Open(file));
  const std::vector<Column> columns = ask_for_columns(*batches->schema(), reader);
  if (!columns.empty()) read_batches(*batches, columns, reader);
}

void read(const char* path, const LockstepArrowReader& reader) {
  const File file = need(arrow::io::ReadableFile::Open(path));
  const std::string magic = first_bytes(file, 6);
  if (magic.starts_with("PAR1")) {
    read_parquet(file, reader);
  } else if (magic == "ARROW1") {
    read_arrow_file(file, reader);
  } else {
    read_arrow_stream(file, reader);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) bool lockstep_arrow_read_v1(
    const char* path, const LockstepArrowReader* reader, char* error, std::size_t error_bytes) {
  try {
    read(path, *reader);
    return true;
  } catch (const std::exception& problem) {
    std::strncpy(error, problem.what(), error_bytes - 1);
    error[error_bytes - 1] = '\0';
    return false;
  }
}
