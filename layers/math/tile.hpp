// SPDX-License-Identifier: MIT
// What the block functions of channels-last tiles [B, n, m, C] share: sizes, views of a chunk of
// positions, workspace. Channels-first tensors of the same positions are [B*K, n, m].
#pragma once

#include "tessera/layers/math/chunks.hpp"

namespace tessera::math {

// Statistics of one layer norm over all positions [B*n*m], in at_least_f32(x).
struct Statistics {
  Tensor mean;
  Tensor rstd;
};

// Sizes and dtypes of one tile.
struct Tile {
  std::int64_t batch, positions, channels;  // positions of one batch entry
  DType dtype, acc;
  Device device;

  explicit Tile(const Tensor& x)
      : batch(x.size(0)),
        positions(x.size(1) * x.size(2)),
        channels(x.size(3)),
        dtype(x.dtype()),
        acc(at_least_f32(x.dtype())),
        device(x.device()) {}

  std::int64_t all() const { return batch * positions; }
  std::int64_t chunk(std::int64_t values_per_row) const {
    return std::min(positions,
                    chunk_rows(device, values_per_row * static_cast<std::int64_t>(size_of(acc))));
  }
  Tensor workspace(std::int64_t rows, std::int64_t cols, DType type) const {
    const PurposeScope purpose(Purpose::workspace);
    return Tensor::empty({rows, cols}, type, device);
  }
  Statistics statistics() const {
    return {Tensor::empty({all()}, acc, device), Tensor::empty({all()}, acc, device)};
  }
};

inline Tensor as_workspace(const Tensor& weight, DType dtype) {
  const PurposeScope purpose(Purpose::workspace);
  return weight.to(dtype);
}

// Channels-last rows of a chunk: [length, C].
inline Tensor rows_of(const Tensor& x, const Chunk& c) {
  return x.view({x.numel() / x.size(-1), x.size(-1)}).narrow(0, c.flat, c.length);
}

// Channels-first columns of a chunk: [K, length] of t [B*K, n, m].
inline Tensor columns_of(const Tensor& t, const Tile& tile, const Chunk& c) {
  return t.view({tile.batch, t.size(0) / tile.batch, tile.positions})
      .select(0, c.batch)
      .narrow(1, c.begin, c.length);
}

inline Statistics part_of(const Statistics& s, const Chunk& c) {
  return {s.mean.narrow(0, c.flat, c.length), s.rstd.narrow(0, c.flat, c.length)};
}

inline Tensor mask_of(const Tensor& mask, const Chunk& c) {
  return mask.view({mask.numel()}).narrow(0, c.flat, c.length);
}

}  // namespace tessera::math
