// SPDX-License-Identifier: MIT
// Counter-based random numbers (Philox 4x32-10; Salmon et al., SC'11). The value of an element
// depends on seed, stream and the element's GLOBAL row-major index, and on nothing else: shards
// are independent, replicas equal, and a distributed draw equals the serial one bit for bit.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/runtime/tensor.hpp"

namespace tessera {

struct RandomStream {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // which draw; stream_id() of a name
};
std::uint64_t stream_id(std::string_view name);  // hash of a name: "in.x", "layers.0.dropout"

// The block of a global tensor that a local tensor holds.
struct GlobalBlock {
  Shape shape;                       // global
  std::vector<std::int64_t> offset;  // first global index in each dim
};

// Uniform on [low, high), from the upper 52 bits in f64 before rounding to the dtype.
void fill_uniform(const Tensor& local, RandomStream stream, const GlobalBlock& block, double low,
                  double high);
// Standard normal (Box-Muller).
void fill_normal(const Tensor& local, RandomStream stream, const GlobalBlock& block);
// 0/1 with probability p of 1.
void fill_bernoulli(const Tensor& local, RandomStream stream, const GlobalBlock& block, double p);
// The whole tensor: offset zero.
GlobalBlock whole(const Shape& shape);

}  // namespace tessera
