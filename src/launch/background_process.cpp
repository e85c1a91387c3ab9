#include "launch/background_process.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Bounds of the memory in which the kernel looks for a process's command line.
struct ArgumentArea {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

ArgumentArea find_argument_area() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return {};
  }
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  constexpr int kFieldsBetween = 45;  // the state is the third of all fields, this the 48th
  for (int field = 0; field < kFieldsBetween; ++field) {
    fields >> skipped;
  }
  ArgumentArea area;
  fields >> area.begin >> area.end;
  return fields ? area : ArgumentArea();
}

}  // namespace

void ignore_what_can_be_ignored() {
  constexpr std::array kDefault = {SIGCHLD, SIGSEGV, SIGBUS,  SIGFPE,
                                   SIGILL,  SIGABRT, SIGTRAP, SIGSYS};
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action = {};
    action.sa_handler =
        std::find(kDefault.begin(), kDefault.end(), number) == kDefault.end() ? SIG_IGN : SIG_DFL;
    ::sigaction(number, &action, nullptr);  // refused for SIGKILL, SIGSTOP and those of libc
  }
}

void close_all_but(std::initializer_list<int> kept) {
  std::vector<int> unwanted;
  {
    const auto close = [](DIR* directory) { ::closedir(directory); };
    const std::unique_ptr<DIR, decltype(close)> open(::opendir("/proc/self/fd"), close);
    if (!open) {
      throw_errno("cannot list the open descriptors");
    }
    while (const dirent* entry = ::readdir(open.get())) {
      const auto fd = parse_integer<int>(entry->d_name);
      if (fd && *fd > STDERR_FILENO && *fd != ::dirfd(open.get()) &&
          std::find(kept.begin(), kept.end(), *fd) == kept.end()) {
        unwanted.push_back(*fd);
      }
    }
  }
  for (const int fd : unwanted) {
    ::close(fd);
  }
}

void set_process_title(std::string_view title) {
  ::prctl(PR_SET_NAME, std::string(title).c_str());
  const ArgumentArea area = find_argument_area();
  if (area.begin == 0 || area.end <= area.begin) {
    return;
  }
  const std::size_t size = area.end - area.begin;
  char* text = reinterpret_cast<char*>(area.begin);
  std::memset(text, 0, size);
  std::memcpy(text, title.data(), std::min(title.size(), size - 1));
}

}  // namespace lockstep
