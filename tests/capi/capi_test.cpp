#include <csignal>

#include <gtest/gtest.h>

#include "core/subprocess.h"
#include "lockstep/error.h"
#include "lockstep/store.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;

TEST(CApi, a_program_in_c_trains_on_two_ranks) {
  const lockstep::testing::TemporaryFolder folder;
  const Store store = Store::tcp({.serve = true});
  std::vector<Subprocess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back(
        SubprocessOptions{.argv = {LOCKSTEP_C_PROGRAM},
                          .set_environment = {{"RANK", std::to_string(rank)},
                                              {"LOCAL_RANK", std::to_string(rank)},
                                              {"WORLD_SIZE", "2"},
                                              {"LOCAL_WORLD_SIZE", "2"},
                                              {"MASTER_ADDR", "127.0.0.1"},
                                              {"MASTER_PORT", std::to_string(store.port())},
                                              {"CUDA_VISIBLE_DEVICES", ""},
                                              {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
                          .unset_environment = {},
                          .stdout_path = folder / concat("out", rank),
                          .stderr_path = folder / concat("out", rank)});
  }
  for (int rank = 0; rank < 2; ++rank) {
    const auto status = ranks[rank].wait_for(std::chrono::seconds(60));
    EXPECT_TRUE(status && status->success())
        << "rank " << rank << ": " << (status ? status->describe() : "did not end in time") << "\n"
        << lockstep::testing::read_text(folder / concat("out", rank));
  }
}
