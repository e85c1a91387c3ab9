#include "archive/torch_archive.h"

#include <map>

#include "archive/durable_output.h"
#include "archive/pickle.h"
#include "archive/zip.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kPickleName = "/data.pkl";

bool starts_with(std::span<const std::byte> bytes, std::string_view text) {
  return bytes.size() >= text.size() &&
         std::string_view(reinterpret_cast<const char*>(bytes.data()), text.size()) == text;
}

// "archive" in "archive/data.pkl", which all members are in.
std::string find_folder(const ZipReader& zip) {
  for (const std::string& name : zip.names()) {
    const std::size_t slash = name.find('/');
    if (slash == std::string::npos || name.substr(slash) != kPickleName) continue;
    if (zip.contains(name.substr(0, slash) + "/constants.pkl")) {
      throw InvalidArgument("it is a TorchScript program and not a file of torch.save");
    }
    return name.substr(0, slash);
  }
  throw InvalidArgument("it is a zip file that torch.save has not written: it has no data.pkl");
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Value read_torch_archive(const FileContent& content, const TorchReadOptions& options) {
  if (starts_with(content.bytes(), "\x80")) {
    throw InvalidArgument(
        "it is a bare pickle, as torch.save wrote before 1.6 (2020); load it in Python and save it "
        "again");
  }
  if (!starts_with(content.bytes(), "PK")) {
    throw InvalidArgument("it is not a zip file, as torch.save writes");
  }
  const ZipReader zip(content.bytes());
  const std::string folder = find_folder(zip);
  const std::string order_name = folder + "/byteorder";
  if (zip.contains(order_name) && text_of(zip.content(order_name)) != "little") {
    throw InvalidArgument("it was written on a big-endian machine");
  }
  std::map<std::string, std::span<const std::byte>> storages;
  const auto storage = [&](const std::string& key) {
    const auto known = storages.find(key);
    if (known != storages.end()) return known->second;
    return storages[key] = zip.content(concat(folder, "/data/", key), options.check);
  };
  return unpickle(zip.content(folder + std::string(kPickleName)),
                  {.storage = storage,
                   .owner = content.owner(),
                   .copy_limit = content.bytes().size() + (std::uint64_t{64} << 20)});
}

void write_torch_archive(const std::string& path, const Value& value) {
  const Pickled pickled = pickle(value);
  const std::string version = "3\n", order = "little";
  std::vector<ZipMember> members;
  members.push_back({"archive/data.pkl", std::as_bytes(std::span(pickled.pickle))});
  members.push_back({"archive/byteorder", std::as_bytes(std::span(order))});
  for (std::size_t i = 0; i < pickled.storages.size(); ++i) {
    members.push_back({concat("archive/data/", i), pickled.storages[i]});
  }
  members.push_back({"archive/version", std::as_bytes(std::span(version))});

  replace_durably(path, zip_bytes(members), [&](DurableOutput& output) {
    write_zip(members, [&](std::span<const std::byte> part) { output.append(part); });
  });
}

}  // namespace lockstep
