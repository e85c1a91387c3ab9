#include "core/hmac.h"

#include <gtest/gtest.h>

using lockstep::equal_in_constant_time;
using lockstep::hmac_sha256;
using lockstep::random_bytes;
using lockstep::to_hex;

// The vectors are those of RFC 4231, section 4; case 5 compares the first 16 bytes, as it says.
TEST(Hmac, agrees_with_the_vectors_of_rfc_4231) {
  EXPECT_EQ(to_hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(to_hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char byte = 1; byte <= 25; ++byte) counting.push_back(byte);
  EXPECT_EQ(to_hex(hmac_sha256(counting, std::string(50, '\xcd'))),
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  EXPECT_EQ(to_hex(hmac_sha256(std::string(20, '\x0c'), "Test With Truncation")).substr(0, 32),
            "a3b6167473100ee06e0c796c2955552b");
  EXPECT_EQ(to_hex(hmac_sha256(std::string(131, '\xaa'),
                               "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(to_hex(hmac_sha256(std::string(131, '\xaa'),
                               "This is a test using a larger than block-size key and a larger "
                               "than block-size data. The key needs to be hashed before being used "
                               "by the HMAC algorithm.")),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Hmac, of_an_empty_key_does_not_depend_on_the_call_before) {
  const std::string empty = hmac_sha256("", "");
  hmac_sha256("another key", "data");
  EXPECT_EQ(hmac_sha256(std::string_view(), ""), empty);
  EXPECT_EQ(to_hex(empty), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(EqualInConstantTime, sees_a_difference_in_any_place_and_in_length) {
  const std::string same(32, 'x');
  EXPECT_TRUE(equal_in_constant_time(same, std::string(32, 'x')));
  for (std::size_t place = 0; place < same.size(); ++place) {
    std::string other = same;
    other[place] ^= 1;
    EXPECT_FALSE(equal_in_constant_time(same, other)) << place;
  }
  EXPECT_FALSE(equal_in_constant_time(same, same + 'x'));
  EXPECT_TRUE(equal_in_constant_time("", ""));
}

TEST(RandomBytes, are_as_many_as_asked_for_and_differ_each_time) {
  EXPECT_EQ(random_bytes(0), "");
  EXPECT_EQ(random_bytes(1000).size(), 1000u);
  EXPECT_NE(random_bytes(32), random_bytes(32));
}
