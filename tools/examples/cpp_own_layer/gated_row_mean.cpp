// SPDX-License-Identifier: MIT
#include "gated_row_mean.hpp"

#include <tessera/autodiff/gradients.hpp>
#include <tessera/layers/substrate/common.hpp>
#include <tessera/mesh/collectives.hpp>
#include <tessera/runtime/ops.hpp>

using namespace tessera;

namespace {

// Block functions: what is done to the own tile [b, i, j, C], without mesh or messages.

Tensor row_sums(const Tensor& x, DType acc) {
  Tensor sums = Tensor::empty({x.size(0), x.size(1), 1, x.size(3)}, acc, x.device());
  fold(Fold::sum, x, {2}, sums);
  return sums;
}

Tensor along(const Tensor& weight, const Tensor& x) {
  return weight.view({1, 1, 1, x.size(3)}).expand(x.shape());
}

Tensor gates(const Tensor& x, const Tensor& weight, DType acc) {
  Tensor s = Tensor::empty(x.shape(), acc, x.device());
  binary(Binary::multiply, x, along(weight, x), s);
  unary(Unary::sigmoid, s, s);
  return s;
}

Tensor times(const Tensor& a, const Tensor& b) {
  Tensor product = Tensor::empty(a.shape(), promote(a.dtype(), b.dtype()), a.device());
  binary(Binary::multiply, a, b.expand(a.shape()), product);
  return product;
}

// The schedule: tiles stay where they are, sums of rows meet along cp1. On one rank it does
// nothing.
void sum_along_rows(const DeviceMesh& mesh, const Tensor& sums, const char* label) {
  all_reduce(mesh, kCp1, ReduceOp::sum, sums, label);
}

DTensor placed_as(const DTensor& x, const Tensor& block) {
  return carried(x, x.shape(), block);
}

struct GatedRowMeanFunction {
  static constexpr const char* name = "gated_row_mean";
  using Tensors = std::vector<DTensor>;

  Contract contract(const Tensors& in) const {
    const DeviceMesh& mesh = in[0].mesh();
    const DType acc = at_least_f32(in[0].dtype());
    const Formula B = sym("B"), N = sym("N"), C = sym("C");
    const Formula sums = B / sym("dp") * N / sym("R0") * C;
    return {.inputs = {{"x", {B, N, N, C}, {PlacementRule::Kind::exactly, pair_placements()}},
                       parameter_operand("weight", {C})},
            .outputs = {{"y", same_shape("x"), {PlacementRule::Kind::like_first}}},
            .messages = {all_reduce_message(Pass::forward, mesh, {kCp1}, sums, acc, "sums of x"),
                         all_reduce_message(Pass::backward, mesh, {kCp1}, sums, acc, "sums of dy")},
            .saved = {saved_block("x"), {"mean", sums, sym("acc"), false, BudgetClass::own}}};
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const Tensor& x = in[0].local();
    const DType acc = at_least_f32(x.dtype());
    const Tensor mean = row_sums(x, acc);
    sum_along_rows(ctx.mesh(), mean, "sums of x");
    scale(1.0 / static_cast<double>(in[0].size(2)), mean);
    ctx.save("x", in[0]);
    ctx.save("mean", mean, BudgetClass::own, mean.shape());
    ctx.save("weight", in[1], BudgetClass::parameter);
    return {placed_as(in[0], times(gates(x, in[1].local(), acc), mean).to(x.dtype()))};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const DTensor& dy = gradients[0];
    const Tensor &x = ctx.saved("x"), &weight = ctx.saved("weight");
    const DType acc = at_least_f32(x.dtype());
    const Tensor gate = gates(x, weight, acc);
    const Tensor through = times(gate, dy.local());
    const Tensor dmean = row_sums(through, acc);
#ifndef OWN_LAYER_FORGETS_A_SUM
    sum_along_rows(ctx.mesh(), dmean, "sums of dy");
#endif
    scale(1.0 / static_cast<double>(dy.size(2)), dmean);
    const Tensor dlogit = times(through, ctx.saved("mean"));  // dy m s (1 - s)
    add(1, dlogit, -1, times(dlogit, gate), dlogit);
    const Tensor dx = times(dlogit, along(weight, x));
    add(1, dx, 1, dmean.expand(dx.shape()).to(dx.dtype()), dx);
    const Tensor dweight = Tensor::zeros(weight.shape(), acc, x.device());
    sum_rows(rows_of(times(dlogit, x)), dweight);
    const DTensor parameter = like_parameter(dweight, dy.mesh());
    return {placed_as(dy, dx.to(dy.dtype())),
            parameter_gradient(dweight, parameter, dy.placements())};
  }
};

}  // namespace

GatedRowMean::GatedRowMean(const Build& build, std::int64_t channels)
    : Module(build), weight_(add_parameter("weight", {channels}, Init::one)) {}

Var GatedRowMean::forward(const Var& x) const {
  const Scope scope(name());
  return apply_many(GatedRowMeanFunction{}, {x, weight_}).front();
}
