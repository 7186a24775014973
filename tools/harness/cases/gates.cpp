// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/gates.hpp"

#include "tessera/harness/cases/operations.hpp"
#include "tessera/layers/substrate/sigmoid_gate.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;

Inputs one_pair(const Sizes& s) {
  return {pair(s)};
}

Case dropout_case(const char* name, const char* description, Dropout options) {
  return operation(name, description, one_pair,
                   [options](const Vars& in) { return Vars{dropout(in[0], options)}; });
}

}  // namespace

std::vector<Case> gate_cases() {
  return {
      operation(
          "sigmoid_gate", "x sigmoid(g) of single tensors",
          [](const Sizes& s) {
            return Inputs{single(s, "x"), single(s, "g")};
          },
          [](const Vars& in) { return Vars{sigmoid_gate(in[0], in[1])}; }),
      operation(
          "sigmoid_gate.constant", "The gate is a constant",
          [](const Sizes& s) {
            Inputs in{pair(s, "x"), pair(s, "g")};
            in[1].differentiable = false;
            return in;
          },
          [](const Vars& in) { return Vars{sigmoid_gate(in[0], in[1])}; }),
      operation(
          "swiglu", "Two halves of a pair tensor, one gates itself",
          [](const Sizes& s) {
            InputSpec x = pair(s);
            x.shape.back() *= 2;
            return Inputs{x};
          },
          [](const Vars& in) { return Vars{swiglu(in[0])}; }),
      dropout_case("dropout.rows", "One decision per row",
                   {.p = 0.25, .mask = DropoutMask::rows, .stream = {3, stream_id("rows")}}),
      dropout_case("dropout.columns", "One decision per column",
                   {.p = 0.4, .mask = DropoutMask::columns, .stream = {3, stream_id("columns")}}),
      operation(
          "dropout.samples", "Rows by given samples",
          [](const Sizes& s) {
            return Inputs{pair(s),
                          {.name = "samples",
                           .shape = {s.batch, s.tokens, 1, 1},
                           .placements = {Shard{0}, Shard{1}, Replicate{}},
                           .differentiable = false,
                           .low = 0,
                           .high = 1}};
          },
          [](const Vars& in) { return Vars{dropout(in[0], {.p = 0.5}, in[1])}; }),
  };
}

}  // namespace tessera::harness
