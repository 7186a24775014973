// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/softmax.hpp"

#include "tessera/layers/substrate/common.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

// x minus its maximum along a dim, in at least f32.
DTensor below_maximum(const DTensor& x, int dim) {
  const DTensor shifted = empty_like(x, at_least_f32(x.dtype()));
  const DTensor top = folded(Fold::maximum, x, {dim}, shifted.dtype());
  binary(Binary::subtract, x.local(), top.local().expand(x.local().shape()), shifted.local());
  return shifted;
}

Tensor sum_along(const DTensor& x, int dim) {
  return folded(Fold::sum, x, {dim}, x.dtype()).local().expand(x.local().shape());
}

Contract softmax_contract(int dim) {
  return {
      .inputs = {{"x", any_shape(), {PlacementRule::Kind::whole, {}, {dim}, "any S/R, dim whole"}}},
      .outputs = {{"y", same_shape("x"), {PlacementRule::Kind::like_first}}},
      .messages = {},
      .saved = {saved_block("y", "x", sym("e(x)"))}};
}

struct ShardwiseSoftmax {
  static constexpr const char* name = "shardwise_softmax";
  int dim;

  Contract contract(const Tensors&) const { return softmax_contract(dim); }
  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor e = below_maximum(in[0], dim);
    unary(Unary::exp, e.local(), e.local());
    binary(Binary::divide, e.local(), sum_along(e, dim), e.local());
    const DTensor y = e.to(in[0].dtype());
    ctx.save_block("y", y.local(), y);
    return {y};
  }
  // y (g - sum of g y)
  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    const Tensor& y = ctx.saved("y");
    const DTensor work = empty_like(g[0], at_least_f32(g[0].dtype()));
    binary(Binary::multiply, g[0].local(), y, work.local());
    binary(Binary::subtract, g[0].local(), sum_along(work, dim), work.local());
    const DTensor dx = empty_like(g[0], g[0].dtype());
    binary(Binary::multiply, work.local(), y, dx.local());
    return {dx};
  }
};

struct ShardwiseLogSoftmax {
  static constexpr const char* name = "shardwise_log_softmax";
  int dim;

  Contract contract(const Tensors&) const { return softmax_contract(dim); }
  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor shifted = below_maximum(in[0], dim);
    const DTensor e = empty_like(shifted, shifted.dtype());
    unary(Unary::exp, shifted.local(), e.local());
    const DTensor sum = folded(Fold::sum, e, {dim}, e.dtype());
    unary(Unary::log, sum.local(), sum.local());
    binary(Binary::subtract, shifted.local(), sum.local().expand(e.local().shape()), e.local());
    const DTensor y = e.to(in[0].dtype());
    ctx.save_block("y", y.local(), y);
    return {y};
  }
  // g - exp(y) (sum of g)
  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    const DTensor work = empty_like(g[0], at_least_f32(g[0].dtype()));
    const DTensor sum = folded(Fold::sum, g[0], {dim}, work.dtype());
    unary(Unary::exp, ctx.saved("y"), work.local());
    binary(Binary::multiply, work.local(), sum.local().expand(work.local().shape()), work.local());
    const DTensor dx = empty_like(g[0], g[0].dtype());
    binary(Binary::subtract, g[0].local(), work.local(), dx.local());
    return {dx};
  }
};

template <class F>
Var normalize(const Var& x, int dim) {
  require_floating(x, F::name, "x");
  return apply_many(F{normalize_dim(dim, x.value().ndim(), F::name)}, {x}).front();
}

}  // namespace

Var shardwise_softmax(const Var& x, int dim) {
  return normalize<ShardwiseSoftmax>(x, dim);
}

Var shardwise_log_softmax(const Var& x, int dim) {
  return normalize<ShardwiseLogSoftmax>(x, dim);
}

}  // namespace tessera
