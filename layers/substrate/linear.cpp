// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/linear.hpp"

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

template <bool WithBias>
struct LinearFunction {
  static constexpr const char* name = "linear";
  static constexpr auto inputs = [] {
    if constexpr (WithBias)
      return std::array{"x", "weight", "bias"};
    else
      return std::array{"x", "weight"};
  }();
  using Operands = std::array<DTensor, inputs.size()>;
  bool weight_needs_grad;

  Contract contract() const {
    Contract c;
    c.inputs = {{"x", {sym("..."), sym("in")}, {PlacementRule::Kind::whole_last}},
                parameter_operand("weight", {sym("out"), sym("in")})};
    if constexpr (WithBias) c.inputs.push_back(parameter_operand("bias", {sym("out")}));
    c.outputs = {{"y", {sym("..."), sym("out")}, {PlacementRule::Kind::like_first}}};
    if (weight_needs_grad) c.saved = {saved_block("x")};
    return c;
  }

  DTensor forward(FunctionContext& ctx, const Operands& in) const {
    const DTensor& x = in[0];
    const Tensor& weight = in[1].local();
    Shape local = x.local().shape();
    local.back() = weight.size(0);
    const Tensor y = Tensor::empty(local, x.dtype(), x.local().device());
    if constexpr (WithBias) copy(broadcast_rows(in[2].local(), y), rows_of(y));
    gemm(1, rows_of(x.local()), weight.to(x.dtype()).transpose(0, 1), WithBias ? 1 : 0, rows_of(y));
    if (weight_needs_grad) ctx.save("x", x);
    ctx.save("weight", in[1], BudgetClass::parameter);
    if constexpr (WithBias) ctx.save("bias", in[2], BudgetClass::parameter);
    Shape shape = x.shape();
    shape.back() = weight.size(0);
    return carried(x, shape, y);
  }

  Operands backward(FunctionContext& ctx, const DTensor& gradient) const {
    const DType acc = at_least_f32(gradient.dtype());
    const Tensor& weight = ctx.saved("weight");
    const Tensor g = rows_of(gradient.local());
    Operands out;
    if (ctx.needs_grad(0)) {
      Shape local = gradient.local().shape();
      local.back() = weight.size(1);
      const Tensor dx = Tensor::empty(local, gradient.dtype(), g.device());
      gemm(1, g, weight.to(gradient.dtype()), 0, rows_of(dx));
      Shape shape = gradient.shape();
      shape.back() = weight.size(1);
      out[0] = carried(gradient, shape, dx);
    }
    if (ctx.needs_grad(1)) {
      const Tensor dw = Tensor::empty(weight.shape(), acc, g.device());
      gemm(1, g.to(acc).transpose(0, 1), rows_of(ctx.saved("x")).to(acc), 0, dw);
      out[1] =
          parameter_gradient(dw, like_parameter(weight, gradient.mesh()), gradient.placements());
    }
    if constexpr (WithBias)
      if (ctx.needs_grad(2)) {
        const Tensor db = Tensor::zeros({weight.size(0)}, acc, g.device());
        sum_rows(g, db);
        out[2] = parameter_gradient(db, like_parameter(db, gradient.mesh()), gradient.placements());
      }
    return out;
  }

 private:
  static Tensor broadcast_rows(const Tensor& bias, const Tensor& y) {
    return bias.as_strided({y.numel() / y.size(-1), bias.numel()}, {0, 1}, 0);
  }
};

}  // namespace

Linear::Linear(const Build& build, std::int64_t in, std::int64_t out, bool bias, Init init)
    : Module(build), weight_(add_parameter("weight", {out, in}, init)) {
  if (bias) bias_ = add_parameter("bias", {out}, init);
}

Var Linear::forward(const Var& x) const {
  const Scope scope(name());
  const bool trained = weight_.requires_grad();
  if (bias_.is_leaf()) return apply(LinearFunction<true>{trained}, {x, weight_, bias_});
  return apply(LinearFunction<false>{trained}, {x, weight_});
}

}  // namespace tessera
