#include "launch/console.h"

#include <unistd.h>
#include <cerrno>

namespace lockstep {

void Console::note(std::string_view text) const {
  if (!options_.quiet) warn(text);
}

void Console::warn(std::string_view text) const {
  std::string line = options_.speaker + ": ";
  line += text;
  line += '\n';
  print(line);
}

// In one write, so that it is not mixed with lines of workers that share the terminal.
void Console::print(std::string_view text) const {
  if (sink_) return sink_(std::string(text));
  while (!text.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // nobody reads any more, which is no reason to stop a job
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep
