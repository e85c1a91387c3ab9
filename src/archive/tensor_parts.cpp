#include "archive/tensor_parts.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <nlohmann/json.hpp>

#include "archive/snapshot_directory.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

nlohmann::json ranges_in(const SafetensorsHeader& file) {
  const auto found = file.metadata.find(kRangesMetadata);
  if (found == file.metadata.end()) return nlohmann::json::object();
  try {
    return nlohmann::json::parse(found->second);
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(
        concat("its metadata '", kRangesMetadata, "' is damaged: ", first_line(error.what())));
  }
}

void add_stretch(std::map<std::string, StoredTensor>& tensors, std::size_t file,
                 const SafetensorsHeader::Tensor& each, const nlohmann::json& ranges) {
  const std::string& name = each.info.name;
  const std::int64_t count = elements_of(each.info.shape);
  StoredTensor found{.type = each.info.type, .shape = each.info.shape};
  TensorStretch stretch{.file = file, .offset = each.offset, .begin = 0, .count = count};
  if (const auto range = ranges.find(name); range != ranges.end()) {
    try {
      found.shape = range->at("shape").get<std::vector<std::int64_t>>();
      stretch.begin = range->at("begin").get<std::int64_t>();
    } catch (const nlohmann::json::exception& error) {
      throw InvalidArgument(concat("its range of '", name, "': ", first_line(error.what())));
    }
    const auto bytes = bytes_of(found.type, found.shape);
    if (!bytes || stretch.begin < 0 || stretch.begin > elements_of(found.shape) - count) {
      throw InvalidArgument(concat("its range of '", name, "' is outside of the tensor"));
    }
  }
  const auto [known, is_new] = tensors.emplace(name, found);
  if (!is_new && (known->second.shape != found.shape || known->second.type != found.type)) {
    throw InvalidArgument(concat("tensor '", name, "' is ", describe(found.type, found.shape),
                                 " in one file and ",
                                 describe(known->second.type, known->second.shape), " in another"));
  }
  known->second.stretches.push_back(stretch);
}

void check_complete(const std::string& name, StoredTensor& tensor) {
  std::ranges::sort(tensor.stretches, {}, &TensorStretch::begin);
  std::int64_t next = 0;
  for (const TensorStretch& stretch : tensor.stretches) {
    if (stretch.begin != next) {
      throw InvalidArgument(concat("tensor '", name, "': elements ", std::min(next, stretch.begin),
                                   " to ", std::max(next, stretch.begin), " are in ",
                                   stretch.begin > next ? "no file" : "two files"));
    }
    next += stretch.count;
  }
  if (next == elements_of(tensor.shape)) return;
  throw InvalidArgument(concat("tensor '", name, "': elements from ", next, " on, of ",
                               elements_of(tensor.shape), ", are in no file"));
}

}  // namespace

std::string rank_file_name(const std::string& part, int rank) {
  return concat(part, ".rank_", rank, kTensorSuffix);
}

std::vector<std::string> files_of_part(const Manifest& manifest, const std::string& part) {
  if (manifest.files.contains(part + kTensorSuffix)) return {part + kTensorSuffix};
  std::vector<std::string> names;
  for (int rank = 0; manifest.files.contains(rank_file_name(part, rank)); ++rank) {
    names.push_back(rank_file_name(part, rank));
  }
  return names;
}

std::map<std::string, StoredTensor> catalogue_of(const std::vector<SafetensorsHeader>& files) {
  std::map<std::string, StoredTensor> tensors;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const nlohmann::json ranges = ranges_in(files[i]);
    for (const SafetensorsHeader::Tensor& each : files[i].tensors) {
      add_stretch(tensors, i, each, ranges);
    }
  }
  for (auto& [name, tensor] : tensors) check_complete(name, tensor);
  return tensors;
}

void for_each_stored(const StoredTensor& tensor, std::int64_t begin, std::int64_t count,
                     const std::function<void(const StoredBytes&)>& read) {
  const std::int64_t end = begin + count;
  const auto width = static_cast<std::int64_t>(names_of(tensor.type).bytes);
  for (const TensorStretch& stretch : tensor.stretches) {
    const std::int64_t first = std::max(begin, stretch.begin);
    const std::int64_t last = std::min(end, stretch.begin + stretch.count);
    if (first >= last) continue;
    read({.file = stretch.file,
          .offset = stretch.offset + static_cast<std::uint64_t>((first - stretch.begin) * width),
          .target = static_cast<std::uint64_t>((first - begin) * width),
          .bytes = static_cast<std::uint64_t>((last - first) * width)});
  }
}

}  // namespace lockstep
