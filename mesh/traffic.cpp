// SPDX-License-Identifier: MIT
#include "tessera/mesh/traffic.hpp"

#include <bit>

#include "tessera/mesh/shard.hpp"

namespace tessera {
namespace {

std::int64_t wire_size(DType dtype) {
  const DType wire = is_floating(dtype) ? at_least_f32(dtype) : dtype;
  return static_cast<std::int64_t>(size_of(wire));
}

// Recursive doubling: places beyond the largest power of two send once; their partners once more.
std::int64_t doubling_messages(int n, int place) {
  const int core = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  if (place >= core) return 1;
  return std::countr_zero(static_cast<unsigned>(core)) + (place + core < n ? 1 : 0);
}

}  // namespace

Traffic all_reduce_traffic(std::int64_t elements, DType dtype, int n, int place) {
  if (n == 1 || elements == 0) return {};
  const std::int64_t bytes = elements * wire_size(dtype);
  if (bytes <= kDoublingBytes) {
    const std::int64_t messages = doubling_messages(n, place);
    return {messages, messages * bytes};
  }
  // Reducing sends all parts but the own; gathering all but that of the next place.
  const std::int64_t own = shard_of(elements, n, place).size();
  const std::int64_t next = shard_of(elements, n, (place + 1) % n).size();
  return {2 * (n - 1), (2 * elements - own - next) * wire_size(dtype)};
}

Traffic all_gather_traffic(std::int64_t elements, DType dtype, int n) {
  if (n == 1 || elements == 0) return {};
  return {n - 1, (n - 1) * elements * static_cast<std::int64_t>(size_of(dtype))};
}

Traffic reduce_scatter_traffic(std::int64_t elements, DType dtype, int n) {
  if (n == 1 || elements == 0) return {};
  return {n - 1, elements / n * (n - 1) * wire_size(dtype)};
}

Traffic all_to_all_traffic(std::int64_t elements, DType dtype, int n) {
  if (n == 1 || elements == 0) return {};
  return {n - 1, elements / n * (n - 1) * static_cast<std::int64_t>(size_of(dtype))};
}

Traffic broadcast_traffic(std::int64_t elements, DType dtype, int n, int place_after_root) {
  if (n == 1 || elements == 0) return {};
  // A place has a child for every power of two below its lowest set bit (the root: below n).
  std::int64_t children = 0;
  const int low = place_after_root & -place_after_root;
  for (int bit = 1; (low == 0 || bit < low) && place_after_root + bit < n; bit *= 2) ++children;
  return {children, children * elements * static_cast<std::int64_t>(size_of(dtype))};
}

}  // namespace tessera
