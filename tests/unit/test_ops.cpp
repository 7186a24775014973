// SPDX-License-Identifier: MIT
// ranks: 1
#include <functional>
#include <limits>

#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;

namespace {

const std::vector<DType> all_dtypes{DType::f64, DType::f32, DType::bf16,
                                    DType::i64, DType::i32, DType::boolean};
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<double> mapped(const Tensor& a, const Tensor& b,
                           const std::function<double(double, double)>& f) {
  std::vector<double> x = to_values(a);
  const std::vector<double> y = to_values(b);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = f(x[i], y[i]);
  return x;
}

// Sizes around the vector widths, the buffer of 512 and the transposition's tiles of 16.
const std::vector<Shape> shapes{
    {},       {1},         {0, 3},      {7},          {513},  {3, 5},      {16, 32},
    {17, 33}, {40, 1, 20}, {3, 16, 18}, {2, 3, 4, 5}, {1, 1}, {5, 1, 700}, {2, 1, 2, 1, 3}};

double sigma(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

TEST_CASE("copy keeps the bits of equal dtypes, whatever the strides") {
  for (const DType dtype : all_dtypes)
    for (const Shape& shape : shapes) {
      CAPTURE(name_of(dtype), format_shape(shape));
      const Tensor values = Tensor::empty(shape, DType::f64);
      fill_uniform(values, {1, 2}, whole(shape), -1000, 1000);
      const Tensor x = values.to(dtype);
      const Tensor there = scattered(x);
      const Tensor back = Tensor::full(shape, 1, dtype);
      copy(there, back);
      CHECK(bitwise_equal(x, back));
      CHECK(bitwise_equal(x, there));
    }
}

TEST_CASE("copy transposes tiles of every size") {
  for (const DType dtype : all_dtypes)
    for (const std::int64_t rows : {1, 15, 16, 17, 50})
      for (const std::int64_t columns : {1, 16, 31, 64}) {
        CAPTURE(name_of(dtype), rows, columns);
        const Tensor x = random_tensor({3, rows, columns}, DType::f64, "x").to(dtype);
        const Tensor t = x.transpose(1, 2).contiguous();
        CHECK(t.is_contiguous());
        bool equal = true;
        const auto values = to_values(x);
        const auto turned = to_values(t);
        for (std::int64_t b = 0; b < 3; ++b)
          for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < columns; ++j)
              equal &= values[static_cast<std::size_t>((b * rows + i) * columns + j)] ==
                       turned[static_cast<std::size_t>((b * columns + j) * rows + i)];
        CHECK(equal);
      }
}

TEST_CASE("copy leaves what lies between the elements of a view alone") {
  const Tensor all = Tensor::full({8, 10}, 5, DType::f32);
  copy(Tensor::zeros({4, 5}, DType::f64), all.as_strided({4, 5}, {20, 2}, 0));
  const auto values = to_values(all);
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < 10; ++j)
      CHECK(values[i * 10 + j] == (i % 2 == 0 && j % 2 == 0 ? 0 : 5));
}

TEST_CASE("conversions round to nearest even, saturate, and agree with exact arithmetic") {
  // 1 + 2^-8 is halfway between two bf16 numbers; a bit more or less decides. The third value is
  // lost if f64 is rounded to f32 first.
  const Tensor x =
      Tensor::from_values({8},
                          {1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8 - 0x1p-40,
                           -1 - 0x1p-8, 3.4e38, 1e300, -infinity},
                          DType::f64);
  CHECK(to_values(x.to(DType::bf16)) ==
        std::vector<double>{1, 1 + 0x1p-6, 1 + 0x1p-7, 1, -1, infinity, infinity, -infinity});
  CHECK(std::isnan(Tensor::full({1}, not_a_number, DType::f64).to(DType::bf16).item({0})));
  CHECK(std::isnan(Tensor::full({1}, not_a_number, DType::f32).to(DType::bf16).item({0})));

  const Tensor y =
      Tensor::from_values({7}, {2.9, -2.9, 1e30, -1e30, infinity, not_a_number, 0.0}, DType::f64);
  CHECK(to_values(y.to(DType::i32)) ==
        std::vector<double>{2, -2, 2147483647.0, -2147483648.0, 2147483647.0, 0, 0});
  CHECK(to_values(y.to(DType::i64)) == std::vector<double>{2, -2, 0x1p63, -0x1p63, 0x1p63, 0, 0});
  CHECK(to_values(y.to(DType::boolean)) == std::vector<double>{1, 1, 1, 1, 1, 1, 0});

  const Tensor big = Tensor::empty({1}, DType::i64);
  *big.host_data<std::int64_t>() = (std::int64_t{1} << 53) + 1;  // no double has this value
  const Tensor same = big.clone();
  CHECK(*same.host_data<std::int64_t>() == (std::int64_t{1} << 53) + 1);
}

TEST_CASE("fill reaches every element of a view and no other") {
  for (const DType dtype : all_dtypes) {
    CAPTURE(name_of(dtype));
    const Tensor all = Tensor::zeros({6, 7}, dtype);
    fill(all.narrow(0, 1, 3).narrow(1, 2, 4), 1);
    fill(all.transpose(0, 1).narrow(0, 6, 1), 1);
    double sum = 0;
    for (const double value : to_values(all)) sum += value;
    CHECK(sum == 3 * 4 + 6);
  }
}

TEST_CASE("add, multiply, maximum and scale agree with double") {
  for (const DType dtype : floating_dtypes)
    for (const Shape& shape : shapes)
      for (const bool strided : {false, true}) {
        CAPTURE(name_of(dtype), format_shape(shape), strided);
        const Tensor a = random_tensor(shape, dtype, "a");
        const Tensor b = random_tensor(shape, dtype, "b");
        const Tensor x = strided ? scattered(a) : a;
        const Tensor out = strided ? scattered(b) : Tensor::empty(shape, dtype);
        const double tolerance = 3 * rounding_of(dtype);
        add(1.5, x, -0.25, b, out);
        check_close(out, mapped(a, b, [](double p, double q) { return 1.5 * p - 0.25 * q; }),
                    tolerance);
        multiply(x, b, out);
        check_close(out, mapped(a, b, [](double p, double q) { return p * q; }), tolerance);
        maximum(x, b, out);
        check_close(out, mapped(a, b, [](double p, double q) { return std::max(p, q); }), 0);
        copy(a, out);
        scale(-3, out);
        check_close(out, mapped(a, a, [](double p, double) { return -3 * p; }), tolerance);
      }
}

TEST_CASE("elementwise operations compute in the widest of their dtypes") {
  const Tensor sum = Tensor::full({3}, 1, DType::f64);
  add(1, sum, 0x1p-30, Tensor::full({3}, 1, DType::bf16), sum);
  CHECK(sum.item({1}) == 1 + 0x1p-30);
  const Tensor small = Tensor::full({3}, 1, DType::bf16);
  const Tensor wide = Tensor::empty({3}, DType::f32);
  add(1, small, 0x1p-20, small, wide);
  CHECK(wide.item({2}) == 1 + 0x1p-20);
}

TEST_CASE("an output may be an input") {
  for (const DType dtype : floating_dtypes)
    for (const bool strided : {false, true}) {
      CAPTURE(name_of(dtype), strided);
      const auto make = [&](const char* name) {
        const Tensor t = random_tensor({37, 41}, dtype, name);
        return strided ? scattered(t) : t;
      };
      const Tensor a = make("a");
      const Tensor b = make("b");
      using Operation = std::function<void(const Tensor&, const Tensor&, const Tensor&)>;
      for (const Operation& operation :
           {Operation([](auto&x, auto&y, auto&out) { add(2, x, 3, y, out); }),
            Operation([](auto&x, auto&y, auto&out) { multiply(x, y, out); }),
            Operation([](auto&x, auto&y, auto&out) { maximum(x, y, out); })}) {
        const Tensor apart = Tensor::empty({37, 41}, dtype);
        operation(a, b, apart);
        const Tensor first = scattered(a);
        operation(first, b, first);
        CHECK(bitwise_equal(apart, first));
        const Tensor second = b.clone();
        operation(a, second, second);
        CHECK(bitwise_equal(apart, second));
      }
    }
}

TEST_CASE("NaN and infinity pass through") {
  for (const DType dtype : floating_dtypes) {
    CAPTURE(name_of(dtype));
    const Tensor ordinary = Tensor::full({40}, 2, dtype);
    const Tensor broken = Tensor::full({40}, 2, dtype);
    fill(broken.narrow(0, 33, 1), not_a_number);
    const Tensor out = Tensor::empty({40}, dtype);
    maximum(ordinary, broken, out);
    CHECK(std::isnan(out.item({33})));
    CHECK(out.item({32}) == 2);
    maximum(broken, ordinary, out);
    CHECK(std::isnan(out.item({33})));
    add(1, ordinary, 0, broken, out);
    CHECK(std::isnan(out.item({33})));
    CHECK(std::isnan(max_abs(broken)));
    CHECK(std::isnan(sum_of_squares(broken)));
    CHECK(std::isnan(max_difference(broken, ordinary).max_abs));
    CHECK(std::isnan(max_difference(ordinary, broken).max_reference));
    CHECK_FALSE(all_finite(broken));
    CHECK(all_finite(ordinary));
    fill(broken.narrow(0, 33, 1), -infinity);
    CHECK(max_abs(broken) == infinity);
    CHECK_FALSE(all_finite(broken));
  }
}

TEST_CASE("scalars of a tensor") {
  for (const DType dtype : floating_dtypes)
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{30, 70}, Shape{3, 250, 301}}) {
      CAPTURE(name_of(dtype), format_shape(shape));
      const Tensor a = random_tensor(shape, dtype, "a");
      const Tensor b = random_tensor(shape, dtype, "b");
      double largest = 0, squares = 0, difference = 0, reference = 0;
      const auto x = to_values(a);
      const auto y = to_values(b);
      for (std::size_t i = 0; i < x.size(); ++i) {
        largest = std::max(largest, std::abs(x[i]));
        squares += x[i] * x[i];
        difference = std::max(difference, std::abs(x[i] - y[i]));
        reference = std::max(reference, std::abs(y[i]));
      }
      for (const Tensor& view : {a, scattered(a)}) {
        CHECK(max_abs(view) == largest);
        CHECK(std::abs(sum_of_squares(view) - squares) <= 1e-12 * squares);
        CHECK(max_difference(view, b).max_abs == difference);
        CHECK(max_difference(view, b).max_reference == reference);
      }
    }
  CHECK(max_abs(Tensor::empty({0, 4}, DType::f32)) == 0);
}

TEST_CASE("gates agree with double, in place and apart, at extreme arguments too") {
  for (const DType dtype : floating_dtypes)
    for (const bool masked : {false, true})
      for (const Shape& shape : {Shape{1, 1}, Shape{5, 100}, Shape{3, 5000}, Shape{70, 9}}) {
        CAPTURE(name_of(dtype), masked, format_shape(shape));
        const Tensor u = random_tensor(shape, dtype, "u");
        Tensor w = random_tensor(shape, dtype, "w");
        scale(20, w);
        if (shape[1] > 5) {  // exp must neither overflow nor give NaN
          fill(w.narrow(1, 0, 1), 1e4);
          fill(w.narrow(1, 1, 1), -1e4);
          fill(w.narrow(1, 2, 1), -90);
        }
        const Tensor dy = random_tensor(shape, dtype, "dy");
        const Tensor mask = masked ? random_tensor({shape[1]}, DType::f32, "mask") : Tensor();
        const auto mask_at = [&](std::size_t i) {
          return masked ? mask.item({static_cast<std::int64_t>(i) % shape[1]}) : 1.0;
        };
        const auto U = to_values(u), W = to_values(w), D = to_values(dy);
        const std::size_t n = U.size();
        std::vector<double> h(n), du(n), dw(n), y(n), dx(n), dg(n), su(n), sw(n);
        for (std::size_t i = 0; i < n; ++i) {
          const double s = sigma(W[i]), t = sigma(U[i]), m = mask_at(i);
          h[i] = U[i] * s * m;
          du[i] = D[i] * s * m;
          dx[i] = D[i] * s;
          dg[i] = D[i] * U[i] * s * (1 - s);
          y[i] = U[i] * t * W[i];
          su[i] = D[i] * W[i] * t * (1 + U[i] * (1 - t));
          sw[i] = D[i] * U[i] * t;
        }
        const double tolerance = 8 * rounding_of(dtype);
        const auto wide_view = [&](const Tensor& t) {  // rows with a gap
          const Tensor all = Tensor::full({shape[0], shape[1] + 5}, 3, dtype);
          const Tensor view = all.narrow(1, 2, shape[1]);
          copy(t, view);
          return view;
        };
        const Tensor H = wide_view(u);
        gated_product(u, w, mask, H);
        check_close(H, h, tolerance);
        const auto stored = to_values(H);  // backward starts from the rounded h
        for (std::size_t i = 0; i < n; ++i) dw[i] = D[i] * stored[i] * (1 - sigma(W[i]));
        const Tensor DU = wide_view(dy);
        const Tensor DW = wide_view(w);
        gated_product_backward(H, DW, mask, DU, DU, DW);
        check_close(DU, du, tolerance);
        check_close(DW, dw, tolerance);

        const Tensor DX = Tensor::empty(shape, dtype), DG = Tensor::empty(shape, dtype);
        sigmoid_gate_backward(u, w, dy, DX, DG);
        check_close(DX, dx, tolerance);
        check_close(DG, dg, tolerance);

        const Tensor Y = Tensor::empty(shape, dtype);
        silu_product(u, w, Y);
        check_close(Y, y, tolerance);
        const Tensor in_place = u.clone();
        silu_product(in_place, w, in_place);
        CHECK(bitwise_equal(in_place, Y));
        const Tensor other = w.clone();
        silu_product(u, other, other);
        CHECK(bitwise_equal(other, Y));
        const Tensor a = wide_view(u), b = wide_view(w), c = wide_view(dy);
        silu_product_backward(a, b, c, a, b, c);
        check_close(a, su, tolerance);
        check_close(b, sw, tolerance);
        CHECK(bitwise_equal(c, Y));
      }
}

TEST_CASE("gates of several dtypes work in the widest") {
  const Tensor u = random_tensor({6, 40}, DType::bf16, "u");
  const Tensor w = random_tensor({6, 40}, DType::f64, "w");
  const Tensor exact = Tensor::empty({6, 40}, DType::f64);
  silu_product(u.to(DType::f64), w, exact);
  const Tensor mixed = Tensor::empty({6, 40}, DType::f64);
  silu_product(u, w, mixed);
  CHECK(bitwise_equal(mixed, exact));
  const Tensor rounded = Tensor::empty({6, 40}, DType::f32);
  silu_product(u, w, rounded);
  CHECK(bitwise_equal(rounded, exact.to(DType::f32)));
}

TEST_CASE("the gate's exponential is accurate where results are small") {
  // Relative: an absolute tolerance would not see a sigmoid of -50 that is off by half.
  for (const DType dtype : {DType::f64, DType::f32}) {
    CAPTURE(name_of(dtype));
    const std::int64_t n = 4001;
    const Tensor w = Tensor::empty({1, n}, dtype);
    fill_uniform(w, {3, 4}, whole({1, n}), dtype == DType::f64 ? -700 : -85, 0);
    const Tensor s = Tensor::empty({1, n}, dtype);
    gated_product(Tensor::full({1, n}, 1, dtype), w, {}, s);
    const auto x = to_values(w), y = to_values(s);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto exact = static_cast<double>(1 / (1 + std::exp(-static_cast<long double>(x[i]))));
      worst = std::max(worst, std::abs(y[i] / exact - 1));
    }
    CHECK(worst <= 6 * rounding_of(dtype));
  }
}

TEST_CASE("sum_rows adds to what is there, in at least f32") {
  for (const DType dtype : floating_dtypes)
    for (const std::int64_t rows : {0, 1, 100, 5000}) {
      CAPTURE(name_of(dtype), rows);
      const Tensor x = random_tensor({rows, 33}, dtype, "x");
      const Tensor out = Tensor::full({33}, 2, at_least_f32(dtype));
      sum_rows(x, out);
      std::vector<double> expected(33, 2);
      const auto values = to_values(x);
      for (std::size_t i = 0; i < values.size(); ++i) expected[i % 33] += values[i];
      // Partial sums stay below 200 here; each addition may be off by half an ulp of that.
      check_close(out, expected, dtype == DType::f64 ? 1e-12 : 1e-4);
    }
}

TEST_CASE("results do not depend on the number of threads") {
  const int before = thread_count();
  const auto compute = [](int threads) {
    set_thread_count(threads);
    std::vector<Tensor> results;
    for (const DType dtype : floating_dtypes) {
      const Tensor a = random_tensor({301, 997}, dtype, "a");
      const Tensor b = random_tensor({301, 997}, dtype, "b");
      const auto out = [&] {
        results.push_back(Tensor::zeros({301, 997}, dtype));
        return results.back();
      };
      add(0.3, a, 0.7, b, out());
      multiply(a, scattered(b), out());
      copy(a.transpose(0, 1).contiguous().transpose(0, 1), out());
      gated_product(a, b, {}, out());
      silu_product(a, b, out());
      const Tensor x = random_tensor({9001, 40}, dtype, "x");
      results.push_back(Tensor::zeros({40}, at_least_f32(dtype)));
      sum_rows(x, results.back());
      results.push_back(Tensor::full({1}, sum_of_squares(a), DType::f64));
    }
    return results;
  };
  const auto one = compute(1);
  for (const int threads : {2, 3, 7}) {
    CAPTURE(threads);
    const auto many = compute(threads);
    for (std::size_t i = 0; i < one.size(); ++i) {
      CAPTURE(i);
      CHECK(bitwise_equal(one[i], many[i]));
    }
  }
  set_thread_count(before);
}

TEST_CASE("operations name the operand they refuse") {
  const Tensor f = Tensor::zeros({2, 3}, DType::f32);
  const Tensor g = Tensor::zeros({3, 2}, DType::f32);
  const Tensor i = Tensor::zeros({2, 3}, DType::i32);
  require_error<ShapeError>([&] { copy(f, g); }, "copy", "dst", "[3, 2]", "[2, 3]");
  require_error<ShapeError>([&] { add(1, f, 1, g, f); }, "add", "'b'", "[3, 2]", "[2, 3]");
  require_error<TypeError>([&] { multiply(f, f, i); }, "multiply", "'out'", "i32");
  require_error<TypeError>([&] { maximum(f, Tensor(), f); }, "maximum", "'b'", "undefined");
  require_error<TypeError>([&] { copy(Tensor(), f); }, "copy", "src", "undefined");
  require_error<TypeError>([&] { max_abs(i); }, "max_abs", "i32");
  require_error<ShapeError>([&] { max_difference(f, g); }, "max_difference", "'b'");
  require_error<StrideError>([&] { silu_product(f, g.transpose(0, 1), f); }, "silu_product", "'w'",
                             "[1, 2]");
  require_error<ShapeError>([&] { gated_product(f, f, Tensor::zeros({2}, DType::f32), f); },
                            "gated_product", "'mask'", "[2]", "[3]");
  require_error<TypeError>([&] { silu_product(f, f, i); }, "silu_product", "'y'", "i32");
  require_error<TypeError>([&] { silu_product(f, Tensor(), f); }, "silu_product", "'w'",
                           "undefined");
  require_error<TypeError>([&] { sum_rows(f, Tensor::zeros({3}, DType::f64)); }, "sum_rows",
                           "'out'", "f64", "f32");
  require_error<StrideError>([&] { sum_rows(g.transpose(0, 1), Tensor::zeros({3}, DType::f32)); },
                             "sum_rows", "'x'");
  Tensor many = Tensor::zeros(Shape(10, 3), DType::boolean);
  for (int d = 0; d < 10; ++d) many = many.narrow(d, 0, 2);
  require_error<UnsupportedError>([&] { fill(many, 1); }, "fill", "8");
}

TEST_CASE("writes are counted, reads are not") {
  const Tensor a = Tensor::zeros({4}, DType::f32);
  const Tensor b = Tensor::zeros({4}, DType::f32);
  const auto a_before = a.version();
  const auto b_before = b.version();
  add(1, a, 1, a, b);
  CHECK(a.version() == a_before);
  CHECK(b.version() > b_before);
}
