// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/transition.hpp"

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/math/transition.hpp"
#include "tessera/layers/substrate/common.hpp"

namespace tessera {
namespace {

Shape with_last(Shape shape, std::int64_t last) {
  shape.back() = last;
  return shape;
}

struct TransitionFunction {
  static constexpr const char* name = "transition";
  static constexpr std::array inputs{"x",          "norm.weight", "norm.bias",
                                     "fc1.weight", "fc2.weight",  "fc3.weight"};
  using Operands = std::array<DTensor, 6>;

  Contract contract() const {
    const Formula dim = sym("dim"), hidden = sym("hidden"), out = sym("out");
    const Formula positions = sym("n(x)") / dim;
    return {.inputs = {{"x", {sym("..."), dim}, {PlacementRule::Kind::whole_last}},
                       parameter_operand("norm.weight", {dim}),
                       parameter_operand("norm.bias", {dim}),
                       parameter_operand("fc1.weight", {hidden, dim}),
                       parameter_operand("fc2.weight", {hidden, dim}),
                       parameter_operand("fc3.weight", {out, hidden})},
            .outputs = {{"y", {sym("..."), out}, {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {saved_block("x"),
                      {"mean", positions, sym("acc"), false, BudgetClass::own},
                      {"rstd", positions, sym("acc"), false, BudgetClass::own}}};
  }

  DTensor forward(FunctionContext& ctx, const Operands& in) const {
    const DTensor& x = in[0];
    const Tensor rows = rows_of(x.local());
    const DType acc = at_least_f32(x.dtype());
    const Tensor mean = Tensor::empty({rows.size(0)}, acc, rows.device());
    const Tensor rstd = Tensor::empty({rows.size(0)}, acc, rows.device());
    const math::TransitionWeights weights{in[1].local(), in[2].local(), in[3].local(),
                                          in[4].local(), in[5].local()};
    const std::int64_t out = weights.fc3.size(0);
    const Tensor y =
        math::transition_forward(rows, weights, mean, rstd).view(with_last(x.local().shape(), out));

    ctx.save("x", x);
    ctx.save("mean", mean, BudgetClass::own, mean.shape());
    ctx.save("rstd", rstd, BudgetClass::own, rstd.shape());
    for (std::size_t k = 1; k < in.size(); ++k) ctx.save(inputs[k], in[k], BudgetClass::parameter);
    const Shape shape = with_last(x.shape(), out);
    return DTensor::from_local(y, x.mesh(), x.placements(), shape, row_major_strides(shape));
  }

  Operands backward(FunctionContext& ctx, const DTensor& gradient) const {
    const math::TransitionWeights weights{ctx.saved(inputs[1]), ctx.saved(inputs[2]),
                                          ctx.saved(inputs[3]), ctx.saved(inputs[4]),
                                          ctx.saved(inputs[5])};
    const Tensor& x = ctx.saved("x");
    const math::TransitionGradients d = math::transition_backward(
        rows_of(gradient.local()), rows_of(x), weights, ctx.saved("mean"), ctx.saved("rstd"));
    const Shape shape = with_last(gradient.shape(), x.size(-1));
    Operands out;
    out[0] = DTensor::from_local(d.x.view(x.shape()), gradient.mesh(), gradient.placements(), shape,
                                 row_major_strides(shape));
    const std::array parts{d.weights.norm_weight, d.weights.norm_bias, d.weights.fc1, d.weights.fc2,
                           d.weights.fc3};
    for (std::size_t k = 0; k < parts.size(); ++k)
      out[k + 1] = parameter_gradient(parts[k], like_parameter(parts[k], gradient.mesh()),
                                      gradient.placements());
    return out;
  }
};

}  // namespace

Transition::Transition(const Build& build, std::int64_t dim, std::int64_t hidden, std::int64_t out)
    : Module(build),
      norm_(build, dim),
      fc1_(build, dim, hidden, Init::lecun),
      fc2_(build, dim, hidden, Init::lecun),
      fc3_(build, hidden, out < 0 ? dim : out, Init::zero) {
  add_child("norm", norm_);
  add_child("fc1", fc1_);
  add_child("fc2", fc2_);
  add_child("fc3", fc3_);
}

Var Transition::forward(const Var& x) const {
  const Scope scope(name());
  return apply(TransitionFunction{},
               {x, norm_.weight(), norm_.bias(), fc1_.weight(), fc2_.weight(), fc3_.weight()});
}

}  // namespace tessera
