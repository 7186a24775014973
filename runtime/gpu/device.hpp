// SPDX-License-Identifier: MIT
// What a GPU offers to the rest of runtime/. No header of a vendor is needed here. The sources of
// this folder are compiled for each kind of GPU, in a namespace of its own: gpu_cuda where CUDA is
// built in, and gpu_imitation always.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/runtime/device.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera {

// A point in the work of a stream.
class Mark {
 public:
  virtual ~Mark() = default;
  virtual bool done() const = 0;
  virtual void wait() const = 0;  // on the host
};
using MarkPtr = std::shared_ptr<const Mark>;

// One device. Kernels run on its compute stream, copy_async() on its copy stream. A pointer to the
// host's memory is as good as one to a device's.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const KernelTable& table() = 0;
  virtual void synchronize() = 0;  // with both streams

  // Memory that travels lies outside the stream-ordered pool: MPI libraries fail on that, and they
  // do not wait for streams. What is freed here may still be in use by work of both streams.
  // OutOfMemoryError.
  virtual std::shared_ptr<void> allocate(std::int64_t bytes, bool travels) = 0;
  virtual bool travels(const void* data) = 0;  // whether it is such memory
  virtual std::shared_ptr<void> allocate_pinned(std::int64_t bytes) = 0;

  virtual void copy(const void* from, void* to, std::int64_t bytes) = 0;  // done on return
  virtual MarkPtr copy_async(const void* from, void* to, std::int64_t bytes, const Mark* after) = 0;
  virtual MarkPtr record() = 0;                  // on the compute stream
  virtual void make_wait(const Mark& mark) = 0;  // the compute stream

  virtual GpuInfo info() = 0;
};

namespace gpu_cuda {
int count();  // 0 without CUDA in the build, a driver or a device
std::string identity(int index);
Gpu& gpu(int index);  // and makes it the thread's current device; DeviceError says what is missing
std::string toolkit();
}  // namespace gpu_cuda
namespace gpu_imitation {
int count();
std::string identity(int index);
Gpu& gpu(int index);
std::string toolkit();
}  // namespace gpu_imitation

Gpu& gpu(Device device);

}  // namespace tessera
