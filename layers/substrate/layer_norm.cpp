// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/layer_norm.hpp"

#include <fmt/format.h>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

struct LayerNormFunction {
  static constexpr const char* name = "layer_norm";
  Shape dims;  // sizes of the last dims
  double eps;
  std::size_t parameters;  // 0: none, 1: weight, 2: weight and bias

  // Operands: x, weight and bias as far as there are any.
  Contract contract(const Tensors& in) const {
    const std::vector<Formula> sizes = symbols();
    std::vector<Formula> x{sym("...")};
    x.insert(x.end(), sizes.begin(), sizes.end());
    Formula positions = sym("n(x)");
    for (const Formula& size : sizes) positions = positions / size;
    Contract c;
    c.inputs = {{"x", x, rule()}};
    for (std::size_t k = 1; k < in.size(); ++k)
      c.inputs.push_back(parameter_operand(k == 1 ? "weight" : "bias", sizes));
    c.outputs = {{"y", x, {PlacementRule::Kind::like_first}}};
    c.saved = {saved_block("x")};
    for (const char* statistic : {"mean", "rstd"})
      c.saved.push_back({statistic, positions, sym("acc"), false, BudgetClass::own});
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& x = in[0];
    const Tensor rows = as_rows(x.local());
    const Tensor y = Tensor::empty(x.local().shape(), x.dtype(), rows.device());
    const Tensor mean = Tensor::empty({rows.size(0)}, at_least_f32(x.dtype()), rows.device());
    const Tensor rstd = Tensor::empty({rows.size(0)}, at_least_f32(x.dtype()), rows.device());
    layer_norm(rows, parameter(in, 1, x.dtype()), parameter(in, 2, x.dtype()), eps, as_rows(y),
               mean, rstd);
    const Shape& block = x.local().shape();
    const Shape positions(block.begin(), block.end() - count());
    ctx.save("x", x);
    ctx.save("mean", mean, BudgetClass::own, positions);
    ctx.save("rstd", rstd, BudgetClass::own, positions);
    if (in.size() > 1) ctx.save("weight", in[1], BudgetClass::parameter);
    return {carried(x, x.shape(), y)};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const DTensor& g = gradients[0];
    const Tensor& x = ctx.saved("x");
    const DType acc = at_least_f32(x.dtype());
    const Tensor weight = parameters > 0 ? ctx.saved("weight").contiguous().view({numel(dims)})
                                         : Tensor::full({numel(dims)}, 1, acc, x.device());
    const Tensor dx = Tensor::empty(x.shape(), g.dtype(), x.device());
    const Tensor dw = Tensor::zeros({numel(dims)}, acc, x.device());
    const Tensor db = Tensor::zeros({numel(dims)}, acc, x.device());
    layer_norm_backward(as_rows(g.local()), as_rows(x), weight, ctx.saved("mean"),
                        ctx.saved("rstd"), as_rows(dx), dw, db);
    Tensors all{carried(g, g.shape(), dx)};
    for (const Tensor& d : {dw, db}) {
      const Tensor shaped = d.view(dims);
      all.push_back(parameter_gradient(shaped, like_parameter(shaped, g.mesh()), g.placements()));
    }
    all.resize(1 + parameters);
    return all;
  }

 private:
  int count() const { return static_cast<int>(dims.size()); }

  std::vector<Formula> symbols() const {
    if (count() == 1) return {sym("C")};
    std::vector<Formula> all;
    for (int k = 0; k < count(); ++k) all.push_back(sym(fmt::format("C{}", k).c_str()));
    return all;
  }
  PlacementRule rule() const {
    if (count() == 1) return {PlacementRule::Kind::whole_last};
    PlacementRule rule{PlacementRule::Kind::whole, {}, {}, "any S/R, the last dims whole"};
    for (int k = 1; k <= count(); ++k) rule.dims.push_back(-k);
    return rule;
  }
  // [positions, channels]; copies only if it is not contiguous.
  Tensor as_rows(const Tensor& t) const {
    return t.contiguous().view({t.numel() / numel(dims), numel(dims)});
  }
  // The operand as [channels], or what leaves the values as they are.
  Tensor parameter(const Tensors& in, std::size_t k, DType dtype) const {
    if (k < in.size()) return in[k].local().contiguous().view({numel(dims)});
    const PurposeScope purpose(Purpose::workspace);
    return Tensor::full({numel(dims)}, k == 1 ? 1 : 0, at_least_f32(dtype), in[0].mesh().device());
  }
};

}  // namespace

LayerNorm::LayerNorm(const Build& build, std::int64_t channels)
    : LayerNorm(build, Shape{channels}, Affine::weight_and_bias) {}

LayerNorm::LayerNorm(const Build& build, Shape dims, Affine affine, double eps)
    : Module(build), dims_(std::move(dims)), eps_(eps) {
  if (affine != Affine::none) weight_ = add_parameter("weight", dims_, Init::one);
  if (affine == Affine::weight_and_bias) bias_ = add_parameter("bias", dims_, Init::zero);
}

Var LayerNorm::forward(const Var& x) const {
  const Scope scope(name());
  std::vector<Var> operands{x};
  for (const Var& parameter : {weight_, bias_})
    if (parameter.is_leaf()) operands.push_back(parameter);
  return apply_many(LayerNormFunction{dims_, eps_, operands.size() - 1}, operands).front();
}

}  // namespace tessera
