#pragma once

#include <cstdio>
#include <string>

#include <gtest/gtest.h>

namespace lockstep::testing {

/// What a call writes to standard error. Where it throws, that goes there after all: a capture left
/// open would swallow it, and end the test that captures next together with all behind it.
template <typename Call>
std::string said_by(Call call) {
  ::testing::internal::CaptureStderr();
  try {
    call();
  } catch (...) {
    std::fputs(::testing::internal::GetCapturedStderr().c_str(), stderr);
    throw;
  }
  return ::testing::internal::GetCapturedStderr();
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lockstep::testing
