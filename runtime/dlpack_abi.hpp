// SPDX-License-Identifier: MIT
// The structs of DLPack, the array exchange format of NumPy, PyTorch, CuPy and others, as they lie
// in memory: https://dmlc.github.io/dlpack/latest/c_api.html. Namespaced, so that a source may
// include the original <dlpack/dlpack.h> as well; the pointers are then reinterpreted:
//   from_dlpack(reinterpret_cast<tessera::dlpack::ManagedTensorVersioned*>(theirs)).
#pragma once

#include <cstdint>

namespace tessera::dlpack {

inline constexpr std::uint32_t kMajor = 1;  // another major version may lay out everything anew
inline constexpr std::uint32_t kMinor = 1;

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6
};

inline constexpr std::uint64_t kReadOnly = 1;  // flags
inline constexpr std::uint64_t kCopied = 2;

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct DeviceId {
  std::int32_t type;  // DeviceType
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;  // TypeCode
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Array {  // DLTensor
  void* data;
  DeviceId device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
};

struct ManagedTensor {  // before version 1
  Array array;
  void* context;
  void (*deleter)(ManagedTensor* self);  // may be null
};

struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned* self);  // may be null
  std::uint64_t flags;
  Array array;
};

}  // namespace tessera::dlpack
