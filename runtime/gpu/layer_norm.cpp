// SPDX-License-Identifier: MIT
// Layer norm and sums over rows.
#include "tessera/runtime/kernels/layer_norm.hpp"

#include "tessera/runtime/gpu/reduce.hpp"
#include "tessera/runtime/kernels/fold.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {
namespace {

// Two sums at once.
template <class A>
struct TwoSums {
  A first = 0;
  A second = 0;
  TESSERA_HD void add(A x, A y) {
    first += x;
    second += y;
  }
  TESSERA_HD void join(TwoSums other) { add(other.first, other.second); }
};

template <class T>
struct Normalize {
  using A = Acc<T>;
  LayerNorm<T> f;

  TESSERA_DEVICE void operator()(std::int64_t r, const Lanes& lanes) const {
    const RowStatistics<A> s =
        f.given ? RowStatistics<A>{f.mean[r], f.rstd[r]} : statistics(r, lanes);
    lanes.each(f.channels, [&](std::int64_t c) {
      store(f.y.at(r, c), s.normalized(load(f.x.at(r, c))) * f.weight[c] + f.bias[c]);
    });
  }
  TESSERA_DEVICE RowStatistics<A> statistics(std::int64_t r, const Lanes& lanes) const {
    const auto channels = static_cast<A>(f.channels);
    const Sum<A> sum = lanes.reduce(
        Sum<A>{}, f.channels, [&](Sum<A>& own, std::int64_t c) { own.add(load(f.x.at(r, c)), c); });
    const A mean = sum.value / channels;
    const Sum<A> squares = lanes.reduce(Sum<A>{}, f.channels, [&](Sum<A>& own, std::int64_t c) {
      const A centred = load(f.x.at(r, c)) - mean;
      own.add(centred * centred, c);
    });
    const A rstd = reciprocal_std(squares.value, channels, f.eps);
    lanes.once([&] {
      f.mean[r] = mean;
      f.rstd[r] = rstd;
    });
    return {mean, rstd};
  }
};

template <class T>
struct InputGradient {
  using A = Acc<T>;
  LayerNormBackward<T> b;

  TESSERA_DEVICE void operator()(std::int64_t r, const Lanes& lanes) const {
    const auto channels = static_cast<A>(b.channels);
    const RowStatistics<A> s{b.mean[r], b.rstd[r]};
    const TwoSums<A> sums =
        lanes.reduce(TwoSums<A>{}, b.channels, [&](TwoSums<A>& own, std::int64_t c) {
          const A g = load(b.dy.at(r, c)) * b.weight[c];
          own.add(g, g * s.normalized(load(b.x.at(r, c))));
        });
    const RowGradient<A> mean{sums.first / channels, sums.second / channels};
    lanes.each(b.channels, [&](std::int64_t c) {
      const A g = load(b.dy.at(r, c)) * b.weight[c];
      store(b.dx.at(r, c), layer_norm_dx(g, s.normalized(load(b.x.at(r, c))), mean, s.rstd));
    });
  }
};

// Of a channel: a row of `rows` elements to the reduction.
template <class T>
struct WeightGradients {
  using A = Acc<T>;
  using State = TwoSums<A>;
  LayerNormBackward<T> b;
  std::int64_t first_row;
  TESSERA_DEVICE void add(State& own, std::int64_t c, std::int64_t i) const {
    const std::int64_t r = first_row + i;
    const RowStatistics<A> s{b.mean[r], b.rstd[r]};
    const A d = load(b.dy.at(r, c));
    own.add(d * s.normalized(load(b.x.at(r, c))), d);
  }
  TESSERA_DEVICE void finish(std::int64_t c, const State& sums) const {
    b.dweight[c] += sums.first;
    b.dbias[c] += sums.second;
  }
};
template <class T>
struct ColumnSum {
  using A = Acc<T>;
  using State = Sum<A>;
  View<T> x;
  A* sums;
  std::int64_t first_row;
  TESSERA_DEVICE void add(State& own, std::int64_t c, std::int64_t i) const {
    own.add(load(x.at(first_row + i, c)), i);
  }
  TESSERA_DEVICE void finish(std::int64_t c, const State& sum) const { sums[c] += sum.value; }
};

std::int64_t size_of(Range range) {
  return range.end - range.begin;
}

}  // namespace

void layer_norm(const LayerNormArgs& args, Range rows) {
  const Width width = by_row(args.x) ? Width::lane : width_for(args.channels);
  with_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for_each_row("layer_norm", rows, width, Normalize<T>{LayerNorm<T>(args)});
  });
}

void layer_norm_backward(const LayerNormBackwardArgs& args, Range rows) {
  const Range channels{0, args.channels};
  const Width by_channel = by_row(args.x) ? width_for(size_of(rows)) : Width::lane;
  const Width width = by_row(args.x) ? Width::lane : width_for(args.channels);
  with_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const LayerNormBackward<T> b(args);
    // Before dx, which may be dy.
    reduce_rows("layer_norm_backward", channels, size_of(rows), by_channel,
                WeightGradients<T>{b, rows.begin});
    for_each_row("layer_norm_backward", rows, width, InputGradient<T>{b});
  });
}

void sum_rows(const SumRowsArgs& args, Range rows) {
  with_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    reduce_rows("sum_rows", {0, args.channels}, size_of(rows), Width::lane,
                ColumnSum<T>{view<T>(args.x), static_cast<Acc<T>*>(args.sums), rows.begin});
  });
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE
