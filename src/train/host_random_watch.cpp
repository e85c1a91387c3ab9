#include "train/host_random_watch.h"

#include <algorithm>
#include <memory>

#include <ATen/core/function_schema.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

namespace lockstep {
namespace {

thread_local std::string* found = nullptr;  // of the watch of this thread

// Whatever draws takes a generator in the end, and a tensor that it fills or that says where it
// computes.
bool draws_on_cpu(const at::RecordFunction& call) {
  const auto schema = call.operator_schema();
  if (!schema) return false;
  const bool draws = std::ranges::any_of(
      schema->arguments(), [](const c10::Argument& one) { return one.name() == "generator"; });
  return draws && std::ranges::any_of(call.inputs(), [](const c10::IValue& input) {
           return input.isTensor() && input.toTensor().defined() && input.toTensor().is_cpu();
         });
}

std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call) {
  if (found != nullptr && found->empty() && draws_on_cpu(call)) *found = call.name();
  return nullptr;
}

}  // namespace

HostRandomWatch::HostRandomWatch()
    : handle_(
          at::addThreadLocalCallback(at::RecordFunctionCallback(on_call).needsInputs(true).scopes(
              {at::RecordScope::FUNCTION}))) {
  found = &drawn_by_;
}

HostRandomWatch::~HostRandomWatch() {
  at::removeCallback(handle_);
  found = nullptr;
}

}  // namespace lockstep
