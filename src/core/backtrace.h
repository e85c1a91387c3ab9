#pragma once

#include <string_view>
#include <typeinfo>

#include "core/fixed_text.h"

namespace lockstep {

/// The return addresses of one thread's stack, most recent call first.
struct Backtrace {
  static constexpr int kMaxFrames = 64;

  void* frames[kMaxFrames];
  int first = 0;  // frames before it are those of reporting itself
  int size = 0;
  bool first_is_exact = false;  // the first frame is where execution stood, not a return address
};

/// Loads what capture() needs. Must run before a signal handler calls capture(), because the first
/// backtrace() of a process opens a library.
void prime_backtrace();

/// The calling thread's stack. May be called in a signal handler once primed.
void capture(Backtrace& backtrace);

/// Makes `address`, where a signal struck, the first frame, if it is among the frames.
void begin_at(Backtrace& backtrace, const void* address);

/// Makes the caller of `throw` or std::terminate() the first frame, where they are on the stack.
void begin_at_throw(Backtrace& backtrace);

/// Demangling allocates, so a signal handler cannot have it; c++filt reads the mangled names.
enum class Names { mangled, demangled };

/// A line per frame: "  #0 train(int) (train_llm+0x1f30)". What stands in brackets is for
/// addr2line. May be called in a signal handler with Names::mangled, with one reservation: dladdr()
/// takes a lock of the dynamic loader. See fatal_signals.cpp for what is done about it.
void add_frames(const Backtrace& backtrace, Names names, FixedText& text);

/// A type's name without its namespaces: "InvalidArgument". Not for signal handlers.
void add_short_name(const std::type_info& type, FixedText& text);

/// The part of a qualified name after its last "::" that is not inside brackets.
std::string_view short_name(std::string_view qualified);

}  // namespace lockstep
