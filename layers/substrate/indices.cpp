// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/indices.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/layers/substrate/views.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

void check_type(const char* operation, const char* tensor, const DTensor& x, bool fits,
                const char* expected) {
  if (fits) return;
  throw TypeError({.problem = "wrong dtype",
                   .operation = operation,
                   .tensor = tensor,
                   .found = x.describe(),
                   .expected = expected});
}

Tensor on_host(const DTensor& x) {
  return x.local().contiguous().to(cpu_device).to(DType::i64);
}

}  // namespace

void check_indices(const char* operation, const Indices& indices, int dim) {
  const auto& [idx, mask, idx_name, mask_name] = indices;
  check_type(operation, idx_name, idx, idx.dtype() == DType::i64 || idx.dtype() == DType::i32,
             "i64 or i32");
  if (mask.defined())
    check_type(operation, mask_name, mask, mask.dtype() == DType::boolean, "bool");
  bool fits = is_sharded(idx, dim);
  for (int d = dim + 1; d < idx.ndim(); ++d) fits = fits && !is_sharded(idx, d);
  if (fits) return;
  throw PlacementError(
      {.problem = fmt::format("dim {} must be sharded and the dims after it must not be", dim),
       .operation = operation,
       .tensor = idx_name,
       .found = idx.describe(),
       .expected =
           fmt::format("S({}) on one mesh axis; S of an earlier dim or R on the others", dim),
       .hint = "redistribute() moves the data"});
}

std::optional<std::vector<std::int64_t>> own_indices(const char* operation, const Indices& indices,
                                                     std::int64_t size) {
  const auto& [idx, mask, idx_name, mask_name] = indices;
  if (!has_values(idx.local())) return std::nullopt;
  const Tensor host = on_host(idx);
  const auto* first = host.host_data<std::int64_t>();
  std::vector<std::int64_t> values(first, first + host.numel());
  const Tensor valid = mask.defined() ? on_host(mask) : Tensor();
  for (std::size_t k = 0; k < values.size(); ++k)
    if (values[k] == -1 || (valid.defined() && valid.host_data<std::int64_t>()[k] == 0))
      values[k] = kNoIndex;
  collective_try(indices.idx.mesh(), [&] {
    for (const std::int64_t value : values)
      if (value != kNoIndex && (value < 0 || value >= size))
        throw RangeError({.problem = "index out of range",
                          .operation = operation,
                          .tensor = indices.idx_name,
                          .found = fmt::format("{}", value),
                          .expected = fmt::format("0..{}, or -1 for none", size - 1),
                          .hint = "indices are global; mask those that do not count"});
  });
  return values;
}

void check_range(const char* operation, const DTensor& idx, std::int64_t size) {
  if (!has_values(idx.local())) return;
  const Tensor host = on_host(idx);
  const auto* first = host.host_data<std::int64_t>();
  collective_try(idx.mesh(), [&] {
    const auto* bad = std::find_if(first, first + host.numel(),
                                   [&](std::int64_t value) { return value < 0 || value >= size; });
    if (bad == first + host.numel()) return;
    throw RangeError({.problem = "index out of range",
                      .operation = operation,
                      .tensor = "idx",
                      .found = fmt::format("{}", *bad),
                      .expected = fmt::format("0..{}", size - 1),
                      .hint = "clip the indices, or give positions that do not count a valid one"});
  });
}

Interval hull(const std::int64_t* first, const std::int64_t* last) {
  Interval found;
  for (; first != last; ++first) {
    if (*first < 0) continue;
    found = found.empty()
                ? Interval{*first, *first + 1}
                : Interval{std::min(found.begin, *first), std::max(found.end, *first + 1)};
  }
  return found;
}

void collect_rows(const Tensor& x, const Tensor& places, const Tensor& y) {
  const std::int64_t copies = x.size(0) / places.size(0);
  for (std::int64_t b = 0; b < x.size(0); ++b)
    gather_rows(x.select(0, b), places.select(0, b / copies), y.select(0, b));
}

void spread_rows(const Tensor& x, const Tensor& places, const Tensor& y) {
  const std::int64_t copies = x.size(0) / places.size(0);
  for (std::int64_t b = 0; b < x.size(0); ++b)
    scatter_add_rows(x.select(0, b), places.select(0, b / copies), y.select(0, b));
}

}  // namespace tessera
