#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

/// The launcher's own lines on standard error, apart from what workers print.
class Console {
 public:
  struct Options {
    bool quiet = false;                // only what went wrong
    std::string speaker = "lockstep";  // who says it
  };

  explicit Console(const Options& options) : options_(options) {}

  /// From now on, lines go through `sink`, which keeps them apart from those of workers; an empty
  /// one: straight to standard error.
  void set_sink(std::function<void(std::string)> sink) { sink_ = std::move(sink); }

  /// "lockstep: <text>": what happens, for whoever watches.
  void note(std::string_view text) const;

  /// Something that went wrong; not silenced by --quiet.
  void warn(std::string_view text) const;

  /// Text as it is, such as a failure report.
  void print(std::string_view text) const;

 private:
  Options options_;
  std::function<void(std::string)> sink_;
};

}  // namespace lockstep
