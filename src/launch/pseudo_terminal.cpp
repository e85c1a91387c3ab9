#include "launch/pseudo_terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <cstdlib>

#include "lockstep/error.h"

namespace lockstep {

PseudoTerminal open_pseudo_terminal(int like) {
  PseudoTerminal terminal;
  terminal.our_end = UniqueFd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  const int ours = terminal.our_end.get();
  char name[128];
  if (ours < 0 || ::grantpt(ours) != 0 || ::unlockpt(ours) != 0 ||
      ::ptsname_r(ours, name, sizeof name) != 0) {
    throw_errno("cannot make a pseudo terminal");
  }
  terminal.program_end = UniqueFd(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios modes = {};
  if (!terminal.program_end || ::tcgetattr(terminal.program_end.get(), &modes) != 0) {
    throw_errno("cannot open a pseudo terminal");
  }
  // Raw: newlines are translated once, by the terminal that shows them.
  ::cfmakeraw(&modes);
  if (::tcsetattr(terminal.program_end.get(), TCSANOW, &modes) != 0) {
    throw_errno("cannot set up a pseudo terminal");
  }
  copy_window_size(like, ours);
  return terminal;
}

void copy_window_size(int like, int our_end) {
  winsize size = {};
  if (::ioctl(like, TIOCGWINSZ, &size) == 0) ::ioctl(our_end, TIOCSWINSZ, &size);
}

}  // namespace lockstep
