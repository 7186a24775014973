// SPDX-License-Identifier: MIT
// How kernels are started. A kernel is a body that handles one item, one row or one tile and knows
// nothing of blocks and threads; it is written once, and nvcc or the C++ compiler builds it for
// CUDA or for the imitation. CUDA shares the work among the threads of a grid; the imitation walks
// the same blocks, warps and lanes in loops and joins what they found in the same order.
//
// Bodies are copied: they are plain data, with device pointers. All that runs on the device is
// marked TESSERA_DEVICE. Starting a kernel does not wait for it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/runtime/gpu/kernels.hpp"

#ifdef __CUDACC__
#include "tessera/runtime/gpu/cuda/check.cuh"
#define TESSERA_DEVICE __device__ inline
#else
#include "tessera/runtime/gpu/imitation/driver.hpp"
#define TESSERA_DEVICE inline
#endif

namespace tessera::TESSERA_GPU_NAMESPACE {

inline constexpr int kWarp = 32;
#ifdef __CUDACC__
inline constexpr int kMostThreads = 256;  // leaves enough registers to every kernel
#else
inline constexpr int kMostThreads = 1024;
#endif

// Threads of a block: 256. Tests set other multiples of kWarp up to kMostThreads; no element of a
// result depends on it, and no sum but by rounding.
int& block_threads();

struct Grid {
  unsigned blocks;
  unsigned threads;
};
// For `count` items with `width` threads each. More items than fit are taken in turns.
Grid grid_for(std::int64_t count, std::int64_t width);

// A thread's place in the grid.
struct Place {
  std::int64_t block, blocks, thread, threads;
};

// The lanes that share a row. All of them run the row program; what it does to the elements of the
// row goes through these. An element belongs to the same lane in every pass, and a lane sees only
// what itself has written, until the kernel ends.
class Lanes {
 public:
  // One lane; a warp; a whole block.
  TESSERA_DEVICE explicit Lanes(int width, int lane = 0) : width_(width), lane_(lane) {}

  // body(i) for all i < count.
  template <class Body>
  TESSERA_DEVICE void each(std::int64_t count, Body&& body) const;

  // add(state, i) for all i < count, into a state per lane, each a copy of `start`, the identity of
  // join(). Returns the states joined, to all lanes: by halves within a warp, then warp by warp.
  template <class State, class Add>
  TESSERA_DEVICE State reduce(State start, std::int64_t count, Add&& add) const;

  // body() on one of the lanes.
  template <class Body>
  TESSERA_DEVICE void once(Body&& body) const;

 private:
  TESSERA_DEVICE int lanes_of_warp() const { return width_ < kWarp ? width_ : kWarp; }

  int width_;
  int lane_;  // CUDA: of this thread
};

// The rows of a grid, in groups of `width` lanes.
template <class Body>
struct RowKernel {
  Range rows;
  int width;
  Body body;
  // Those of the group in which a thread is.
  TESSERA_DEVICE void run(Place at, const Lanes& lanes) const {
    const std::int64_t groups = at.threads / width;
    const std::int64_t first = at.block * groups + at.thread / width;
    for (std::int64_t r = rows.begin + first; r < rows.end; r += at.blocks * groups) body(r, lanes);
  }
};

// Square tiles of kTile x kTile elements, brought in row by row and taken out column by column.
inline constexpr int kTile = 32;
template <class T>
using Tile = T[kTile][kTile + 1];  // no two elements of a column in one bank

template <class T, class Body>
struct TileKernel {
  std::int64_t tiles;
  Body body;
  // A thread's share of both passes.
  TESSERA_DEVICE void load(Place at, std::int64_t t, Tile<T>& tile) const {
    const auto corner = body.corner(t);
    each_of(at, [&](int row, int column) { body.load(corner, row, column, tile[row][column]); });
  }
  TESSERA_DEVICE void store(Place at, std::int64_t t, const Tile<T>& tile) const {
    const auto corner = body.corner(t);
    each_of(at, [&](int row, int column) { body.store(corner, row, column, tile[column][row]); });
  }

 private:
  template <class Visit>
  TESSERA_DEVICE static void each_of(Place at, Visit&& visit) {
    const auto thread = static_cast<int>(at.thread);
    const auto threads = static_cast<int>(at.threads);
    for (int row = thread / kTile; row < kTile; row += threads / kTile) visit(row, thread % kTile);
  }
};

#ifdef __CUDACC__

template <class Body>
TESSERA_DEVICE void Lanes::each(std::int64_t count, Body&& body) const {
  for (std::int64_t i = lane_; i < count; i += width_) body(i);
}

template <class Body>
TESSERA_DEVICE void Lanes::once(Body&& body) const {
  if (lane_ == 0) body();
}

// A state with shuffle() applied to each of its words. By memcpy: nvcc 12 has no bit casts of types
// that depend on a parameter.
template <class State, class Shuffle>
TESSERA_DEVICE State shuffled(const State& own, Shuffle&& shuffle) {
  static_assert(sizeof(State) % sizeof(unsigned) == 0);
  unsigned words[sizeof(State) / sizeof(unsigned)];
  memcpy(words, &own, sizeof(State));
#pragma unroll
  for (unsigned& word : words) word = shuffle(word);
  State other = own;
  memcpy(&other, words, sizeof(State));
  return other;
}
// The state of the lane `step` further in the warp, or of the first of them.
template <class State>
TESSERA_DEVICE State from_lane_below(const State& own, int step) {
  return shuffled(own, [=](unsigned word) { return __shfl_down_sync(~0u, word, step); });
}
template <class State>
TESSERA_DEVICE State from_first_lane(const State& own) {
  return shuffled(own, [](unsigned word) { return __shfl_sync(~0u, word, 0); });
}

template <class State, class Add>
TESSERA_DEVICE State Lanes::reduce(State state, std::int64_t count, Add&& add) const {
  each(count, [&](std::int64_t i) { add(state, i); });
  if (width_ == 1) return state;
  for (int step = kWarp / 2; step > 0; step /= 2) state.join(from_lane_below(state, step));
  if (width_ == kWarp) return from_first_lane(state);
  alignas(State) __shared__ unsigned char storage[kMostThreads / kWarp * sizeof(State)];
  State* const of_warp = reinterpret_cast<State*>(storage);
  __syncthreads();  // all have read those of the reduction before
  if (lane_ % kWarp == 0) of_warp[lane_ / kWarp] = state;
  __syncthreads();
  state = of_warp[0];
  for (int warp = 1; warp < width_ / kWarp; ++warp) state.join(of_warp[warp]);
  return state;
}

// Of a multiprocessor: the compiler may take its registers for these, and no kernel needs more.
inline constexpr int kBlocksAtOnce = 3;

__device__ inline Place place() {
  return {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};
}

template <class Body>
__global__ void __launch_bounds__(kMostThreads, kBlocksAtOnce)
    run_rows(const __grid_constant__ RowKernel<Body> kernel) {
  kernel.run(place(), Lanes(kernel.width, static_cast<int>(threadIdx.x) % kernel.width));
}

template <class T, class Body>
__global__ void __launch_bounds__(kMostThreads, kBlocksAtOnce)
    run_tiles(const __grid_constant__ TileKernel<T, Body> kernel) {
  __shared__ Tile<T> tile;
  for (std::int64_t t = blockIdx.x; t < kernel.tiles; t += gridDim.x) {
    kernel.load(place(), t, tile);
    __syncthreads();
    kernel.store(place(), t, tile);
    __syncthreads();
  }
}

// The status is that of this launch: cudaGetLastError() would also give what an MPI or the caller
// left behind, such as the "not ready" of an event.
template <class Kernel>
void launch(const char* name, Grid grid, void (*run)(Kernel), const Kernel& kernel) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.stream = reinterpret_cast<cudaStream_t>(stream());
  check(cudaLaunchKernelEx(&config, run, kernel), name);
}
template <class Body>
void start(const char* name, Grid grid, const RowKernel<Body>& kernel) {
  launch(name, grid, run_rows<Body>, kernel);
}
template <class T, class Body>
void start(const char* name, Grid grid, const TileKernel<T, Body>& kernel) {
  launch(name, grid, run_tiles<T, Body>, kernel);
}

#else  // the imitation

template <class Body>
void Lanes::each(std::int64_t count, Body&& body) const {
  for (int lane = 0; lane < width_; ++lane)
    for (std::int64_t i = lane; i < count; i += width_) body(i);
}

template <class Body>
void Lanes::once(Body&& body) const {
  body();
}

template <class State, class Add>
State Lanes::reduce(State start, std::int64_t count, Add&& add) const {
  const int lanes = lanes_of_warp();
  State joined = start;
  for (int warp = 0; warp < width_; warp += kWarp) {
    State states[kWarp];
    for (int lane = 0; lane < lanes; ++lane) {
      states[lane] = start;
      for (std::int64_t i = warp + lane; i < count; i += width_) add(states[lane], i);
    }
    for (int step = lanes / 2; step > 0; step /= 2)
      for (int lane = 0; lane < step; ++lane) states[lane].join(states[lane + step]);
    if (warp == 0)
      joined = states[0];
    else
      joined.join(states[0]);
  }
  return joined;
}

template <class Body>
void start(const char*, Grid grid, const RowKernel<Body>& kernel) {
  driver::launch(stream(), [=] {
    for (std::int64_t block = 0; block < grid.blocks; ++block)
      for (std::int64_t thread = 0; thread < grid.threads; thread += kernel.width)
        kernel.run({block, grid.blocks, thread, grid.threads}, Lanes(kernel.width));
  });
}
template <class T, class Body>
void start(const char*, Grid grid, const TileKernel<T, Body>& kernel) {
  driver::launch(stream(), [=] {
    Tile<T> tile;
    const auto threads_of = [&](std::int64_t block, auto&& run) {
      for (std::int64_t thread = 0; thread < grid.threads; ++thread)
        run(Place{block, grid.blocks, thread, grid.threads});
    };
    for (std::int64_t block = 0; block < grid.blocks; ++block)
      for (std::int64_t t = block; t < kernel.tiles; t += grid.blocks) {
        threads_of(block, [&](Place at) { kernel.load(at, t, tile); });
        threads_of(block, [&](Place at) { kernel.store(at, t, tile); });
      }
  });
}

#endif

// How many lanes share a row: one where neighbouring rows are neighbours in memory, else by the
// elements of a row.
enum class Width : std::uint8_t { lane, warp, block };
inline Width width_for(std::int64_t count) {
  return count <= 1024 ? Width::warp : Width::block;
}

// body(row, lanes)
template <class Body>
void for_each_row(const char* name, Range rows, Width width, const Body& body) {
  if (rows.begin >= rows.end) return;
  const int lanes = width == Width::lane ? 1 : width == Width::warp ? kWarp : block_threads();
  start(name, grid_for(rows.end - rows.begin, lanes), RowKernel<Body>{rows, lanes, body});
}

template <class Body>
struct ItemBody {
  Body body;
  TESSERA_DEVICE void operator()(std::int64_t item, const Lanes&) const { body(item); }
};
// body(item)
template <class Body>
void for_each(const char* name, Range items, const Body& body) {
  for_each_row(name, items, Width::lane, ItemBody<Body>{body});
}

// With corner = body.corner(tile): body.load(corner, row, column, value&), which may leave the
// value alone, then body.store(corner, row, column, value) with what was loaded at (column, row).
template <class T, class Body>
void for_each_tile(const char* name, std::int64_t tiles, const Body& body) {
  if (tiles > 0) start(name, grid_for(tiles, block_threads()), TileKernel<T, Body>{tiles, body});
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE
