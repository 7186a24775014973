// SPDX-License-Identifier: MIT
// The kernels of a GPU, and where they run.
#pragma once

#include "tessera/runtime/gpu/driver.hpp"
#include "tessera/runtime/kernels/functions.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {

// The compute stream of the thread's current device.
driver::Stream stream();
driver::Blas blas();

// Stream-ordered memory that is freed at the end of the scope.
void* allocate_scratch(std::size_t bytes);
template <class T>
class Scratch {
 public:
  explicit Scratch(std::int64_t count)
      : data_(static_cast<T*>(allocate_scratch(static_cast<std::size_t>(count) * sizeof(T)))) {}
  ~Scratch() { driver::free_async(data_, stream()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return data_; }

 private:
  T* data_;
};

}  // namespace tessera::TESSERA_GPU_NAMESPACE
