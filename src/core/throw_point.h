#pragma once

#include "core/backtrace.h"

namespace lockstep {

/// Tells where an exception was thrown, to the function that catches it.
///
/// When a function has caught an exception, the stack below it is gone. But the C++ run-time first
/// searches the stack for a handler, and only then unwinds it: each catch clause on the way is
/// asked whether it wants the exception while the thrower's frames are still there. The clause
///
///     catch (const ThrowPointProbe&)
///
/// is asked as any other, notes the stack, and says no, so it must stand before the clauses that
/// say yes. Exceptions that are caught further down never reach it and cost nothing, which is why
/// this is done here and not by replacing __cxa_throw for the whole process.
///
/// An exception that was caught and thrown again on its way (`throw;`) shows the second throw.
class ThrowPointProbe {
 public:
  // Declared and never defined, which keeps the compiler from making this type's type_info:
  // throw_point.cpp makes it.
  virtual ~ThrowPointProbe();
};

/// Forgets what was noted before.
void forget_throw_point();

/// Where the last exception that passed a probe was thrown. Its size is 0 if none passed since
/// forget_throw_point(). One thread at a time may use a probe.
Backtrace& throw_point();

}  // namespace lockstep
