// SPDX-License-Identifier: MIT
// The calls in which the kinds of GPU differ: cuda/driver.cu passes them on, imitation/driver.cpp
// imitates them. A call that fails throws DeviceError (OutOfMemoryError for want of memory) with
// its name, code and device, unless it is documented otherwise. Calls that free are silent: they
// may run when the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/runtime/dtype.hpp"
#include "tessera/runtime/info.hpp"

#ifndef TESSERA_GPU_NAMESPACE
#define TESSERA_GPU_NAMESPACE gpu_imitation
#endif

namespace tessera::TESSERA_GPU_NAMESPACE::driver {

struct StreamObject;
struct EventObject;
struct BlasObject;
struct PoolObject;
using Stream = StreamObject*;  // in order, and never in step with another one unless told to wait
using Event = EventObject*;
using Blas = BlasObject*;
using Pool = PoolObject*;  // keeps what is freed

extern const char* const kName;  // "cuda"
extern const char* const kHint;  // what to do if a device is not there
extern const bool kPoisons;      // fresh and freed memory is filled with NaN

std::string toolkit();   // "13.0"
int device_count();      // 0 if there is no driver, too; never an error
std::string why_none();  // if there is no device
void set_device(int index);
int current_device();             // of this thread
GpuInfo info();                   // of the current device
std::string identity(int index);  // GpuInfo::identity, without making use of the device

// Memory. Null if there is none left.
void* allocate(std::size_t bytes);  // belongs to no stream
void free(void* data) noexcept;
Pool create_pool();  // of the current device, and nobody else's
void* allocate_async(Pool pool, std::size_t bytes, Stream stream);
void free_async(void* data, Stream stream) noexcept;
void trim(Pool pool);  // gives back what it keeps
void* allocate_pinned(std::size_t bytes);
void free_pinned(void* data) noexcept;

// From and to any memory, host or device.
void copy_async(void* to, const void* from, std::size_t bytes, Stream stream);
void fill_async(void* to, int byte, std::size_t bytes, Stream stream);
void fill(void* to, int byte, std::size_t bytes);  // now, whatever the streams do

Stream create_stream();
void synchronize(Stream stream);
Event create_event();
void record(Event event, Stream stream);
bool done(Event event);
void wait(Event event);
void make_wait(Stream stream, Event event);  // for the event as it is recorded now

// c = alpha op(a) op(b) + beta c in matrices that are stored by columns, `batch` times.
struct Gemm {
  struct Operand {
    const void* data;
    bool transposed;
    std::int64_t leading;  // elements from one column to the next
    std::int64_t batch_stride;
  };
  DType dtype;    // of a and b
  DType c_dtype;  // the same, or f32 for bf16
  bool tf32;      // the mantissas of f32 operands may be cut to 10 bits
  std::int64_t m, n, k, batch;
  double alpha, beta;
  Operand a, b;
  void* c;
  std::int64_t c_leading, c_batch_stride;
};
Blas create_blas(Stream stream);  // with a workspace of its own
void gemm(Blas blas, const Gemm& product);

}  // namespace tessera::TESSERA_GPU_NAMESPACE::driver
