#include "track/system_sampler.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "lockstep/tracker.h"
#include "tests/core/temporary_folder.h"
#include "track/metrics_file.h"

using namespace lockstep;
using lockstep::testing::TemporaryFolder;
using nlohmann::json;

TEST(ProcFiles, a_host_is_read) {
  HostCounters host;
  parse_stat("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n", host);
  EXPECT_DOUBLE_EQ(host.busy_seconds / host.all_seconds, 0.2);
  parse_memory("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   600 kB\n", host);
  EXPECT_EQ(host.memory_total, 1024000u);
  EXPECT_EQ(host.memory_available, 614400u);
  parse_network(
      "Inter-|   Receive\n face |bytes\n"
      "    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n"
      "  eth0: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
      "  eth1:1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n",
      host);
  EXPECT_EQ(host.received, 101u);
  EXPECT_EQ(host.sent, 202u);
  parse_disks(
      "8 0 sda 1 0 10 0 1 0 20 0 0 0 0\n8 1 sda1 1 0 10 0 1 0 20 0 0 0 0\n"
      "259 0 nvme0n1 1 0 1 0 1 0 2 0 0 0 0\n259 1 nvme0n1p1 1 0 1 0 1 0 2 0 0 0 0\n"
      "253 0 dm-0 1 0 10 0 1 0 20 0 0 0 0\n",
      host);
  EXPECT_EQ(host.disk_read, 512u * 11);
  EXPECT_EQ(host.disk_written, 512u * 22);
}

TEST(ProcFiles, a_program_may_have_any_name) {
  ProcessCounters process;
  parse_process_stat(
      "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 300 200 13 14 15 16 8 18 19 20 25 22 23\n", process);
  EXPECT_DOUBLE_EQ(process.cpu_seconds, 5);
  EXPECT_EQ(process.threads, 8);
  EXPECT_GT(process.resident, 0u);
  parse_process_stat("nonsense", process);
  parse_process_stat(")", process);
}

TEST(SystemSampler, rates_are_over_the_time_between_and_never_negative) {
  const json sample = process_sample({.cpu_seconds = 1, .read = 100, .written = 5 << 20},
                                     {.cpu_seconds = 2, .read = 0, .written = 7 << 20}, 2);
  EXPECT_DOUBLE_EQ(sample["proc.cpu"], 50);
  EXPECT_DOUBLE_EQ(sample["proc.disk.read_MBps"], 0);
  EXPECT_DOUBLE_EQ(sample["proc.disk.write_MBps"], 1);
  const json gpu = gpu_sample({{.index = 1,
                                .utilization = 90,
                                .memory_used = 25,
                                .memory_total = 100,
                                .power_watts = 300,
                                .temperature = 60}});
  EXPECT_DOUBLE_EQ(gpu["gpu.1.memoryAllocated"], 25);
  EXPECT_DOUBLE_EQ(gpu["gpu.1.powerWatts"], 300);
}

TEST(SystemSampler, samples_come_to_the_records_until_it_ends) {
  const TemporaryFolder folder;
  const std::string path = folder / "run/records/rank_0.jsonl";
  {
    Tracker tracker({.directory = folder / "run"});
    SystemSampler sampler(tracker, {.every = std::chrono::milliseconds(10), .host = true});
    for (int i = 0; i < 500 && read_track_records(path).size() < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  const auto records = read_track_records(path);
  ASSERT_GE(records.size(), 3u);
  const json& sample = records[1];
  EXPECT_EQ(sample["kind"], "system");
  EXPECT_GT(sample["proc.memory.rssMB"].get<double>(), 0);
  EXPECT_GT(sample["memory_percent"].get<double>(), 0);
  EXPECT_TRUE(sample.contains("network.recv_MBps"));
}

// Without a driver there is nothing to tell, and no complaint.
TEST(GpuSensors, a_machine_without_a_driver_has_no_gpus) {
  EXPECT_TRUE(GpuSensors("libno-such-driver.so").read().empty());
}
