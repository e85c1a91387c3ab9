#include "archive/torch_archive.h"

#include <gtest/gtest.h>

#include "archive/pickle.h"
#include "archive/zip.h"
#include "core/crc32.h"
#include "tests/archive/files.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;
using namespace lockstep::testing;
using namespace std::string_literals;

namespace {

std::string zip_of(const std::vector<ZipMember>& members) {
  std::string file;
  write_zip(members, [&](std::span<const std::byte> bytes) {
    file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  EXPECT_EQ(file.size(), zip_bytes(members));
  return file;
}

Value unpickle_text(const std::string& text) {
  static const std::vector<float> storage{1, 2, 3, 4, 5, 6};
  const auto find = [](const std::string& key) {
    if (key != "0") throw InvalidArgument("no such storage");
    return std::as_bytes(std::span(storage));
  };
  return unpickle(bytes_of_text(text), {.storage = find, .owner = nullptr});
}

std::string unicode(const std::string& text) {
  return concat("X", static_cast<char>(text.size()), std::string(3, '\0'), text);
}

const std::string kProto = "\x80\x02";

// _rebuild_tensor_v2 of six floats; offset, size and stride are pickled integers.
std::string tensor(const std::string& offset, const std::string& size, const std::string& stride) {
  return concat(kProto, "ctorch._utils\n_rebuild_tensor_v2\n((", unicode("storage"),
                "ctorch\nFloatStorage\n", unicode("0"), unicode("cpu"), "K\x06tQ", offset, "(",
                size, "t(", stride, "t\x89", "ccollections\nOrderedDict\n)RtR.");
}

std::string integer(int value) {
  return concat("K", static_cast<char>(value));
}

Value round_trip(const Value& value) {
  const TemporaryFolder folder;
  write_torch_archive(folder / "x.pt", value);
  return read_torch_archive(FileContent::read(folder / "x.pt"));
}

const Value& item(const Value& dict, const char* key) {
  const Value* found = std::get<DictValue>(dict.data).find(key);
  if (found == nullptr) throw std::runtime_error(key);
  return *found;
}

}  // namespace

TEST(Crc32, is_that_of_zip_files) {
  const std::string text = "123456789";
  EXPECT_EQ(crc32(bytes_of_text(text)), 0xCBF43926u);
  const std::string longer(1000, 'a');
  const auto bytes = bytes_of_text(longer);
  EXPECT_EQ(crc32(bytes.subspan(13), crc32(bytes.first(13))), crc32(bytes));
}

TEST(Zip, members_come_back_aligned) {
  const std::string one = "hello", two(100, 'b');
  const std::string file = zip_of({{"a/one", bytes_of_text(one)}, {"a/two", bytes_of_text(two)}});
  const ZipReader zip(bytes_of_text(file));
  EXPECT_EQ(zip.names(), (std::vector<std::string>{"a/one", "a/two"}));
  const auto content = zip.content("a/two");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(content.data()), content.size()), two);
  EXPECT_EQ((content.data() - bytes_of_text(file).data()) % 64, 0);
}

TEST(Zip, more_members_than_16_bits_can_count) {
  std::vector<ZipMember> members;
  for (int i = 0; i < 70000; ++i) members.push_back({concat("m/", i), {}});
  const std::string file = zip_of(members);
  EXPECT_EQ(ZipReader(bytes_of_text(file)).names().size(), 70000u);
}

TEST(Zip, a_flipped_bit_anywhere_is_refused_or_harmless) {
  const std::string text = "the content";
  const std::string good = zip_of({{"a/x", bytes_of_text(text)}});
  for (std::size_t byte = 0; byte < good.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ 1 << bit);
      std::string found;
      const std::string outcome = refusal([&] {
        const auto content = ZipReader(bytes_of_text(bad)).content("a/x");
        found.assign(reinterpret_cast<const char*>(content.data()), content.size());
      });
      if (outcome == "accepted") {
        EXPECT_EQ(found, text) << byte << " " << bit;
      }
    }
  }
}

TEST(Zip, a_file_that_is_cut_short_is_refused) {
  const std::string text = "the content";
  const std::string good = zip_of({{"a/x", bytes_of_text(text)}});
  for (std::size_t length = 0; length < good.size(); ++length) {
    const std::string bad = good.substr(0, length);
    EXPECT_NE(refusal([&] { ZipReader(bytes_of_text(bad)); }), "accepted") << length;
  }
}

TEST(TorchArchive, values_of_every_kind_come_back) {
  DictValue dict;
  const auto add = [&](const char* name, Value value) {
    dict.items.push_back({{std::string(name)}, std::move(value)});
  };
  add("none", {NoneValue{}});
  add("yes", {true});
  add("small", {std::int64_t{7}});
  add("negative", {std::int64_t{-70000}});
  add("long", {std::int64_t{-1} << 40});
  add("most", {~std::uint64_t{0}});
  add("tenth", {0.1});
  add("text", {std::string("gr\xc3\xbc\xc3\x9f")});
  add("bytes", {BytesValue{std::string("\x00\x7f\x80\xff", 4)}});
  add("list", {ListValue{{{std::int64_t{1}}, {std::string("b")}}}});
  add("tuple", {TupleValue{{{0.9}, {0.999}}}});
  add("ordered", {DictValue{.items = {}, .ordered = true}});
  add("tensor", {floats({1, 2, 3})});
  add("f8", {tensor_of<std::uint8_t>(ElementType::float8_e4m3fn, {2}, {1, 2})});
  dict.items.push_back({{std::int64_t{5}}, {std::string("a key that is a number")}});
  const Value back = round_trip({std::move(dict)});

  EXPECT_TRUE(std::holds_alternative<NoneValue>(item(back, "none").data));
  EXPECT_EQ(std::get<bool>(item(back, "yes").data), true);
  EXPECT_EQ(std::get<std::int64_t>(item(back, "small").data), 7);
  EXPECT_EQ(std::get<std::int64_t>(item(back, "negative").data), -70000);
  EXPECT_EQ(std::get<std::int64_t>(item(back, "long").data), std::int64_t{-1} << 40);
  EXPECT_EQ(std::get<std::uint64_t>(item(back, "most").data), ~std::uint64_t{0});
  EXPECT_EQ(std::get<double>(item(back, "tenth").data), 0.1);
  EXPECT_EQ(std::get<std::string>(item(back, "text").data), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(std::get<BytesValue>(item(back, "bytes").data).bytes,
            std::string("\x00\x7f\x80\xff", 4));
  EXPECT_EQ(std::get<ListValue>(item(back, "list").data).items.size(), 2u);
  EXPECT_EQ(std::get<TupleValue>(item(back, "tuple").data).items.size(), 2u);
  EXPECT_TRUE(std::get<DictValue>(item(back, "ordered").data).ordered);
  EXPECT_EQ(floats_in(std::get<TensorValue>(item(back, "tensor").data)),
            (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(std::get<TensorValue>(item(back, "f8").data).type, ElementType::float8_e4m3fn);
  EXPECT_EQ(std::get<std::int64_t>(std::get<DictValue>(back.data).items.back().key.data), 5);
}

TEST(TorchArchive, tied_tensors_share_a_storage) {
  const TensorValue weight = floats(std::vector<float>(1000, 1));
  DictValue dict;
  dict.items.push_back({{std::string("a")}, {weight}});
  dict.items.push_back({{std::string("b")}, {weight}});
  EXPECT_EQ(pickle({dict}).storages.size(), 1u);
  const Value back = round_trip({dict});
  EXPECT_EQ(std::get<TensorValue>(item(back, "a").data).bytes.data(),
            std::get<TensorValue>(item(back, "b").data).bytes.data());
}

TEST(Unpickle, a_view_is_made_contiguous) {
  // x[1:].view(...): elements 1, 3, 5 by stride 2; and a transposed matrix.
  const Value strided = unpickle_text(tensor(integer(1), integer(3), integer(2)));
  EXPECT_EQ(floats_in(std::get<TensorValue>(strided.data)), (std::vector<float>{2, 4, 6}));
  const Value transposed =
      unpickle_text(tensor(integer(0), integer(3) + integer(2), integer(1) + integer(3)));
  EXPECT_EQ(floats_in(std::get<TensorValue>(transposed.data)),
            (std::vector<float>{1, 4, 2, 5, 3, 6}));
  const Value expanded =
      unpickle_text(tensor(integer(2), integer(2) + integer(2), "K\x00"s + "K\x00"s));
  EXPECT_EQ(floats_in(std::get<TensorValue>(expanded.data)), (std::vector<float>{3, 3, 3, 3}));
}

TEST(Unpickle, a_tensor_beyond_its_storage_is_refused) {
  EXPECT_EQ(refusal([] { unpickle_text(tensor(integer(0), integer(6), integer(1))); }), "accepted");
  EXPECT_NE(refusal([] { unpickle_text(tensor(integer(1), integer(6), integer(1))); }), "accepted");
  EXPECT_NE(refusal([] { unpickle_text(tensor(integer(0), integer(3), integer(3))); }), "accepted");
  const std::string minus = "J\xff\xff\xff\xff";
  EXPECT_NE(refusal([&] { unpickle_text(tensor(minus, integer(2), integer(1))); }), "accepted");
  EXPECT_NE(refusal([&] { unpickle_text(tensor(integer(0), minus, integer(1))); }), "accepted");
  EXPECT_NE(refusal([&] { unpickle_text(tensor(integer(0), integer(2), minus)); }), "accepted");
}

TEST(Unpickle, an_expanded_tensor_does_not_eat_all_memory) {
  const std::string million = "J\x00\x00\x10\x00"s;
  const std::string zero = "K\x00"s;
  EXPECT_TRUE(
      has(refusal([&] { unpickle_text(tensor(integer(0), million + million, zero + zero)); }),
          "too large"));
}

TEST(Unpickle, names_of_functions_are_refused_and_nothing_is_executed) {
  const std::string attack = kProto + "cposix\nsystem\n" + unicode("touch /tmp/x") + "\x85R.";
  EXPECT_TRUE(has(refusal([&] { unpickle_text(attack); }), "'posix.system'"));
  for (const char* name : {"builtins\neval", "__builtin__\nexec", "torch\nload", "os\nsystem",
                           "numpy.core.multiarray\n_reconstruct", "torch\nTensor"}) {
    const std::string text = concat(kProto, "c", name, "\n.");
    EXPECT_TRUE(has(refusal([&] { unpickle_text(text); }), "nothing of it was executed")) << name;
  }
}

TEST(Unpickle, a_short_pickle_cannot_become_a_huge_tree) {
  // Each list holds the one before ten times.
  std::string text = kProto + "]q" + std::string(1, '\0');
  for (char level = 1; level < 12; ++level) {
    text += concat("](");
    for (int i = 0; i < 10; ++i) text += concat("h", static_cast<char>(level - 1));
    text += concat("eq", level);
  }
  EXPECT_TRUE(has(refusal([&] { unpickle_text(text + "."); }), "larger than its length"));
}

TEST(Unpickle, a_container_that_holds_itself_is_refused) {
  EXPECT_TRUE(
      has(refusal([] { unpickle_text(kProto + "]q\x01h\x01" + "a."); }), "contains itself"));
}

TEST(Unpickle, a_container_filled_after_it_was_memorized_is_seen_filled) {
  // a = []; result = (a, a); a gets an element in between.
  const Value value = unpickle_text(kProto + "]q\x01K\x05" + "ah\x01\x86.");
  const auto& items = std::get<TupleValue>(value.data).items;
  EXPECT_EQ(std::get<ListValue>(items[1].data).items.size(), 1u);
}

TEST(Unpickle, the_last_of_two_equal_keys_counts_as_in_python) {
  const Value value =
      unpickle_text(concat(kProto, "}(", unicode("a"), "K\x01", unicode("a"), "K\x02", "u."));
  EXPECT_EQ(std::get<DictValue>(value.data).items.size(), 1u);
  EXPECT_EQ(std::get<std::int64_t>(item(value, "a").data), 2);
}

TEST(Unpickle, malformed_pickles_are_refused) {
  for (const std::string& text :
       {std::string(), kProto, std::string("."), kProto + "t.", kProto + "R.", kProto + "a.",
        kProto + "]K\x01" + "s.", kProto + "}K\x01s.", kProto + "h\x05.",
        kProto + "X\xff\xff\xff\xffz.", kProto + "(.", std::string("\x80\x04N."), kProto + "\x93.",
        kProto + "(]K\x01" + "u.", kProto + "N}b.", kProto + "Kq\x01Q."}) {
    EXPECT_NE(refusal([&] { unpickle_text(text); }), "accepted") << text;
  }
}

TEST(TorchArchive, other_files_are_refused_with_a_word_about_what_they_are) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& content) {
    write_text(folder / "x.pt", content);
    return refusal([&] { read_torch_archive(FileContent::read(folder / "x.pt")); });
  };
  EXPECT_TRUE(has(read("\x80\x02\x8a\nl\xfc\x9c"
                       "F\xf9 j"),
                  "bare pickle"));
  EXPECT_TRUE(has(read("hello"), "not a zip file"));
  EXPECT_TRUE(has(read(""), "not a zip file"));
  const std::string none;
  EXPECT_TRUE(has(read(zip_of({{"a/b", bytes_of_text(none)}})), "no data.pkl"));
  EXPECT_TRUE(has(
      read(zip_of({{"a/data.pkl", bytes_of_text(none)}, {"a/constants.pkl", bytes_of_text(none)}})),
      "TorchScript"));
  const std::string big = "big", pickle_text = kProto + "N.";
  EXPECT_TRUE(has(read(zip_of({{"a/data.pkl", bytes_of_text(pickle_text)},
                               {"a/byteorder", bytes_of_text(big)}})),
                  "big-endian"));
}

TEST(TorchArchive, a_compressed_member_is_refused_by_name) {
  const std::string text = kProto + "N.";
  std::string file = zip_of({{"a/data.pkl", bytes_of_text(text)}});
  const std::size_t entry = file.find("PK\x01\x02");
  file[entry + 10] = 8;  // deflate
  EXPECT_TRUE(has(refusal([&] { ZipReader(bytes_of_text(file)); }), "compressed"));
}
