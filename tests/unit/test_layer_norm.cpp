// SPDX-License-Identifier: MIT
// ranks: 1
#include <limits>

#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;

namespace {

constexpr double eps = 1e-5;

struct Reference {  // all in double
  std::vector<double> y, mean, rstd, dx, dweight, dbias;
};

Reference reference(const Tensor& x_, const Tensor& weight_, const Tensor& bias_,
                    const Tensor& dy_) {
  const auto x = to_values(x_), weight = to_values(weight_), bias = to_values(bias_),
             dy = to_values(dy_);
  const std::size_t channels = weight.size();
  const std::size_t rows = x.size() / channels;
  const auto n = static_cast<double>(channels);
  Reference r{x, std::vector<double>(rows),     std::vector<double>(rows),
              x, std::vector<double>(channels), std::vector<double>(channels)};
  for (std::size_t i = 0; i < rows; ++i) {
    const double* row = &x[i * channels];
    const double* upstream = &dy[i * channels];
    double mean = 0, variance = 0, g_mean = 0, g_xh_mean = 0;
    for (std::size_t c = 0; c < channels; ++c) mean += row[c] / n;
    for (std::size_t c = 0; c < channels; ++c) variance += (row[c] - mean) * (row[c] - mean) / n;
    const double rstd = 1 / std::sqrt(variance + eps);
    for (std::size_t c = 0; c < channels; ++c) {
      const double xh = (row[c] - mean) * rstd;
      r.y[i * channels + c] = xh * weight[c] + bias[c];
      g_mean += upstream[c] * weight[c] / n;
      g_xh_mean += upstream[c] * weight[c] * xh / n;
      r.dweight[c] += upstream[c] * xh;
      r.dbias[c] += upstream[c];
    }
    for (std::size_t c = 0; c < channels; ++c) {
      const double xh = (row[c] - mean) * rstd;
      r.dx[i * channels + c] = rstd * (upstream[c] * weight[c] - g_mean - xh * g_xh_mean);
    }
    r.mean[i] = mean;
    r.rstd[i] = rstd;
  }
  return r;
}

// The three layouts: channels contiguous, rows contiguous, and rows contiguous with a gap.
Tensor in_layout(const Tensor& x, int layout) {
  if (layout == 0) return x.clone();
  const std::int64_t gap = layout == 1 ? 0 : 7;
  const Tensor view =
      Tensor::full({x.size(1), x.size(0) + gap}, 9, x.dtype()).narrow(1, gap / 2, x.size(0));
  copy(x, view.transpose(0, 1));
  return view.transpose(0, 1);
}

struct Operands {
  Tensor x, weight, bias, dy;
};
Operands operands(std::int64_t rows, std::int64_t channels, DType dtype) {
  Operands o{random_tensor({rows, channels}, dtype, "x"), random_tensor({channels}, dtype, "w"),
             random_tensor({channels}, dtype, "b"), random_tensor({rows, channels}, dtype, "dy")};
  add(1, o.x, 0.5, Tensor::full({rows, channels}, 3, dtype), o.x);  // a mean to take away
  return o;
}

}  // namespace

TEST_CASE("layer norm and its gradients agree with double in every layout") {
  for (const DType dtype : floating_dtypes)
    for (const auto& [rows, channels] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 1}, {1, 16}, {5, 128}, {64, 3}, {65, 40}, {200, 128}, {3000, 17}})
      for (int layout = 0; layout < 9; ++layout) {
        CAPTURE(name_of(dtype), rows, channels, layout);
        const auto [x0, weight, bias, dy0] = operands(rows, channels, dtype);
        const Reference r = reference(x0, weight, bias, dy0);
        const Tensor x = in_layout(x0, layout / 3);
        const Tensor y = in_layout(Tensor::empty(x0.shape(), dtype), layout % 3);
        const DType wide = at_least_f32(dtype);
        const Tensor mean = Tensor::empty({rows}, wide);
        const Tensor rstd = Tensor::empty({rows}, wide);
        layer_norm(x, weight, bias, eps, y, mean, rstd);
        // Sums of up to 128 terms round in every step. A single channel has no variance; rstd = 316
        // then multiplies every rounding.
        const double magnify = channels < 4 ? 700 : 40;
        const double exact = magnify * rounding_of(wide);
        check_close(mean, r.mean, exact);
        check_close(rstd, r.rstd, exact);
        check_close(y, r.y, exact + 2 * rounding_of(dtype));

        const Tensor again = in_layout(Tensor::empty(x0.shape(), dtype), layout % 3);
        layer_norm_apply(x, weight, bias, mean, rstd, again);
        CHECK(bitwise_equal(again, y));

        const Tensor dweight = Tensor::full({channels}, 1, wide);
        const Tensor dbias = Tensor::full({channels}, -1, wide);
        const Tensor dy = in_layout(dy0, layout % 3);
        layer_norm_backward(dy, x, weight, mean, rstd, dy, dweight, dbias);  // dx is dy
        check_close(dy, r.dx, 4 * exact * (channels < 4 ? 316 : 1) + 2 * rounding_of(dtype));
        auto dw = r.dweight, db = r.dbias;
        for (double& value : dw) value += 1;
        for (double& value : db) value -= 1;
        // Sums of `rows` terms, whose partial sums stay below 4 sqrt(rows) with this seed.
        const double sums = exact * std::sqrt(static_cast<double>(rows)) * 4;
        check_close(dweight, dw, sums);
        check_close(dbias, db, sums);
      }
}

TEST_CASE("the variance survives a mean that is large against it") {
  // E[x^2] - E[x]^2 would lose all digits here in f32.
  const std::int64_t channels = 64;
  const Tensor x = Tensor::empty({2, channels}, DType::f32);
  fill_uniform(x, {1, 1}, whole(x.shape()), 9999, 10001);
  const Tensor one = Tensor::full({channels}, 1, DType::f32);
  const Reference r = reference(x, one, Tensor::zeros({channels}, DType::f32), x);
  for (int layout = 0; layout < 2; ++layout) {
    const Tensor mean = Tensor::empty({2}, DType::f32), rstd = Tensor::empty({2}, DType::f32);
    const Tensor y = Tensor::empty({2, channels}, DType::f32);
    layer_norm(in_layout(x, layout), one, Tensor::zeros({channels}, DType::f32), eps, y, mean,
               rstd);
    // 64 additions near 6e5 are off by at most 2^-5 each, the mean by as much; the deviations, of
    // size 1, inherit that. Without a second pass nothing of them would be left.
    check_close(y, r.y, 2 * 0x1p-5);
  }
}

TEST_CASE("weights of another dtype are converted") {
  const auto [x, weight, bias, dy] = operands(10, 32, DType::bf16);
  const Tensor mean = Tensor::empty({10}, DType::f32), rstd = Tensor::empty({10}, DType::f32);
  const Tensor y = Tensor::empty({10, 32}, DType::bf16), z = Tensor::empty({10, 32}, DType::bf16);
  layer_norm(x, weight, bias, eps, y, mean, rstd);
  layer_norm(x, weight.to(DType::f64), bias.to(DType::f32), eps, z, mean, rstd);
  CHECK(bitwise_equal(y, z));
}

TEST_CASE("a NaN spoils its own row of layer norm, and no other") {
  for (int layout = 0; layout < 2; ++layout) {
    const auto [x0, weight, bias, dy] = operands(70, 24, DType::f32);
    fill(x0.narrow(0, 33, 1).narrow(1, 3, 1), std::numeric_limits<double>::quiet_NaN());
    const Tensor mean = Tensor::empty({70}, DType::f32), rstd = Tensor::empty({70}, DType::f32);
    const Tensor y = in_layout(x0, layout);
    layer_norm(in_layout(x0, layout), weight, bias, eps, y, mean, rstd);
    for (std::int64_t i = 0; i < 70; ++i) CHECK(all_finite(y.select(0, i)) == (i != 33));
  }
}

TEST_CASE("layer norm does not depend on the number of threads") {
  const int before = thread_count();
  for (const DType dtype : floating_dtypes)
    for (int layout = 0; layout < 2; ++layout) {
      CAPTURE(name_of(dtype), layout);
      const auto [x0, weight, bias, dy0] = operands(5003, 48, dtype);
      const Tensor x = in_layout(x0, layout), dy = in_layout(dy0, layout);
      const DType wide = at_least_f32(dtype);
      const auto compute = [&, w = weight, b = bias](int threads) {
        set_thread_count(threads);
        const Tensor mean = Tensor::empty({5003}, wide), rstd = Tensor::empty({5003}, wide);
        const Tensor y = in_layout(x0, layout), dx = in_layout(x0, layout);
        const Tensor dweight = Tensor::zeros({48}, wide), dbias = Tensor::zeros({48}, wide);
        layer_norm(x, w, b, eps, y, mean, rstd);
        layer_norm_backward(dy, x, w, mean, rstd, dx, dweight, dbias);
        return std::vector<Tensor>{y, mean, rstd, dx, dweight, dbias};
      };
      const auto one = compute(1);
      for (const int threads : {2, 5}) {
        const auto many = compute(threads);
        for (std::size_t i = 0; i < one.size(); ++i) CHECK(bitwise_equal(one[i], many[i]));
      }
    }
  set_thread_count(before);
}

TEST_CASE("layer norm names the operand it refuses") {
  const auto [x, weight, bias, dy] = operands(4, 6, DType::f32);
  const Tensor y = x.clone(), w = weight, b = bias;
  const Tensor mean = Tensor::empty({4}, DType::f32), rstd = Tensor::empty({4}, DType::f32);
  const Tensor short_ = Tensor::empty({3}, DType::f32);
  require_error<ShapeError>([&, x_ = x] { layer_norm(x_, short_, b, eps, y, mean, rstd); },
                            "layer_norm", "'weight'", "[3]", "[6]");
  require_error<ShapeError>([&, x_ = x] { layer_norm(x_, w, b, eps, y, short_, rstd); }, "'mean'",
                            "[3]", "[4]");
  require_error<TypeError>([&, x_ = x] { layer_norm(x_, w, b, eps, y, mean, rstd.to(DType::f64)); },
                           "'rstd'", "f64", "f32");
  require_error<StrideError>(
      [&, x_ = x] {
        const Tensor gaps = Tensor::empty({4, 6, 2}, DType::f32).select(2, 0);
        layer_norm(x_, w, b, eps, gaps, mean, rstd);
      },
      "layer_norm", "'y'", "[12, 2]");
  require_error<TypeError>(
      [&, x_ = x] { layer_norm_backward(y, x_, w, mean, rstd, y, w.to(DType::f64), b); },
      "layer_norm_backward", "'dweight'", "f64");
}
