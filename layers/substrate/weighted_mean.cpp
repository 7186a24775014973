// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/weighted_mean.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/elementwise.hpp"
#include "tessera/layers/substrate/reduce.hpp"
#include "tessera/layers/substrate/reshape.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera {
namespace {

constexpr const char* kName = "weighted_mean";

// Non-negative, from the last to the first.
std::vector<int> descending(const std::vector<int>& dims, int ndim) {
  std::vector<int> all;
  for (const int dim : dims) all.push_back(normalize_dim(dim, ndim, kName));
  std::sort(all.begin(), all.end(), std::greater<>());
  if (!all.empty() && std::adjacent_find(all.begin(), all.end()) == all.end()) return all;
  throw RangeError({.problem = "the dims must be one or more, none of them twice",
                    .operation = kName,
                    .tensor = "x",
                    .found = fmt::format("[{}]", fmt::join(dims, ", "))});
}

// Sum over dims in descending order.
Var sum_over(const Var& x, const std::vector<int>& dims) {
  std::vector<int> sharded;
  for (const int dim : dims)
    if (is_sharded(x.value(), dim)) sharded.push_back(dim);
  Var y = sharded.empty() ? x : sharded_sum(x, sharded, true);
  for (const int dim : dims) {
    const bool done = std::find(sharded.begin(), sharded.end(), dim) != sharded.end();
    y = done ? squeeze(y, dim) : shardwise_sum(y, dim);
  }
  return y;
}

}  // namespace

Var weighted_mean(const Var& x, const Var& w, const std::vector<int>& dims, double eps) {
  const Scope scope(kName);
  require_floating(x, kName, "x");
  require_floating(w, kName, "w");
  const std::vector<int> order = descending(dims, x.value().ndim());
  const Var total = sum_over(multiply(x, w), order);
  const Var weight = sum_over(w, order);
  return divide(total, eps == 0 ? weight : add(eps, weight));
}

}  // namespace tessera
