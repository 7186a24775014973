// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/sigmoid_gate.hpp"

#include "tessera/layers/substrate/common.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

Tensor as_rows(const Tensor& t) {
  return t.contiguous().view({1, t.numel()});
}

struct SigmoidGate {
  static constexpr const char* name = "sigmoid_gate";
  bool gate_needs_grad;

  Contract contract(const Tensors&) const {
    Contract c{.inputs = {{"x", any_shape(), {PlacementRule::Kind::any}},
                          {"g", same_shape("x"), {PlacementRule::Kind::like_first}}},
               .outputs = {{"y", same_shape("x"), {PlacementRule::Kind::like_first}}},
               .messages = {},
               .saved = {saved_block("g")}};
    if (gate_needs_grad) c.saved.push_back(saved_block("x"));
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& x = in[0];
    const Tensor y = block(x.local(), promote(x.dtype(), in[1].dtype()));
    gated_product(as_rows(x.local()), as_rows(in[1].local()), Tensor(), as_rows(y));
    ctx.save("g", in[1]);
    if (gate_needs_grad) ctx.save("x", x);
    return {carried(x, x.shape(), y)};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const DTensor& gradient = gradients[0];
    const Tensor& g = ctx.saved("g");
    const Tensor dx = block(g, gradient.dtype());
    if (!gate_needs_grad) {
      gated_product(as_rows(gradient.local()), as_rows(g), Tensor(), as_rows(dx));
      return {carried(gradient, gradient.shape(), dx), DTensor()};
    }
    const Tensor dg = block(g, gradient.dtype());
    sigmoid_gate_backward(as_rows(ctx.saved("x")), as_rows(g), as_rows(gradient.local()),
                          as_rows(dx), as_rows(dg));
    return {carried(gradient, gradient.shape(), dx), carried(gradient, gradient.shape(), dg)};
  }

 private:
  static Tensor block(const Tensor& like, DType dtype) {
    return Tensor::empty(like.shape(), dtype, like.device());
  }
};

}  // namespace

Var sigmoid_gate(const Var& x, const Var& g) {
  return apply_many(SigmoidGate{g.requires_grad()}, {x, g}).front();
}

}  // namespace tessera
