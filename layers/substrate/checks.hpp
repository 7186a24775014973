// SPDX-License-Identifier: MIT
// Checks and small helpers that several layers share.
#pragma once

#include <fmt/format.h>

#include "tessera/mesh/dtensor.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera {

// x is a proper operand whose last dim is whole on every rank and has `features` elements.
inline void expect_features(const DTensor& x, const char* operation, const char* tensor,
                            std::int64_t features) {
  expect(x, operation, tensor, {});
  const int last = x.ndim() - 1;
  for (const Placement& p : x.placements())
    if (is_shard(p, last))
      throw PlacementError({.problem = "the feature dim must not be sharded",
                            .operation = operation,
                            .tensor = tensor,
                            .found = x.describe(),
                            .expected = fmt::format("no S({})", last)});
  if (last < 0 || x.size(last) != features)
    throw ShapeError({.problem = "the last dim does not fit the layer",
                      .operation = operation,
                      .tensor = tensor,
                      .found = x.describe(),
                      .expected = fmt::format("[..., {}]", features)});
}

// A tensor as a matrix [positions, features]; copies only if it is not contiguous.
inline Tensor rows_of(const Tensor& t) {
  return t.contiguous().view({t.numel() / t.size(-1), t.size(-1)});
}

// A replicated DTensor with this local value (gradients of parameters).
inline DTensor like_parameter(const Tensor& local, const DeviceMesh& mesh) {
  return DTensor::from_local(local, mesh,
                             Placements(static_cast<std::size_t>(mesh.ndim()), Replicate{}),
                             local.shape(), row_major_strides(local.shape()));
}

}  // namespace tessera
