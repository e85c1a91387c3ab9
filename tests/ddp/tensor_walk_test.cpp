#include "lockstep/tensor_walk.h"

#include <array>
#include <filesystem>
#include <map>
#include <memory>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/data_parallel.h"

namespace {

struct Inner {
  at::Tensor a;
  std::optional<at::Tensor> b;
};

struct Outer {
  Inner inner;
  std::vector<at::Tensor> list;
  std::map<std::string, at::Tensor> named;
  std::string text = "not a tensor";
  double number = 0;
};

// Neither an aggregate nor a container: the user says where its tensors are.
class Opaque {
 public:
  explicit Opaque(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  at::Tensor& get() { return tensor_; }

 private:
  at::Tensor tensor_;
};

template <typename F>
void for_each_tensor(Opaque& value, F&& visit) {
  visit(value.get());
}

template <typename T>
int count(T value) {
  int found = 0;
  auto visit = [&](at::Tensor&) { ++found; };
  lockstep::detail::walk_tensors<true>(value, visit);
  return found;
}

const at::Tensor kOne = torch::ones({1});

}  // namespace

TEST(TensorWalk, finds_tensors_in_whatever_holds_them) {
  EXPECT_EQ(count(kOne), 1);
  EXPECT_EQ(count(std::vector<at::Tensor>{kOne, kOne}), 2);
  EXPECT_EQ(count(std::array<at::Tensor, 3>{kOne, kOne, kOne}), 3);
  EXPECT_EQ(count(std::make_tuple(kOne, 5, std::make_pair(kOne, kOne))), 3);
  EXPECT_EQ(count(std::optional<at::Tensor>()), 0);
  EXPECT_EQ(count(std::optional<at::Tensor>(kOne)), 1);
  EXPECT_EQ(count(std::variant<int, at::Tensor>(kOne)), 1);
  EXPECT_EQ(count(std::make_shared<Inner>(Inner{kOne, kOne})), 2);
  EXPECT_EQ(count(std::map<std::string, std::vector<at::Tensor>>{{"x", {kOne, kOne}}}), 2);
  EXPECT_EQ(count(Outer{.inner = {kOne, std::nullopt}, .list = {kOne}, .named = {{"n", kOne}}}), 3);
  EXPECT_EQ(count(Opaque(kOne)), 1);
}

TEST(TensorWalk, gives_references_that_can_be_replaced) {
  Outer value{.inner = {kOne, kOne}, .list = {kOne}, .named = {{"n", kOne}}};
  auto zero = [](at::Tensor& tensor) { tensor = torch::zeros({1}); };
  lockstep::detail::walk_tensors<true>(value, zero);
  EXPECT_EQ(value.inner.b->item<float>(), 0);
  EXPECT_EQ(value.named.at("n").item<float>(), 0);
}

TEST(TensorWalk, passes_over_what_it_cannot_look_into_where_that_is_allowed) {
  int found = 0;
  auto visit = [&](const at::Tensor&) { ++found; };
  struct Large {
    int a, b, c, d, e, f, g, h, i;
  };
  const auto arguments = std::make_tuple(
      kOne, std::make_unique<int>(3), [] {}, std::filesystem::path("/a/b"), Large{});
  lockstep::detail::walk_tensors<false>(arguments, visit);
  EXPECT_EQ(found, 1);
}

TEST(DataParallel, on_one_device_is_the_module_itself) {
  torch::nn::Linear model(3, 2);
  const at::Tensor input = torch::rand({4, 3});
  const at::Tensor output = lockstep::data_parallel(model, input, {.devices = {at::kCPU}});
  EXPECT_TRUE(torch::equal(output, model(input)));
  output.sum().backward();
  EXPECT_TRUE(torch::equal(model->bias.grad(), torch::full({2}, 4.0)));
}
