// Records in Parquet and Arrow files, through the plugin.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <span>

#include "lockstep/error.h"
#include "text/arrow_plugin.h"
#include "text/record_fields.h"

namespace lockstep {
namespace {

constexpr const char* kPluginName = "liblockstep_arrow.so";

struct Plugin {
  LockstepArrowRead read = nullptr;
  std::string reason;  // why there is none
};

std::string folder_of_program() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
}

Plugin load_plugin() {
  std::vector<std::string> places;
  if (const char* path = std::getenv("LOCKSTEP_ARROW_PLUGIN"); path != nullptr) {
    places.emplace_back(path);
  } else {
    const std::string folder = folder_of_program();
    places = {concat(folder, "/", kPluginName), concat(folder, "/../lib/", kPluginName),
              concat(folder, "/../lib/lockstep/", kPluginName)};
  }
  Plugin plugin;
  for (const std::string& place : places) {
    std::error_code ignored;
    if (!std::filesystem::exists(place, ignored)) continue;
    // Local, so that nothing of Arrow's can be taken for something of libtorch's; never closed,
    // because Arrow starts threads.
    void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      plugin.reason = first_line(::dlerror());
      continue;
    }
    plugin.read = reinterpret_cast<LockstepArrowRead>(::dlsym(library, LOCKSTEP_ARROW_READ));
    if (plugin.read != nullptr) return plugin;
    plugin.reason = concat("'", place, "' is of another version");
  }
  if (plugin.reason.empty()) {
    plugin.reason = concat("there is no ", places.front(),
                           " (it is built where pyarrow 26 or newer is installed beside torch; "
                           "LOCKSTEP_ARROW_PLUGIN can name another place)");
  }
  return plugin;
}

const Plugin& plugin() {
  static const Plugin loaded = load_plugin();
  return loaded;
}

// Turns the plugin's calls into records. An exception waits until the plugin has returned.
struct Receiver {
  const std::string& path;
  RecordFields& fields;
  const TakeRecord& take;
  std::vector<std::string> names;
  std::vector<const RecordFields::Field*> columns;  // of the wanted columns, in order
  std::int64_t number = 0;
  std::exception_ptr failure;

  void choose(std::span<const char* const> all, std::span<bool> wanted) {
    names.assign(all.begin(), all.end());
    const auto& chosen = fields.choose(names, {path, 1});
    for (const RecordFields::Field& field : chosen) {
      const bool present = std::find(names.begin(), names.end(), field.name) != names.end();
      if (field.needed && !present) RecordFields::throw_missing(field.name, names, {path, 1});
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      for (const RecordFields::Field& field : chosen) {
        if (field.name != names[i]) continue;
        wanted[i] = true;
        columns.push_back(&field);
      }
    }
  }

  void receive(std::span<const LockstepArrowText> values) {
    ++number;
    TextRecord record;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const RecordFields::Field& field = *columns[i];
      if (values[i].data != nullptr) {
        (record.*field.member).assign(values[i].data, values[i].bytes);
      } else if (field.needed) {
        throw InvalidArgument(concat(RecordPlace{path, number}.text(), " has no field '",
                                     field.name, "': it is null"));
      }
    }
    fields.check_not_empty(record, {path, number});
    take(std::move(record));
  }

  template <typename Action>
  bool guarded(Action action) {
    try {
      action();
      return true;
    } catch (...) {
      failure = std::current_exception();
      return false;
    }
  }
};

}  // namespace

ArrowSupport arrow_support() {
  return {plugin().read != nullptr, plugin().reason};
}

void read_arrow_records(const std::string& path, RecordFields& fields, const TakeRecord& take) {
  if (plugin().read == nullptr) {
    throw InvalidArgument(
        concat("'", path, "' needs Arrow's libraries, which cannot be used: ", plugin().reason));
  }
  Receiver receiver{path, fields, take};
  const LockstepArrowReader reader{
      .context = &receiver,
      .columns =
          [](void* context, const char* const* names, std::size_t count, bool* wanted) {
            auto& self = *static_cast<Receiver*>(context);
            return self.guarded([&] { self.choose({names, count}, {wanted, count}); });
          },
      .row =
          [](void* context, const LockstepArrowText* values, std::size_t count) {
            auto& self = *static_cast<Receiver*>(context);
            return self.guarded([&] { self.receive({values, count}); });
          }};
  std::array<char, 512> error{};
  const bool done = plugin().read(path.c_str(), &reader, error.data(), error.size());
  if (receiver.failure) std::rethrow_exception(receiver.failure);
  if (!done) {
    throw InvalidArgument(
        concat("'", path, "': after record ", receiver.number, ": ", first_line(error.data())));
  }
}

}  // namespace lockstep
