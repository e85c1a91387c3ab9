// A machine whose clock is wrong: with this library preloaded, the wall clock shows
// FAKE_CLOCK_AHEAD seconds more.
#include <dlfcn.h>
#include <time.h>
#include <cstdlib>

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  using Function = int (*)(clockid_t, timespec*);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = real(clock, time);
  const char* ahead = std::getenv("FAKE_CLOCK_AHEAD");
  if (result == 0 && clock == CLOCK_REALTIME && ahead != nullptr) time->tv_sec += std::atol(ahead);
  return result;
}
