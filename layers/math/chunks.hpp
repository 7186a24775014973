// SPDX-License-Identifier: MIT
// Walking the positions of a tile in chunks that stay in cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// Positions [begin, begin + length) of batch entry `batch`; `flat` is the first one counted over
// all batch entries.
struct Chunk {
  std::int64_t batch;
  std::int64_t begin;
  std::int64_t length;
  std::int64_t flat;
};

// Calls body(chunk) for [begin, end) of batch*per_batch positions, at most `rows` at a time and
// never across two batch entries.
template <class Body>
void for_each_chunk(std::int64_t begin, std::int64_t end, std::int64_t per_batch, std::int64_t rows,
                    const Body& body) {
  while (begin < end) {
    const std::int64_t inside = begin % per_batch;
    const std::int64_t length = std::min({rows, per_batch - inside, end - begin});
    body(Chunk{begin / per_batch, inside, length, begin});
    begin += length;
  }
}

// Sums that every lane forms for itself, added up in lane order when all have ended.
class LaneSums {
 public:
  // One zeroed tensor per shape and lane.
  LaneSums(Device device, DType dtype, const std::vector<Shape>& shapes)
      : lanes_(static_cast<std::size_t>(lane_count(device))) {
    const PurposeScope purpose(Purpose::workspace);
    for (std::vector<Tensor>& lane : lanes_)
      for (const Shape& shape : shapes) lane.push_back(Tensor::zeros(shape, dtype, device));
  }
  const Tensor& at(int lane, std::size_t index) const {
    return lanes_[static_cast<std::size_t>(lane)][index];
  }
  // The finished sum; keeps the memory of lane 0.
  Tensor total(std::size_t index) const {
    const Tensor& sum = lanes_.front()[index];
    for (std::size_t lane = 1; lane < lanes_.size(); ++lane)
      add(1, sum, 1, lanes_[lane][index], sum);
    return sum;
  }

 private:
  std::vector<std::vector<Tensor>> lanes_;
};

}  // namespace tessera
