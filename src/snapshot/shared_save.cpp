#include "snapshot/shared_save.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

// A disk may be slow, and another rank may still be computing the step before its save.
constexpr auto kSharePatience = std::chrono::minutes(30);
constexpr auto kLongestPause = std::chrono::milliseconds(50);

json files_as_json(const std::map<std::string, Manifest::File>& files) {
  json list = json::object();
  for (const auto& [name, file] : files) {
    list[name] = {{"bytes", file.bytes}, {"checksum", checksum_text(file.checksum)}};
  }
  return list;
}

void add_files(Manifest& manifest, const json& list) {
  for (const auto& [name, file] : list.items()) {
    manifest.files[name] = {
        .bytes = file.at("bytes").get<std::uint64_t>(),
        .checksum = parse_checksum(file.at("checksum").get<std::string>()).value()};
  }
}

// Writes this rank's files; what the others are told of that.
std::string share_of(const std::string& folder, std::span<const SnapshotFile> files) {
  try {
    return json({{"files", files_as_json(write_snapshot_files(folder, files))}}).dump();
  } catch (const std::exception& error) {
    return json({{"error", first_line(error.what())}}).dump();
  }
}

std::string last_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

// The store has no wait that ends when the group does.
std::string SharedSave::await(const std::string& name) const {
  const auto begin = std::chrono::steady_clock::now();
  auto pause = std::chrono::milliseconds(1);
  Store store = meeting_.store;
  while (!store.check({key(name)})) {
    if (!meeting_.healthy()) {
      if (store.check({key(name)})) break;  // it came, and then the other ended
      throw SystemError("a rank was lost while all were writing");
    }
    if (std::chrono::steady_clock::now() - begin > kSharePatience) {
      throw SystemError(concat("nothing heard for ", kSharePatience.count(), " minutes (", name,
                               ") from a rank that writes its share"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return store.get(key(name));
}

void SharedSave::write(const std::string& directory, Manifest manifest,
                       std::span<const SnapshotFile> files, const WriteOptions& options) const {
  struct Leave {
    const SharedSave& save;
    ~Leave() { save.leave(); }
  } leave{*this};
  write_share(directory, std::move(manifest), files, options);
}

void SharedSave::write_share(const std::string& directory, Manifest manifest,
                             std::span<const SnapshotFile> files,
                             const WriteOptions& options) const {
  Store store = meeting_.store;
  const std::string share = concat("share_", meeting_.rank);
  if (meeting_.rank == 0) {
    std::string folder;
    try {
      folder = begin_snapshot(directory, manifest);
    } catch (const std::exception& error) {
      tell_failure(error.what());
      throw;
    }
    try {
      store.set(key("folder"), json({{"name", last_name(folder)}}).dump());
      store.set(key(share), share_of(folder, files));
      publish(directory, folder, std::move(manifest), options);
    } catch (const std::exception& error) {
      discard_snapshot(folder);
      store.set(key("result"), json({{"error", error.what()}}).dump());
      throw;
    }
    return store.set(key("result"), json::object().dump());
  }
  const json folder = json::parse(await("folder"));
  if (!folder.contains("error")) {
    const std::string path = concat(directory, "/", folder.at("name").get<std::string>());
    store.set(key(share), share_of(path, files));
  }
  const json result = json::parse(await("result"));
  if (result.contains("error")) throw SystemError(result.at("error").get<std::string>());
}

void SharedSave::publish(const std::string& directory, const std::string& folder, Manifest manifest,
                         const WriteOptions& options) const {
  manifest.files.clear();
  std::string problem;
  for (int rank = 0; rank < meeting_.ranks; ++rank) {  // all, so that nobody still writes
    const json share = json::parse(await(concat("share_", rank)));
    if (share.contains("error")) {
      if (problem.empty())
        problem = concat("rank ", rank, ": ", share.at("error").get<std::string>());
      continue;
    }
    add_files(manifest, share.at("files"));
  }
  if (!problem.empty()) throw SystemError(problem);
  publish_snapshot(directory, folder, std::move(manifest), options);
}

void SharedSave::give_up(const std::string& reason) const {
  tell_failure(reason);
  leave();
}

// After it this rank reads and sets no key any more, so the last one to come here is alone.
void SharedSave::leave() const noexcept {
  Store store = meeting_.store;
  try {
    if (store.add(key("left"), 1) < meeting_.ranks) return;
    for (int rank = 0; rank < meeting_.ranks; ++rank) store.delete_key(key(concat("share_", rank)));
    for (const char* name : {"folder", "result", "left"}) store.delete_key(key(name));
  } catch (const std::exception&) {
    // The store is gone, and the keys with it.
  }
}

void SharedSave::tell_failure(const std::string& reason) const {
  Store store = meeting_.store;
  const std::string text = json({{"error", first_line(reason)}}).dump();
  try {
    if (meeting_.rank == 0) {
      store.set(key("folder"), text);
      store.set(key("result"), text);
    } else {
      store.set(key(concat("share_", meeting_.rank)), text);
    }
  } catch (const std::exception&) {
    // Then the group has ended, too.
  }
}

}  // namespace lockstep
