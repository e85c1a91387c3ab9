#include "board/top_command.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ostream>

#include "board/board_api.h"
#include "board/bounded_json.h"
#include "board/top_screen.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr int kRefreshMs = 1000;

volatile std::sig_atomic_t top_interrupted = 0;

void note_interrupt(int) {
  top_interrupted = 1;
}

json ask(BoardApi& api, const std::string& path, const BoardQuery& query) {
  const auto answer = api.get(path, query);
  auto value = answer->status == 200 ? parse_bounded(answer->body) : std::nullopt;
  return value.value_or(json::object());
}

TopView look_around(BoardApi& api, std::size_t& chosen) {
  TopView view;
  view.runs = ask(api, "/api/runs", {}).value("runs", json::array());
  sort_for_top(view.runs);
  chosen = std::min(chosen, view.runs.empty() ? 0 : view.runs.size() - 1);
  view.chosen = chosen;
  view.now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (view.runs.empty()) return view;
  const std::string id = text_of(view.runs[chosen], "id");
  BoardQuery query{{"run", id}, {"points", "120"}};
  for (const char* name : {"loss", "lr", "grad_norm", "tok/s", "time/total"}) {
    query.emplace("name", name);
  }
  view.series = ask(api, "/api/series", query);
  view.events = ask(api, "/api/events", {{"run", id}});
  return view;
}

// A terminal without echo, whose old content comes back at the end, whatever the end is.
class FullScreen {
 public:
  FullScreen() {
    ::tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    put("\x1b[?1049h\x1b[?25l");
  }
  ~FullScreen() {
    put("\x1b[?25h\x1b[?1049l");
    ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  static void put(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
      if (written <= 0) return;
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  static void show(TopView& view) {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      view.width = size.ws_col;
      view.height = size.ws_row;
    }
    std::string screen = "\x1b[H";
    std::size_t line = 0;
    for (const std::string& text : top_screen(view)) {
      if (++line > view.height) break;
      screen += (line == 1 ? "" : "\r\n") + text + "\x1b[K";
    }
    put(screen + "\x1b[J");
  }

 private:
  termios before_{};
};

int follow(BoardApi& api) {
  struct sigaction action {};
  action.sa_handler = note_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  const FullScreen screen;
  for (std::size_t chosen = 0; top_interrupted == 0;) {
    TopView view = look_around(api, chosen);
    const char* refused = std::getenv("NO_COLOR");
    view.colour = refused == nullptr || *refused == '\0';
    FullScreen::show(view);
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    char key = 0;
    if (::poll(&input, 1, kRefreshMs) <= 0) continue;
    if (::read(STDIN_FILENO, &key, 1) <= 0 || key == 'q') break;
    if (key == 'j') ++chosen;
    if (key == 'k' && chosen > 0) --chosen;
  }
  return 0;
}

}  // namespace

const CommandManual& top_manual() {
  static constexpr std::array<CommandWord, 3> kWords{{
      {"--once", "print once and end, as where the output is no terminal"},
      {"--json", "print once, as JSON"},
      {"-h, --help", "print this"},
  }};
  static constexpr CommandManual kManual{
      .name = "top",
      .arguments = "[--once | --json] DIR",
      .summary =
          "lockstep top shows the runs below DIR at a glance in the terminal; lockstep board "
          "shows more in a browser.",
      .words = kWords,
      .remarks = "Keys: j and k choose a run, q ends."};
  return kManual;
}

int top_command(const std::vector<std::string>& arguments, std::ostream& out) {
  std::string directory;
  bool once = ::isatty(STDOUT_FILENO) == 0 || ::isatty(STDIN_FILENO) == 0, as_json = false;
  for (const std::string& word : arguments) {
    if (word == "-h" || word == "--help") {
      out << help_of(top_manual());
      return 0;
    }
    if (word == "--once") {
      once = true;
    } else if (word == "--json") {
      as_json = true;
    } else if (word.starts_with('-') || !directory.empty()) {
      throw InvalidArgument(concat("top: '", word, "' is not understood (see --help)"));
    } else {
      directory = word;
    }
  }
  if (directory.empty()) {
    throw InvalidArgument("top: name the directory with the runs: lockstep top DIR");
  }
  const RootFolder root(directory);
  BoardApi api(root);
  if (as_json) {
    out << api.get("/api/runs", {})->body << "\n";
    return 0;
  }
  if (!once) return follow(api);
  std::size_t chosen = 0;
  TopView view = look_around(api, chosen);
  view.width = 110;
  view.height = 2 * view.runs.size() + 24;
  for (const std::string& line : top_screen(view)) out << line << "\n";
  return 0;
}

}  // namespace lockstep
