#include "board/board_access.h"

#include <sys/stat.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/hmac.h"
#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kShortestToken = 16;

bool is_token_letter(char letter) {
  return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
         (letter >= 'A' && letter <= 'Z') || letter == '-' || letter == '_';
}

}  // namespace

const CommandManual& board_manual() {
  static constexpr std::array<CommandWord, 4> kWords{{
      {"--port=PORT",
       "where to listen (default 8642, or a free one where that is taken; 0: a free "
       "one)"},
      {"--host=ADDRESS",
       "the address to listen at (default 127.0.0.1); others than this machine's "
       "own loopback need --token-file"},
      {"--token-file=FILE",
       "the token that the page asks for, 16 letters or more, in a file that "
       "only its owner can read (default: a new one each time)"},
      {"-h, --help", "print this"},
  }};
  static constexpr CommandManual kManual{
      .name = "board",
      .arguments = "[OPTIONS] DIR",
      .summary =
          "lockstep board shows the runs below DIR as a page in a browser: curves, ranks, "
          "events, logs, samples, snapshots. It only reads, and only below DIR.",
      .words = kWords,
      .remarks =
          "The line that it prints has the address with the token in it. From another "
          "machine: ssh -L 8642:127.0.0.1:8642 HOST, then open that address there."};
  return kManual;
}

std::string board_help() {
  return help_of(board_manual());
}

BoardOptions parse_board_options(const std::vector<std::string>& arguments) {
  BoardOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i], value;
    bool joined = false;
    if (const auto equals = name.find('='); name.starts_with("--") && equals != name.npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
      joined = true;
    }
    if (name == "-h" || name == "--help") {
      options.help = true;
      return options;
    }
    if (name == "--port" || name == "--host" || name == "--token-file") {
      if (!joined) {
        if (i + 1 == arguments.size())
          throw InvalidArgument(concat("board: ", name, " needs a value"));
        value = arguments[++i];
      }
      if (name == "--host") options.host = value;
      if (name == "--token-file") options.token_file = value;
      if (name != "--port") continue;
      const auto port = parse_integer<int>(value);
      if (!port || *port < 0 || *port > 65'535) {
        throw InvalidArgument(concat("board: --port is '", value, "'; it is a number up to 65535"));
      }
      options.port = *port;
      options.port_given = true;
    } else if (name.starts_with('-') && name.size() > 1) {
      throw InvalidArgument(concat("board: there is no option ", name, " (see --help)"));
    } else if (!options.directory.empty()) {
      throw InvalidArgument(concat("board: one directory, not also '", name, "'"));
    } else {
      options.directory = arguments[i];
    }
  }
  if (options.directory.empty()) {
    throw InvalidArgument("board: name the directory with the runs: lockstep board DIR");
  }
  if (!is_loopback_host(options.host) && options.token_file.empty()) {
    throw InvalidArgument(concat("board: --host is ", options.host,
                                 ", which others can reach; that needs --token-file, too (or use "
                                 "ssh -L and 127.0.0.1)"));
  }
  return options;
}

bool is_loopback_host(std::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  const bool numeric = host.find_first_not_of("0123456789.") == host.npos;
  return numeric && host.starts_with("127.") && std::ranges::count(host, '.') == 3;
}

std::string board_token(const BoardOptions& options) {
  if (options.token_file.empty()) return to_hex(random_bytes(16));
  const std::string about = concat("board: --token-file ", options.token_file);
  struct stat file {};
  if (::stat(options.token_file.c_str(), &file) != 0) {
    throw InvalidArgument(concat(about, ": ", std::strerror(errno)));
  }
  if ((file.st_mode & 077) != 0) {
    throw InvalidArgument(concat(about, " can be read by others; chmod 600 it"));
  }
  std::string token;
  std::ifstream(options.token_file) >> token;
  if (token.size() < kShortestToken || !std::ranges::all_of(token, is_token_letter)) {
    throw InvalidArgument(concat(about, " has to hold ", kShortestToken,
                                 " or more letters, digits, '-' or '_' in one line"));
  }
  return token;
}

std::string cookie_value(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    const std::size_t end = std::min(header.size(), header.find(';'));
    std::string_view pair = header.substr(0, end);
    header.remove_prefix(std::min(header.size(), end + 1));
    while (pair.starts_with(' ')) pair.remove_prefix(1);
    if (pair.starts_with(name) && pair.size() > name.size() && pair[name.size()] == '=') {
      return std::string(pair.substr(name.size() + 1));
    }
  }
  return "";
}

}  // namespace lockstep
