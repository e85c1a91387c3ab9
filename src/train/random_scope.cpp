#include "lockstep/random_scope.h"

#include <mutex>
#include <optional>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/CPUGeneratorImpl.h>

namespace lockstep {
namespace {

// The finalizer of splitmix64: every bit of the input reaches every bit of the output.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

at::CPUGeneratorImpl& cpu_generator() {
  return *at::get_generator_or_default<at::CPUGeneratorImpl>(std::nullopt,
                                                             at::detail::getDefaultCPUGenerator());
}

}  // namespace

std::uint64_t seed_of(const RandomPlace& place) {
  std::uint64_t seed = mix(place.seed);
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(place.step), static_cast<std::uint64_t>(place.slot),
        static_cast<std::uint64_t>(place.micro_batch), place.purpose}) {
    seed = mix(seed ^ part);
  }
  return seed;
}

// The CPU's generator is saved piece by piece: its state as a tensor would cost ten times as much,
// and this stands in every step. The engine is a copy from the start, because one made by default
// would be seeded for nothing.
struct RandomScope::Saved {
  /// The generator's mutex is held.
  explicit Saved(at::CPUGeneratorImpl& cpu)
      : engine(cpu.engine()),
        next_float(cpu.next_float_normal_sample()),
        next_double(cpu.next_double_normal_sample()) {}

  at::mt19937 engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  std::optional<at::Generator> device_generator;
  at::Tensor device_state;
};

RandomScope::RandomScope(const RandomPlace& place, c10::Device device) {
  const std::uint64_t seed = seed_of(place);
  at::CPUGeneratorImpl& cpu = cpu_generator();
  {
    const std::lock_guard lock(cpu.mutex_);
    saved_ = std::make_unique<Saved>(cpu);
    cpu.set_current_seed(seed);
  }
  if (!device.is_cpu()) {
    saved_->device_generator = at::globalContext().defaultGenerator(device);
    at::Generator& generator = *saved_->device_generator;
    const std::lock_guard lock(generator.mutex());
    saved_->device_state = generator.get_state();
    generator.set_current_seed(seed);
  }
}

RandomScope::~RandomScope() {
  at::CPUGeneratorImpl& cpu = cpu_generator();
  {
    const std::lock_guard lock(cpu.mutex_);
    cpu.set_engine(saved_->engine);
    cpu.set_next_float_normal_sample(saved_->next_float);
    cpu.set_next_double_normal_sample(saved_->next_double);
  }
  if (saved_->device_generator) {
    const std::lock_guard lock(saved_->device_generator->mutex());
    saved_->device_generator->set_state(saved_->device_state);
  }
}

}  // namespace lockstep
