// SPDX-License-Identifier: MIT
// Tensors from and for other libraries in the same process, without a copy, by DLPack.
//
// Ownership is as DLPack wants it: who has a managed tensor calls its deleter once. from_dlpack()
// takes that over when it returns: the deleter is called when the last view of the tensor goes. If
// it throws, the managed tensor is still the caller's. What to_dlpack() returns is the caller's.
// Devices: cpu and cuda. Work in flight: to_dlpack() returns when all work on the device is done,
// and a deleter is called when all is done that uses the memory; so hand over and call yourself.
#pragma once

#include "tessera/runtime/dlpack_abi.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// f64, f32, bf16, i64, i32 and bool; memory of CUDA's host allocator is taken as cpu memory. Shape
// and strides are taken as they are. UnsupportedError names an element type, a version or a kind of
// memory that is not known here, DeviceError a device that is not there, StrideError negative
// strides, UsageError memory that is null or not aligned to its elements. A tensor that is marked
// as read-only is refused (UnsupportedError) unless the caller promises not to write to it.
enum class ReadOnly { refuse, promise };
Tensor from_dlpack(dlpack::ManagedTensorVersioned* managed, ReadOnly read_only = ReadOnly::refuse);
Tensor from_dlpack(dlpack::ManagedTensor* managed);

// The memory of the tensor, kept alive until the deleter is called. DeviceError: meta, imitation.
dlpack::ManagedTensorVersioned* to_dlpack(const Tensor& tensor);
// For consumers that do not know version 1.
dlpack::ManagedTensor* to_dlpack_unversioned(const Tensor& tensor);

}  // namespace tessera
