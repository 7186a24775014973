// SPDX-License-Identifier: MIT
// Layer norm, sums over rows and gates.
#include "tessera/runtime/gpu/cuda/launch.cuh"
#include "tessera/runtime/kernels/gates.hpp"
#include "tessera/runtime/kernels/layer_norm.hpp"

namespace tessera::gpu_cuda {
namespace {

constexpr int kWarp = 32;

template <class T>
struct View {
  T* data;
  std::int64_t row_stride;
  std::int64_t channel_stride;
  __device__ T& at(std::int64_t row, std::int64_t channel) const {
    return data[row * row_stride + channel * channel_stride];
  }
};
template <class T>
View<T> view(const Rows& rows) {
  return {static_cast<T*>(rows.data), rows.row_stride, rows.channel_stride};
}

// A row belongs to a warp if its channels are contiguous, else to one thread, whose neighbours
// have the neighbouring rows: reads are coalesced either way.
bool by_row(const Rows& x) {
  return x.row_stride == 1 && x.channel_stride != 1;
}

// The sum over the `width` threads of a row, in each of them.
template <int width, class A>
__device__ A row_sum(A value) {
  for (int step = width / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}
template <int width>
__device__ std::int64_t first_row() {
  return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / width;
}
template <int width>
__device__ std::int64_t row_step() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x / width;
}

template <class T>
struct Forward {
  using A = Acc<T>;
  View<T> x, y;
  std::int64_t channels;
  A eps;
  bool given;
  const A* weight;
  const A* bias;
  A* mean;
  A* rstd;
};

template <class T, int width>
__global__ void forward(Forward<T> f, Range rows) {
  using A = Acc<T>;
  const int lane = threadIdx.x % width;
  const auto channels = static_cast<A>(f.channels);
  for (std::int64_t r = rows.begin + first_row<width>(); r < rows.end; r += row_step<width>()) {
    RowStatistics<A> s{};
    if (f.given) {
      s = {f.mean[r], f.rstd[r]};
    } else {
      A sum = 0;
      for (std::int64_t c = lane; c < f.channels; c += width) sum += load(f.x.at(r, c));
      s.mean = row_sum<width>(sum) / channels;
      A squares = 0;
      for (std::int64_t c = lane; c < f.channels; c += width) {
        const A centred = load(f.x.at(r, c)) - s.mean;
        squares += centred * centred;
      }
      s.rstd = reciprocal_std(row_sum<width>(squares), channels, f.eps);
      if (lane == 0) {
        f.mean[r] = s.mean;
        f.rstd[r] = s.rstd;
      }
    }
    for (std::int64_t c = lane; c < f.channels; c += width)
      store(f.y.at(r, c), s.normalized(load(f.x.at(r, c))) * f.weight[c] + f.bias[c]);
  }
}

template <class T>
struct Backward {
  using A = Acc<T>;
  View<T> dy, x, dx;
  std::int64_t channels;
  const A* weight;
  const A* mean;
  const A* rstd;
  __device__ RowStatistics<A> statistics(std::int64_t r) const { return {mean[r], rstd[r]}; }
};

template <class T, int width>
__global__ void backward(Backward<T> b, Range rows) {
  using A = Acc<T>;
  const int lane = threadIdx.x % width;
  const auto channels = static_cast<A>(b.channels);
  for (std::int64_t r = rows.begin + first_row<width>(); r < rows.end; r += row_step<width>()) {
    const RowStatistics<A> s = b.statistics(r);
    A g_sum = 0;
    A g_xh_sum = 0;
    for (std::int64_t c = lane; c < b.channels; c += width) {
      const A g = load(b.dy.at(r, c)) * b.weight[c];
      g_sum += g;
      g_xh_sum += g * s.normalized(load(b.x.at(r, c)));
    }
    const RowGradient<A> mean{row_sum<width>(g_sum) / channels,
                              row_sum<width>(g_xh_sum) / channels};
    for (std::int64_t c = lane; c < b.channels; c += width) {
      const A g = load(b.dy.at(r, c)) * b.weight[c];
      const A xh = s.normalized(load(b.x.at(r, c)));
      store(b.dx.at(r, c), layer_norm_dx(g, xh, mean, s.rstd));
    }
  }
}

// Sums over the rows of two terms of each channel (or of one: `second` null), added to `first` and
// `second`. The order of each sum is fixed by the sizes.
template <class A>
struct Pair {
  A first;
  A second;
};
template <class T>
struct WeightTerms {
  Backward<T> b;
  __device__ Pair<Acc<T>> operator()(std::int64_t r, std::int64_t c) const {
    const Acc<T> d = load(b.dy.at(r, c));
    return {d * b.statistics(r).normalized(load(b.x.at(r, c))), d};
  }
};
template <class T>
struct ValueTerm {
  View<T> x;
  __device__ Pair<Acc<T>> operator()(std::int64_t r, std::int64_t c) const {
    return {load(x.at(r, c)), 0};
  }
};

// For contiguous channels: a thread per channel, partial sums for each block of rows ...
template <class A, class Terms>
__global__ void sum_row_blocks(Terms terms, Range rows, std::int64_t rows_per_block,
                               std::int64_t channels, Pair<A>* partial) {
  const std::int64_t begin = rows.begin + blockIdx.x * rows_per_block;
  const std::int64_t full = begin + rows_per_block;
  const std::int64_t end = full < rows.end ? full : rows.end;
  for (std::int64_t c = threadIdx.x; c < channels; c += blockDim.x) {
    Pair<A> sum{0, 0};
    for (std::int64_t r = begin; r < end; ++r) {
      const Pair<A> term = terms(r, c);
      sum.first += term.first;
      sum.second += term.second;
    }
    partial[blockIdx.x * channels + c] = sum;
  }
}
// ... which are then added up.
template <class A>
__global__ void add_partial(const Pair<A>* partial, std::int64_t blocks, std::int64_t channels,
                            A* first, A* second) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  Pair<A> sum{0, 0};
  for (std::int64_t b = 0; b < blocks; ++b) {
    sum.first += partial[b * channels + c].first;
    sum.second += partial[b * channels + c].second;
  }
  first[c] += sum.first;
  if (second != nullptr) second[c] += sum.second;
}

// For contiguous rows: a block per channel.
template <class A, class Terms>
__global__ void sum_channel(Terms terms, Range rows, std::int64_t channels, A* first, A* second) {
  __shared__ Pair<A> sums[kThreads];
  for (std::int64_t c = blockIdx.x; c < channels; c += gridDim.x) {
    Pair<A> own{0, 0};
    for (std::int64_t r = rows.begin + threadIdx.x; r < rows.end; r += blockDim.x) {
      const Pair<A> term = terms(r, c);
      own.first += term.first;
      own.second += term.second;
    }
    sums[threadIdx.x] = own;
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x >= half) continue;
      sums[threadIdx.x].first += sums[threadIdx.x + half].first;
      sums[threadIdx.x].second += sums[threadIdx.x + half].second;
    }
    if (threadIdx.x == 0) {
      first[c] += sums[0].first;
      if (second != nullptr) second[c] += sums[0].second;
    }
    __syncthreads();
  }
}

template <class A, class Terms>
void sum_terms(const Terms& terms, bool rows_contiguous, Range rows, std::int64_t channels,
               A* first, A* second) {
  if (rows_contiguous)
    return launch("sum_channel", sum_channel<A, Terms>, grid(channels, 1), kThreads, terms, rows,
                  channels, first, second);
  constexpr std::int64_t most_blocks = 256;
  constexpr std::int64_t fewest_rows = 64;
  const std::int64_t count = rows.end - rows.begin;
  const std::int64_t per_block = std::max(fewest_rows, (count + most_blocks - 1) / most_blocks);
  const std::int64_t blocks = (count + per_block - 1) / per_block;
  const Scratch<Pair<A>> partial(blocks * channels);
  launch("sum_row_blocks", sum_row_blocks<A, Terms>, static_cast<unsigned>(blocks), kThreads, terms,
         rows, per_block, channels, partial.data());
  launch("add_partial", add_partial<A>, static_cast<unsigned>((channels + kThreads - 1) / kThreads),
         kThreads, static_cast<const Pair<A>*>(partial.data()), blocks, channels, first, second);
}

template <class T>
struct GatePointers {
  const T* in[3];
  T* out[3];
  std::int64_t in_stride[3];
  std::int64_t out_stride[3];
  const Acc<T>* mask;
};

template <class Body, class T>
__global__ void gate_elements(GatePointers<T> g, std::int64_t count, std::int64_t positions) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < count;
       e += step) {
    const std::int64_t row = e / positions;
    const std::int64_t p = e - row * positions;
    Acc<T> x[3];
    Acc<T> y[3];
    for (int i = 0; i < Body::inputs; ++i) x[i] = load(g.in[i][row * g.in_stride[i] + p]);
    Body::apply(x, g.mask != nullptr ? g.mask[p] : Acc<T>(1), y);
    for (int o = 0; o < Body::outputs; ++o) store(g.out[o][row * g.out_stride[o] + p], y[o]);
  }
}

template <class Body>
void run_gate(const GateArgs& args) {
  with_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    GatePointers<T> g{};
    for (int i = 0; i < 3; ++i) {
      g.in[i] = static_cast<const T*>(args.in[i].data);
      g.out[i] = static_cast<T*>(args.out[i].data);
      g.in_stride[i] = args.in[i].row_stride;
      g.out_stride[i] = args.out[i].row_stride;
    }
    g.mask = static_cast<const Acc<T>*>(args.mask);
    const std::int64_t count = args.rows * args.positions;
    launch("gate", gate_elements<Body, T>, grid(count), kThreads, g, count, args.positions);
  });
}

}  // namespace

void layer_norm(const LayerNormArgs& args, Range rows) {
  with_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Acc<T>;
    const Forward<T> f{view<T>(args.x),
                       view<T>(args.y),
                       args.channels,
                       static_cast<A>(args.eps),
                       args.given_statistics,
                       static_cast<const A*>(args.weight),
                       static_cast<const A*>(args.bias),
                       static_cast<A*>(args.mean),
                       static_cast<A*>(args.rstd)};
    const std::int64_t count = rows.end - rows.begin;
    if (by_row(args.x))
      launch("layer_norm", forward<T, 1>, grid(count), kThreads, f, rows);
    else
      launch("layer_norm", forward<T, kWarp>, grid(count, kThreads / kWarp), kThreads, f, rows);
  });
}

void layer_norm_backward(const LayerNormBackwardArgs& args, Range rows) {
  with_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Acc<T>;
    const Backward<T> b{view<T>(args.dy),
                        view<T>(args.x),
                        view<T>(args.dx),
                        args.channels,
                        static_cast<const A*>(args.weight),
                        static_cast<const A*>(args.mean),
                        static_cast<const A*>(args.rstd)};
    const bool rows_contiguous = by_row(args.x);
    // Before dx, which may be dy.
    sum_terms<A>(WeightTerms<T>{b}, rows_contiguous, rows, args.channels,
                 static_cast<A*>(args.dweight), static_cast<A*>(args.dbias));
    const std::int64_t count = rows.end - rows.begin;
    if (rows_contiguous)
      launch("layer_norm_backward", backward<T, 1>, grid(count), kThreads, b, rows);
    else
      launch("layer_norm_backward", backward<T, kWarp>, grid(count, kThreads / kWarp), kThreads, b,
             rows);
  });
}

void sum_rows(const SumRowsArgs& args, Range rows) {
  with_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Acc<T>;
    sum_terms<A>(ValueTerm<T>{view<T>(args.x)}, false, rows, args.channels,
                 static_cast<A*>(args.sums), static_cast<A*>(nullptr));
  });
}

void gate(const GateArgs& args, Range) {
  switch (args.op) {
    case Gate::gated_product:
      return run_gate<GatedProduct>(args);
    case Gate::gated_product_backward:
      return run_gate<GatedProductBackward>(args);
    case Gate::sigmoid_gate_backward:
      return run_gate<SigmoidGateBackward>(args);
    case Gate::silu_product:
      return run_gate<SiluProduct>(args);
    case Gate::silu_product_backward:
      return run_gate<SiluProductBackward>(args);
  }
}

}  // namespace tessera::gpu_cuda
