// SPDX-License-Identifier: MIT
#include "tessera/runtime/stream.hpp"

#include <utility>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/gpu/device.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {

bool Event::done() const {
  return mark_ == nullptr || mark_->done();
}
void Event::wait() const {
  if (mark_ != nullptr) mark_->wait();
}

Event record(Device device) {
  return is_gpu(device) ? Event(gpu(device).record()) : Event();
}

Event copy_async(const Tensor& from, const Tensor& to, const Event& after) {
  check::shape("copy_async", {"to", to}, from.shape());
  check::dtype("copy_async", {"to", to}, from.dtype());
  for (const auto& [name, tensor] : {check::Operand{"from", from}, check::Operand{"to", to}})
    if (!tensor.is_contiguous())
      check::bad_strides("copy_async", {name, tensor}, "contiguous operands");
  if (!is_gpu(from.device()) && !is_gpu(to.device())) {
    after.wait();
    copy(from, to);
    return {};
  }
  to.bump_version();
  Gpu& device = gpu(is_gpu(to.device()) ? to.device() : from.device());
  return Event(device.copy_async(from.data(), to.data(), to.bytes(), after.mark()));
}

void make_wait(Device device, const Event& event) {
  if (event.mark() == nullptr) return;
  if (is_gpu(device))
    gpu(device).make_wait(*event.mark());
  else
    event.wait();
}

namespace {

Tensor unbooked(const Shape& shape, DType dtype, Device device, std::shared_ptr<void> memory) {
  void* data = memory.get();
  return Tensor::wrap(data, shape, row_major_strides(shape), dtype, device, std::move(memory));
}

std::int64_t bytes_of(const Shape& shape, DType dtype) {
  return numel(shape) * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

Tensor travelling(const Shape& shape, DType dtype, Device device) {
  return unbooked(shape, dtype, device, gpu(device).allocate(bytes_of(shape, dtype), true));
}
bool may_travel(const Tensor& tensor) {
  return gpu(tensor.device()).travels(tensor.data());
}

std::shared_ptr<void> lent(Device device, std::function<void()> release) {
  const auto end = [device, release = std::move(release)](void*) {
    try {
      synchronize(device);
    } catch (const Error&) {  // a device that is lost uses nothing
    }
    release();
  };
  return {static_cast<void*>(nullptr), end};
}

Tensor scratch(const Shape& shape, DType dtype, Device device) {
  return unbooked(shape, dtype, device, detail::allocate(device, bytes_of(shape, dtype)));
}

Tensor pinned(const Shape& shape, DType dtype, Device near) {
  if (!is_gpu(near)) return scratch(shape, dtype, cpu_device);
  return unbooked(shape, dtype, cpu_device, gpu(near).allocate_pinned(bytes_of(shape, dtype)));
}

Tensor staging(const Shape& shape, DType dtype, Device to) {
  return to == cpu_device ? Tensor::empty(shape, dtype) : pinned(shape, dtype, to);
}

}  // namespace tessera
