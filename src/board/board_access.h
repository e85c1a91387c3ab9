#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/command_manual.h"

namespace lockstep {

/// `lockstep board`'s command line.
struct BoardOptions {
  std::string directory;
  std::string host = "127.0.0.1";
  int port = 8642;
  bool port_given = false;
  std::string token_file;
  bool help = false;
};

/// Throws InvalidArgument, naming the option and its value.
BoardOptions parse_board_options(const std::vector<std::string>& arguments);
const CommandManual& board_manual();
std::string board_help();

/// Whether only this machine can reach `host`.
bool is_loopback_host(std::string_view host);

/// The token of --token-file, else a new one. Throws InvalidArgument where the file is missing, can
/// be read by others, or holds too little.
std::string board_token(const BoardOptions& options);

/// The value of a cookie in a Cookie header; "" where it is not there.
std::string cookie_value(std::string_view header, std::string_view name);

}  // namespace lockstep
