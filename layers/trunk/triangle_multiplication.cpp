// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/triangle_multiplication.hpp"

#include <map>
#include <string>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/math/triangle_multiplication.hpp"
#include "tessera/layers/schedule/panel_ring.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

// How often messages are let move during one panel.
constexpr std::int64_t kProgressCalls = 8;

// A tile as a matrix with the contracted dim as its columns (left factor) or rows (right factor).
Tensor left(const Tensor& panel, Contracted c) {
  return c == Contracted::cols ? panel : panel.transpose(1, 2);
}
Tensor right(const Tensor& panel, Contracted c) {
  return c == Contracted::rows ? panel : panel.transpose(1, 2);
}

// Length of the index that an operand shares with the result, over the whole matrix.
std::int64_t shared_index(const DeviceMesh& mesh, const Operand& operand) {
  return operand.contracted == Contracted::cols ? operand.tile.size(1) * mesh.size(kCp0)
                                                : operand.tile.size(2) * mesh.size(kCp1);
}

// One of the six products: result tile (I_i, J_j), summed over the panels in acc.
Tensor product(const DeviceMesh& mesh, const Operand& x, const Operand& y) {
  const Tensor result = Tensor::empty({x.tile.size(0), shared_index(mesh, x) / mesh.size(kCp0),
                                       shared_index(mesh, y) / mesh.size(kCp1)},
                                      at_least_f32(x.tile.dtype()), x.tile.device());
  contract_panels(mesh, x, y, x.tile.size(0), [&](const PanelStep& s) {
    // A few matrices at a time, so that messages move in between.
    const std::int64_t matrices = s.x.size(0);
    const std::int64_t some = std::max<std::int64_t>(1, matrices / kProgressCalls);
    for (std::int64_t k = 0; k < matrices; k += some) {
      const std::int64_t length = std::min(some, matrices - k);
      gemm(1, left(s.x, x.contracted).narrow(0, k, length),
           right(s.y, y.contracted).narrow(0, k, length), s.step == 0 ? 0 : 1,
           result.narrow(0, s.unit_begin + k, length));
      s.progress();
    }
  });
  return result;
}

struct TriangleFunction {
  TriangleDirection direction;

  static constexpr const char* name = "triangle_multiplication";
  static constexpr std::array inputs{"x",
                                     "mask",
                                     "norm_in.weight",
                                     "norm_in.bias",
                                     "p_in.weight",
                                     "g_in.weight",
                                     "norm_out.weight",
                                     "norm_out.bias",
                                     "p_out.weight",
                                     "g_out.weight"};
  using Operands = std::array<DTensor, 10>;

  Contract contract() const {
    const Formula B = sym("B"), N = sym("N"), D = sym("D"), positions = B * N * N;
    const PlacementRule pair{PlacementRule::Kind::exactly, pair_placements()};
    Contract c;
    c.inputs = {{"x", {B, N, N, D}, pair},
                {"mask", {B, N, N}, pair},
                parameter_operand("norm_in.weight", {D}),
                parameter_operand("norm_in.bias", {D}),
                parameter_operand("p_in.weight", {2 * D, D}),
                parameter_operand("g_in.weight", {2 * D, D}),
                parameter_operand("norm_out.weight", {D}),
                parameter_operand("norm_out.bias", {D}),
                parameter_operand("p_out.weight", {D, D}),
                parameter_operand("g_out.weight", {D, D})};
    c.outputs = {{"y", {B, N, N, D}, pair}};
    const PanelSizes sizes{B * D / sym("dp"), N, N, sym("e")};
    for (const auto& [pass, x, y] : products())
      append(c.messages, panel_messages(pass, sizes, x, sizes, y, sizes.batch));
    for (const char* tile : {"x", "a", "b"}) c.saved.push_back({tile, positions * D, sym("e")});
    c.saved.push_back({"mask", positions, sym("e")});
    c.saved.push_back({"o", positions * D, sym("acc")});
    for (const char* statistic : {"x mean", "x rstd", "o mean", "o rstd"})
      c.saved.push_back({statistic, positions, sym("acc")});
    return c;
  }

  DTensor forward(FunctionContext& ctx, const Operands& in) const {
    const DTensor& x = in[0];
    const Tensor mask = in[1].local().contiguous().to(x.dtype());
    const math::TriangleWeights w{in[2].local(), in[3].local(), in[4].local(), in[5].local(),
                                  in[6].local(), in[7].local(), in[8].local(), in[9].local()};
    const Tensor x_local = x.local().contiguous();
    const math::TriangleFactors f = math::triangle_project(x_local, mask, w);
    const Tensor o = multiply(x.mesh(), products()[0], {{"a", f.a}, {"b", f.b}});
    const math::TriangleOutput out = math::triangle_output(x_local, f.statistics, o, w);
    if (ctx.recording()) save(ctx, in, mask, f, o, out.statistics);
    return Form(x).with(out.y);
  }

  Operands backward(FunctionContext& ctx, const DTensor& gradient) const {
    const auto p = [&](std::size_t k) { return ctx.saved(inputs[k]); };
    const math::TriangleWeights w{p(2), p(3), p(4), p(5), p(6), p(7), p(8), p(9)};
    const math::TriangleFactors f{
        ctx.saved("a"), ctx.saved("b"), {ctx.saved("x mean"), ctx.saved("x rstd")}};
    const math::Statistics o_statistics{ctx.saved("o mean"), ctx.saved("o rstd")};
    const Tensor x = ctx.saved("x").contiguous();

    math::TriangleOutputGradients head = math::triangle_output_backward(
        gradient.local().contiguous(), x, f.statistics, ctx.saved("o"), o_statistics, w);
    ctx.drop("o");
    const Tensor g = head.o.to(x.dtype());  // what travels has the dtype of the saved tiles
    head.o = Tensor();
    const std::map<std::string, Tensor> tiles{{"a", f.a}, {"b", f.b}, {"g", g}};
    const Tensor da = multiply(gradient.mesh(), products()[1], tiles);
    const Tensor db = multiply(gradient.mesh(), products()[2], tiles);
    const math::TriangleProjectGradients tail =
        math::triangle_project_backward(da, db, head.xh, x, ctx.saved("mask"), f, w);

    const std::array parts{tail.norm_in_weight,  tail.norm_in_bias,  tail.p_in,  tail.g_in,
                           head.norm_out_weight, head.norm_out_bias, head.p_out, head.g_out};
    Operands out;
    out[0] = Form(gradient).with(tail.x);
    for (std::size_t k = 0; k < parts.size(); ++k)
      out[k + 2] = parameter_gradient(parts[k], like_parameter(parts[k], gradient.mesh()),
                                      gradient.placements());
    return out;
  }

 private:
  void save(FunctionContext& ctx, const Operands& in, const Tensor& mask,
            const math::TriangleFactors& f, const Tensor& o,
            const math::Statistics& o_stats) const {
    const Shape& shape = in[0].shape();
    const Shape positions{shape[0], shape[1], shape[2]};
    const BudgetClass pair = BudgetClass::pair;
    ctx.save("x", in[0], pair);
    ctx.save("mask", mask, pair, positions);
    ctx.save("a", f.a, pair, shape);
    ctx.save("b", f.b, pair, shape);
    ctx.save("o", o, pair, shape);
    ctx.save("x mean", f.statistics.mean, pair, positions);
    ctx.save("x rstd", f.statistics.rstd, pair, positions);
    ctx.save("o mean", o_stats.mean, pair, positions);
    ctx.save("o rstd", o_stats.rstd, pair, positions);
    for (std::size_t k = 2; k < in.size(); ++k) ctx.save(inputs[k], in[k], BudgetClass::parameter);
  }

  // The products. n, m: rows and columns of o; k: the contracted token of forward.
  struct Product {
    Pass pass;
    PanelOperand x, y;
  };
  static constexpr auto kRows = Contracted::rows;
  static constexpr auto kCols = Contracted::cols;

  // o, da and db, in this order.
  std::array<Product, 3> products() const {
    if (direction == TriangleDirection::outgoing)
      return {{// o[I_i, J_j] += a[I_i, k] b[J_j, k]^T
               {Pass::forward, {"a", kCols}, {"b", kCols}},
               // da[n in I_i, k in J_j] += g[I_i, m] b[m, J_j]
               {Pass::backward, {"g", kCols}, {"b", kRows}},
               // db[m in I_i, k in J_j] += g[n, I_i]^T a[n, J_j]
               {Pass::backward, {"g", kRows}, {"a", kRows}}}};
    return {{// o[I_i, J_j] += a[k, I_i]^T b[k, J_j]
             {Pass::forward, {"a", kRows}, {"b", kRows}},
             // da[k in I_i, n in J_j] += b[I_i, m] g[J_j, m]^T
             {Pass::backward, {"b", kCols}, {"g", kCols}},
             // db[k in I_i, m in J_j] += a[I_i, n] g[n, J_j]
             {Pass::backward, {"a", kCols}, {"g", kRows}}}};
  }

  static Tensor multiply(const DeviceMesh& mesh, const Product& p,
                         const std::map<std::string, Tensor>& tiles) {
    return product(mesh, {tiles.at(p.x.name), p.x.contracted, p.x.name},
                   {tiles.at(p.y.name), p.y.contracted, p.y.name});
  }
};

}  // namespace

TriangleMultiplication::TriangleMultiplication(const Build& build, std::int64_t dim,
                                               TriangleDirection direction)
    : Module(build),
      direction_(direction),
      norm_in_(build, dim),
      p_in_(build, dim, 2 * dim, Init::lecun),
      g_in_(build, dim, 2 * dim, Init::zero),
      norm_out_(build, dim),
      p_out_(build, dim, dim, Init::zero),
      g_out_(build, dim, dim, Init::zero) {
  add_child("norm_in", norm_in_);
  add_child("p_in", p_in_);
  add_child("g_in", g_in_);
  add_child("norm_out", norm_out_);
  add_child("p_out", p_out_);
  add_child("g_out", g_out_);
}

Var TriangleMultiplication::forward(const Var& x, const Var& mask) const {
  const Scope scope(name());
  refuse_gradient(mask, TriangleFunction::name, "mask");
  return apply(TriangleFunction{direction_},
               {x, mask, norm_in_.weight(), norm_in_.bias(), p_in_.weight(), g_in_.weight(),
                norm_out_.weight(), norm_out_.bias(), p_out_.weight(), g_out_.weight()});
}

}  // namespace tessera
