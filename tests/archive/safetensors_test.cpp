#include "archive/safetensors.h"

#include <gtest/gtest.h>

#include "tests/archive/files.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

std::string file_of(const std::string& header, const std::string& data) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return text + header + data;
}

std::string refusal_of(const std::string& header, const std::string& data) {
  const std::string file = file_of(header, data);
  return refusal([&] { parse_safetensors(bytes_of_text(file)); });
}

std::string tensor(const std::string& name, const std::string& type, const std::string& shape,
                   int begin, int end) {
  return concat("\"", name, "\":{\"dtype\":\"", type, "\",\"shape\":", shape, ",\"data_offsets\":[",
                begin, ",", end, "]}");
}

}  // namespace

TEST(Safetensors, a_file_lists_its_tensors_and_metadata) {
  const std::string file = file_of(
      "{\"__metadata__\":{\"format\":\"pt\"}," + tensor("b", "F32", "[2]", 0, 8) + "," +
          tensor("a", "U8", "[]", 8, 9) + "," + tensor("none", "I64", "[0,5]", 9, 9) + "}   ",
      "12345678x");
  const Safetensors parsed = parse_safetensors(bytes_of_text(file));
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
  ASSERT_EQ(parsed.tensors.size(), 3u);
  EXPECT_EQ(parsed.tensors[0].name, "b");
  EXPECT_EQ(parsed.tensors[0].type, ElementType::float32);
  EXPECT_EQ(parsed.tensors[0].bytes.size(), 8u);
  EXPECT_EQ(parsed.tensors[1].shape.size(), 0u);
  EXPECT_EQ(parsed.tensors[2].shape, (std::vector<std::int64_t>{0, 5}));
}

TEST(Safetensors, what_is_laid_out_can_be_parsed_and_lies_aligned) {
  const std::vector<TensorInfo> infos{
      {.name = "bytes", .type = ElementType::uint8, .shape = {3}},
      {.name = "wide", .type = ElementType::float64, .shape = {2}},
      {.name = "half", .type = ElementType::bfloat16, .shape = {5}},
      {.name = "empty", .type = ElementType::float32, .shape = {0}}};
  const SafetensorsLayout layout = lay_out_safetensors(infos, {{"format", "pt"}});
  EXPECT_EQ(layout.header.size() % 64, 0u);
  const std::string file = layout.header + std::string(layout.data_bytes, 'x');
  EXPECT_EQ(file.size(), layout.file_bytes());
  const Safetensors parsed = parse_safetensors(bytes_of_text(file));
  ASSERT_EQ(parsed.tensors.size(), infos.size());
  for (const TensorView& view : parsed.tensors) {
    const auto offset = static_cast<std::size_t>(view.bytes.data() - bytes_of_text(file).data());
    EXPECT_EQ(offset % names_of(view.type).bytes, 0u) << view.name;
  }
}

TEST(Safetensors, every_element_type_of_the_format_keeps_its_name) {
  for (const ElementTypeNames& names : element_types()) {
    if (names.safetensors.empty()) continue;
    EXPECT_EQ(element_type_of_safetensors(names.safetensors), names.type);
    EXPECT_EQ(names_of(names.type).safetensors, names.safetensors);
  }
}

TEST(Safetensors, a_short_file_is_refused) {
  for (const std::size_t length : {0, 1, 7}) {
    const std::string file(length, 'x');
    EXPECT_NE(refusal([&] { parse_safetensors(bytes_of_text(file)); }), "accepted");
  }
  const std::string cut = file_of("{}", "").substr(0, 9);
  EXPECT_TRUE(has(refusal([&] { parse_safetensors(bytes_of_text(cut)); }), "2 bytes"));
}

TEST(Safetensors, a_header_longer_than_the_limit_is_refused) {
  std::string file = file_of("{}", "");
  file[4] = 1;  // four gigabytes
  EXPECT_TRUE(has(refusal([&] { parse_safetensors(bytes_of_text(file)); }), "header of"));
}

TEST(Safetensors, headers_that_are_not_what_they_should_be_are_refused) {
  EXPECT_TRUE(has(refusal_of(" {}", ""), "begin with"));
  EXPECT_TRUE(has(refusal_of("{\"a\":", ""), "JSON"));
  EXPECT_TRUE(has(refusal_of("{\"a\":1}", ""), "'a'"));
  EXPECT_TRUE(has(refusal_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", ""), "exactly"));
  EXPECT_TRUE(has(refusal_of("{\"__metadata__\":{\"x\":1}}", ""), "'x'"));
  EXPECT_TRUE(has(refusal_of("{\"a\":[[[[[1]]]]]}", ""), "deeply"));
  EXPECT_TRUE(has(refusal_of("{" + tensor("a", "F4", "[2]", 0, 1) + "}", "1"), "\"F4\""));
  EXPECT_TRUE(has(refusal_of("{" + tensor("a", "F32", "[-1]", 0, 4) + "}", "1234"), "-1"));
  EXPECT_TRUE(has(refusal_of("{" + tensor("a", "F32", "[1.0]", 0, 4) + "}", "1234"), "1.0"));
}

TEST(Safetensors, a_name_twice_is_refused) {
  const std::string twice =
      "{" + tensor("a", "U8", "[1]", 0, 1) + "," + tensor("a", "U8", "[1]", 0, 1) + "}";
  EXPECT_TRUE(has(refusal_of(twice, "x"), "twice"));
}

TEST(Safetensors, shapes_that_overflow_are_refused) {
  const std::string huge = "[4294967296,4294967296,4294967296]";
  EXPECT_TRUE(has(refusal_of("{" + tensor("a", "F32", huge, 0, 0) + "}", ""), "too large"));
}

TEST(Safetensors, holes_overlaps_and_rests_are_refused) {
  const auto two = [](int begin, int end) {
    return "{" + tensor("a", "U8", "[2]", 0, 2) + "," +
           tensor("b", "U8", concat("[", end - begin, "]"), begin, end) + "}";
  };
  EXPECT_EQ(refusal_of(two(2, 4), "1234"), "accepted");
  EXPECT_TRUE(has(refusal_of(two(3, 5), "12345"), "hole"));
  EXPECT_TRUE(has(refusal_of(two(1, 3), "123"), "inside"));
  EXPECT_TRUE(has(refusal_of(two(2, 4), "12345"), "1 bytes follow"));
  EXPECT_TRUE(has(refusal_of(two(2, 9), "1234"), "ends at byte 9"));
  EXPECT_TRUE(has(refusal_of("{" + tensor("a", "F32", "[2]", 0, 4) + "}", "1234"), "needs 8"));
}

TEST(Safetensors, what_the_format_cannot_hold_is_not_written) {
  const std::vector<TensorInfo> wide{{.name = "c", .type = ElementType::complex128, .shape = {1}}};
  EXPECT_TRUE(has(refusal([&] { lay_out_safetensors(wide, {}); }), "complex128"));
  const std::vector<TensorInfo> twice{{.name = "a"}, {.name = "a"}};
  EXPECT_TRUE(has(refusal([&] { lay_out_safetensors(twice, {}); }), "'a'"));
  const std::vector<TensorInfo> bad{{.name = "\xff"}};
  EXPECT_TRUE(has(refusal([&] { lay_out_safetensors(bad, {}); }), "UTF-8"));
}
