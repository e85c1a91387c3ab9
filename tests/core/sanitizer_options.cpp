// Linked into programs that the tests start many times and that fail on purpose. A sanitizer's
// run-time asks these functions for its options.
//
// Looking for leaks at exit takes seconds on some processors, and what dies on purpose may leak. A
// sanitizer's own handler would turn a segmentation fault into an exit code.
extern "C" {
const char* __asan_default_options();
const char* __asan_default_options() {
  return "detect_leaks=0:handle_segv=0";
}
const char* __tsan_default_options();
const char* __tsan_default_options() {
  return "handle_segv=0";
}
}
