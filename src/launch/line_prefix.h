#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/environment.h"

namespace lockstep {

/// torchrun's.
inline constexpr std::string_view kDefaultLinePrefix = "[${role_name}${local_rank}]:";

/// What a prefix can name.
struct LinePrefixValues {
  std::string role_name = "default";  // ${role_name}, ${role}
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  std::string host;
  std::uint64_t epoch = 0;
  int restart_count = 0;
  std::string_view stream = "stdout";  // or "stderr"
};

/// What stands before a worker's line on the console, made from a template.
///
/// ${name} or $name stands for a value: role_name (also role), rank, local_rank, node_rank, host,
/// epoch, restart_count, stream, and time, which is the time of day at which the line came. $$ is a
/// dollar sign. This is torchrun's syntax for TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE with more
/// names; as there, anything else that begins with a dollar sign stays as it is.
class LinePrefix {
 public:
  LinePrefix() = default;  // no prefix
  LinePrefix(std::string_view text, const LinePrefixValues& values);

  bool empty() const { return parts_.empty(); }

  std::string text(std::chrono::system_clock::time_point when) const;

  /// The same in a colour that depends on the rank.
  std::string coloured(std::chrono::system_clock::time_point when) const;

 private:
  void add_text(std::string_view text);

  struct Part {
    bool is_time = false;
    std::string text;
  };
  std::vector<Part> parts_;
  int rank_ = 0;
};

/// Throws InvalidArgument naming `option` if the template holds a name that does not exist. For
/// templates that were written for us; torchrun's variable is not checked.
void check_line_prefix(std::string_view option, std::string_view text);

/// Whether the descriptor is a terminal that shows colours: NO_COLOR is unset or empty, and TERM is
/// set and not "dumb".
bool shows_colours(int fd, const Environment& environment);

}  // namespace lockstep
