// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/layer_norm.hpp"

#include "tessera/runtime/cpu/variant.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {
namespace {

// Two ways to vectorise. By channel: one row at a time, along its channels. By row: kRowBlock rows
// side by side, channel after channel; used when all operands have their rows contiguous. Operands
// of differing layout go by channel with strides.
constexpr std::int64_t kRowBlock = 64;

// One row; `unit` promises a channel stride of 1, known at compile time.
template <class T, bool unit>
struct Row {
  T* data;
  std::int64_t stride;
  T& operator[](std::int64_t c) const { return unit ? data[c] : data[c * stride]; }
};
template <bool unit, class T>
Row<T, unit> row_of(const View<T>& x, std::int64_t row) {
  return {x.data + row * x.row_stride, x.channel_stride};
}

// Sum over the channels of term(x[c]).
template <bool unit, class T, class Term>
Acc<T> sum_row(const Row<T, unit>& x, std::int64_t channels, const Term& term) {
  Acc<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < channels; ++c) sum += term(load(x[c]));
  return sum;
}

// One sum after the other for several rows, then the rest for all of them at once: no row waits for
// its own mean or root.
template <bool unit, class T>
void statistics_by_channel(const LayerNorm<T>& f, std::int64_t first, std::int64_t n) {
  using A = Acc<T>;
  const auto channels = static_cast<A>(f.channels);
  A* mean = f.mean + first;
  A squares[kRowBlock];
  for (std::int64_t i = 0; i < n; ++i)
    mean[i] = sum_row(row_of<unit>(f.x, first + i), f.channels, [](A x) { return x; });
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) mean[i] /= channels;
  for (std::int64_t i = 0; i < n; ++i)
    squares[i] = sum_row(row_of<unit>(f.x, first + i), f.channels, [m = mean[i]](A x) {
      const A centred = x - m;
      return centred * centred;
    });
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i)
    f.rstd[first + i] = reciprocal_std(squares[i], channels, f.eps);
}

template <bool unit, class T>
void forward_by_channel(const LayerNorm<T>& f, Range rows) {
  using A = Acc<T>;
  const A* weight = f.weight;
  const A* bias = f.bias;
  for (std::int64_t first = rows.begin; first < rows.end; first += kRowBlock) {
    const std::int64_t n = smaller(kRowBlock, rows.end - first);
    if (!f.given) statistics_by_channel<unit>(f, first, n);
    for (std::int64_t r = first; r < first + n; ++r) {
      const auto x = row_of<unit>(f.x, r);
      const auto y = row_of<unit>(f.y, r);
      const RowStatistics<A> s{f.mean[r], f.rstd[r]};
#pragma omp simd
      for (std::int64_t c = 0; c < f.channels; ++c)
        store(y[c], s.normalized(load(x[c])) * weight[c] + bias[c]);
    }
  }
}

// Sums over the channels for `n` rows side by side: sums[i] += term(c, i).
template <class A, class Term>
void sum_channels(std::int64_t channels, std::int64_t n, A* sums, const Term& term) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] = 0;
  for (std::int64_t c = 0; c < channels; ++c) {
    if (n == kRowBlock) {
#pragma omp simd
      for (std::int64_t i = 0; i < kRowBlock; ++i) sums[i] += term(c, i);
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) sums[i] += term(c, i);
    }
  }
}

template <class T>
void statistics_by_row(const LayerNorm<T>& f, std::int64_t first, std::int64_t n) {
  using A = Acc<T>;
  const auto channels = static_cast<A>(f.channels);
  const T* x = f.x.data + first;
  const std::int64_t stride = f.x.channel_stride;
  A mean[kRowBlock];
  A squares[kRowBlock];
  sum_channels(f.channels, n, mean,
               [&](std::int64_t c, std::int64_t i) { return load(x[c * stride + i]); });
  for (std::int64_t i = 0; i < n; ++i) mean[i] /= channels;
  sum_channels(f.channels, n, squares, [&](std::int64_t c, std::int64_t i) {
    const A centred = load(x[c * stride + i]) - mean[i];
    return centred * centred;
  });
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    f.mean[first + i] = mean[i];
    f.rstd[first + i] = reciprocal_std(squares[i], channels, f.eps);
  }
}

template <class T>
void forward_by_row(const LayerNorm<T>& f, Range rows) {
  for (std::int64_t first = rows.begin; first < rows.end; first += kRowBlock) {
    const std::int64_t n = smaller(kRowBlock, rows.end - first);
    if (!f.given) statistics_by_row(f, first, n);
    const auto* mean = f.mean + first;
    const auto* rstd = f.rstd + first;
    for (std::int64_t c = 0; c < f.channels; ++c) {
      const T* x = &f.x.at(first, c);
      T* y = &f.y.at(first, c);
      const auto weight = f.weight[c];
      const auto bias = f.bias[c];
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i)
        store(y[i], (load(x[i]) - mean[i]) * rstd[i] * weight + bias);
    }
  }
}

template <bool unit, class T>
void backward_by_channel(const LayerNormBackward<T>& b, Range rows) {
  using A = Acc<T>;
  const A* weight = b.weight;
  A* dweight = b.dweight;
  A* dbias = b.dbias;
  const auto channels = static_cast<A>(b.channels);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const auto dy = row_of<unit>(b.dy, r);
    const auto x = row_of<unit>(b.x, r);
    const auto dx = row_of<unit>(b.dx, r);
    const RowStatistics<A> s{b.mean[r], b.rstd[r]};
    A sum_g = 0;
    A sum_g_xh = 0;
#pragma omp simd reduction(+ : sum_g, sum_g_xh)
    for (std::int64_t c = 0; c < b.channels; ++c) {
      const A g = load(dy[c]) * weight[c];
      sum_g += g;
      sum_g_xh += g * s.normalized(load(x[c]));
    }
    const RowGradient<A> mean{sum_g / channels, sum_g_xh / channels};
#pragma omp simd
    for (std::int64_t c = 0; c < b.channels; ++c) {
      const A d = load(dy[c]);
      const A xh = s.normalized(load(x[c]));
      dweight[c] += d * xh;
      dbias[c] += d;
      store(dx[c], layer_norm_dx(d * weight[c], xh, mean, s.rstd));
    }
  }
}

template <class T>
void backward_block_by_row(const LayerNormBackward<T>& b, std::int64_t first, std::int64_t n) {
  using A = Acc<T>;
  const A* mean = b.mean + first;
  const A* rstd = b.rstd + first;
  A mean_g[kRowBlock];
  A mean_g_xh[kRowBlock];
  const auto row = [&](const View<T>& v, std::int64_t c) { return &v.at(first, c); };
  for (std::int64_t i = 0; i < n; ++i) mean_g[i] = mean_g_xh[i] = 0;
  for (std::int64_t c = 0; c < b.channels; ++c) {
    const T* x = row(b.x, c);
    const T* dy = row(b.dy, c);
    const A weight = b.weight[c];
    A dweight = 0;
    A dbias = 0;
#pragma omp simd reduction(+ : dweight, dbias)
    for (std::int64_t i = 0; i < n; ++i) {
      const A d = load(dy[i]);
      const A d_xh = d * ((load(x[i]) - mean[i]) * rstd[i]);
      dweight += d_xh;
      dbias += d;
      mean_g[i] += d * weight;
      mean_g_xh[i] += d_xh * weight;
    }
    b.dweight[c] += dweight;
    b.dbias[c] += dbias;
  }
  const A scale = A(1) / static_cast<A>(b.channels);
  for (std::int64_t i = 0; i < n; ++i) {
    mean_g[i] *= scale;
    mean_g_xh[i] *= scale;
  }
  for (std::int64_t c = 0; c < b.channels; ++c) {
    const T* x = row(b.x, c);
    const T* dy = row(b.dy, c);
    T* dx = row(b.dx, c);
    const A weight = b.weight[c];
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i)
      store(dx[i], layer_norm_dx(load(dy[i]) * weight, (load(x[i]) - mean[i]) * rstd[i],
                                 RowGradient<A>{mean_g[i], mean_g_xh[i]}, rstd[i]));
  }
}

template <class T>
void add_rows(const SumRowsArgs& args, Range rows) {
  Acc<T>* sums = pointer<Acc<T>>(args.sums);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = pointer<T>(args.x.data) + r * args.x.row_stride;
#pragma omp simd
    for (std::int64_t c = 0; c < args.channels; ++c) sums[c] += load(x[c]);
  }
}

}  // namespace

void layer_norm(const LayerNormArgs& args, Range rows) {
  with_floating(args.dtype, [&](auto type) {
    const LayerNorm<typename decltype(type)::type> f(args);
    if (by_row(args.x) && by_row(args.y))
      forward_by_row(f, rows);
    else if (args.x.channel_stride == 1 && args.y.channel_stride == 1)
      forward_by_channel<true>(f, rows);
    else
      forward_by_channel<false>(f, rows);
  });
}

void layer_norm_backward(const LayerNormBackwardArgs& args, Range rows) {
  with_floating(args.dtype, [&](auto type) {
    const LayerNormBackward<typename decltype(type)::type> b(args);
    if (by_row(args.dy) && by_row(args.x) && by_row(args.dx))
      for (std::int64_t first = rows.begin; first < rows.end; first += kRowBlock)
        backward_block_by_row(b, first, smaller(kRowBlock, rows.end - first));
    else if (args.dy.channel_stride == 1 && args.x.channel_stride == 1 &&
             args.dx.channel_stride == 1)
      backward_by_channel<true>(b, rows);
    else
      backward_by_channel<false>(b, rows);
  });
}

void sum_rows(const SumRowsArgs& args, Range rows) {
  with_floating(args.dtype,
                [&](auto type) { add_rows<typename decltype(type)::type>(args, rows); });
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE
