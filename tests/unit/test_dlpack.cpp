// SPDX-License-Identifier: MIT
// ranks: 1
#include "tessera/runtime/dlpack.hpp"

#include <array>
#include <cstddef>
#include <type_traits>

#include "support/errors.hpp"
#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/ops.hpp"

#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif

using namespace tessera;
using dlpack::ManagedTensor;
using dlpack::ManagedTensorVersioned;

namespace {

// Memory of another library: 2 x 3 of f32 in an array of 2 x 4, behind one element.
template <class Managed>
struct Foreign {
  std::array<float, 9> values{-1, 0, 1, 2, -1, 10, 11, 12, -1};
  std::array<std::int64_t, 2> shape{2, 3};
  std::array<std::int64_t, 2> strides{4, 1};
  int deleted = 0;
  Managed managed{};

  Foreign() {
    managed.array = {values.data(),  {dlpack::kCpu, 0}, 2, {dlpack::kFloat, 32, 1}, shape.data(),
                     strides.data(), sizeof(float)};
    managed.context = this;
    managed.deleter = [](Managed* self) { ++static_cast<Foreign*>(self->context)->deleted; };
    if constexpr (std::is_same_v<Managed, ManagedTensorVersioned>) managed.version = {1, 0};
  }
};

}  // namespace

TEMPLATE_TEST_CASE("memory of others is used in place and given back once", "[dlpack]",
                   ManagedTensor, ManagedTensorVersioned) {
  Foreign<TestType> foreign;
  const std::int64_t booked = memory_ledger::total().live;
  Tensor view;
  {
    const Tensor t = from_dlpack(&foreign.managed);
    CHECK(memory_ledger::total().live == booked);
    CHECK(t.data() == &foreign.values[1]);
    CHECK(t.dtype() == DType::f32);
    CHECK(t.shape() == Shape{2, 3});
    CHECK(to_values(t) == std::vector<double>{0, 1, 2, 10, 11, 12});
    view = t.select(0, 1);
  }
  CHECK(foreign.deleted == 0);
  fill(view, 5);
  CHECK(foreign.values == std::array<float, 9>{-1, 0, 1, 2, -1, 5, 5, 5, -1});
  view = {};
  CHECK(foreign.deleted == 1);
}

TEMPLATE_TEST_CASE("tensors are lent without a copy, and live until they are given back",
                   "[dlpack]", ManagedTensor, ManagedTensorVersioned) {
  const std::int64_t booked = memory_ledger::total().live;
  for (const DType dtype :
       {DType::f64, DType::f32, DType::bf16, DType::i64, DType::i32, DType::boolean}) {
    CAPTURE(name_of(dtype));
    TestType* managed = nullptr;
    const void* data = nullptr;
    {
      const Tensor t = Tensor::from_values({2, 3}, {0, 1, 1, 0, 0, 1}, dtype).transpose(0, 1);
      data = t.data();
      if constexpr (std::is_same_v<TestType, ManagedTensor>)
        managed = to_dlpack_unversioned(t);
      else
        managed = to_dlpack(t);
    }
    CHECK(managed->array.data == data);
    CHECK(managed->array.byte_offset == 0);
    CHECK(managed->array.ndim == 2);
    CHECK(managed->array.dtype.bits == 8 * size_of(dtype));
    CHECK(managed->array.dtype.lanes == 1);
    CHECK(managed->array.device.type == dlpack::kCpu);
    CHECK(managed->array.strides[0] == 1);
    CHECK(managed->array.strides[1] == 3);
    CHECK(memory_ledger::total().live > booked);
    {
      const Tensor back = from_dlpack(managed);  // there and back again
      CHECK(back.data() == data);
      CHECK(back.dtype() == dtype);
      CHECK(to_values(back) == std::vector<double>{0, 0, 1, 0, 1, 1});
    }
    CHECK(memory_ledger::total().live == booked);
  }
}

TEST_CASE("a part of a tensor is lent as it lies", "[dlpack]") {
  const Tensor t = Tensor::from_values({2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}, DType::f64);
  ManagedTensorVersioned* const managed = to_dlpack(t.narrow(1, 1, 2));
  CHECK(managed->version.major == 1);
  CHECK(managed->flags == 0);
  CHECK(managed->array.data == t.host_data<double>() + 1);
  CHECK(managed->array.strides[0] == 4);
  managed->deleter(managed);
}

TEST_CASE("without strides memory is row-major, without a deleter it is borrowed", "[dlpack]") {
  Foreign<ManagedTensorVersioned> foreign;
  foreign.managed.array.strides = nullptr;
  foreign.managed.deleter = nullptr;
  CHECK(to_values(from_dlpack(&foreign.managed)) == std::vector<double>{0, 1, 2, -1, 10, 11});
}

TEST_CASE("what cannot be taken stays with its owner", "[dlpack]") {
  Foreign<ManagedTensorVersioned> foreign;
  auto& m = foreign.managed;
  const auto take = [&] { from_dlpack(&m); };
  const auto good = m;
  m.array.dtype = {dlpack::kComplex, 64, 1};
  require_error<UnsupportedError>(take, "from_dlpack", "code 5, 64 bits", "f64, f32, bf16");
  m.array.dtype = {dlpack::kFloat, 32, 4};
  require_error<UnsupportedError>(take, "4 lanes");
  m.array.dtype = {dlpack::kUInt, 8, 1};
  require_error<UnsupportedError>(take, "code 1, 8 bits");
  m = good;
  m.array.device.type = dlpack::kCudaManaged;
  require_error<UnsupportedError>(take, "device type 13");
  m.array.device = {dlpack::kCuda, 1000};
  require_error<DeviceError>(take);
  m = good;
  m.version.major = 2;
  require_error<UnsupportedError>(take, "2.0", "version 1");
  m = good;
  foreign.strides = {-4, 1};
  require_error<StrideError>(take, "[-4, 1]");
  foreign.strides = {4, 1};
  m.array.data = nullptr;
  require_error<UsageError>(take, "null", "[2, 3] of f32");
  m = good;
  m.array.byte_offset = 2;
  require_error<UsageError>(take, "not aligned", "a multiple of 4 bytes");
  m = good;
  m.array.ndim = -1;
  require_error<UnsupportedError>(take, "from_dlpack", "-1");
  m = good;
  m.array.shape = nullptr;
  require_error<UnsupportedError>(take, "from_dlpack", "2 dims");
  m = good;
  require_error<UnsupportedError>([] { from_dlpack(static_cast<ManagedTensor*>(nullptr)); },
                                  "null");
  require_error<UnsupportedError>(
      [] { from_dlpack(static_cast<ManagedTensorVersioned*>(nullptr)); }, "null");
  m.flags = dlpack::kReadOnly;
  require_error<UnsupportedError>(take, "read-only", "ReadOnly::promise");
  CHECK(foreign.deleted == 0);
  CHECK(from_dlpack(&m, ReadOnly::promise).numel() == 6);
  CHECK(foreign.deleted == 1);
}

TEST_CASE("memory of pinned host memory is host memory", "[dlpack]") {
  Foreign<ManagedTensor> foreign;
  foreign.managed.array.device.type = dlpack::kCudaHost;
  CHECK(from_dlpack(&foreign.managed).device() == cpu_device);
}

TEST_CASE("tensors without memory that others could use are not lent", "[dlpack]") {
  require_error<DeviceError>([] { to_dlpack(Tensor::empty({2}, DType::f32, meta_device)); },
                             "to_dlpack", "meta");
  require_error<DeviceError>([] { to_dlpack(Tensor()); }, "undefined");
}

TEST_CASE("the structs lie in memory as the format says", "[dlpack]") {
  STATIC_REQUIRE(sizeof(dlpack::DataType) == 4);
  STATIC_REQUIRE(offsetof(dlpack::Array, ndim) == 16);
  STATIC_REQUIRE(offsetof(dlpack::Array, shape) == 24);
  STATIC_REQUIRE(sizeof(dlpack::Array) == 48);
  STATIC_REQUIRE(offsetof(ManagedTensor, deleter) == 56);
  STATIC_REQUIRE(offsetof(ManagedTensorVersioned, flags) == 24);
  STATIC_REQUIRE(offsetof(ManagedTensorVersioned, array) == 32);
#ifdef DLPACK_VERSION
  STATIC_REQUIRE(sizeof(DLTensor) == sizeof(dlpack::Array));
  STATIC_REQUIRE(sizeof(DLManagedTensor) == sizeof(ManagedTensor));
  STATIC_REQUIRE(offsetof(DLManagedTensor, deleter) == offsetof(ManagedTensor, deleter));
  STATIC_REQUIRE(kDLCUDA == dlpack::kCuda);
  STATIC_REQUIRE(kDLBfloat == dlpack::kBfloat);
#endif
}
