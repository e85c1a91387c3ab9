#include "lockstep/gpt2.h"

#include <map>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/error.h"
#include "models/linear_cross_entropy.h"
#include "tests/models/apart.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using lockstep::testing::apart;
using lockstep::testing::refusal;

namespace {

Gpt2Config small() {
  return {.vocab_size = 101,
          .n_positions = 24,
          .n_embd = 32,
          .n_layer = 2,
          .n_head = 4,
          .embd_pdrop = 0,
          .attn_pdrop = 0,
          .resid_pdrop = 0};
}

struct Batch {
  at::Tensor ids;
  at::Tensor labels;
};

Batch some_batch(std::int64_t vocabulary = 101) {
  torch::manual_seed(7);
  Batch batch{.ids = torch::randint(vocabulary, {3, 20}, torch::kLong),
              .labels = torch::randint(vocabulary, {3, 20}, torch::kLong)};
  batch.labels.masked_fill_(torch::rand({3, 20}) < 0.3, kIgnoredLabel);
  return batch;
}

std::map<std::string, at::Tensor> gradients_of(Gpt2& model, const Batch& batch) {
  model->zero_grad();
  torch::manual_seed(11);
  const Gpt2Loss loss = model->forward(batch.ids, batch.labels);
  (loss.sum / loss.count).backward();
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : model->named_parameters()) {
    gradients[item.key()] = item.value().grad().clone();
  }
  return gradients;
}

void expect_equal(const std::map<std::string, at::Tensor>& a,
                  const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << name;
}

}  // namespace

TEST(Gpt2, parameters_have_the_names_of_hugging_face) {
  const Gpt2 model(small());
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters.size(), 4u + 2 * 12);
  EXPECT_EQ(parameters["wte.weight"].sizes(), (std::vector<std::int64_t>{101, 32}));
  EXPECT_EQ(parameters["h.1.attn.c_attn.weight"].sizes(), (std::vector<std::int64_t>{32, 96}));
  EXPECT_EQ(parameters["h.0.mlp.c_proj.bias"].sizes(), (std::vector<std::int64_t>{32}));
  std::int64_t count = 0;
  for (const auto& item : parameters) count += item.value().numel();
  EXPECT_EQ(count, small().parameter_count());
}

TEST(Gpt2, the_named_shapes_have_the_published_sizes) {
  EXPECT_EQ(Gpt2Config::named("gpt2").parameter_count(), 124439808);
  EXPECT_EQ(Gpt2Config::named("gpt2-medium").parameter_count(), 354823168);
  EXPECT_EQ(Gpt2Config::named("gpt2-large").parameter_count(), 774030080);
  EXPECT_EQ(Gpt2Config::named("gpt2-xl").parameter_count(), 1557611200);
  EXPECT_LT(Gpt2Config::named("tiny").parameter_count(), 1000000);
  EXPECT_THROW(Gpt2Config::named("gpt3"), InvalidArgument);
}

TEST(Gpt2, initial_weights_depend_on_the_seed_alone) {
  Gpt2Config config = small();
  config.n_layer = 8;
  config.n_embd = 128;
  const Gpt2 a(config, {.seed = 5});
  torch::rand({3});
  const Gpt2 b(config, {.seed = 5});
  const Gpt2 c(config, {.seed = 6});
  const auto left = a->named_parameters(), right = b->named_parameters();
  for (const auto& item : left) EXPECT_TRUE(item.value().equal(right[item.key()])) << item.key();
  EXPECT_FALSE(left["wte.weight"].equal(c->named_parameters()["wte.weight"]));

  const auto deviation = [&](const char* name) { return left[name].std().item<double>(); };
  EXPECT_NEAR(deviation("h.3.attn.c_attn.weight"), 0.02, 0.0005);
  EXPECT_NEAR(deviation("h.3.attn.c_proj.weight"), 0.02 / 4, 0.0002);  // sqrt(2 * 8)
  EXPECT_NEAR(deviation("h.7.mlp.c_proj.weight"), 0.02 / 4, 0.0002);
  EXPECT_EQ(left["h.0.ln_1.weight"].min().item<float>(), 1);
  EXPECT_EQ(left["h.0.mlp.c_fc.bias"].abs().max().item<float>(), 0);
}

TEST(Gpt2, the_loss_is_that_of_the_logits) {
  Gpt2 model(small());
  const Batch batch = some_batch();
  const Gpt2Loss loss = model->forward(batch.ids, batch.labels);
  EXPECT_EQ(loss.count, batch.labels.ne(kIgnoredLabel).sum().item<std::int64_t>());
  const at::Tensor logits = model->forward(batch.ids);
  const at::Tensor expected = torch::cross_entropy_loss(
      logits.reshape({-1, 101}), batch.labels.reshape({-1}), {}, at::Reduction::Sum, kIgnoredLabel);
  EXPECT_NEAR(loss.sum.item<double>(), expected.item<double>(), 1e-3);

  const torch::NoGradGuard no_graph;
  EXPECT_TRUE(model->forward(batch.ids, batch.labels).sum.equal(loss.sum.detach()));
}

TEST(Gpt2, no_label_means_a_loss_of_zero_over_nothing) {
  Gpt2 model(small());
  Batch batch = some_batch();
  batch.labels.fill_(kIgnoredLabel);
  const Gpt2Loss loss = model->forward(batch.ids, batch.labels);
  EXPECT_EQ(loss.count, 0);
  EXPECT_EQ(loss.sum.item<float>(), 0);
  loss.sum.backward();
  EXPECT_EQ(model->named_parameters()["h.0.mlp.c_fc.weight"].grad().abs().max().item<float>(), 0);
}

TEST(Gpt2, a_second_backward_of_a_loss_is_refused) {
  Gpt2 model(small());
  const Batch batch = some_batch();
  const Gpt2Loss loss = model->forward(batch.ids, batch.labels);
  loss.sum.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(loss.sum.backward(), Error);
}

TEST(Gpt2, a_token_sees_only_what_comes_before_it) {
  Gpt2 model(small());
  const Batch batch = some_batch();
  const torch::NoGradGuard no_graph;
  const at::Tensor before = model->forward(batch.ids);
  at::Tensor changed = batch.ids.clone();
  changed.narrow(1, 12, 8).fill_(3);
  const at::Tensor after = model->forward(changed);
  EXPECT_LT(apart(after.narrow(1, 0, 12), before.narrow(1, 0, 12)), 1e-6);
  EXPECT_GT(apart(after.narrow(1, 12, 8), before.narrow(1, 12, 8)), 1e-3);
}

TEST(Gpt2, checkpointing_gives_the_same_bits_with_dropout) {
  Gpt2Config config = small();
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0.2;
  Gpt2 plain(config, {.seed = 1});
  Gpt2 checkpointed(config, {.activation_checkpointing = true, .seed = 1});
  const Batch batch = some_batch();
  expect_equal(gradients_of(plain, batch), gradients_of(checkpointed, batch));
  const at::Tensor next = torch::rand({1});  // recomputing left the generator alone
  gradients_of(plain, batch);
  EXPECT_TRUE(torch::rand({1}).equal(next));
}

TEST(Gpt2, checkpointing_gives_the_same_bits_under_autocast) {
  Gpt2 plain(small(), {.seed = 1});
  Gpt2 checkpointed(small(), {.activation_checkpointing = true, .seed = 1});
  const Batch batch = some_batch();
  const auto gradients = [&](Gpt2& model) {
    Gpt2Loss loss;
    {
      const Autocast autocast({});
      loss = model->forward(batch.ids, batch.labels);
    }
    loss.sum.backward();
    std::map<std::string, at::Tensor> found;
    for (const auto& item : model->named_parameters()) found[item.key()] = item.value().grad();
    return found;
  };
  const auto expected = gradients(plain);
  expect_equal(expected, gradients(checkpointed));
  EXPECT_EQ(expected.at("wte.weight").scalar_type(), torch::kFloat);
}

TEST(Gpt2, checkpointing_leaves_frozen_parameters_alone) {
  Gpt2 model(small(), {.activation_checkpointing = true});
  auto parameters = model->named_parameters();
  parameters["h.0.mlp.c_fc.weight"].set_requires_grad(false);
  const Batch batch = some_batch();
  model->forward(batch.ids, batch.labels).sum.backward();
  EXPECT_FALSE(parameters["h.0.mlp.c_fc.weight"].grad().defined());
  EXPECT_TRUE(parameters["h.0.mlp.c_fc.bias"].grad().defined());
}

TEST(Gpt2, low_precision_stays_near_float32) {
  Gpt2 exact(small(), {.seed = 2});
  Gpt2 half(small(), {.seed = 2});
  half->to(torch::kBFloat16);
  const Batch batch = some_batch();
  const double expected = exact->forward(batch.ids, batch.labels).sum.item<double>();
  const Gpt2Loss loss = half->forward(batch.ids, batch.labels);
  EXPECT_EQ(loss.sum.scalar_type(), torch::kFloat);
  EXPECT_NEAR(loss.sum.item<double>() / expected, 1, 0.01);
  loss.sum.backward();
  EXPECT_EQ(half->named_parameters()["wte.weight"].grad().scalar_type(), torch::kBFloat16);
  {
    const Autocast autocast({});
    EXPECT_NEAR(exact->forward(batch.ids, batch.labels).sum.item<double>() / expected, 1, 0.01);
    EXPECT_EQ(exact->forward(batch.ids).scalar_type(), torch::kBFloat16);
  }
}

TEST(Gpt2, padding_of_the_vocabulary_changes_nothing_but_speed) {
  Gpt2 plain(small(), {.seed = 3});
  Gpt2 padded(small(), {.pad_vocab_to_multiple_of = 64, .seed = 3});
  const Batch batch = some_batch();
  EXPECT_EQ(padded->forward(batch.ids).size(-1), 101);
  EXPECT_LT(apart(padded->forward(batch.ids), plain->forward(batch.ids)), 1e-6);
  const auto expected = gradients_of(plain, batch), found = gradients_of(padded, batch);
  for (const auto& [name, gradient] : expected) {
    EXPECT_EQ(found.at(name).sizes(), gradient.sizes()) << name;
    EXPECT_LT(apart(found.at(name), gradient), 1e-5) << name;
  }
}

TEST(Gpt2, resizing_keeps_old_embeddings_and_gives_new_ones_their_mean) {
  for (const bool tied : {true, false}) {
    Gpt2Config config = small();
    config.tie_word_embeddings = tied;
    Gpt2 model(config, {.seed = 4});
    const at::Tensor old = model->named_parameters()["wte.weight"].detach().clone();
    model->resize_token_embeddings(110);
    const auto parameters = model->named_parameters();
    const at::Tensor& fresh = parameters["wte.weight"];
    EXPECT_EQ(model->config().vocab_size, 110);
    EXPECT_TRUE(fresh.narrow(0, 0, 101).equal(old));
    EXPECT_TRUE(fresh[105].allclose(old.mean(0)));
    EXPECT_EQ(model->forward(some_batch(110).ids).size(-1), 110);
    const Batch batch = some_batch(110);
    EXPECT_EQ(gradients_of(model, batch).at("wte.weight").size(0), 110);
    model->resize_token_embeddings(101);
    EXPECT_TRUE(parameters["wte.weight"].equal(old));
  }
}

TEST(Gpt2, dropout_can_be_changed_and_acts_in_training_alone) {
  Gpt2 model(small());
  const Batch batch = some_batch();
  const torch::NoGradGuard no_graph;
  const at::Tensor before = model->forward(batch.ids);
  model->set_dropout(0.5);
  EXPECT_EQ(model->config().attn_pdrop, 0.5);
  EXPECT_FALSE(model->forward(batch.ids).equal(before));
  model->eval();
  EXPECT_TRUE(model->forward(batch.ids).allclose(before, 1e-5, 1e-6));
  EXPECT_THROW(model->set_dropout(1), InvalidArgument);
  EXPECT_EQ(model->config().embd_pdrop, 0.5);
}

TEST(Gpt2, a_clone_is_equal_and_apart) {
  Gpt2 model(small(), {.seed = 9});
  const auto copy = std::dynamic_pointer_cast<Gpt2Impl>(model->clone());
  ASSERT_TRUE(copy);
  const Batch batch = some_batch();
  const torch::NoGradGuard no_graph;
  EXPECT_TRUE(copy->forward(batch.ids).equal(model->forward(batch.ids)));
  copy->named_parameters()["wpe.weight"].zero_();
  EXPECT_FALSE(copy->forward(batch.ids).equal(model->forward(batch.ids)));
}

TEST(Gpt2, what_cannot_work_is_said_with_its_value) {
  Gpt2 model(small());
  EXPECT_EQ(refusal([&] {
              model->forward(torch::zeros({1, 25}, torch::kLong));
            }),
            "Gpt2: a sequence has 25 tokens; the model's n_positions is 24");
  EXPECT_THROW(model->forward(torch::zeros({25}, torch::kLong)), InvalidArgument);
  EXPECT_THROW(model->forward(torch::zeros({1, 4})), InvalidArgument);
  EXPECT_THROW(model->forward(torch::zeros({1, 4}, torch::kLong), torch::zeros({4}, torch::kLong)),
               InvalidArgument);
  EXPECT_EQ(refusal([&] {
              model->forward(torch::full({1, 4}, 101, torch::kLong));
            }),
            "Gpt2: token 101 is not in the vocabulary, which has 101");
  EXPECT_THROW(model->forward(torch::full({1, 4}, -1, torch::kLong)), InvalidArgument);
  for (const std::int64_t label : {101, -1, -99}) {
    EXPECT_THROW(model->forward(torch::zeros({1, 4}, torch::kLong),
                                torch::full({1, 4}, label, torch::kLong)),
                 InvalidArgument);
  }
  Gpt2Config config = small();
  config.n_head = 5;
  EXPECT_EQ(refusal([&] { Gpt2{config}; }),
            "Gpt2Config: n_embd is 32 and n_head is 5; each head needs the same share");
  EXPECT_THROW(Gpt2(small(), Gpt2Options{.pad_vocab_to_multiple_of = 0}), InvalidArgument);
}

// The loss does not depend on how many rows are looked at together, and equals ATen's.
TEST(LinearCrossEntropy, chunks_of_any_size_give_the_gradients_of_cross_entropy) {
  torch::manual_seed(1);
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const at::Tensor hidden = torch::randn({37, 16}, type) * 3;
    const at::Tensor weight = torch::randn({1003, 16}, type);
    at::Tensor labels = torch::randint(1003, {37}, torch::kLong);
    labels[4] = labels[20] = -100;
    at::Tensor h = hidden.clone().requires_grad_(), w = weight.clone().requires_grad_();
    const at::Tensor expected =
        torch::cross_entropy_loss(torch::mm(h, w.t()), labels, {}, at::Reduction::Sum, -100);
    (expected / 35).backward();
    for (const std::int64_t rows : {1, 5, 35, 1000}) {
      at::Tensor a = hidden.clone().requires_grad_(), b = weight.clone().requires_grad_();
      const auto loss = linear_cross_entropy(a, b, labels, {.chunk_bytes = rows * 1003 * 4});
      EXPECT_EQ(loss.count, 35);
      EXPECT_NEAR(loss.sum.item<double>() / expected.item<double>(), 1, 1e-6);
      (loss.sum / 35).backward();
      EXPECT_LT(apart(a.grad(), h.grad()), 2e-6) << rows;
      EXPECT_LT(apart(b.grad(), w.grad()), 2e-6) << rows;
    }
  }
}

TEST(LinearCrossEntropy, large_logits_neither_overflow_nor_hide_a_nan) {
  const at::Tensor weight = torch::eye(40) * 100;
  at::Tensor hidden = torch::eye(40);
  const at::Tensor labels = torch::arange(40);
  EXPECT_NEAR(linear_cross_entropy(hidden * 50, weight, labels).sum.item<double>(), 0, 1e-6);
  const at::Tensor others = (labels + 1).remainder(40);
  EXPECT_NEAR(linear_cross_entropy(hidden * 50, weight, others).sum.item<double>() / 40, 5000, 1);
  hidden[3][3] = NAN;
  EXPECT_TRUE(std::isnan(linear_cross_entropy(hidden, weight, labels).sum.item<double>()));
  hidden[3][3] = INFINITY;
  EXPECT_FALSE(std::isfinite(linear_cross_entropy(hidden, weight, others).sum.item<double>()));
}
