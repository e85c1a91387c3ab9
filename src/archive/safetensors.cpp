#include "archive/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;  // the limit of the reference implementation
// Tensors can then be used where they lie in a file that was mapped or read; and a large file can
// be written in whole blocks of the disk from where its tensors are.
constexpr std::size_t kSmallAlignment = 64;
constexpr std::size_t kLargeAlignment = 4096;
constexpr std::uint64_t kLargeFrom = 1 << 20;
constexpr int kDeepestHeader = 3;  // header, tensor, shape

[[noreturn]] void refuse_header(const std::string& what) {
  throw InvalidArgument(concat("not a sound safetensors file: ", what));
}

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | std::to_integer<int>(bytes[i]);
  return value;
}

// JSON allows a name twice and readers then disagree on which counts, so it is refused.
class NoNameTwice {
 public:
  bool operator()(int depth, json::parse_event_t event, json& value) {
    if (depth > kDeepestHeader) refuse_header("its header is nested too deeply");
    if (event == json::parse_event_t::object_start) names_.emplace_back();
    if (event == json::parse_event_t::object_end && !names_.empty()) names_.pop_back();
    if (event == json::parse_event_t::key && !names_.empty() &&
        !names_.back().insert(value.get_ref<const std::string&>()).second) {
      refuse_header(
          concat("'", value.get_ref<const std::string&>(), "' appears twice in its header"));
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> names_;
};

json parse_header(std::span<const std::byte> text) {
  if (text.empty() || text.front() != std::byte{'{'})
    refuse_header("its header does not begin with '{'");
  const auto* begin = reinterpret_cast<const char*>(text.data());
  try {
    return json::parse(begin, begin + text.size(), NoNameTwice());
  } catch (const json::exception& error) {
    refuse_header(concat("its header is not JSON: ", first_line(error.what())));
  }
}

std::map<std::string, std::string> parse_metadata(const json& metadata) {
  if (!metadata.is_object()) refuse_header("its __metadata__ is not an object");
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) refuse_header(concat("its metadata '", key, "' is not a string"));
    values[key] = value.get<std::string>();
  }
  return values;
}

std::uint64_t unsigned_number(const json& value, const std::string& name) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    refuse_header(concat("tensor '", name, "' has the number ", value.dump(), " in its header"));
  }
  return value.get<std::uint64_t>();
}

struct PlacedTensor {
  TensorInfo info;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

PlacedTensor parse_tensor(const std::string& name, const json& fields) {
  if (!fields.is_object() || fields.size() != 3 || !fields.contains("dtype") ||
      !fields.contains("shape") || !fields.contains("data_offsets")) {
    refuse_header(
        concat("tensor '", name, "' does not have exactly dtype, shape and data_offsets"));
  }
  const json& type_name = fields["dtype"];
  const json& shape = fields["shape"];
  const json& offsets = fields["data_offsets"];
  if (!type_name.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
    refuse_header(
        concat("tensor '", name, "' has a dtype, shape or data_offsets of the wrong kind"));
  }
  const auto type = element_type_of_safetensors(type_name.get_ref<const std::string&>());
  if (!type) {
    throw InvalidArgument(concat("tensor '", name, "' has the element type ", type_name.dump(),
                                 ", which is not supported"));
  }
  PlacedTensor placed{.info = {.name = name, .type = *type}};
  for (const json& length : shape) {
    placed.info.shape.push_back(static_cast<std::int64_t>(unsigned_number(length, name)));
  }
  placed.begin = unsigned_number(offsets[0], name);
  placed.end = unsigned_number(offsets[1], name);
  const auto bytes = bytes_of(*type, placed.info.shape);
  if (!bytes) refuse_header(concat("tensor '", name, "' is too large"));
  if (placed.end < placed.begin || placed.end - placed.begin != *bytes) {
    refuse_header(concat("tensor '", name, "' is at bytes ", placed.begin, " to ", placed.end,
                         " but needs ", *bytes, " bytes for ", describe(*type, placed.info.shape)));
  }
  return placed;
}

}  // namespace

std::uint64_t safetensors_header_bytes(std::span<const std::byte> beginning,
                                       std::uint64_t file_bytes) {
  if (beginning.size() < kLengthBytes) refuse_header(concat("it has ", beginning.size(), " bytes"));
  const std::uint64_t header_bytes = little_endian(beginning.first(kLengthBytes));
  if (header_bytes > kLongestHeader) refuse_header(concat("a header of ", header_bytes, " bytes"));
  if (header_bytes > file_bytes - kLengthBytes) {
    refuse_header(concat("its header should have ", header_bytes, " bytes, and ",
                         file_bytes - kLengthBytes, " follow"));
  }
  return kLengthBytes + header_bytes;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> beginning,
                                           std::uint64_t file_bytes) {
  const std::uint64_t data_begin = safetensors_header_bytes(beginning, file_bytes);
  LOCKSTEP_CHECK(beginning.size() >= data_begin, "a part of a header");
  const json header = parse_header(beginning.subspan(kLengthBytes, data_begin - kLengthBytes));
  const std::uint64_t data_bytes = file_bytes - data_begin;

  SafetensorsHeader result;
  std::vector<PlacedTensor> placed;
  for (const auto& [name, fields] : header.items()) {
    if (name == "__metadata__") {
      result.metadata = parse_metadata(fields);
    } else {
      placed.push_back(parse_tensor(name, fields));
    }
  }
  std::stable_sort(placed.begin(), placed.end(), [](const PlacedTensor& a, const PlacedTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t next = 0;
  for (PlacedTensor& each : placed) {
    if (each.begin != next) {
      refuse_header(concat("tensor '", each.info.name, "' begins at byte ", each.begin,
                           each.begin < next ? ", inside the one before it, which ends at "
                                             : ", after a hole that begins at ",
                           next));
    }
    next = each.end;
    if (next > data_bytes) {
      refuse_header(
          concat("tensor '", each.info.name, "' ends at byte ", next, " of ", data_bytes));
    }
    result.tensors.push_back({.info = std::move(each.info),
                              .offset = data_begin + each.begin,
                              .bytes = each.end - each.begin});
  }
  if (next != data_bytes) refuse_header(concat(data_bytes - next, " bytes follow its last tensor"));
  return result;
}

Safetensors parse_safetensors(std::span<const std::byte> file) {
  SafetensorsHeader header = parse_safetensors_header(file, file.size());
  Safetensors result{.metadata = std::move(header.metadata)};
  for (SafetensorsHeader::Tensor& each : header.tensors) {
    result.tensors.push_back({std::move(each.info), file.subspan(each.offset, each.bytes)});
  }
  return result;
}

SafetensorsLayout lay_out_safetensors(std::span<const TensorInfo> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout;
  layout.order.resize(tensors.size());
  layout.offsets.resize(tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::sort(layout.order.begin(), layout.order.end(), [&](std::size_t a, std::size_t b) {
    const std::size_t size_a = names_of(tensors[a].type).bytes;
    const std::size_t size_b = names_of(tensors[b].type).bytes;
    return size_a != size_b ? size_a > size_b : tensors[a].name < tensors[b].name;
  });

  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const std::size_t index : layout.order) {
    const TensorInfo& tensor = tensors[index];
    const ElementTypeNames& type = names_of(tensor.type);
    if (type.safetensors.empty()) {
      throw InvalidArgument(concat("tensor '", tensor.name, "' is ", type.torch,
                                   ", which safetensors files cannot hold"));
    }
    const auto bytes = bytes_of(tensor.type, tensor.shape);
    if (!bytes) {
      throw InvalidArgument(concat("tensor '", tensor.name, "' has an impossible shape: ",
                                   describe(tensor.type, tensor.shape)));
    }
    if (tensor.name == "__metadata__" || header.contains(tensor.name)) {
      throw InvalidArgument(concat("two tensors cannot both have the name '", tensor.name, "'"));
    }
    layout.offsets[index] = layout.data_bytes;
    layout.data_bytes += *bytes;
    header[tensor.name] = {{"dtype", type.safetensors},
                           {"shape", tensor.shape},
                           {"data_offsets", {layout.offsets[index], layout.data_bytes}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    throw InvalidArgument(concat("a tensor's name is not UTF-8: ", first_line(error.what())));
  }
  const std::size_t unpadded = kLengthBytes + text.size();
  const std::size_t alignment = layout.data_bytes < kLargeFrom ? kSmallAlignment : kLargeAlignment;
  text.append((alignment - unpadded % alignment) % alignment, ' ');
  if (text.size() > kLongestHeader) {
    throw InvalidArgument(concat("the names of ", tensors.size(), " tensors need ", text.size(),
                                 " bytes; safetensors files hold at most ", kLongestHeader));
  }
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    layout.header += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  layout.header += text;
  return layout;
}

}  // namespace lockstep
