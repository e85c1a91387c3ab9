// Actors play, a learner learns from what they did: policy gradients on a pole that must not fall.
#include <array>
#include <cmath>
#include <deque>
#include <iostream>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/record.h"
#include "lockstep/rpc.h"
#include "lockstep/world.h"

namespace rpc = lockstep::rpc;

// A pole on a cart that is pushed left or right: it must not fall, and the cart must stay on its
// track. The equations are those of Barto, Sutton and Anderson (1983), with the numbers that
// everyone uses.
class CartPole {
 public:
  static constexpr int kMaxSteps = 200;

  explicit CartPole(std::mt19937& random) {
    std::uniform_real_distribution<float> small(-0.05f, 0.05f);
    for (float& each : state_) each = small(random);
  }

  // Position, speed, angle, angular speed.
  const std::array<float, 4>& state() const { return state_; }
  bool done() const { return done_; }
  int steps() const { return steps_; }

  void push(bool right) {
    auto& [position, speed, angle, turning] = state_;
    constexpr float kGravity = 9.8f, kPoleMass = 0.1f, kMass = 1.1f, kHalfLength = 0.5f,
                    kTime = 0.02f;
    const float force = right ? 10.0f : -10.0f;
    const float sine = std::sin(angle), cosine = std::cos(angle);
    const float pull = (force + kPoleMass * kHalfLength * turning * turning * sine) / kMass;
    const float turning_change =
        (kGravity * sine - cosine * pull) /
        (kHalfLength * (4.0f / 3.0f - kPoleMass * cosine * cosine / kMass));
    const float speed_change = pull - kPoleMass * kHalfLength * turning_change * cosine / kMass;
    position += kTime * speed;
    speed += kTime * speed_change;
    angle += kTime * turning;
    turning += kTime * turning_change;
    ++steps_;
    done_ = std::abs(position) > 2.4f || std::abs(angle) > 0.2095f || steps_ == kMaxSteps;
  }

 private:
  std::array<float, 4> state_{};
  int steps_ = 0;
  bool done_ = false;
};

// What an actor tells: some episodes, step by step.
struct Episodes {
  torch::Tensor states, actions, returns;
  double mean_length = 0;
};

template <>
struct lockstep::rpc::Fields<Episodes> {
  static constexpr const char* name = "Episodes";
  static auto of(auto& each) {
    return std::tie(each.states, each.actions, each.returns, each.mean_length);
  }
};

torch::nn::Sequential make_policy() {
  return torch::nn::Sequential(torch::nn::Linear(4, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 2));
}

// Plays several games at once until each is over.
Episodes play(torch::nn::Sequential& policy, std::mt19937& random) {
  const torch::NoGradGuard no_grad;
  constexpr int kGames = 16;
  std::vector<CartPole> games(kGames, CartPole(random));
  for (CartPole& game : games) game = CartPole(random);
  std::vector<float> states;
  std::vector<std::int64_t> actions, played_by;
  for (;;) {
    std::vector<float> now;
    std::vector<std::int64_t> running;
    for (std::int64_t index = 0; index < kGames; ++index) {
      if (games[index].done()) continue;
      running.push_back(index);
      now.insert(now.end(), games[index].state().begin(), games[index].state().end());
    }
    if (running.empty()) break;
    const auto count = static_cast<std::int64_t>(running.size());
    const auto logits = policy->forward(torch::from_blob(now.data(), {count, 4}));
    const auto chosen = torch::softmax(logits, 1).multinomial(1).contiguous();
    for (std::int64_t index = 0; index < count; ++index) {
      actions.push_back(chosen.data_ptr<std::int64_t>()[index]);
      played_by.push_back(running[index]);
      games[running[index]].push(actions.back() == 1);
    }
    states.insert(states.end(), now.begin(), now.end());
  }
  // What a step was worth: how long the pole stayed up after it, the near future counting most.
  std::vector<float> returns(actions.size()), after(kGames, 0.0f);
  for (std::size_t step = actions.size(); step-- > 0;) {
    float& value = after[played_by[step]];
    returns[step] = value = 1 + 0.97f * value;
  }
  const auto steps = static_cast<std::int64_t>(actions.size());
  return {.states = torch::tensor(states).view({steps, 4}),
          .actions = torch::tensor(actions),
          .returns = torch::tensor(returns),
          .mean_length = static_cast<double>(steps) / kGames};
}

class Learner {
 public:
  torch::Tensor weights() {
    const std::lock_guard lock(mutex_);
    return torch::nn::utils::parameters_to_vector(policy_->parameters());
  }

  // False: there is no more to learn.
  bool learn(const Episodes& episodes) {
    const std::lock_guard lock(mutex_);
    if (finished()) return false;
    const auto worth =
        (episodes.returns - episodes.returns.mean()) / (episodes.returns.std() + 1e-6);
    const auto chances = torch::log_softmax(policy_->forward(episodes.states), 1);
    const auto taken = chances.gather(1, episodes.actions.unsqueeze(1)).squeeze(1);
    optimizer_.zero_grad();
    (-taken * worth).mean().backward();
    optimizer_.step();

    ++updates_;
    lengths_.push_back(episodes.mean_length);
    if (lengths_.size() > 8) lengths_.pop_front();
    if (updates_ % 20 == 0)
      std::cout << "update " << updates_ << ": " << mean() << " steps" << std::endl;
    return !finished();
  }

  double mean() const {
    return std::accumulate(lengths_.begin(), lengths_.end(), 0.0) /
           static_cast<double>(lengths_.size());
  }
  std::int64_t updates() const { return updates_; }

 private:
  bool finished() const { return updates_ == 1000 || (lengths_.size() == 8 && mean() >= 150); }

  std::mutex mutex_;
  torch::nn::Sequential policy_ = make_policy();
  torch::optim::Adam optimizer_{policy_->parameters(), 0.01};
  std::deque<double> lengths_;  // of the last batches
  std::int64_t updates_ = 0;
};

void act(rpc::Agent& agent, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank));
  torch::nn::Sequential policy = make_policy();
  bool more = true;
  while (more) {
    const auto weights = agent.call<torch::Tensor>({"learner", "weights"}).get();
    torch::nn::utils::vector_to_parameters(weights, policy->parameters());
    more = agent.call<bool>({"learner", "learn"}, play(policy, random)).get();
  }
}

int main() {
  return lockstep::record([] {
    lockstep::World world = lockstep::init();
    torch::set_num_threads(1);
    torch::manual_seed(world.rank());
    const bool is_learner = world.rank() == 0;

    Learner learner;
    rpc::Agent agent(world,
                     {.name = is_learner ? "learner" : lockstep::concat("actor", world.rank()),
                      .setup = [&](rpc::Agent& self) {
                        if (!is_learner) return;
                        self.serve("weights", [&] { return learner.weights(); });
                        self.serve("learn", [&](Episodes each) { return learner.learn(each); });
                      }});
    if (!is_learner) act(agent, world.rank());
    agent.shutdown(std::chrono::minutes(5));
    if (is_learner) {
      std::cout << "After " << learner.updates() << " updates the pole stays up for "
                << learner.mean() << " of 200 steps" << std::endl;
    }
    return 0;
  });
}
