// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/reshape.hpp"

#include "harness/cases/operations.hpp"

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

}  // namespace

std::vector<Case> reshape_cases() {
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

}  // namespace tessera::harness
