// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/reduce.hpp"
#include "tessera/layers/substrate/softmax.hpp"

#include "tessera/harness/cases/operations.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;
using Forward = Var (*)(const Var& x);

Inputs one_pair(const Sizes& s) {
  return {pair(s)};
}

Inputs one_single(const Sizes& s) {
  return {single(s)};
}

// Values further apart along any dim than the steps of numeric gradients are wide.
Inputs distinct_pair(const Sizes& s) {
  InputSpec x = pair(s);
  x.at = [](const std::vector<std::int64_t>& index) {
    const std::int64_t k = 7 * index[0] + 3 * index[1] + 5 * index[2] + 29 * index[3];
    return static_cast<double>(k * 37 % 101) / 50 - 1;
  };
  return {x};
}

Inputs integers(const Sizes& s) {
  InputSpec x = pair(s);
  x.kind = InputKind::index;
  x.differentiable = false;
  x.low = -20;
  x.high = 20;
  return {x};
}

Inputs constant(const Sizes& s) {
  InputSpec x = pair(s);
  x.differentiable = false;
  return {x};
}

Case reduction(const char* name, const char* description, Inputs (*inputs)(const Sizes&),
               Forward forward) {
  return operation(name, description, inputs,
                   [forward](const Vars& in) { return Vars{forward(in[0])}; });
}

std::vector<Case> sharded_cases() {
  return {
      reduction("sharded_sum", "Over the columns, later shards move down", one_pair,
                [](const Var& x) { return sharded_sum(x, {2}); }),
      reduction("sharded_sum.rows", "Over the rows", one_pair,
                [](const Var& x) { return sharded_sum(x, {1}); }),
      reduction("sharded_sum.all", "Over batch, rows and columns", one_pair,
                [](const Var& x) {
                  return sharded_sum(x, {-2, 0, 1});
                }),
      reduction("sharded_sum.keepdim", "Over rows and columns, which keep size 1", one_pair,
                [](const Var& x) {
                  return sharded_sum(x, {1, 2}, true);
                }),
      reduction("sharded_sum.single", "Over the tokens, replicated on one axis", one_single,
                [](const Var& x) { return sharded_sum(x, {1}); }),
      reduction("sharded_sum.integers", "Whole numbers, without gradient", integers,
                [](const Var& x) {
                  return sharded_sum(x, {1, 2});
                }),
  };
}

std::vector<Case> shardwise_cases() {
  return {
      reduction("shardwise_sum", "Over the channels", one_pair,
                [](const Var& x) { return shardwise_sum(x, -1); }),
      reduction("shardwise_sum.keepdim", "Over the channels, which keep size 1", one_pair,
                [](const Var& x) { return shardwise_sum(x, 3, true); }),
      reduction("shardwise_mean", "Over the channels", one_pair,
                [](const Var& x) { return shardwise_mean(x, 3); }),
      reduction("shardwise_max", "Over the channels", distinct_pair,
                [](const Var& x) { return shardwise_max(x, 3); }),
      reduction("shardwise_min", "Over the channels, which keep size 1", distinct_pair,
                [](const Var& x) { return shardwise_min(x, 3, true); }),
      reduction("shardwise_norm", "Over the channels", one_pair,
                [](const Var& x) { return shardwise_norm(x, 3); }),
      reduction("shardwise_softmax", "Over the channels", one_pair,
                [](const Var& x) { return shardwise_softmax(x); }),
      reduction("shardwise_log_softmax", "Over the channels", one_pair,
                [](const Var& x) { return shardwise_log_softmax(x, 3); }),
      reduction("shardwise_argmax", "Over the channels", constant,
                [](const Var& x) { return shardwise_argmax(x, 3); }),
      reduction("shardwise_distogram", "Three edges", constant,
                [](const Var& x) {
                  return shardwise_distogram(x, {-0.5, 0, 0.5});
                }),
  };
}

}  // namespace

std::vector<Case> reduce_cases() {
  std::vector<Case> all = sharded_cases();
  for (Case& c : shardwise_cases()) all.push_back(std::move(c));
  return all;
}

}  // namespace tessera::harness
