// SPDX-License-Identifier: MIT
// ranks: 1
#include <limits>

#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;

namespace {

const std::vector<DType> all_dtypes{DType::f64, DType::f32, DType::bf16,
                                    DType::i64, DType::i32, DType::boolean};
const std::vector<Fold> folds{Fold::sum, Fold::maximum, Fold::minimum, Fold::argmax};
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Whole numbers in [-50, 50): sums of them are exact in any order, and ties are frequent.
Tensor whole_numbers(const Shape& shape, DType dtype) {
  const Tensor t = Tensor::empty(shape, DType::f64);
  fill_uniform(t, {9, 1}, whole(shape), -50, 50);
  auto* x = t.host_data<double>();
  for (std::int64_t i = 0; i < t.numel(); ++i) x[i] = std::floor(x[i]);
  return t.to(dtype);
}

Shape folded_shape(Shape shape, const std::vector<int>& dims) {
  for (const int dim : dims) {
    const int ndim = static_cast<int>(shape.size());
    shape[static_cast<std::size_t>(normalize_dim(dim, ndim, "test"))] = 1;
  }
  return shape;
}

// By the definition, one element of x after the other in row-major order.
std::vector<double> expected(Fold op, const Tensor& x, const std::vector<int>& dims) {
  const Shape out = folded_shape(x.shape(), dims);
  const Strides strides = row_major_strides(out);
  std::vector<double> result(static_cast<std::size_t>(numel(out)), 0);
  std::vector<double> best(result.size(), not_a_number);
  const std::vector<double> values = to_values(x);
  for (std::size_t e = 0; e < values.size(); ++e) {
    std::int64_t rest = static_cast<std::int64_t>(e), at = 0, index = 0;
    for (std::size_t d = out.size(); d-- > 0;) {
      const std::int64_t i = rest % x.shape()[d];
      rest /= x.shape()[d];
      if (out[d] == x.shape()[d])
        at += i * strides[d];
      else
        index = i;
    }
    const auto o = static_cast<std::size_t>(at);
    const bool first = std::isnan(best[o]);
    if (op == Fold::sum) {
      result[o] += values[e];
    } else if (first || (op == Fold::minimum ? values[e] < best[o] : values[e] > best[o])) {
      best[o] = values[e];
      result[o] = op == Fold::argmax ? static_cast<double>(index) : values[e];
    }
  }
  return result;
}

Tensor folded(Fold op, const Tensor& x, const std::vector<int>& dims, DType dtype) {
  const Tensor out = Tensor::full(folded_shape(x.shape(), dims), 99, dtype);
  fold(op, x, dims, out);
  return out;
}

}  // namespace

TEST_CASE("folds agree with their definition over all dims, dtypes and layouts") {
  const std::vector<std::pair<Shape, std::vector<std::vector<int>>>> cases{
      {{}, {{}}},
      {{1}, {{0}, {}}},
      {{1500}, {{0}, {-1}, {}}},
      {{40, 700}, {{0}, {1}, {0, 1}}},
      {{700, 3}, {{0}, {1}, {-1, 0}}},
      {{6, 5, 40, 3}, {{0}, {1}, {2}, {3}, {0, 2}, {1, 3}, {-1, -4}, {0, 1, 2}, {0, 1, 2, 3}}},
      {{1, 40, 1, 33}, {{0}, {2}, {1}, {0, 3}}}};
  for (const auto& [shape, choices] : cases)
    for (const auto& dims : choices)
      for (const DType dtype : all_dtypes)
        for (const Fold op : folds) {
          if (op == Fold::argmax && dims.size() != 1) continue;
          CAPTURE(format_shape(shape), dims, name_of(dtype), static_cast<int>(op));
          const Tensor x = whole_numbers(shape, dtype);
          const auto values = expected(op, x, dims);
          const DType result = op == Fold::argmax ? DType::i64 : DType::f64;
          CHECK(to_values(folded(op, x, dims, result)) == values);
          CHECK(to_values(folded(op, scattered(x), dims, result)) == values);
          const Tensor out = scattered(folded(op, x, dims, result));
          fill(out, 7);
          fold(op, x, dims, out);
          CHECK(to_values(out) == values);
        }
}

TEST_CASE("expanded elements count as often as they are repeated") {
  const Tensor x = whole_numbers({3, 1, 50}, DType::f32);
  const Tensor wide = x.expand({3, 600, 50});
  for (const std::vector<int>& dims : {std::vector<int>{0}, {1}, {2}, {0, 1}, {1, 2}}) {
    CAPTURE(dims);
    CHECK(to_values(folded(Fold::sum, wide, dims, DType::f64)) == expected(Fold::sum, wide, dims));
  }
}

TEST_CASE("the result is converted to any dtype") {
  const Tensor x = whole_numbers({8, 300}, DType::f32);
  for (const DType dtype : all_dtypes) {
    CAPTURE(name_of(dtype));
    for (const Fold op : {Fold::sum, Fold::maximum, Fold::minimum})
      CHECK(bitwise_equal(folded(op, x, {1}, dtype), folded(op, x, {1}, DType::f64).to(dtype)));
  }
}

TEST_CASE("sums of small dtypes are formed in f64, those of integers in i64") {
  const Tensor x = Tensor::full({1 << 12, 40}, 1, DType::bf16);
  fill(x.narrow(0, 0, 1), 0x1p30);
  for (const Tensor& view : {x, scattered(x)})
    for (const double value : to_values(folded(Fold::sum, view, {0}, DType::f64)))
      CHECK(value == 0x1p30 + 4095);
  CHECK(folded(Fold::sum, x, {0, 1}, DType::f64).item({0, 0}) == 40 * (0x1p30 + 4095));
  const Tensor big = Tensor::zeros({2}, DType::i64);
  big.host_data<std::int64_t>()[0] = std::int64_t{1} << 53;
  big.host_data<std::int64_t>()[1] = 1;
  const std::int64_t odd = (std::int64_t{1} << 53) + 1;
  CHECK(*folded(Fold::sum, big, {0}, DType::i64).host_data<std::int64_t>() == odd);
  big.host_data<std::int64_t>()[1] = odd;
  CHECK(*folded(Fold::argmax, big, {0}, DType::i64).host_data<std::int64_t>() == 1);
  CHECK(*folded(Fold::maximum, big, {0}, DType::i64).host_data<std::int64_t>() == odd);
}

TEST_CASE("a NaN is the maximum, the minimum and the argmax; of several the first") {
  for (const DType dtype : floating_dtypes)
    for (const int dim : {0, 1})
      for (const std::int64_t at : {0, 37, 99}) {
        CAPTURE(name_of(dtype), dim, at);
        const Tensor x = random_tensor({100, 100}, dtype, "x");
        fill(x.narrow(dim, at, 1), not_a_number);
        fill(x.narrow(dim, 99, 1), not_a_number);
        for (const Fold op : {Fold::sum, Fold::maximum, Fold::minimum})
          for (const double value : to_values(folded(op, x, {dim}, dtype)))
            CHECK(std::isnan(value));
        for (const double value : to_values(folded(Fold::argmax, x, {dim}, DType::i64)))
          CHECK(value == static_cast<double>(at));
      }
}

TEST_CASE("infinities are ordinary extremes, and the lowest index wins a tie") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {-infinity, infinity, 0.0})
    for (const Tensor& x : {Tensor::full({70, 70}, value, DType::f32),
                            scattered(Tensor::full({70, 70}, value, DType::f32))})
      for (const int dim : {0, 1}) {
        CAPTURE(value, dim);
        const std::vector<double> all(70, value);
        CHECK(to_values(folded(Fold::maximum, x, {dim}, DType::f32)) == all);
        CHECK(to_values(folded(Fold::minimum, x, {dim}, DType::f32)) == all);
        CHECK(to_values(folded(Fold::argmax, x, {dim}, DType::i64)) == std::vector<double>(70, 0));
      }
  const Tensor lowest = Tensor::full({3}, -infinity, DType::f64).to(DType::i64);
  CHECK(folded(Fold::argmax, lowest, {0}, DType::i64).item({0}) == 0);
}

TEST_CASE("results do not depend on the number of threads") {
  const int before = thread_count();
  const Tensor x = random_tensor({90, 301, 97}, DType::f64, "x");
  const auto compute = [&](int threads) {
    set_thread_count(threads);
    std::vector<Tensor> results;
    for (const std::vector<int>& dims : {std::vector<int>{0}, {1}, {2}, {0, 2}, {0, 1, 2}})
      results.push_back(folded(Fold::sum, x, dims, DType::f64));
    return results;
  };
  const auto one = compute(1);
  for (const int threads : {2, 3, 7}) {
    const auto many = compute(threads);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(bitwise_equal(one[i], many[i]));
  }
  set_thread_count(before);
}

TEST_CASE("sums of no elements are zero, other folds and wrong arguments are refused") {
  const Tensor none = Tensor::empty({3, 0}, DType::f32);
  CHECK(to_values(folded(Fold::sum, none, {1}, DType::f32)) == std::vector<double>{0, 0, 0});
  CHECK(folded(Fold::maximum, none, {0}, DType::f32).numel() == 0);
  const Tensor x = Tensor::zeros({3, 4}, DType::f32);
  const Tensor row = Tensor::zeros({3, 1}, DType::f32);
  require_error<RangeError>([&] { fold(Fold::maximum, none, {1}, row); }, "maximum", "'x'",
                            "[3, 0]");
  require_error<RangeError>([&] { fold(Fold::sum, x, {2}, row); }, "sum", "dim 2");
  require_error<RangeError>([&] { fold(Fold::sum, x, {1, -1}, row); }, "sum", "dim 1", "twice");
  require_error<ShapeError>([&] { fold(Fold::sum, x, {0}, row); }, "sum", "'out'", "[3, 1]",
                            "[1, 4]");
  require_error<TypeError>([&] { fold(Fold::argmax, x, {1}, row); }, "argmax", "'out'", "f32",
                           "i64");
  require_error<RangeError>(
      [&] {
        fold(Fold::argmax, x, {}, Tensor::zeros({3, 4}, DType::i64));
      },
      "argmax", "0 dims");
  require_error<TypeError>([&] { fold(Fold::sum, Tensor(), {}, row); }, "sum", "'x'", "undefined");
  require_error<StrideError>(
      [&] {
        fold(Fold::sum, Tensor::zeros({3, 1}, DType::f32), {1}, row.narrow(0, 0, 1).expand({3, 1}));
      },
      "expanded");
}
