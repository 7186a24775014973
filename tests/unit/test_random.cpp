// SPDX-License-Identifier: MIT
// ranks: 1
#include <Random123/philox.h>

#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/hash.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;

namespace {

double unit(std::uint32_t low, std::uint32_t high) {
  const std::uint64_t word = (std::uint64_t{high} << 32) | low;
  return static_cast<double>(word >> 12) / 0x1p52;
}

double first_uniform(RandomStream stream) {
  const Tensor t = Tensor::empty({1}, DType::f64);
  fill_uniform(t, stream, whole({1}), 0, 1);
  return t.item({0});
}

// Part of a global tensor, drawn as the part, and as a slice of the whole.
struct Part {
  Shape global;
  std::vector<std::int64_t> offset;
  Shape local;
};
const std::vector<Part> parts{{{12}, {5}, {4}},
                              {{6, 10}, {3, 5}, {3, 5}},
                              {{2, 8, 8, 5}, {1, 4, 0, 0}, {1, 4, 8, 5}},
                              {{4, 7, 9}, {0, 6, 2}, {4, 1, 7}},
                              {{3, 4}, {3, 0}, {0, 4}}};

Tensor slice(Tensor tensor, const Part& part) {
  for (int d = 0; d < tensor.ndim(); ++d)
    tensor = tensor.narrow(d, part.offset[static_cast<std::size_t>(d)],
                           part.local[static_cast<std::size_t>(d)]);
  return tensor;
}

}  // namespace

TEST_CASE("draws are Philox 4x32-10 with the published results") {
  // Counter 0, key 0 of the known answers that Random123 distributes:
  // 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  CHECK(first_uniform({0, 0}) == unit(0x6627e8d5, 0xe169c58d));
  // Counter and key of pi's digits: 243f6a88 85a308d3 13198a2e 03707344, a4093822 299f31d0 gives
  // d16cfe09 94fdcceb 5001e420 24126ea1. The counter is (index, stream), the key is the seed.
  const RandomStream pi{0x299f31d0a4093822, 0x0370734413198a2e};
  const std::int64_t index = 0x05a308d3243f6a88;  // one bit below the published counter's sign
  const philox4x32_ctr_t counter{{0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344}};
  const philox4x32_key_t key{{0xa4093822, 0x299f31d0}};
  const philox4x32_ctr_t expected = philox4x32_R(10, counter, key);
  const Tensor t = Tensor::empty({1}, DType::f64);
  fill_uniform(t, pi, {{index + 1}, {index}}, 0, 1);
  CHECK(t.item({0}) == unit(expected.v[0], expected.v[1]));
  const philox4x32_ctr_t published{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
  CHECK(philox4x32_R(10, published, key).v[0] == 0xd16cfe09);
  CHECK(philox4x32_R(10, published, key).v[3] == 0x24126ea1);
}

TEST_CASE("a shard's draw is the slice of the whole, bit for bit") {
  for (const DType dtype : floating_dtypes)
    for (const Part& part : parts) {
      CAPTURE(name_of(dtype), format_shape(part.global), format_shape(part.local));
      const RandomStream stream{42, stream_id("x")};
      const GlobalBlock block{part.global, part.offset};
      const Tensor all = Tensor::empty(part.global, dtype);
      const Tensor own = Tensor::empty(part.local, dtype);
      fill_uniform(all, stream, whole(part.global), -2, 3);
      fill_uniform(own, stream, block, -2, 3);
      CHECK(bitwise_equal(own, slice(all, part)));
      const Tensor strided = scattered(own);
      fill_uniform(strided, stream, block, -2, 3);
      CHECK(bitwise_equal(own, strided));
      fill_normal(all, stream, whole(part.global));
      fill_normal(own, stream, block);
      CHECK(bitwise_equal(own, slice(all, part)));
      fill_bernoulli(all, stream, whole(part.global), 0.3);
      fill_bernoulli(own, stream, block, 0.3);
      CHECK(bitwise_equal(own, slice(all, part)));
      if (own.numel() > 0) {  // control: another offset gives other numbers
        const Tensor other = Tensor::empty(part.local, dtype);
        fill_uniform(own, stream, block, -2, 3);
        fill_uniform(other, {43, stream.stream}, block, -2, 3);
        CHECK_FALSE(bitwise_equal(own, other));
        fill_uniform(other, {42, stream_id("y")}, block, -2, 3);
        CHECK_FALSE(bitwise_equal(own, other));
        fill_uniform(other, stream, whole(part.local), -2, 3);
        CHECK_FALSE(bitwise_equal(own, other));
      }
    }
}

TEST_CASE("all dtypes see the same number, rounded") {
  const Tensor f64 = random_tensor({1000}, DType::f64, "x");
  CHECK(bitwise_equal(f64.to(DType::f32), random_tensor({1000}, DType::f32, "x")));
  CHECK(bitwise_equal(f64.to(DType::bf16), random_tensor({1000}, DType::bf16, "x")));
}

TEST_CASE("draws have the promised distribution") {
  // Means of n draws are off by at most 5 standard deviations; the seed is fixed.
  const std::int64_t n = 200000;
  const auto moments = [&](const Tensor& t) {
    double mean = 0, square = 0, low = 1e9, high = -1e9;
    for (const double x : to_values(t)) {
      mean += x / static_cast<double>(n);
      square += x * x / static_cast<double>(n);
      low = std::fmin(low, x);
      high = std::fmax(high, x);
    }
    return std::vector<double>{mean, square - mean * mean, low, high};
  };
  const double off = 5 / std::sqrt(static_cast<double>(n));
  const Tensor t = Tensor::empty({n}, DType::f64);
  fill_uniform(t, {1, 2}, whole({n}), 2, 4);
  auto m = moments(t);
  CHECK(std::abs(m[0] - 3) < off * std::sqrt(1 / 3.0));
  CHECK(std::abs(m[1] - 1 / 3.0) < off);
  CHECK((m[2] >= 2 && m[2] < 2.001));
  CHECK((m[3] < 4 && m[3] > 3.999));
  fill_normal(t, {1, 2}, whole({n}));
  m = moments(t);
  CHECK(std::abs(m[0]) < off);
  CHECK(std::abs(m[1] - 1) < off * std::sqrt(2.0));
  CHECK((m[2] < -3.5 && m[3] > 3.5));
  const Tensor bits = Tensor::empty({n}, DType::boolean);
  fill_bernoulli(bits, {1, 2}, whole({n}), 0.25);
  m = moments(bits);
  CHECK(std::abs(m[0] - 0.25) < off * 0.5);
  fill_bernoulli(bits, {1, 2}, whole({n}), 0);
  CHECK(moments(bits)[3] == 0);
  fill_bernoulli(bits, {1, 2}, whole({n}), 1);
  CHECK(moments(bits)[2] == 1);
  // A range of one ulp: rounding must not reach the upper end.
  fill_uniform(t, {1, 2}, whole({n}), 1, 1 + 0x1p-52);
  CHECK(moments(t)[3] == 1);
}

TEST_CASE("draws do not depend on the number of threads") {
  const int before = thread_count();
  set_thread_count(1);
  const Tensor one = random_tensor({50, 301}, DType::f64, "x");
  set_thread_count(6);
  CHECK(bitwise_equal(one, random_tensor({50, 301}, DType::f64, "x")));
  set_thread_count(before);
}

TEST_CASE("a local tensor that is no block of the global one is refused") {
  const Tensor t = Tensor::empty({3, 4}, DType::f32);
  require_error<ShapeError>(
      [&] {
        fill_uniform(t, {}, {{4, 4}, {2, 0}}, 0, 1);
      },
      "fill_uniform", "[3, 4] at [2, 0]", "[4, 4]");
  require_error<ShapeError>([&] { fill_normal(t, {}, whole({3})); }, "fill_normal");
  require_error<TypeError>([&] { fill_normal(t.to(DType::i32), {}, whole({3, 4})); }, "i32");
  require_error<RangeError>([&] { fill_bernoulli(t, {}, whole({3, 4}), 1.5); }, "1.5");
}

TEST_CASE("hashes see dtype, shape, values, and nothing else") {
  CHECK(hash_bytes("") == 0x2d06800538d394c2);  // XXH3 of nothing, as published
  CHECK(stream_id("a") != stream_id("b"));
  const Tensor x = random_tensor({4, 6}, DType::f32, "x");
  CHECK(hash_of(x) == hash_of(scattered(x)));
  CHECK(hash_of(x) != hash_of(x.view({6, 4})));
  CHECK(hash_of(x) != hash_of(random_tensor({4, 6}, DType::f32, "y")));
  CHECK(hash_of(Tensor::zeros({2}, DType::f32)) != hash_of(Tensor::zeros({2}, DType::i32)));
  const Tensor z = x.clone();
  fill(z.narrow(0, 3, 1).narrow(1, 5, 1), -0.0);
  const Tensor w = z.clone();
  fill(w.narrow(0, 3, 1).narrow(1, 5, 1), 0.0);
  CHECK(hash_of(z) != hash_of(w));  // of bits, not of values
  require_error<TypeError>([&] { hash_of(Tensor()); }, "hash_of", "undefined");
}
