#include "core/backtrace.h"

#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

using lockstep::add_short_name;
using lockstep::FixedText;
using lockstep::short_name;

namespace {

template <typename T>
struct Templated {};

template <typename T>
std::string short_name_of() {
  char storage[256];
  FixedText text(storage);
  add_short_name(typeid(T), text);
  return std::string(text.view());
}

}  // namespace

TEST(ShortName, namespaces_and_enclosing_functions_are_left_out) {
  EXPECT_EQ(short_name("int"), "int");
  EXPECT_EQ(short_name("lockstep::InvalidArgument"), "InvalidArgument");
  EXPECT_EQ(short_name("(anonymous namespace)::Failure"), "Failure");
  EXPECT_EQ(short_name("f(std::string)::Local"), "Local");
  EXPECT_EQ(short_name("std::ios_base::failure[abi:cxx11]"), "failure[abi:cxx11]");
  EXPECT_EQ(short_name(""), "");
}

TEST(ShortName, template_arguments_stay_whole) {
  EXPECT_EQ(short_name("a::Wrapped<std::runtime_error>"), "Wrapped<std::runtime_error>");
  EXPECT_EQ(short_name("a::Outer<b::X>::Inner"), "Inner");
}

TEST(ShortName, a_types_name_is_demangled) {
  EXPECT_EQ(short_name_of<int>(), "int");
  EXPECT_EQ(short_name_of<std::runtime_error>(), "runtime_error");
  EXPECT_EQ(short_name_of<Templated<std::logic_error>>(), "Templated<std::logic_error>");
}
