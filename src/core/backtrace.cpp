#include "core/backtrace.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace lockstep {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Functions of the C++ run-time between a throw and whoever looks at the stack. Sanitizers put
// wrappers around them, with names that contain theirs.
bool throws_or_terminates(std::string_view symbol) {
  return contains(symbol, "__cxa_throw") || contains(symbol, "__cxa_rethrow") ||
         contains(symbol, "rethrow_exception") || symbol == "_ZSt9terminatev";
}

void add_name(const char* mangled, Names names, FixedText& text) {
  char* demangled = nullptr;
  if (names == Names::demangled) {
    // Returns null for what is no C++ name, and when there is no memory.
    demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr);
  }
  text.add(demangled == nullptr ? mangled : demangled);
  std::free(demangled);
}

// A return address can be the first byte of the next function, when the call was the last thing a
// function did. The call itself is just before it.
const void* call_before(const void* return_address) {
  return static_cast<const char*>(return_address) - 1;
}

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

void add_frame(const void* address, Names names, FixedText& text) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  Dl_info info = {};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    text.add_hex(number);
    return;
  }
  if (info.dli_sname != nullptr) {
    add_name(info.dli_sname, names, text);
    text.add(" ");
  }
  text.add("(").add(file_name(info.dli_fname)).add("+");
  text.add_hex(number - reinterpret_cast<std::uintptr_t>(info.dli_fbase)).add(")");
}

}  // namespace

void prime_backtrace() {
  Backtrace unused;
  capture(unused);
}

void capture(Backtrace& backtrace) {
  backtrace.first = 0;
  backtrace.first_is_exact = false;
  backtrace.size = ::backtrace(backtrace.frames, Backtrace::kMaxFrames);
}

void begin_at(Backtrace& backtrace, const void* address) {
  for (int at = 0; at < backtrace.size; ++at) {
    if (backtrace.frames[at] == address) {
      backtrace.first = at;
      backtrace.first_is_exact = true;
      return;
    }
  }
}

void begin_at_throw(Backtrace& backtrace) {
  constexpr int kDeepest = 16;  // the run-time's own frames are fewer
  for (int at = 0; at < backtrace.size && at < kDeepest; ++at) {
    Dl_info info = {};
    if (::dladdr(call_before(backtrace.frames[at]), &info) != 0 && info.dli_sname != nullptr &&
        throws_or_terminates(info.dli_sname)) {
      backtrace.first = at + 1;
    }
  }
}

void add_frames(const Backtrace& backtrace, Names names, FixedText& text) {
  for (int at = backtrace.first; at < backtrace.size; ++at) {
    text.add("  #").add_decimal(static_cast<std::uint64_t>(at - backtrace.first)).add(" ");
    const bool exact = at == backtrace.first && backtrace.first_is_exact;
    const void* frame = backtrace.frames[at];
    add_frame(exact ? frame : call_before(frame), names, text);
    text.add("\n");
  }
}

void add_short_name(const std::type_info& type, FixedText& text) {
  char* demangled = abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr);
  text.add(short_name(demangled == nullptr ? type.name() : demangled));
  std::free(demangled);
}

std::string_view short_name(std::string_view qualified) {
  int depth = 0;
  for (std::size_t at = qualified.size(); at > 0; --at) {
    const char letter = qualified[at - 1];
    if (letter == '>' || letter == ')' || letter == '}' || letter == ']') {
      ++depth;
    } else if (letter == '<' || letter == '(' || letter == '{' || letter == '[') {
      --depth;
    } else if (depth == 0 && letter == ':') {
      return qualified.substr(at);
    }
  }
  return qualified;
}

}  // namespace lockstep
