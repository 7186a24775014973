// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/reshape.hpp"

#include "tessera/harness/cases/operations.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;

// A pair tensor with another size of the last dim.
InputSpec pair_of(const Sizes& s, const char* name, std::int64_t channels) {
  InputSpec spec = pair(s, name);
  spec.shape.back() = channels;
  return spec;
}

Inputs one_pair(const Sizes& s) {
  return {pair(s)};
}

std::vector<Case> dim_cases() {
  return {
      operation("unsqueeze", "A dim of size 1 between sharded ones", one_pair,
                [](const Vars& in) { return Vars{unsqueeze(in[0], 1)}; }),
      operation("unsqueeze.last", "A dim of size 1 at the end", one_pair,
                [](const Vars& in) { return Vars{unsqueeze(in[0], -1)}; }),
      operation(
          "squeeze", "Without a dim of size 1 before sharded ones",
          [](const Sizes& s) {
            return Inputs{{.name = "x",
                           .shape = {s.batch, 1, s.tokens, s.tokens},
                           .placements = {Shard{0}, Shard{2}, Shard{3}}}};
          },
          [](const Vars& in) { return Vars{squeeze(in[0], -3)}; }),
      operation(
          "cat", "Three pair tensors along the channels",
          [](const Sizes& s) {
            return Inputs{pair_of(s, "a", s.channels), pair_of(s, "b", 1), pair_of(s, "c", 4)};
          },
          [](const Vars& in) { return Vars{cat(in, -1)}; }),
      operation("chunk", "Uneven pieces, all of them used", one_pair,
                [](const Vars& in) { return chunk(in[0], 2, -1); }, {"y0", "y1"}),
      operation("chunk.unused", "One piece of two is used", one_pair,
                [](const Vars& in) { return Vars{chunk(in[0], 2, 3)[1]}; }),
  };
}

// [B, 3, N, N, 2, C], the grid on the two dims of size N.
Inputs six_dims(const Sizes& s) {
  return {{.name = "x",
           .shape = {s.batch, 3, s.tokens, s.tokens, 2, s.channels},
           .placements = {Shard{0}, Shard{2}, Shard{3}}}};
}

std::vector<Case> flatten_cases() {
  return {
      operation("repeat_interleave", "Copies along a dim that is not sharded", one_pair,
                [](const Vars& in) { return Vars{repeat_interleave(in[0], 3, -1)}; }),
      operation("repeat_interleave.sharded", "Copies along a sharded dim", one_pair,
                [](const Vars& in) { return Vars{repeat_interleave(in[0], 2, 1)}; }),
      operation("flatten", "The last two dims as one", six_dims,
                [](const Vars& in) { return Vars{flatten(in[0], -2, -1)}; }),
      operation(
          "unflatten", "A dim between batch and sharded dims as two",
          [](const Sizes& s) {
            return Inputs{{.name = "x",
                           .shape = {s.batch, 6, s.tokens, s.tokens},
                           .placements = {Shard{0}, Shard{2}, Shard{3}}}};
          },
          [](const Vars& in) {
            return Vars{unflatten(in[0], 1, {3, 2})};
          }),
      operation("flatten_sharded", "A sharded dim and the two after it as one", six_dims,
                [](const Vars& in) { return Vars{flatten_sharded(in[0], 3, 5)}; }),
      operation(
          "unflatten_sharded", "A sharded dim as two, of which the first is sharded",
          [](const Sizes& s) {
            InputSpec x = pair(s);
            x.shape[2] *= 2;
            return Inputs{x};
          },
          [](const Vars& in) {
            return Vars{unflatten_sharded(in[0], 2, {in[0].value().size(2) / 2, 2})};
          }),
  };
}

}  // namespace

std::vector<Case> reshape_cases() {
  std::vector<Case> all = dim_cases();
  for (Case& c : flatten_cases()) all.push_back(std::move(c));
  return all;
}

}  // namespace tessera::harness
