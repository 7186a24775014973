// SPDX-License-Identifier: MIT
// What a collective sends, as arithmetic: the numbers that the ledger must show. `n` is the size
// of the group, `place` the own place in it.
#pragma once

#include <cstdint>

#include "tessera/runtime/dtype.hpp"

namespace tessera {

struct Traffic {
  std::int64_t messages = 0;  // sent by this rank
  std::int64_t bytes = 0;     // sent by this rank
  bool operator==(const Traffic&) const = default;
};

// Up to so many bytes (in the dtype that travels) an all-reduce doubles, above it is a ring.
inline constexpr std::int64_t kDoublingBytes = 64 * 1024;

Traffic all_reduce_traffic(std::int64_t elements, DType dtype, int n, int place);
// `elements` of the local part that every rank brings.
Traffic all_gather_traffic(std::int64_t elements, DType dtype, int n);
// `elements` of the whole tensor that every rank brings.
Traffic reduce_scatter_traffic(std::int64_t elements, DType dtype, int n);
Traffic all_to_all_traffic(std::int64_t elements, DType dtype, int n);
Traffic broadcast_traffic(std::int64_t elements, DType dtype, int n, int place_after_root);

}  // namespace tessera
