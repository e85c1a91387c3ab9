#include "data/staging.h"

#include <ATen/core/Tensor.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

bool has_accelerator() {
  return at::accelerator::getAccelerator().has_value() && at::accelerator::deviceCount() > 0;
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// "cuda" means the thread's current device; worker threads have another one.
c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

Staging::Staging(bool pin_memory, std::optional<c10::Device> device)
    : pin_(pin_memory && has_accelerator()), device_(device) {
  if (!device_ || !at::accelerator::isAccelerator(device_->type())) return;
  if (!has_accelerator()) {
    throw InvalidArgument(concat("Loader: device is ", *device_, ", but there is none"));
  }
  device_ = with_index(*device_);
  copy_stream_ = c10::impl::VirtualGuardImpl(device_->type()).getStreamFromGlobalPool(*device_);
  pin_ = true;  // a copy from other memory makes the host wait
}

void Staging::follow_current_stream() {
  if (!copy_stream_) return;
  c10::Event given(device_->type());
  given.record(current_stream(*device_));
  given.block(*copy_stream_);
}

std::optional<c10::StreamGuard> Staging::on_copy_stream() const {
  if (!copy_stream_) return std::nullopt;
  return std::make_optional<c10::StreamGuard>(*copy_stream_);
}

std::optional<c10::Event> Staging::stage(const Tensors& tensors) const {
  if (pin_) {
    tensors([](at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_cpu()) tensor = tensor.pin_memory();
    });
  }
  if (!device_) return std::nullopt;
  tensors([this](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.to(*device_, /*non_blocking=*/true);
  });
  if (!copy_stream_) return std::nullopt;
  c10::Event copied(device_->type());
  copied.record(*copy_stream_);
  return copied;
}

void Staging::arrive(const std::optional<c10::Event>& copied, const Tensors& tensors) const {
  if (!copied) return;
  const c10::Stream stream = current_stream(*device_);
  copied->block(stream);
  // The memory was allocated for the stream of the copies: without this it could be given to the
  // next batch while the device still reads this one.
  tensors([&stream](at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_cpu()) tensor.record_stream(stream);
  });
}

}  // namespace lockstep
