// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/layer_norm.hpp"

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/math/transition.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

Shape without_last(Shape shape) {
  shape.pop_back();
  return shape;
}

struct LayerNormFunction {
  static constexpr const char* name = "layer_norm";
  static constexpr std::array inputs{"x", "weight", "bias"};
  using Operands = std::array<DTensor, 3>;

  Contract contract() const {
    const ContractTensor x{"x", {sym("..."), sym("C")}, {PlacementRule::Kind::whole_last}};
    return {.inputs = {x, parameter_operand("weight", {sym("C")}),
                       parameter_operand("bias", {sym("C")})},
            .outputs = {{"y", x.shape, {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {{"x", sym("M") * sym("C"), sym("e")},
                      {"mean", sym("M"), sym("acc")},
                      {"rstd", sym("M"), sym("acc")}}};
  }

  DTensor forward(FunctionContext& ctx, const Operands& in) const {
    const DTensor& x = in[0];
    const Tensor rows = rows_of(x.local());
    const Tensor y = Tensor::empty(x.local().shape(), x.dtype(), rows.device());
    const Tensor mean = Tensor::empty({rows.size(0)}, at_least_f32(x.dtype()), rows.device());
    const Tensor rstd = Tensor::empty({rows.size(0)}, at_least_f32(x.dtype()), rows.device());
    layer_norm(rows, in[1].local(), in[2].local(), math::kLayerNormEps, rows_of(y), mean, rstd);
    const BudgetClass budget = budget_of(x.placements());
    ctx.save("x", x, budget);
    ctx.save("mean", mean, budget, without_last(x.shape()));
    ctx.save("rstd", rstd, budget, without_last(x.shape()));
    ctx.save("weight", in[1], BudgetClass::parameter);
    return x.with_local(y);
  }

  Operands backward(FunctionContext& ctx, const DTensor& gradient) const {
    const Tensor& x = ctx.saved("x");
    const Tensor& weight = ctx.saved("weight");
    const DType acc = at_least_f32(x.dtype());
    const Tensor dx = Tensor::empty(x.shape(), gradient.dtype(), x.device());
    const Tensor dw = Tensor::zeros(weight.shape(), acc, x.device());
    const Tensor db = Tensor::zeros(weight.shape(), acc, x.device());
    layer_norm_backward(rows_of(gradient.local()), rows_of(x), weight, ctx.saved("mean"),
                        ctx.saved("rstd"), rows_of(dx), dw, db);
    const DTensor parameter = like_parameter(weight, gradient.mesh());
    return {gradient.with_local(dx), parameter_gradient(dw, parameter, gradient.placements()),
            parameter_gradient(db, parameter, gradient.placements())};
  }
};

}  // namespace

LayerNorm::LayerNorm(const Build& build, std::int64_t channels)
    : Module(build),
      weight_(add_parameter("weight", {channels}, Init::one)),
      bias_(add_parameter("bias", {channels}, Init::zero)) {}

Var LayerNorm::forward(const Var& x) const {
  const Scope scope(name());
  return apply(LayerNormFunction{}, {x, weight_, bias_});
}

}  // namespace tessera
