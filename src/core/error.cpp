#include "lockstep/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace lockstep {

void throw_errno(const std::string& what) {
  const int code = errno;
  throw SystemError(concat(what, ": ", std::generic_category().message(code)));
}

namespace detail {

void check_failed(const char* condition, const char* file, int line, const std::string& values) {
  std::fprintf(stderr, "lockstep: internal check failed: %s at %s:%d%s%s\n", condition, file, line,
               values.empty() ? "" : ": ", values.c_str());
  std::abort();
}

}  // namespace detail
}  // namespace lockstep
