// SPDX-License-Identifier: MIT
// Index tensors as the plans of gathers and scatters read them: on the host, once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/mesh/dtensor.hpp"

namespace tessera {

// Far below zero: an index that stays negative through sums and products with sizes.
inline constexpr std::int64_t kNoIndex = -(std::int64_t{1} << 40);

// An index tensor with its mask, which may be undefined, and their names in messages.
struct Indices {
  DTensor idx;
  DTensor mask;
  const char* idx_name = "idx";
  const char* mask_name = "mask";
};

// Checks that idx is i64 or i32 (TypeError), that a mesh axis shards `dim`, no later dim is sharded
// (PlacementError), and that the mask, unless undefined, is bool (TypeError).
void check_indices(const char* operation, const Indices& indices, int dim);

// The own indices in row-major order, kNoIndex where the mask is false or the index is -1. Nothing
// in a dry run. RangeError on all ranks if an index that counts is not in [0, size).
std::optional<std::vector<std::int64_t>> own_indices(const char* operation, const Indices& indices,
                                                     std::int64_t size);

// RangeError on all ranks unless every index is in [0, size). Nothing in a dry run.
void check_range(const char* operation, const DTensor& idx, std::int64_t size);

// From the smallest to the largest of the indices that count; {0, 0} if none does.
Interval hull(const std::int64_t* first, const std::int64_t* last);

// Rows of the batch of x by the places of its row of indices; the batch of x may be M times that of
// the places [batch, n], and its rows b*M+m go with places b. Below zero: none.
// y [M batch, n, features]: y[b, k] = x[b, places[b, k]], else zero.
void collect_rows(const Tensor& x, const Tensor& places, const Tensor& y);
// x [M batch, n, features]: y[b, places[b, k]] += x[b, k]; y is in at least f32.
void spread_rows(const Tensor& x, const Tensor& places, const Tensor& y);

}  // namespace tessera
