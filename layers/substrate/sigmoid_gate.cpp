// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/sigmoid_gate.hpp"

#include "tessera/layers/substrate/common.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

Tensor as_rows(const Tensor& t) {
  return t.contiguous().view({1, t.numel()});
}

struct SigmoidGate {
  static constexpr const char* name = "sigmoid_gate";
  static constexpr std::array inputs{"x", "g"};
  using Operands = std::array<DTensor, 2>;

  Contract contract() const {
    const std::vector<Formula> shape{sym("..."), sym("C")};
    return {.inputs = {{"x", shape, {PlacementRule::Kind::any}},
                       {"g", shape, {PlacementRule::Kind::like_first}}},
            .outputs = {{"y", shape, {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {{"x", sym("M") * sym("C"), sym("e")}, {"g", sym("M") * sym("C"), sym("e")}}};
  }

  DTensor forward(FunctionContext& ctx, const Operands& in) const {
    const DTensor& x = in[0];
    const Tensor y = Tensor::empty(x.local().shape(), x.dtype(), x.local().device());
    gated_product(as_rows(x.local()), as_rows(in[1].local()), Tensor(), as_rows(y));
    ctx.save("x", x, budget_of(x.placements()));
    ctx.save("g", in[1], budget_of(x.placements()));
    return x.with_local(y);
  }

  Operands backward(FunctionContext& ctx, const DTensor& gradient) const {
    const Tensor& x = ctx.saved("x");
    const Tensor& g = ctx.saved("g");
    const Tensor dx = Tensor::empty(x.shape(), gradient.dtype(), x.device());
    const Tensor dg = Tensor::empty(x.shape(), gradient.dtype(), x.device());
    sigmoid_gate_backward(as_rows(x), as_rows(g), as_rows(gradient.local()), as_rows(dx),
                          as_rows(dg));
    return {gradient.with_local(dx), gradient.with_local(dg)};
  }
};

}  // namespace

Var sigmoid_gate(const Var& x, const Var& g) {
  return apply(SigmoidGate{}, {x, g});
}

}  // namespace tessera
