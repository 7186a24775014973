// SPDX-License-Identifier: MIT
// Work in flight on a device, in terms that are the same for all devices. Operations (ops.hpp) go
// onto a GPU's compute stream and return at once; copies between a GPU and the host that overlap
// with them go onto its copy stream. On a CPU all work is done when its function returns, and every
// event is done.
#pragma once

#include <functional>
#include <memory>

#include "tessera/runtime/tensor.hpp"

namespace tessera {

class Mark;

// A point in the work of a device; done by default. A value; copies are the same point.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<const Mark> mark) : mark_(std::move(mark)) {}
  bool done() const;
  void wait() const;                                // on the host
  const Mark* mark() const { return mark_.get(); }  // null: done

 private:
  std::shared_ptr<const Mark> mark_;
};

// After all operations that were started on the device so far.
Event record(Device device);

// Copies `from` to `to` on the copy stream, once `after` is done; the event is that of the copy.
// Both are contiguous and alike in shape and dtype (ShapeError, TypeError, StrideError), at least
// one is on the GPU in question, or both on a CPU. The caller keeps them alive, and the contents of
// `from` as they are, until the event is done; work of the compute stream that follows is not in
// step with the copy unless make_wait() says so.
Event copy_async(const Tensor& from, const Tensor& to, const Event& after);

// Operations that are started on the device from now on begin after the event; the host goes on.
void make_wait(Device device, const Event& event);

// A tensor in memory of a GPU that MPI may be given, and whether a tensor is in such memory. That
// of purpose `communication` is; this one is not in the ledger.
Tensor travelling(const Shape& shape, DType dtype, Device device);
bool may_travel(const Tensor& tensor);

// The owner, for Tensor::wrap(), of memory that someone lends: release() is called when the last
// view goes, after all work in flight on the device, which may still use the memory.
std::shared_ptr<void> lent(Device device, std::function<void()> release);

// A tensor that a kernel of one device works in and others do not need. Like all of the runtime's
// own buffers it is not in the ledger, whose counts do not depend on the device.
Tensor scratch(const Shape& shape, DType dtype, Device device);
// A tensor in host memory for copy_async() from and to that device, not in the ledger either; for a
// CPU plain memory. What is freed is used again once copies in flight are done.
Tensor pinned(const Shape& shape, DType dtype, Device near);
// A tensor on the host whose values are made for a device. Only what to(device) returns is in the
// ledger: for a CPU this tensor itself, else the copy.
Tensor staging(const Shape& shape, DType dtype, Device to);

}  // namespace tessera
