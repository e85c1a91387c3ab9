#include "lockstep/memory_plan.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/gpt2.h"
#include "lockstep/gpt2_memory.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// Sizes without padding for up to 8 ranks: the textbook's figures come out whole.
ModelSizes even_sizes() {
  ModelSizes sizes;
  sizes.units.assign(16, {1 << 16});
  return sizes;
}
constexpr std::int64_t kUnit = 1 << 16, kAll = 16 * kUnit;

MemoryByKind memory_of(int stage, int ranks) {
  return predict_memory(even_sizes(), {.stage = stage, .ranks = ranks});
}

Gpt2Config odd_gpt2() {
  Gpt2Config config;
  config.vocab_size = 101;
  config.n_positions = 24;
  config.n_embd = 36;
  config.n_layer = 5;
  config.n_head = 3;
  return config;
}

struct Counts {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0;
};

// What the engine and the optimizer of a GPT-2 count in three steps.
Counts counted(World& world, const ShardedOptions& options, bool checkpointing) {
  Gpt2 model(odd_gpt2(), {.activation_checkpointing = checkpointing, .seed = 5});
  ShardedDataParallel sharded(world, model, options);
  AdamW optimizer(sharded.parameters(), {.lr = 1e-3});
  std::optional<AdamW> of_copy;
  if (options.peer_copies) {
    of_copy.emplace(sharded.engine().parameters(ShardPart::copied), AdamWOptions{.lr = 1e-3});
  }
  for (int step = 0; step < 3; ++step) {
    const at::Tensor ids = torch::randint(101, {2, 20}, torch::kLong);
    sharded.zero_grad();
    const Gpt2Loss loss = sharded(ids, ids.roll(-1, 1));
    (loss.sum / loss.count).backward();
    if (of_copy) sharded.engine().exchange_copy_gradients();
    optimizer.step();
    if (of_copy) of_copy->step();
  }
  Counts counts{.parameters = sharded.memory().most_parameters,
                .gradients = sharded.memory().most_gradients};
  State kept = optimizer.state();
  if (of_copy) {
    for (const auto& [name, tensor] : of_copy->state().tensors) {
      kept.tensors["copied " + name] = tensor;
    }
  }
  for (const auto& [name, tensor] : kept.tensors) {
    if (tensor.numel() > 1) counts.optimizer += static_cast<std::int64_t>(tensor.nbytes());
  }
  return counts;
}

int bytes_of_type(std::optional<at::ScalarType> type, int otherwise) {
  return type ? static_cast<int>(c10::elementSize(*type)) : otherwise;
}

void expect_predicted_counts(const InitOptions& init_options, bool adds_on_receipt,
                             const ShardedOptions& of_all = {}) {
  World world = init(init_options);
  std::vector<ShardedOptions> all;
  for (const int stage : {1, 2, 3}) {
    for (const std::optional<at::ScalarType> gather :
         {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
      all.push_back({.stage = static_cast<ShardStage>(stage),
                     .units = {"h.*"},
                     .gather_type = gather,
                     .reduce_type = gather ? std::optional(at::kFloat) : std::nullopt});
    }
  }
  all.push_back({.units = {"h.*"}, .prefetch = 2});
  all.push_back({.units = {"h.*"}, .prefetch = 0, .reshard_after_forward = false});
  all.push_back({.units = {"h.*"}, .reduce_type = at::kBFloat16});
  for (ShardedOptions& options : all) {
    options.replicas = of_all.replicas;
    options.peer_copies = of_all.peer_copies;
    const Counts found = counted(world, options, /*checkpointing=*/&options == &all.back());
    const int gather_bytes = bytes_of_type(options.gather_type, 4);
    const MemoryByKind predicted = predict_memory(
        gpt2_sizes(odd_gpt2()), {.stage = static_cast<int>(options.stage),
                                 .ranks = world.world_size(),
                                 .replicas = of_all.replicas,
                                 .peer_copies = of_all.peer_copies,
                                 .gather_bytes = gather_bytes,
                                 .reduce_bytes = bytes_of_type(options.reduce_type, gather_bytes),
                                 .prefetch = options.prefetch,
                                 .reshard_after_forward = options.reshard_after_forward,
                                 .adds_on_receipt = adds_on_receipt});
    const std::string what = concat("stage ", static_cast<int>(options.stage), ", gather ",
                                    gather_bytes, ", prefetch ", options.prefetch);
    EXPECT_EQ(predicted.parameters, found.parameters) << what;
    EXPECT_EQ(predicted.gradients, found.gradients) << what;
    // An optimizer has no state for the padding between parameters.
    EXPECT_LE(found.optimizer, predicted.optimizer) << what;
    EXPECT_GT(found.optimizer, predicted.optimizer * 0.9) << what;
  }
}

}  // namespace

TEST(MemoryPlan, ddp_has_everything_on_each_rank) {
  for (const int ranks : {1, 8}) {
    const MemoryByKind memory = memory_of(0, ranks);
    EXPECT_EQ(memory.parameters, 4 * kAll);
    EXPECT_EQ(memory.gradients, 4 * kAll) << "in buckets";
    EXPECT_EQ(memory.optimizer, 8 * kAll);
  }
  EXPECT_EQ(predict_memory(even_sizes(), {.gradient_as_bucket_view = false}).gradients, 8 * kAll)
      << "buckets and gradients";
}

TEST(MemoryPlan, each_stage_keeps_parts_of_one_kind_more) {
  const std::int64_t part = kAll / 8;
  EXPECT_EQ(memory_of(1, 8).parameters, 4 * kAll + 4 * kUnit / 8) << "a copy of one part is sent";
  EXPECT_EQ(memory_of(1, 8).gradients, 4 * kAll + 4 * part);
  EXPECT_EQ(memory_of(1, 8).optimizer, 8 * part);
  // Of the last three units the buffers, of all others the parts.
  EXPECT_EQ(memory_of(2, 8).gradients, 4 * 3 * kUnit + 4 * (part - kUnit / 8));
  EXPECT_EQ(memory_of(3, 8).parameters, 4 * part + 4 * 2 * kUnit);
  EXPECT_EQ(memory_of(3, 8).gradients, memory_of(2, 8).gradients);
}

TEST(MemoryPlan, replicas_take_the_memory_of_fewer_ranks) {
  const auto memory = [](int ranks, int replicas) {
    return predict_memory(even_sizes(), {.stage = 3, .ranks = ranks, .replicas = replicas});
  };
  EXPECT_EQ(memory(8, 2).optimizer, memory(4, 1).optimizer);
  EXPECT_EQ(memory(8, 2).parameters, memory(4, 1).parameters);
  // Of a mean under way there is only a share.
  EXPECT_LT(memory(8, 2).gradients, memory(4, 1).gradients);
  EXPECT_THROW(memory(8, 3), InvalidArgument);
  EXPECT_THROW(memory(8, 0), InvalidArgument);
}

TEST(MemoryPlan, a_copy_at_a_neighbour_is_one_more_part_of_all_but_activations) {
  const MemoryByKind plain = memory_of(3, 8);
  const MemoryByKind copied =
      predict_memory(even_sizes(), {.stage = 3, .ranks = 8, .peer_copies = true});
  const std::int64_t part = kAll / 8;
  EXPECT_EQ(copied.parameters - plain.parameters, 4 * part);
  EXPECT_EQ(copied.optimizer, 2 * plain.optimizer);
  EXPECT_EQ(copied.gradients, std::max(plain.gradients, 8 * part));
  EXPECT_THROW(predict_memory({}, {.stage = 3, .ranks = 1, .peer_copies = true}), InvalidArgument);
  EXPECT_THROW(predict_memory({}, {.stage = 3, .ranks = 4, .replicas = 2, .peer_copies = true}),
               InvalidArgument);
}

TEST(MemoryPlan, more_ranks_and_later_stages_never_take_more) {
  const ModelSizes sizes = gpt2_sizes(Gpt2Config::named("gpt2"));
  for (const int ranks : {2, 4, 8, 64}) {
    std::int64_t before = predict_memory(sizes, {.ranks = ranks}).peak;
    for (const int stage : {1, 2, 3}) {
      const MemoryPlan plan{.stage = stage, .ranks = ranks};
      const std::int64_t peak = predict_memory(sizes, plan).peak;
      EXPECT_LE(peak, before) << stage << " on " << ranks;
      before = peak;
      MemoryPlan larger = plan;
      larger.ranks *= 2;
      EXPECT_LE(predict_memory(sizes, larger).peak, peak);
    }
  }
}

TEST(MemoryPlan, checkpointing_and_small_batches_take_less) {
  const ModelSizes sizes = gpt2_sizes(Gpt2Config::named("gpt2"), {.tokens = 512});
  const auto activations = [&](std::int64_t batch, bool again) {
    return predict_memory(sizes, {.micro_batch = batch, .activation_checkpointing = again})
        .activations;
  };
  EXPECT_LT(activations(8, true), activations(8, false) / 3);
  EXPECT_LT(activations(1, false), activations(2, false));
}

TEST(MemoryPlan, gpt2_has_as_many_parameters_as_its_configuration_says) {
  for (const bool tied : {true, false}) {
    Gpt2Config config = odd_gpt2();
    config.tie_word_embeddings = tied;
    const ModelSizes sizes = gpt2_sizes(config);
    std::int64_t count = 0;
    for (const std::int64_t size : sizes.root) count += size;
    for (const auto& unit : sizes.units) {
      for (const std::int64_t size : unit) count += size;
    }
    EXPECT_EQ(count, config.parameter_count());
  }
}

TEST(MemoryPlan, what_fits_is_the_first_stage_and_the_largest_batch) {
  const ModelSizes sizes = gpt2_sizes(Gpt2Config::named("gpt2"));
  const MemoryPlan asked{.ranks = 4};
  for (const std::int64_t limit : {std::int64_t{2} << 30, std::int64_t{5} << 30}) {
    const auto plan = fit_memory(sizes, asked, limit);
    ASSERT_TRUE(plan);
    EXPECT_LE(predict_memory(sizes, *plan).peak, limit);
    MemoryPlan more = *plan;
    ++more.micro_batch;
    EXPECT_GT(predict_memory(sizes, more).peak, limit);
    for (int stage = 0; stage < plan->stage; ++stage) {
      MemoryPlan simpler = asked;
      simpler.stage = stage;
      EXPECT_GT(predict_memory(sizes, simpler).peak, limit) << stage;
    }
  }
  EXPECT_FALSE(fit_memory(sizes, asked, 1 << 20));
}

TEST(MemoryPlan, impossible_plans_are_refused) {
  EXPECT_THROW(predict_memory({}, {.stage = 4}), InvalidArgument);
  EXPECT_THROW(predict_memory({}, {.ranks = 0}), InvalidArgument);
}

TEST(MemoryPlan, bytes_are_read_and_shown) {
  EXPECT_EQ(parse_bytes("24GiB"), std::int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("1.5 GiB"), std::int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("512MB"), 512'000'000);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  for (const char* text : {"", "GiB", "12 apples", "-1GiB", "3GiBs", "1e30GiB", "0"}) {
    EXPECT_NE(refusal([&] { parse_bytes(text); }).find("is not a number of bytes"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(show_bytes(1023), "1023 B");
  EXPECT_EQ(show_bytes(std::int64_t{3} << 29), "1.50 GiB");
}

TEST(MemoryPlan, a_table_has_a_line_for_each_row) {
  const std::string table = memory_table({{"stage 0", memory_of(0, 2)}, {"3", memory_of(3, 2)}});
  EXPECT_EQ(std::ranges::count(table, '\n'), 3);
  EXPECT_NE(table.find("activations"), std::string::npos);
  EXPECT_NE(table.find("4.00 MiB"), std::string::npos) << table;
}

RANKS_TEST(MemoryPlan, the_engine_counts_what_is_predicted, 3) {
  expect_predicted_counts({}, /*adds_on_receipt=*/false);
}
RANKS_TEST(MemoryPlan, the_engine_counts_what_is_predicted_of_two_copies, 4) {
  expect_predicted_counts({}, /*adds_on_receipt=*/false, {.replicas = 2});
}
RANKS_TEST(MemoryPlan, the_engine_counts_what_is_predicted_of_two_copies_over_gloo, 4) {
  expect_predicted_counts({.backend = "gloo"}, /*adds_on_receipt=*/true, {.replicas = 2});
}
RANKS_TEST(MemoryPlan, the_engine_counts_what_is_predicted_with_copies_at_a_neighbour, 3) {
  expect_predicted_counts({}, /*adds_on_receipt=*/false, {.peer_copies = true});
}
RANKS_TEST(MemoryPlan, the_engine_counts_what_is_predicted_over_gloo, 2) {
  expect_predicted_counts({.backend = "gloo"}, /*adds_on_receipt=*/true);
}
