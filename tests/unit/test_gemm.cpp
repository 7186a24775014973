// SPDX-License-Identifier: MIT
// ranks: 1
#include <limits>

#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;

namespace {

struct Sizes {
  std::int64_t batch, m, n, k;
};

// alpha a b + beta c of [batch, ., .] operands, in double.
std::vector<double> product(double alpha, const Tensor& a, const Tensor& b, double beta,
                            const Tensor& c) {
  const auto A = to_values(a), B = to_values(b);
  auto C = to_values(c);
  const auto m = static_cast<std::size_t>(c.size(-2));
  const auto n = static_cast<std::size_t>(c.size(-1));
  const auto k = static_cast<std::size_t>(a.size(-1));
  for (std::size_t row = 0; row < C.size() / n; ++row)
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::size_t p = 0; p < k; ++p) sum += A[row * k + p] * B[(row / m * k + p) * n + j];
      C[row * n + j] = alpha * sum + (beta == 0 ? 0 : beta * C[row * n + j]);
    }
  return C;
}

// The values of t stored transposed, with room between the columns.
Tensor by_column(const Tensor& t) {
  const Tensor room =
      Tensor::empty({t.size(0), t.size(2), t.size(1) + 3}, t.dtype()).narrow(2, 1, t.size(1));
  const Tensor view = room.transpose(1, 2);
  copy(t, view);
  return view;
}

// Sums of k products of numbers below 1: each of the k roundings is off by at most half an ulp of
// a partial sum that stays below k; and one rounding to the result's dtype.
double tolerance_of(DType dtype, DType c_dtype, std::int64_t k) {
  return 2 * rounding_of(at_least_f32(dtype)) * static_cast<double>(k + 8) + rounding_of(c_dtype);
}

}  // namespace

TEST_CASE("gemm agrees with double for all orders, dtypes and awkward sizes") {
  for (const DType dtype : floating_dtypes)
    for (const Sizes s :
         {Sizes{1, 1, 1, 1}, Sizes{2, 1, 17, 5}, Sizes{1, 37, 1, 64}, Sizes{3, 16, 16, 16},
          Sizes{2, 67, 53, 1}, Sizes{1, 300, 70, 129}, Sizes{2, 20, 530, 33}, Sizes{5, 8, 4, 3},
          Sizes{2, 45, 37, 300}, Sizes{1, 33, 16, 40}})
      for (int order = 0; order < 4; ++order)
        for (const DType c_dtype : {dtype, at_least_f32(dtype)}) {
          CAPTURE(name_of(dtype), name_of(c_dtype), s.batch, s.m, s.n, s.k, order);
          const Tensor a = random_tensor({s.batch, s.m, s.k}, dtype, "a");
          const Tensor b = random_tensor({s.batch, s.k, s.n}, dtype, "b");
          const Tensor c = random_tensor({s.batch, s.m, s.n + 2}, c_dtype, "c");
          const Tensor inner = c.narrow(2, 1, s.n);
          const auto expected = product(0.5, a, b, -2, inner);
          gemm(0.5, order & 1 ? by_column(a) : a, order & 2 ? by_column(b) : b, -2, inner);
          check_close(inner, expected, tolerance_of(dtype, c_dtype, s.k));
          // What lies beside the view is untouched.
          const Tensor edge = random_tensor({s.batch, s.m, s.n + 2}, c_dtype, "c");
          CHECK(max_difference(c.select(2, 0), edge.select(2, 0)).max_abs == 0);
          CHECK(max_difference(c.select(2, s.n + 1), edge.select(2, s.n + 1)).max_abs == 0);
        }
}

TEST_CASE("gemm takes matrices without batch, and broadcast operands") {
  const Tensor a = random_tensor({20, 30}, DType::f64, "a");
  const Tensor b = random_tensor({30, 10}, DType::f64, "b");
  const Tensor c = Tensor::empty({20, 10}, DType::f64);
  gemm(1, a, b, 0, c);
  const auto expected =
      product(1, a.unsqueeze(0), b.unsqueeze(0), 0, Tensor::zeros({1, 20, 10}, DType::f64));
  check_close(c, expected, 1e-14);
  const Tensor twice = Tensor::empty({2, 20, 10}, DType::f64);
  gemm(1, a.as_strided({2, 20, 30}, {0, 30, 1}, 0), b.as_strided({2, 30, 10}, {0, 10, 1}, 0), 0,
       twice);
  CHECK(bitwise_equal(twice.select(0, 0), c));
  CHECK(bitwise_equal(twice.select(0, 1), c));
  const Tensor one_row = a.narrow(0, 3, 1).as_strided({20, 30}, {0, 1}, 0);
  gemm(1, one_row, b, 0, c);
  CHECK(bitwise_equal(c.narrow(0, 0, 1).contiguous(), c.narrow(0, 19, 1).contiguous()));
  CHECK(std::abs(c.item({7, 4}) - expected[3 * 10 + 4]) < 1e-14);
}

TEST_CASE("beta = 0 does not read c, other values do") {
  for (const DType dtype : floating_dtypes) {
    CAPTURE(name_of(dtype));
    const Tensor a = random_tensor({9, 7}, dtype, "a");
    const Tensor b = random_tensor({7, 5}, dtype, "b");
    const Tensor c = Tensor::full({9, 5}, std::numeric_limits<double>::quiet_NaN(), dtype);
    gemm(1, a, b, 0, c);
    CHECK(all_finite(c));
    fill(c, std::numeric_limits<double>::quiet_NaN());
    gemm(1, a, b, 1, c);
    CHECK_FALSE(all_finite(c));
  }
}

TEST_CASE("a NaN in an operand reaches the rows it meets, and only them") {
  const Tensor a = random_tensor({40, 30}, DType::f32, "a");
  const Tensor b = random_tensor({30, 20}, DType::f32, "b");
  fill(a.narrow(0, 17, 1).narrow(1, 5, 1), std::numeric_limits<double>::quiet_NaN());
  const Tensor c = Tensor::empty({40, 20}, DType::f32);
  gemm(1, a, b, 0, c);
  for (std::int64_t i = 0; i < 40; ++i) CHECK(all_finite(c.select(0, i)) == (i != 17));
}

TEST_CASE("empty sums and empty results") {
  const Tensor c = Tensor::full({3, 4}, 2, DType::f32);
  gemm(1, Tensor::empty({3, 0}, DType::f32), Tensor::empty({0, 4}, DType::f32), 0.5, c);
  check_close(c, std::vector<double>(12, 1), 0);
  gemm(1, Tensor::empty({3, 0}, DType::f32), Tensor::empty({0, 4}, DType::f32), 0, c);
  CHECK(max_abs(c) == 0);
  gemm(1, Tensor::empty({0, 5}, DType::f32), Tensor::empty({5, 4}, DType::f32), 0,
       Tensor::empty({0, 4}, DType::f32));
}

TEST_CASE("products do not depend on the number of threads") {
  const int before = thread_count();
  for (const DType dtype : floating_dtypes)
    for (const Sizes s : {Sizes{1, 1000, 70, 200}, Sizes{7, 33, 65, 100}, Sizes{1, 129, 1, 50}})
      for (int order = 0; order < 4; ++order) {
        CAPTURE(name_of(dtype), s.m, order);
        const Tensor a = random_tensor({s.batch, s.m, s.k}, dtype, "a");
        const Tensor b = random_tensor({s.batch, s.k, s.n}, dtype, "b");
        const auto compute = [&](int threads) {
          set_thread_count(threads);
          const Tensor c = Tensor::empty({s.batch, s.m, s.n}, dtype);
          gemm(1, order & 1 ? by_column(a) : a, order & 2 ? by_column(b) : b, 0, c);
          return c;
        };
        const Tensor one = compute(1);
        for (const int threads : {2, 3, 8}) CHECK(bitwise_equal(one, compute(threads)));
      }
  set_thread_count(before);
}

TEST_CASE("gemm names the operand it refuses") {
  const Tensor a = Tensor::zeros({3, 4}, DType::f32);
  const Tensor b = Tensor::zeros({4, 5}, DType::f32);
  const Tensor c = Tensor::zeros({3, 5}, DType::f32);
  require_error<ShapeError>([&] { gemm(1, a, c, 0, c); }, "gemm", "'b'", "[3, 5]", "[4, 5]");
  require_error<ShapeError>([&] { gemm(1, a, b, 0, b); }, "gemm", "'c'", "[4, 5]", "[3, 5]");
  require_error<ShapeError>([&] { gemm(1, a, b.unsqueeze(0), 0, c); }, "gemm", "'b'", "2 dims");
  require_error<TypeError>([&] { gemm(1, a, b.to(DType::f64), 0, c); }, "gemm", "'b'", "f64");
  require_error<TypeError>([&] { gemm(1, a, b, 0, c.to(DType::bf16)); }, "gemm", "'c'", "bf16");
  require_error<TypeError>(
      [&] { gemm(1, a.to(DType::i32), b.to(DType::i32), 0, c.to(DType::i32)); }, "gemm", "'a'",
      "i32");
  const Tensor gaps = Tensor::zeros({3, 8, 2}, DType::f32).select(2, 0).narrow(1, 0, 4);
  require_error<StrideError>([&] { gemm(1, gaps, b, 0, c); }, "gemm", "'a'", "[16, 2]");
  const Tensor turned = Tensor::zeros({5, 3}, DType::f32).transpose(0, 1);
  require_error<StrideError>([&] { gemm(1, a, b, 0, turned); }, "gemm", "'c'");
}
