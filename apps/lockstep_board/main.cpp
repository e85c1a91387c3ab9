// The program behind `lockstep board`.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "board/http_server.h"
#include "lockstep/error.h"

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const lockstep::BoardOptions options = lockstep::parse_board_options(arguments);
  if (options.help) {
    std::fputs(lockstep::board_help().c_str(), stdout);
    return 0;
  }
  return lockstep::serve_board(options);
} catch (const lockstep::InvalidArgument& error) {
  std::fprintf(stderr, "lockstep: %s\n", error.what());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "lockstep: %s\n", error.what());
  return 1;
}
