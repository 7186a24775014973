// SPDX-License-Identifier: MIT
// ranks: 1
// What a device refuses, and that it goes on after that.
#include "gpu/device.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

double sum_of_ones() {
  const Tensor x = Tensor::full({1000}, 1, DType::f64, test_device());
  double sum = 0;
  for (const double value : to_values(x)) sum += value;
  return sum;
}

}  // namespace

TEST_CASE("more memory than the device has is refused, with the layer, and the device goes on") {
  const Scope scope("trunk.pairs");
  for (const Purpose purpose : {Purpose::activation, Purpose::communication}) {
    const PurposeScope as(purpose);
    require_error<OutOfMemoryError>(
        [] { Tensor::empty({std::int64_t{1} << 44}, DType::f64, test_device()); }, "trunk.pairs",
        name_of(test_device()));
    CHECK(sum_of_ones() == 1000);
  }
}

TEST_CASE("a device that is not there is refused") {
  const Device absent{test_device().kind, 1000};
  require_error<DeviceError>([&] { require_device(absent); }, name_of(absent));
  require_error<DeviceError>([&] { Tensor::zeros({2}, DType::f32, absent); }, name_of(absent));
  CHECK(sum_of_ones() == 1000);
}

TEST_CASE("operands on two devices are refused") {
  const Tensor here = Tensor::zeros({4}, DType::f32, test_device());
  const Tensor there = Tensor::zeros({4}, DType::f32);
  require_error<Error>([&] { add(1, here, 1, there, here); }, name_of(test_device()), "cpu");
}
