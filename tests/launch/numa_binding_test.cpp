#include "launch/numa_binding.h"

#include <sched.h>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::affinity_mask;
using lockstep::allowed_cpus;
using lockstep::bind_ranks;
using lockstep::CpuSet;
using lockstep::CpuTopology;
using lockstep::format_cpu_list;
using lockstep::Gpu;
using lockstep::InvalidArgument;
using lockstep::NumaBinding;
using lockstep::parse_cpu_list;
using lockstep::set_affinity;
using lockstep::SystemError;
using lockstep::testing::TemporaryFolder;

namespace {

// A sysfs tree of a machine: two sockets of two NUMA nodes, four cores of two threads each; the
// second thread of core c is processor c + 16. Cores 2k and 2k + 1 share a last cache.
class Machine {
 public:
  Machine() {
    for (int node = 0; node < 4; ++node) {
      const int first = node * 4;
      write("devices/system/node/node" + std::to_string(node) + "/cpulist",
            range(first, first + 3) + "," + range(first + 16, first + 19));
    }
    write("devices/system/node/node4/cpulist", "");  // memory only
    // Processors that say the same share their files: a tree of its own for each takes a second.
    cache("caches/first_instruction", "4", "Instruction", "0-31");
    cache("caches/first_data", "1", "Data", "0");
    for (int core = 0; core < 16; core += 2) {
      cache("caches/last" + std::to_string(core), "3", "Unified",
            range(core, core + 1) + "," + range(core + 16, core + 17));
    }
    for (int core = 0; core < 16; ++core) {
      const std::string folder = "devices/system/cpu/cpu" + std::to_string(core);
      write(folder + "/topology/physical_package_id", std::to_string(core / 8));
      write(folder + "/topology/thread_siblings_list",
            std::to_string(core) + "," + std::to_string(core + 16));
      std::filesystem::create_directories(sysfs_ / (folder + "/cache"));
      link(folder + "/cache/index0", "caches/first_instruction");
      link(folder + "/cache/index1", "caches/first_data");
      link(folder + "/cache/index2", "caches/last" + std::to_string(core / 2 * 2));
      link("devices/system/cpu/cpu" + std::to_string(core + 16), folder);
    }
  }

  // A GPU at this node; -1 as a machine says that has only one.
  void add_gpu(int node) {
    const std::string address = "0000:" + std::to_string(10 + gpus.size()) + ":00.0";
    write("bus/pci/devices/" + address + "/numa_node", std::to_string(node));
    gpus.push_back({.uuid = "", .pci_address = address, .mig_uuids = {}});
  }

  void remove(const std::string& path) { std::filesystem::remove_all(sysfs_ / path); }

  CpuTopology topology(const std::string& allowed = "0-31") const {
    return CpuTopology({.sysfs = sysfs_.path().string(), .allowed = parse_cpu_list(allowed)});
  }

  std::vector<std::string> bind(NumaBinding binding, int ranks,
                                const std::string& allowed = "0-31") const {
    std::vector<std::string> lists;
    for (const CpuSet& cpus : bind_ranks(binding, ranks, gpus, topology(allowed))) {
      lists.push_back(format_cpu_list(cpus));
    }
    return lists;
  }

  std::vector<Gpu> gpus;

 private:
  static std::string range(int first, int last) {
    return std::to_string(first) + "-" + std::to_string(last);
  }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = sysfs_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  void link(const std::string& path, const std::string& target) {
    std::filesystem::create_symlink(sysfs_ / target, sysfs_ / path);
  }

  void cache(const std::string& folder, const std::string& level, const std::string& type,
             const std::string& sharing) {
    write(folder + "/level", level);
    write(folder + "/type", type);
    write(folder + "/shared_cpu_list", sharing);
  }

  TemporaryFolder sysfs_;
};

using Lists = std::vector<std::string>;

}  // namespace

TEST(CpuList, is_read_and_written_in_the_kernels_notation) {
  EXPECT_EQ(parse_cpu_list("0-2,4,6-7\n"), (CpuSet{0, 1, 2, 4, 6, 7}));
  EXPECT_EQ(parse_cpu_list("\n"), CpuSet());
  EXPECT_EQ(format_cpu_list({0, 1, 2, 4, 6, 7}), "0-2,4,6-7");
  EXPECT_EQ(format_cpu_list({}), "");
  for (const char* text : {"a", "3-1", "-1", "1-", "1,,2", "0-99999999999"}) {
    EXPECT_THROW(parse_cpu_list(text), InvalidArgument) << text;
  }
}

TEST(Affinity, a_bound_thread_runs_where_it_was_bound) {
  const CpuSet all = allowed_cpus();
  ASSERT_FALSE(all.empty());
  const int last = *all.rbegin();
  CpuSet bound;
  int runs_on = -1;
  std::thread([&] {
    if (set_affinity(0, affinity_mask({last}))) {
      bound = allowed_cpus();
      runs_on = ::sched_getcpu();
    }
  }).join();
  EXPECT_EQ(bound, CpuSet{last});
  EXPECT_EQ(runs_on, last);
  EXPECT_FALSE(set_affinity(0, affinity_mask({})));
  EXPECT_EQ(allowed_cpus(), all);
}

TEST(CpuTopology, nodes_without_usable_processors_are_left_out) {
  const Machine machine;
  EXPECT_EQ(machine.topology().nodes(), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(machine.topology("2-5").nodes(), (std::vector<int>{0, 1}));
  EXPECT_EQ(machine.topology("2-5").cpus_of_node(1), (CpuSet{4, 5}));
}

TEST(CpuTopology, a_kernel_without_numa_has_one_node) {
  Machine machine;
  machine.remove("devices/system/node");
  EXPECT_EQ(machine.topology().nodes(), std::vector<int>{0});
  EXPECT_EQ(machine.topology("2-5").cpus_of_node(0), (CpuSet{2, 3, 4, 5}));
}

TEST(CpuTopology, this_machine_can_be_described) {
  const CpuTopology topology;
  const std::vector<int> nodes = topology.nodes();
  ASSERT_FALSE(nodes.empty());
  CpuSet all;
  for (const int node : nodes) {
    all.merge(topology.cpus_of_node(node));
  }
  EXPECT_EQ(all, allowed_cpus());
}

TEST(NumaBinding, node_gives_the_processors_beside_the_gpu) {
  Machine machine;
  machine.add_gpu(3);
  machine.add_gpu(0);
  machine.add_gpu(-1);
  EXPECT_EQ(machine.bind(NumaBinding::node, 3), (Lists{"12-15,28-31", "0-3,16-19", "0-3,16-19"}));
}

TEST(NumaBinding, socket_gives_all_nodes_of_the_socket) {
  Machine machine;
  machine.add_gpu(3);
  machine.add_gpu(0);
  EXPECT_EQ(machine.bind(NumaBinding::socket, 2), (Lists{"8-15,24-31", "0-7,16-23"}));
}

TEST(NumaBinding, exclusive_divides_cores_and_keeps_their_threads_together) {
  Machine machine;
  machine.add_gpu(1);
  machine.add_gpu(0);
  machine.add_gpu(1);
  EXPECT_EQ(machine.bind(NumaBinding::exclusive, 3),
            (Lists{"4-5,20-21", "0-3,16-19", "6-7,22-23"}));
  // A third GPU at node 1: four cores for three, the lowest gets one more.
  machine.add_gpu(1);
  EXPECT_EQ(machine.bind(NumaBinding::exclusive, 4),
            (Lists{"4-5,20-21", "0-3,16-19", "6,22", "7,23"}));
}

TEST(NumaBinding, exclusive_counts_gpus_that_no_rank_uses_as_torchrun_does) {
  Machine machine;
  machine.add_gpu(0);
  machine.add_gpu(0);
  EXPECT_EQ(machine.bind(NumaBinding::exclusive, 1), Lists{"0-1,16-17"});
}

TEST(NumaBinding, core_complexes_go_largest_first_and_then_around) {
  Machine machine;
  for (int gpu = 0; gpu < 3; ++gpu) {
    machine.add_gpu(0);
  }
  EXPECT_EQ(machine.bind(NumaBinding::core_complex, 3),
            (Lists{"0-1,16-17", "2-3,18-19", "0-1,16-17"}));
  // One thread of the first complex may not be used: the second is larger.
  EXPECT_EQ(machine.bind(NumaBinding::core_complex, 3, "0-16,18-31"),
            (Lists{"2-3,18-19", "0-1,16", "2-3,18-19"}));
}

TEST(NumaBinding, without_caches_a_node_is_one_complex) {
  Machine machine;
  machine.add_gpu(1);
  for (int core = 0; core < 16; ++core) {
    machine.remove("devices/system/cpu/cpu" + std::to_string(core) + "/cache");
  }
  EXPECT_EQ(machine.bind(NumaBinding::core_complex, 1), Lists{"4-7,20-23"});
}

TEST(NumaBinding, without_gpus_ranks_take_the_nodes_in_turn) {
  const Machine machine;
  EXPECT_EQ(machine.bind(NumaBinding::node, 5),
            (Lists{"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31", "0-3,16-19"}));
  EXPECT_EQ(machine.bind(NumaBinding::exclusive, 5),
            (Lists{"0-1,16-17", "4-7,20-23", "8-11,24-27", "12-15,28-31", "2-3,18-19"}));
}

TEST(NumaBinding, ranks_beyond_the_gpus_share_them) {
  Machine machine;
  machine.add_gpu(2);
  EXPECT_EQ(machine.bind(NumaBinding::exclusive, 2), (Lists{"8-9,24-25", "10-11,26-27"}));
}

TEST(NumaBinding, too_few_cores_for_all_is_an_error) {
  Machine machine;
  for (int gpu = 0; gpu < 5; ++gpu) {
    machine.add_gpu(0);
  }
  EXPECT_THROW(machine.bind(NumaBinding::exclusive, 5), InvalidArgument);
  EXPECT_NO_THROW(machine.bind(NumaBinding::node, 5));
}

TEST(NumaBinding, a_rank_without_a_usable_processor_is_named) {
  Machine machine;
  machine.add_gpu(0);
  machine.add_gpu(2);
  try {
    machine.bind(NumaBinding::node, 2, "0-7");
    FAIL() << "a rank was bound to nothing";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "--numa-binding is 'node', but local rank 1 belongs to NUMA node 2, none of whose "
                 "processors may be used here (allowed: 0-7)");
  }
}

TEST(NumaBinding, a_machine_that_does_not_say_is_an_error_with_the_file) {
  Machine machine;
  machine.add_gpu(0);
  machine.remove("bus/pci");
  try {
    machine.bind(NumaBinding::node, 1);
    FAIL() << "bound without knowing where the GPU is";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("0000:10:00.0/numa_node"), std::string::npos)
        << error.what();
  }
}
