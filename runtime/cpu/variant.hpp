// SPDX-License-Identifier: MIT
// The CPU's kernels. The sources that include this are compiled once per instruction set, each time
// in another namespace. They use no threads, allocate nothing (but for Eigen's packing buffers) and
// instantiate no template of the standard library, which the linker could merge with others.
#pragma once

#include "tessera/runtime/kernels/functions.hpp"
#include "tessera/runtime/kernels/scalar.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

extern const KernelTable table;

template <class T>
T* pointer(void* data) {
  return static_cast<T*>(data);
}
template <class T>
const T* pointer(const void* data) {
  return static_cast<const T*>(data);
}

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE
