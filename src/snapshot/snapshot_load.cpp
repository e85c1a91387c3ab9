#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "archive/file_content.h"
#include "archive/safetensors.h"
#include "archive/snapshot_directory.h"
#include "archive/state_file.h"
#include "archive/tensor_parts.h"
#include "comm/group_impl.h"
#include "core/checksum.h"
#include "lockstep/error.h"
#include "lockstep/world.h"
#include "snapshot/element_types.h"
#include "snapshot/snapshot_impl.h"
#include "snapshot/snapshot_ranges.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::int64_t kMessageBytes = 64 << 20;

// A snapshot's files in memory, as the manifest describes them.
struct LoadedFiles {
  Manifest manifest;
  std::map<std::string, at::Tensor> contents = {};  // bytes
};

at::Tensor bytes_tensor(std::uint64_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
}

std::span<std::byte> span_of(const at::Tensor& bytes) {
  return {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.nbytes()};
}

void check_content(const std::string& name, const at::Tensor& content,
                   const Manifest::File& expected) {
  if (checksum_of(span_of(content)) == expected.checksum) return;
  throw InvalidArgument(concat(name, " is damaged: its checksum is not that of the manifest"));
}

// Checks what is in memory and not what is on the disk: that is what will be used.
LoadedFiles read_files(const FoundSnapshot& found) {
  LoadedFiles loaded{.manifest = found.manifest.value()};
  for (const auto& [name, expected] : loaded.manifest.files) {
    const std::string path = concat(found.path, "/", name);
    const OpenedFile file = open_to_read(path);
    if (file.bytes != expected.bytes) {
      throw InvalidArgument(
          concat(name, " has ", file.bytes, " bytes instead of ", expected.bytes));
    }
    const at::Tensor content = bytes_tensor(file.bytes);
    read_exactly(file.fd.get(), 0, span_of(content), path);
    check_content(name, content, expected);
    loaded.contents[name] = content;
  }
  return loaded;
}

// Where a tensor lies in one file it refers to the file's bytes, which it keeps alive.
void add_tensors(State& state, const std::vector<at::Tensor>& contents) {
  std::vector<SafetensorsHeader> headers;
  for (const at::Tensor& content : contents) {
    headers.push_back(parse_safetensors_header(span_of(content), content.nbytes()));
  }
  for (const auto& [name, stored] : catalogue_of(headers)) {
    const auto options = at::TensorOptions().dtype(scalar_type_of(stored.type));
    at::Tensor& tensor = state.tensors[name];
    if (stored.stretches.size() == 1 && stored.stretches.front().count > 0) {
      const TensorStretch& only = stored.stretches.front();
      const at::Tensor& content = contents[only.file];
      tensor = at::from_blob(
          span_of(content).data() + only.offset, stored.shape, [content](void*) {}, options);
      continue;
    }
    tensor = at::empty(stored.shape, options);
    const auto target = span_of(tensor);
    for_each_stored(stored, 0, tensor.numel(), [&](const StoredBytes& piece) {
      std::ranges::copy(span_of(contents[piece.file]).subspan(piece.offset, piece.bytes),
                        target.begin() + static_cast<std::ptrdiff_t>(piece.target));
    });
  }
}

Snapshot assemble(const LoadedFiles& loaded) {
  Snapshot snapshot{.step = loaded.manifest.step,
                    .epoch = loaded.manifest.epoch,
                    .slots = loaded.manifest.slots,
                    .seed = loaded.manifest.seed};
  const auto state = loaded.contents.find(kStateName);
  if (state == loaded.contents.end()) throw InvalidArgument("state.json is missing");
  const auto text = span_of(state->second);
  for (auto& [name, values] :
       parse_state_file({reinterpret_cast<const char*>(text.data()), text.size()})) {
    State& part = snapshot.parts[name];
    part.values = std::move(values.values);
    std::vector<at::Tensor> contents;
    for (const std::string& file : files_of_part(loaded.manifest, name)) {
      contents.push_back(loaded.contents.at(file));
    }
    add_tensors(part, contents);
    for (const auto& [alias, target] : values.tied) {
      const auto tensor = part.tensors.find(target);
      if (tensor == part.tensors.end()) {
        throw InvalidArgument(
            concat("tensor '", alias, "' is tied to '", target, "', which is not there"));
      }
      part.tensors[alias] = tensor->second;
    }
  }
  return snapshot;
}

// A snapshot that some rank has seen.
struct Offer {
  int rank = 0;
  std::int64_t step = 0;
  std::int64_t sequence = 0;
  std::string name;
  std::string problem;   // of its manifest
  std::string identity;  // equal on ranks that see the same files
};

std::string identity_of(const FoundSnapshot& found) {
  struct stat status {};
  if (::stat(concat(found.path, "/", kManifestName).c_str(), &status) != 0) return found.name;
  return concat(found.name, " ", status.st_ino, " ", status.st_mtim.tv_sec, ".",
                status.st_mtim.tv_nsec);
}

// What this rank has to offer; `pointer` restricts it to the target of a link.
json list_offers(const std::string& directory, const std::string& pointer) {
  json offers = json::array();
  const auto only = pointer.empty() ? std::nullopt : read_pointer(directory, pointer);
  if (!pointer.empty() && !only) return offers;
  for (const FoundSnapshot& found : find_snapshots(directory)) {
    if (only && found.name != *only) continue;
    offers.push_back({{"name", found.name},
                      {"step", found.step},
                      {"sequence", found.manifest ? found.manifest->sequence : -1},
                      {"problem", found.problem},
                      {"identity", identity_of(found)}});
  }
  return offers;
}

// All ranks' offers, newest first and for each snapshot the lowest rank first; one of several ranks
// that see the same files.
std::vector<Offer> gather_offers(World& world, const json& mine) {
  std::vector<Offer> offers;
  std::set<std::string> known;
  const std::vector<json> all = world.group().all_gather_json(mine);
  for (int rank = 0; rank < world.world_size(); ++rank) {
    for (const json& each : all[rank]) {
      if (!known.insert(each.at("identity").get<std::string>()).second) continue;
      offers.push_back({.rank = rank,
                        .step = each.at("step"),
                        .sequence = each.at("sequence"),
                        .name = each.at("name"),
                        .problem = each.at("problem"),
                        .identity = each.at("identity")});
    }
  }
  std::stable_sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) {
    return std::tuple(a.sequence, a.step) > std::tuple(b.sequence, b.step);
  });
  return offers;
}

void broadcast_bytes(World& world, const at::Tensor& bytes, int root) {
  const c10::Device device = world.group().impl()->small_device();
  for (std::int64_t begin = 0; begin < bytes.numel(); begin += kMessageBytes) {
    const at::Tensor piece = bytes.narrow(0, begin, std::min(kMessageBytes, bytes.numel() - begin));
    const at::Tensor there = piece.to(device);  // the piece itself where that is the CPU
    world.group().broadcast(there, {.root = root});
    if (!device.is_cpu()) piece.copy_(there);
  }
}

// Sends the files of `root` to all ranks; each checks what it has got.
LoadedFiles broadcast_files(World& world, const std::optional<LoadedFiles>& mine, int root) {
  LoadedFiles loaded;
  loaded.manifest = parse_manifest(
      world.group().broadcast_string(mine ? format_manifest(mine->manifest) : "", root));
  for (const auto& [name, expected] : loaded.manifest.files) {
    const at::Tensor content = mine ? mine->contents.at(name) : bytes_tensor(expected.bytes);
    broadcast_bytes(world, content, root);
    if (!mine) check_content(name, content, expected);
    loaded.contents[name] = content;
  }
  return loaded;
}

// The same where each rank reads what it needs: all look at the files by themselves. What is wrong
// with the files is a problem of this snapshot; that it is of another model is thrown.
std::optional<Snapshot> take_ranges(SnapshotStore::Impl& store, const Offer& offer,
                                    const TensorRanges& ranges, std::string& problem) {
  World& world = store.world();
  RangesRead mine = read_ranges({.path = concat(store.directory(), "/", offer.name),
                                 .sequence = offer.sequence,
                                 .ranges = ranges,
                                 .rank = world.rank(),
                                 .ranks = world.world_size()});
  const auto all =
      world.group().all_gather_json({{"problem", mine.problem}, {"mismatch", mine.mismatch}});
  std::string mismatch;
  for (std::size_t rank = all.size(); rank-- > 0;) {
    const auto of_rank = [&](const char* what) { return all[rank].at(what).get<std::string>(); };
    if (!of_rank("problem").empty()) problem = of_rank("problem");
    if (!of_rank("mismatch").empty()) mismatch = of_rank("mismatch");
  }
  if (!problem.empty()) return std::nullopt;
  if (!mismatch.empty()) {
    throw InvalidArgument(
        concat("the snapshot '", store.directory(), "/", offer.name, "' does not fit: ", mismatch));
  }
  return std::move(mine.snapshot);
}

// Tries one offer; all ranks learn why it cannot be used, or get it.
std::optional<Snapshot> take(SnapshotStore::Impl& store, const Offer& offer, std::string& problem) {
  World& world = store.world();
  std::optional<LoadedFiles> mine;
  std::optional<Snapshot> snapshot;
  std::string failure;
  if (world.rank() == offer.rank) {
    try {
      FoundSnapshot found = open_snapshot(concat(store.directory(), "/", offer.name));
      if (found.step != offer.step) throw InvalidArgument("it is being replaced");
      mine = read_files(found);
      snapshot = assemble(*mine);
    } catch (const std::exception& error) {
      mine.reset();
      failure = concat("! ", first_line(error.what()));
    }
  }
  problem = world.group().broadcast_string(failure, offer.rank);
  if (!problem.empty()) {
    problem.erase(0, 2);
    return std::nullopt;
  }
  if (world.world_size() == 1) return snapshot;
  const LoadedFiles loaded = broadcast_files(world, mine, offer.rank);
  return mine ? snapshot : assemble(loaded);
}

std::string place_of(const SnapshotStore::Impl& store, const Offer& offer, int world_size) {
  const std::string path = concat(store.directory(), "/", offer.name);
  return world_size == 1 ? concat("'", path, "'") : concat("'", path, "' (rank ", offer.rank, ")");
}

struct Wanted {
  std::string pointer = {};
  std::optional<std::int64_t> step = std::nullopt;
  const TensorRanges* ranges = nullptr;  // each rank reads what it needs
};

std::optional<Snapshot> load(SnapshotStore::Impl& store, const Wanted& wanted) {
  World& world = store.world();
  store.wait();
  json mine = json::array();
  if (store.is_first_on_node()) {
    try {
      mine = list_offers(store.directory(), wanted.pointer);
    } catch (const Error& error) {
      store.report(error.what());  // other ranks may have some
    }
  }
  std::vector<Offer> offers = gather_offers(world, mine);
  if (wanted.step) {
    std::erase_if(offers, [&](const Offer& each) { return each.step != *wanted.step; });
  }
  const auto skip = [&](const Offer& offer, const std::string& problem) {
    if (world.rank() != 0) return;
    store.report(concat("the snapshot ", place_of(store, offer, world.world_size()),
                        " cannot be used: ", problem));
  };
  // Those without a sound manifest come last in the list. They are told of when they look newer
  // than the one that is taken.
  std::optional<Snapshot> snapshot;
  for (const Offer& offer : offers) {
    if (snapshot) {
      if (!offer.problem.empty() && offer.step > snapshot->step) skip(offer, offer.problem);
      continue;
    }
    std::string problem = offer.problem;
    if (problem.empty()) {
      snapshot = wanted.ranges != nullptr ? take_ranges(store, offer, *wanted.ranges, problem)
                                          : take(store, offer, problem);
    }
    if (!problem.empty()) skip(offer, problem);
  }
  return snapshot;
}

}  // namespace

std::optional<Snapshot> SnapshotStore::load_newest() {
  return load(*impl_, {});
}

std::optional<Snapshot> SnapshotStore::load_newest(const TensorRanges& ranges) {
  return load(*impl_, {.ranges = &ranges});
}

std::optional<Snapshot> SnapshotStore::load_best() {
  return load(*impl_, {.pointer = kBest});
}

std::optional<Snapshot> SnapshotStore::load_step(std::int64_t step) {
  return load(*impl_, {.step = step});
}

std::function<bool()> SnapshotStore::Impl::health() const {
  // A group learns of a death in its next operation, and there is none while all write.
  return [guard = world_.group().impl()->guard] {
    const GroupGuard::Options& options = guard->options();
    const auto ended = [&](int rank) { return options.peers && options.peers->has_ended(rank); };
    return guard->working() && std::ranges::none_of(options.global_ranks, ended);
  };
}

Snapshot read_snapshot(const std::string& path) {
  if (::access(concat(path, "/", kManifestName).c_str(), F_OK) == 0) {
    return assemble(read_files(open_snapshot(path)));
  }
  std::string problem;
  for (const FoundSnapshot& found : find_snapshots(path)) {
    try {
      if (!found.manifest) throw InvalidArgument(found.problem);
      return assemble(read_files(found));
    } catch (const Error& error) {
      if (problem.empty()) problem = concat(": ", found.name, ": ", error.what());
    }
  }
  throw InvalidArgument(concat("there is no intact snapshot in '", path, "'", problem));
}

}  // namespace lockstep
