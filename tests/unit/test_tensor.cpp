// SPDX-License-Identifier: MIT
// ranks: 1
#include "tessera/runtime/tensor.hpp"

#include <vector>

#include "support/errors.hpp"
#include "support/tensors.hpp"

using namespace tessera;

namespace {

Tensor counting(const Shape& shape, DType dtype = DType::f64) {
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  return Tensor::from_values(shape, values, dtype);
}

}  // namespace

TEST_CASE("views see the same storage") {
  const Tensor t = counting({2, 3, 4});
  CHECK(t.item({1, 2, 3}) == 23);
  CHECK(t.select(0, 1).item({0, 2}) == 14);
  CHECK(t.select(-1, 2).shape() == Shape{2, 3});
  CHECK(t.narrow(1, 1, 2).item({1, 0, 0}) == 16);
  CHECK(t.transpose(0, 2).item({3, 2, 1}) == 23);
  CHECK(t.permute({2, 0, 1}).item({3, 1, 2}) == 23);
  CHECK(t.view({6, 4}).item({5, 3}) == 23);
  CHECK(t.unsqueeze(1).shape() == Shape{2, 1, 3, 4});
  CHECK(t.unsqueeze(-1).shape() == Shape{2, 3, 4, 1});
  CHECK(t.unsqueeze(1).squeeze(1).shape() == t.shape());
  CHECK(t.as_strided({2, 2}, {12, 5}, 1).item({1, 1}) == 18);
  for (const Tensor& view : {t.select(0, 1), t.transpose(0, 1), t.view({24}), t.unsqueeze(0)})
    CHECK(view.shares_storage(t));
  fill(t.transpose(0, 2).select(0, 3), -1);
  CHECK(t.item({1, 1, 3}) == -1);
  CHECK(t.item({1, 1, 2}) == 18);
}

TEST_CASE("contiguity") {
  const Tensor t = counting({2, 3, 4});
  CHECK(t.is_contiguous());
  CHECK(t.contiguous().shares_storage(t));
  CHECK(t.narrow(0, 1, 1).is_contiguous());
  CHECK_FALSE(t.narrow(1, 1, 2).is_contiguous());
  CHECK_FALSE(t.transpose(0, 1).is_contiguous());
  CHECK(t.narrow(1, 1, 1).narrow(0, 0, 1).is_contiguous());  // strides of size-1 dims are free
  CHECK(counting({1, 5}).transpose(0, 1).is_contiguous());
  CHECK(Tensor::empty({3, 0, 2}, DType::f32).transpose(0, 2).is_contiguous());
  const Tensor copied = t.transpose(0, 1).contiguous();
  CHECK_FALSE(copied.shares_storage(t));
  CHECK(copied.item({2, 1, 3}) == 23);
}

TEST_CASE("conversions copy only if they must") {
  const Tensor t = counting({5});
  CHECK(t.to(DType::f64).shares_storage(t));
  CHECK_FALSE(t.to(DType::f32).shares_storage(t));
  CHECK(t.to(cpu_device).shares_storage(t));
  CHECK(to_values(t.to(DType::bf16)) == to_values(t));
  CHECK(to_values(t.to(DType::i32)) == to_values(t));
  CHECK(to_values(t.to(DType::boolean)) == std::vector<double>{0, 1, 1, 1, 1});
}

TEST_CASE("borrowed memory is read and written in place, and its owner is kept") {
  auto owner = std::make_shared<std::vector<float>>(12, 1.0f);
  const std::weak_ptr<std::vector<float>> alive = owner;
  Tensor view;
  {
    const Tensor t = Tensor::wrap(owner->data(), {3, 4}, {4, 1}, DType::f32, cpu_device, owner);
    owner.reset();
    view = t.narrow(0, 2, 1);
  }
  CHECK_FALSE(alive.expired());
  fill(view, 5);
  CHECK((*alive.lock())[11] == 5);
  CHECK((*alive.lock())[7] == 1);
  view = {};
  CHECK(alive.expired());
}

TEST_CASE("views that do not exist are refused") {
  const Tensor t = counting({2, 3});
  require_error<RangeError>([&] { t.narrow(0, 1, 2); }, "narrow", "[1, 3)");
  require_error<RangeError>([&] { t.narrow(0, -1, 1); }, "narrow");
  require_error<RangeError>([&] { t.select(2, 0); }, "dim 2 of 2", "-2..1");
  require_error<RangeError>([&] { t.select(1, 3); }, "[3, 4)");
  require_error<RangeError>([&] { t.permute({0, 0}); }, "permute", "(0, 0)");
  require_error<RangeError>([&] { t.permute({0}); }, "permute");
  require_error<ShapeError>([&] { t.view({4}); }, "view", "[4]", "[2, 3]");
  require_error<StrideError>([&] { t.transpose(0, 1).view({6}); }, "view", "contiguous()");
  require_error<ShapeError>([&] { t.squeeze(0); }, "squeeze", "[2, 3]");
  require_error<RangeError>([&] { t.as_strided({3}, {3}, 0); }, "as_strided");
  require_error<StrideError>([&] { t.as_strided({2, 2}, {1}, 0); }, "as_strided", "2 and 1");
  require_error<RangeError>([&] { t.as_strided({2}, {-1}, 0); }, "as_strided");
  require_error<ShapeError>([&] { t.item(); }, "item", "[2, 3]");
  require_error<ShapeError>([&] { Tensor::empty({-1}, DType::f32); }, "empty", "[-1]");
  require_error<ShapeError>([&] { Tensor::from_values({2}, {1}, DType::f32); }, "1 values");
  require_error<TypeError>([&] { t.host_data<float>(); }, "host_data", "f64", "f32");
}

TEST_CASE("dtypes") {
  const std::vector<DType> order{DType::boolean, DType::i32, DType::i64,
                                 DType::bf16,    DType::f32, DType::f64};
  for (std::size_t i = 0; i < order.size(); ++i) {
    CHECK(parse_dtype(name_of(order[i])) == order[i]);
    for (std::size_t j = 0; j < order.size(); ++j)
      CHECK(promote(order[i], order[j]) == order[std::max(i, j)]);
    CHECK(at_least_f32(order[i]) == order[std::max<std::size_t>(i, 4)]);
    CHECK(is_floating(order[i]) == (i >= 3));
  }
  CHECK_FALSE(parse_dtype("f16"));
}

TEST_CASE("devices") {
  CHECK(name_of(parse_device("cpu")) == "cpu");
  CHECK(name_of(parse_device("cuda")) == "cuda:0");
  CHECK(name_of(parse_device("cuda:12")) == "cuda:12");
  for (const char* text : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "CPU"})
    require_error<UsageError>([&] { parse_device(text); }, text, "cuda:INDEX", "imitation:INDEX");
  require_device(cpu_device);
  require_error<DeviceError>([] { require_device({DeviceKind::cpu, 1}); }, "index 1");
  // Neither a build without CUDA nor a machine without that many devices can serve this one.
  require_error<DeviceError>([] { require_device({DeviceKind::cuda, 999}); }, "cuda:999", "CUDA");
  require_error<DeviceError>(
      [] {
        Tensor::empty({1}, DType::f32, {DeviceKind::cuda, 999});
      },
      "cuda:999");
}

TEST_CASE("sizes whose bytes 64 bits cannot count are refused, and nothing of no elements is") {
  constexpr std::int64_t large = std::int64_t{1} << 40;
  for (const Shape& shape : {Shape{large, large}, Shape{std::int64_t{1} << 61}})
    require_error<ShapeError>([&] { Tensor::empty(shape, DType::f64); }, "2^63");
  double x = 0;
  require_error<ShapeError>(
      [&] {
        Tensor::wrap(&x, {4, 4}, {INT64_MAX, 1}, DType::f64, cpu_device, nullptr);
      },
      "2^63");
  const Tensor none = Tensor::empty({large, 0, large, large}, DType::f64);
  CHECK(none.numel() == 0);
  require_error<ShapeError>([&] { none.view({large, large}); }, "2^63");
}
