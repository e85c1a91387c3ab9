#include "doctor/messages.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

void expect_round_trip(const DoctorContent& content) {
  const DoctorMessage message{.number = 7, .content = content};
  EXPECT_EQ(decode_doctor_message(encode_doctor_message(message)), message);
}

TEST(DoctorMessages, every_message_is_read_as_it_was_written) {
  expect_round_trip(NodeHello{
      .id = "abc",
      .host = "n1",
      .findings = {{.node = "n1", .check = "clock", .level = FindingLevel::note, .what = "w"}},
      .traits = {{"torch", "2.11.0"}, {"NCCL", ""}},
      .listeners = {{.address = "10.0.0.1", .prefix_bits = 24, .port = 4711}},
      .python = "/usr/bin/python3",
      .gpus = 8});
  expect_round_trip(ClockQuestion{});
  expect_round_trip(ClockAnswer{.wall_ns = 1800000000000000000});
  expect_round_trip(NamesQuestion{.hosts = {"n1", "n2"}});
  expect_round_trip(NamesAnswer{.names = {{.addresses = {"10.0.0.1"}, .problem = ""},
                                          {.addresses = {}, .problem = "not known"}}});
  expect_round_trip(
      ProbeQuestion{.id = "abc", .targets = {{.address = "fd00::1", .port = 99, .measure = true}}});
  expect_round_trip(ProbeAnswer{.ways = {{.problem = "refused"},
                                         {.latency_us = 40.5,
                                          .least_latency_us = 30,
                                          .bytes_per_second = 1e9,
                                          .path_mtu = 1500,
                                          .stalled = true}}});
  expect_round_trip(
      MarkQuestion{.action = MarkAction::write, .name = "mark-1", .text = "t", .limit_ms = 5});
  expect_round_trip(MarkAnswer{.problem = "none", .after_ms = 3});
  expect_round_trip(SmokeQuestion{
      .endpoint = "10.0.0.1:80", .run_id = "s", .nodes = 2, .workers = 3, .limit_ms = 4});
  expect_round_trip(PortQuestion{});
  expect_round_trip(PortAnswer{.port = 29400});
  expect_round_trip(SmokeAnswer{.code = 1, .said = "no"});
  expect_round_trip(DoctorEnd{.code = 1, .summary = "1 error"});
}

TEST(DoctorMessages, nonsense_is_refused) {
  for (const char* text :
       {"", "{}", "[]", "{\"number\":1}", "{\"number\":-1,\"kind\":\"clock?\"}",
        "{\"number\":1,\"kind\":\"sing\"}", "{\"number\":1,\"kind\":\"probe?\",\"id\":1}",
        "{\"number\":1,\"kind\":\"clock\",\"wall_ns\":\"now\"}",
        "{\"number\":1,\"kind\":\"probe?\",\"id\":\"a\",\"targets\":[{\"address\":\"10.0.0.1\","
        "\"port\":65536,\"measure\":true}]}"}) {
    EXPECT_THROW(decode_doctor_message(text), InvalidArgument) << text;
  }
}

TEST(DoctorMessages, a_mark_cannot_lead_out_of_the_shared_folder) {
  for (const char* name : {"../mark", "a/b", "", ".hidden", "A"}) {
    const DoctorMessage message{.number = 1, .content = MarkQuestion{.name = name}};
    EXPECT_THROW(decode_doctor_message(encode_doctor_message(message)), InvalidArgument) << name;
  }
}

}  // namespace
}  // namespace lockstep
