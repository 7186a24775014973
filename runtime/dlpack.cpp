// SPDX-License-Identifier: MIT
#include "tessera/runtime/dlpack.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/stream.hpp"

namespace tessera {
namespace {

using dlpack::Array;
using dlpack::DataType;

constexpr std::array<std::pair<DType, DataType>, 6> kTypes{{
    {DType::f64, {dlpack::kFloat, 64, 1}},
    {DType::f32, {dlpack::kFloat, 32, 1}},
    {DType::bf16, {dlpack::kBfloat, 16, 1}},
    {DType::i64, {dlpack::kInt, 64, 1}},
    {DType::i32, {dlpack::kInt, 32, 1}},
    {DType::boolean, {dlpack::kBool, 8, 1}},
}};

[[noreturn]] void refuse(const char* problem, std::string found, const char* expected) {
  throw UnsupportedError({.problem = problem,
                          .operation = "from_dlpack",
                          .found = std::move(found),
                          .expected = expected});
}

void require(const void* managed) {
  if (managed == nullptr) refuse("a null pointer", "no managed tensor", "one");
}

DType dtype_of(const DataType& type) {
  for (const auto& [own, theirs] : kTypes)
    if (type.code == theirs.code && type.bits == theirs.bits && type.lanes == theirs.lanes)
      return own;
  refuse("an element type that tensors do not have",
         fmt::format("code {}, {} bits, {} lanes", type.code, type.bits, type.lanes),
         "f64, f32, bf16, i64, i32 or bool");
}

DataType type_of(DType dtype) {
  for (const auto& [own, theirs] : kTypes)
    if (own == dtype) return theirs;
  throw UnsupportedError({.problem = "DLPack has no such element type",
                          .operation = "to_dlpack",
                          .found = std::string(name_of(dtype))});
}

Device device_of(const dlpack::DeviceId& device) {
  if (device.type == dlpack::kCpu || device.type == dlpack::kCudaHost) return cpu_device;
  if (device.type == dlpack::kCuda) return {DeviceKind::cuda, device.id};
  refuse("memory of another kind", fmt::format("device type {}", device.type),
         "cpu (1), cuda (2) or cuda_host (3)");
}

// What the pointers and sizes of the struct are for; Tensor::wrap() looks at the memory itself.
void check(const Array& array) {
  if (array.ndim < 0)
    refuse("a negative number of dims", fmt::format("{}", array.ndim), "0 or more");
  if (array.ndim > 0 && array.shape == nullptr)
    refuse("a null pointer as shape", fmt::format("{} dims", array.ndim), "a size for each");
}

Tensor wrap(const Array& array, std::shared_ptr<void> owner) {
  check(array);
  const auto ndim = static_cast<std::size_t>(array.ndim);
  Shape shape(array.shape, array.shape + ndim);
  Strides strides = array.strides == nullptr ? row_major_strides(shape)
                                             : Strides(array.strides, array.strides + ndim);
  // Offset from null would be a pointer like any other.
  void* data = array.data == nullptr ? nullptr : static_cast<char*>(array.data) + array.byte_offset;
  return Tensor::wrap(data, std::move(shape), std::move(strides), dtype_of(array.dtype),
                      device_of(array.device), std::move(owner));
}

template <class Managed>
Tensor take(Managed* managed) {
  const Device device = device_of(managed->array.device);
  require_device(device);
  wrap(managed->array, nullptr);  // throws before anything is taken over
  return wrap(managed->array, lent(device, [managed] {
                if (managed->deleter != nullptr) managed->deleter(managed);
              }));
}

// A managed tensor together with what it points to.
template <class Managed>
struct Export {
  Managed managed{};
  Tensor tensor;
  Shape shape;
  Strides strides;
};

template <class Managed>
Managed* give(const Tensor& tensor) {
  const Device device = tensor.device();
  if (!tensor.defined() || (device.kind != DeviceKind::cpu && device.kind != DeviceKind::cuda))
    throw DeviceError({.problem = "DLPack has no such device",
                       .operation = "to_dlpack",
                       .found = tensor.defined() ? name_of(device) : "an undefined tensor",
                       .expected = "a tensor on cpu or cuda"});
  synchronize(device);
  auto* const out = new Export<Managed>{{}, tensor, tensor.shape(), tensor.strides()};
  const bool on_cpu = device.kind == DeviceKind::cpu;
  out->managed.array = {.data = tensor.data(),
                        .device = {on_cpu ? dlpack::kCpu : dlpack::kCuda, device.index},
                        .ndim = tensor.ndim(),
                        .dtype = type_of(tensor.dtype()),
                        .shape = out->shape.data(),
                        .strides = out->strides.data(),
                        .byte_offset = 0};
  out->managed.context = out;
  out->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->context); };
  return &out->managed;
}

}  // namespace

Tensor from_dlpack(dlpack::ManagedTensorVersioned* managed, ReadOnly read_only) {
  require(managed);
  if (managed->version.major != dlpack::kMajor)
    refuse("another version of DLPack",
           fmt::format("{}.{}", managed->version.major, managed->version.minor), "version 1");
  if ((managed->flags & dlpack::kReadOnly) != 0 && read_only == ReadOnly::refuse)
    refuse("the memory is marked as read-only", "flag 1",
           "memory that may be written, or ReadOnly::promise");
  return take(managed);
}

Tensor from_dlpack(dlpack::ManagedTensor* managed) {
  require(managed);
  return take(managed);
}

dlpack::ManagedTensorVersioned* to_dlpack(const Tensor& tensor) {
  auto* const managed = give<dlpack::ManagedTensorVersioned>(tensor);
  managed->version = {dlpack::kMajor, dlpack::kMinor};
  return managed;
}

dlpack::ManagedTensor* to_dlpack_unversioned(const Tensor& tensor) {
  return give<dlpack::ManagedTensor>(tensor);
}

}  // namespace tessera
