#include "launch/device_count.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "launch/cpu_set.h"
#include "launch/kfd.h"
#include "launch/nvml.h"
#include "launch/visible_devices.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::allowed_cpus;
using lockstep::Environment;
using lockstep::find_gpus;
using lockstep::Gpu;
using lockstep::GpuList;
using lockstep::GpuSources;
using lockstep::InvalidArgument;
using lockstep::list_amd_gpus;
using lockstep::list_nvidia_gpus;
using lockstep::resolve_nproc;
using lockstep::visible_devices;
using lockstep::testing::TemporaryFolder;

namespace {

// While it lives, tests/launch/fake_nvml.cpp pretends to be this machine.
class FakeNvml {
 public:
  explicit FakeNvml(const char* machine) { ::setenv("FAKE_NVML", machine, 1); }
  ~FakeNvml() { ::unsetenv("FAKE_NVML"); }

  GpuSources sources() const {
    return {.nvml_library = LOCKSTEP_FAKE_NVML, .sysfs = "/lockstep/no/such/folder"};
  }
};

Environment visible(const std::string& list) {
  return Environment({{"CUDA_VISIBLE_DEVICES", list}});
}

Environment nothing_set() {
  return Environment(Environment::Variables());
}

std::string error_of(const std::string& word, const Environment& environment,
                     const GpuSources& sources) {
  try {
    resolve_nproc(word, environment, sources);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

// The last digits of what is seen: "0,2" for the first and the third of four GPUs.
std::string seen(const std::string& list) {
  const std::vector<Gpu> all = {{.uuid = "GPU-aa0", .pci_address = "0", .mig_uuids = {}},
                                {.uuid = "GPU-aa1", .pci_address = "1", .mig_uuids = {}},
                                {.uuid = "GPU-bb2", .pci_address = "2", .mig_uuids = {}},
                                {.uuid = "GPU-bb3", .pci_address = "3", .mig_uuids = {"MIG-x"}}};
  std::string text;
  for (const Gpu& gpu : visible_devices(all, list)) {
    text += (text.empty() ? "" : ",") + gpu.pci_address;
  }
  return text;
}

}  // namespace

TEST(VisibleDevices, follow_cudas_rules) {
  const struct {
    const char* list;
    const char* expected;
  } cases[] = {
      {"0", "0"},
      {"3,1", "3,1"},
      {" 2 , 0 ", "2,0"},
      {"", ""},
      {" ", ""},
      {"-1", ""},
      {"0,-1,2", "0"},
      {"0,9,2", "0"},
      {"0,0", ""},
      {"0,,2", "0"},
      {"+1,2gpu", "1,2"},
      {"none", ""},
      {"NoDevFiles", ""},
      {"99999999999999999999", ""},
      {"GPU-aa1,GPU-bb2", "1,2"},
      {"GPU-bb2,0", "2"},
      {"GPU-aa", ""},
      {"GPU-aa0,GPU-bb", "0"},
      {"GPU-aa0,GPU-aa0", ""},
      {"GPU-cc", ""},
      {"MIG-x", "3"},
      {"MIG-x,MIG-y", "3"},
      {"MIG-y", ""},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(seen(each.list), each.expected) << "'" << each.list << "'";
  }
}

TEST(Nvml, lists_gpus_with_their_identities) {
  FakeNvml machine("2");
  const GpuList list = list_nvidia_gpus(LOCKSTEP_FAKE_NVML);
  ASSERT_EQ(list.gpus.size(), 2u) << list.problem;
  EXPECT_EQ(list.gpus[0],
            (Gpu{.uuid = "GPU-a000-uuid", .pci_address = "0001:10:00.0", .mig_uuids = {}}));
  EXPECT_EQ(list.gpus[1].pci_address, "0001:11:00.0");
}

TEST(Nvml, lists_the_parts_of_a_divided_gpu) {
  FakeNvml machine("mig");
  const GpuList list = list_nvidia_gpus(LOCKSTEP_FAKE_NVML);
  ASSERT_EQ(list.gpus.size(), 1u) << list.problem;
  EXPECT_EQ(list.gpus[0].mig_uuids, (std::vector<std::string>{"MIG-part0", "MIG-part1"}));
}

TEST(Nvml, says_why_there_is_none) {
  EXPECT_EQ(list_nvidia_gpus("liblockstep-no-such-library.so").problem,
            "NVIDIA's driver is not installed (liblockstep-no-such-library.so cannot be loaded)");
  EXPECT_EQ(list_nvidia_gpus("libm.so.6").problem,
            "NVIDIA's driver is too old: libm.so.6 has no nvmlInit_v2");
  {
    FakeNvml machine("broken");
    EXPECT_EQ(list_nvidia_gpus(LOCKSTEP_FAKE_NVML).problem,
              "NVIDIA's driver does not answer (NVML: Driver Not Loaded)");
  }
  FakeNvml machine("0");
  EXPECT_EQ(list_nvidia_gpus(LOCKSTEP_FAKE_NVML).problem, "NVIDIA's driver knows of none");
}

TEST(FindGpus, honours_the_variable_that_hides_them) {
  FakeNvml machine("4");
  EXPECT_EQ(find_gpus(nothing_set(), machine.sources()).gpus.size(), 4u);
  const GpuList two = find_gpus(visible("GPU-a3,GPU-a1"), machine.sources());
  ASSERT_EQ(two.gpus.size(), 2u);
  EXPECT_EQ(two.gpus[0].pci_address, "0001:13:00.0");
  EXPECT_EQ(find_gpus(visible(""), machine.sources()).problem,
            "this machine has 4, but CUDA_VISIBLE_DEVICES is ''");
}

TEST(FindGpus, finds_amds_in_the_kernels_list) {
  const TemporaryFolder sysfs;
  const auto node = [&](int number, const std::string& properties) {
    const std::string folder = sysfs / ("class/kfd/kfd/topology/nodes/" + std::to_string(number));
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/properties") << properties;
  };
  EXPECT_EQ(list_amd_gpus(sysfs.path().string()).problem, "AMD's driver is not loaded");
  node(0, "cpu_cores_count 64\nsimd_count 0\n");
  EXPECT_EQ(list_amd_gpus(sysfs.path().string()).problem,
            "AMD's driver knows of none that this process may use");
  node(1, "simd_count 304\nlocation_id 49152\ndomain 0\nunique_id 18446744073709551615\n");
  node(2, "");  // not ours to use
  node(10, "simd_count 304\nlocation_id 256\ndomain 2\nunique_id 255\n");

  const GpuSources sources{.nvml_library = "liblockstep-no-such-library.so",
                           .sysfs = sysfs.path().string()};
  const GpuList all = find_gpus(nothing_set(), sources);
  ASSERT_EQ(all.gpus.size(), 2u) << all.problem;
  EXPECT_EQ(all.gpus[0],
            (Gpu{.uuid = "GPU-ffffffffffffffff", .pci_address = "0000:c0:00.0", .mig_uuids = {}}));
  EXPECT_EQ(all.gpus[1],
            (Gpu{.uuid = "GPU-00000000000000ff", .pci_address = "0002:01:00.0", .mig_uuids = {}}));

  // HIP counts among what ROCR left.
  const GpuList one = find_gpus(
      Environment({{"ROCR_VISIBLE_DEVICES", "1"}, {"HIP_VISIBLE_DEVICES", "0"}}), sources);
  ASSERT_EQ(one.gpus.size(), 1u) << one.problem;
  EXPECT_EQ(one.gpus[0].pci_address, "0002:01:00.0");
  EXPECT_EQ(find_gpus(visible("1"), sources).gpus.size(), 1u);
  EXPECT_EQ(resolve_nproc("gpu", nothing_set(), sources), 2);
}

TEST(ResolveNproc, numbers_and_words) {
  FakeNvml machine("3");
  EXPECT_EQ(resolve_nproc("1", nothing_set(), machine.sources()), 1);
  EXPECT_EQ(resolve_nproc("128", nothing_set(), machine.sources()), 128);
  EXPECT_EQ(resolve_nproc("gpu", nothing_set(), machine.sources()), 3);
  EXPECT_EQ(resolve_nproc("auto", nothing_set(), machine.sources()), 3);
  EXPECT_EQ(resolve_nproc("auto", visible("1,0"), machine.sources()), 2);
  const int cpus = static_cast<int>(allowed_cpus().size());
  EXPECT_EQ(resolve_nproc("cpu", nothing_set(), machine.sources()), cpus);
  EXPECT_EQ(resolve_nproc("auto", visible("-1"), machine.sources()), cpus);
}

TEST(ResolveNproc, no_gpu_is_an_error_that_says_why) {
  FakeNvml machine("3");
  EXPECT_EQ(error_of("gpu", visible("-1"), machine.sources()),
            "--nproc-per-node is 'gpu', but no GPU was found: this machine has 3, but "
            "CUDA_VISIBLE_DEVICES is '-1'");
  const GpuSources none{.nvml_library = "liblockstep-no-such-library.so",
                        .sysfs = "/lockstep/no/such/folder"};
  EXPECT_EQ(error_of("gpu", nothing_set(), none),
            "--nproc-per-node is 'gpu', but no GPU was found: NVIDIA's driver is not installed "
            "(liblockstep-no-such-library.so cannot be loaded); AMD's driver is not loaded");
}

TEST(ResolveNproc, what_cannot_be_counted_is_refused_by_name) {
  FakeNvml machine("3");
  for (const char* word : {"xpu", "npu", "hpu"}) {
    EXPECT_EQ(error_of(word, nothing_set(), machine.sources()),
              std::string("--nproc-per-node is '") + word +
                  "', and such devices cannot be counted without PyTorch; give their number");
  }
  for (const char* word : {"", "0", "-2", "2.5", "two", "GPU", " 2"}) {
    EXPECT_EQ(error_of(word, nothing_set(), machine.sources()),
              std::string("--nproc-per-node is '") + word +
                  "'; it must be a positive number, cpu, gpu or auto");
  }
}
