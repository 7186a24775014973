// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/outer_product_mean.hpp"

#include <utility>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/math/outer_product_mean.hpp"
#include "tessera/layers/schedule/panel_ring.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

constexpr PanelOperand kA{"a", Contracted::rows};
constexpr PanelOperand kB{"b", Contracted::rows};

struct Rotation {
  Travelling a, b;
};

// The factors in the start position of the ring.
Rotation skewed(const DeviceMesh& mesh, const math::OuterFactors& factors) {
  PendingRelayout a = start_skew(mesh, Side::x, kA, factors.a);
  PendingRelayout b = start_skew(mesh, Side::y, kB, factors.b);
  return {{kA.name, a.wait()}, {kB.name, b.wait()}};
}

Window zero_sums(const Window& panels) {
  const PurposeScope purpose(Purpose::communication);
  Window sums;
  for (const Tensor& panel : panels)
    sums.push_back(Tensor::zeros(panel.shape(), at_least_f32(panel.dtype()), panel.device()));
  return sums;
}

// counts [B, I, J] += sum_s a_mask[s, i] b_mask[s, j]
void count_rows(const Tensor& a_mask, const Tensor& b_mask, bool first, const Tensor& counts) {
  gemm(1, a_mask.transpose(1, 2), b_mask, first ? 0 : 1, counts);
}

struct OuterProductMeanFunction {
  static constexpr const char* name = "outer_product_mean";
  static constexpr std::array inputs{"m",
                                     "mask",
                                     "norm.weight",
                                     "norm.bias",
                                     "proj_a.weight",
                                     "proj_b.weight",
                                     "proj_o.weight",
                                     "proj_o.bias"};
  using Operands = std::array<DTensor, 8>;

  Contract contract() const {
    const Formula B = sym("B"), S = sym("S"), N = sym("N"), C = sym("C"), H = sym("H"),
                  D = sym("D");
    const PlacementRule tile{PlacementRule::Kind::exactly, pair_placements()};
    Contract c;
    c.inputs = {{"m", {B, S, N, C}, tile},
                {"mask", {B, S, N}, tile},
                parameter_operand("norm.weight", {C}),
                parameter_operand("norm.bias", {C}),
                parameter_operand("proj_a.weight", {H, C}),
                parameter_operand("proj_b.weight", {H, C}),
                parameter_operand("proj_o.weight", {D, H * H}),
                parameter_operand("proj_o.bias", {D})};
    c.outputs = {{"y", {B, N, N, D}, tile}};
    append(c.messages, replay_messages(Pass::forward, H + 1));
    append(c.messages, replay_messages(Pass::backward, H));
    append(c.messages, sum_messages());
    c.saved = {{"m", B * S * N * C, sym("e"), false, BudgetClass::msa},
               {"mask", B * S * N, sym("e"), false, BudgetClass::msa},
               {"num", B * N * N, sym("acc")}};
    return c;
  }

  DTensor forward(FunctionContext& ctx, const Operands& in) const {
    const DTensor& m = in[0];
    const DeviceMesh& mesh = m.mesh();
    // The swap of a cuts rows along cp1 and tokens along cp0 too.
    block_of(m.shape(), {Shard{0}, Shard{2}, Shard{1}}, mesh.shape(), mesh.coordinate(), name, "m");
    const Tensor mask = in[1].local().contiguous().to(m.dtype());
    const std::int64_t hidden = in[4].shape()[0], out = in[6].shape()[0];
    const std::int64_t batch = m.local().size(0), tokens = m.shape()[2];
    const Shape pairs{batch, tokens / mesh.size(kCp0), tokens / mesh.size(kCp1)};
    const DType acc = at_least_f32(m.dtype());
    const Tensor num = Tensor::empty(pairs, acc, m.local().device());
    const Tensor sums = Tensor::empty({pairs[0], pairs[1], pairs[2], out}, acc, num.device());
    const Tensor proj_o = math::as_workspace(math::as_workspace(in[6].local(), m.dtype()), acc);

    Rotation r = skewed(mesh, math::outer_factors(m.local().contiguous(), mask, weights(in), true));
    for (Window* window : {&r.a.panels, &r.b.panels})
      for (Tensor& panel : *window) panel = math::outer_panel(panel, hidden);
    rotate_panels(mesh, r.a, r.b, [&](const PanelStep& s) {
      const math::OuterPanel a = math::parts_of(s.x, batch, pairs[1], hidden);
      const math::OuterPanel b = math::parts_of(s.y, batch, pairs[2], hidden);
      count_rows(a.mask, b.mask, s.step == 0, num);
      math::outer_block(a.factor, b.factor, proj_o, s.step == 0, sums, s.progress);
    });
    binary(Binary::maximum, num, 1.0, num);
    const Tensor y = math::outer_mean(sums, num, in[7].local(), m.dtype());
    if (ctx.recording()) save(ctx, in, mask, num);
    const Shape shape{m.shape()[0], tokens, tokens, out};
    return DTensor::from_local(y, mesh, pair_placements(), shape, row_major_strides(shape));
  }

  Operands backward(FunctionContext& ctx, const DTensor& gradient) const {
    const DeviceMesh& mesh = gradient.mesh();
    const Tensor m = ctx.saved("m").contiguous();
    const DType acc = at_least_f32(m.dtype());
    const Tensor proj_o =
        math::as_workspace(math::as_workspace(ctx.saved(inputs[6]), m.dtype()), acc);
    math::OuterFactors factors = math::outer_factors(m, ctx.saved("mask"), weights(ctx), false);
    Rotation r = skewed(mesh, factors);
    factors.a = factors.b = Tensor();
    r.a.sums = zero_sums(r.a.panels);
    r.b.sums = zero_sums(r.b.panels);
    const Tensor dproj_o = Tensor::zeros(proj_o.shape(), acc, proj_o.device());
    const Tensor dy = gradient.local().contiguous(), num = ctx.saved("num");
    const Tensor dbias = Tensor::zeros({dy.size(3)}, acc, dy.device());
    sum_rows(rows_of(dy), dbias);
    rotate_panels(mesh, r.a, r.b, [&](const PanelStep& s) {
      math::outer_block_backward(math::as_workspace(s.x, acc), math::as_workspace(s.y, acc), proj_o,
                                 dy, num, {s.dx, s.dy, dproj_o}, s.progress);
    });
    const Tensor da = unskew(mesh, Side::x, kA, std::exchange(r.a.sums, {}));
    const Tensor db = unskew(mesh, Side::y, kB, std::exchange(r.b.sums, {}));
    const math::OuterFactorsGradients tail = math::outer_factors_backward(
        da, db, m, ctx.saved("mask"), factors.statistics, weights(ctx));

    const math::OuterWeights& w = tail.weights;
    const std::array parts{w.norm_weight, w.norm_bias, w.proj_a, w.proj_b, dproj_o, dbias};
    Operands out;
    const Shape shape{gradient.shape()[0], m.size(1) * mesh.size(kCp0), gradient.shape()[1],
                      m.size(3)};
    out[0] = DTensor::from_local(tail.m, mesh, pair_placements(), shape, row_major_strides(shape));
    for (std::size_t k = 0; k < parts.size(); ++k)
      out[k + 2] =
          parameter_gradient(parts[k], like_parameter(parts[k], mesh), gradient.placements());
    return out;
  }

 private:
  static math::OuterWeights weights(const Operands& in) {
    return {in[2].local(), in[3].local(), in[4].local(), in[5].local()};
  }
  static math::OuterWeights weights(const FunctionContext& ctx) {
    const auto p = [&](std::size_t k) { return ctx.saved(inputs[k]); };
    return {p(2), p(3), p(4), p(5)};
  }

  static void save(FunctionContext& ctx, const Operands& in, const Tensor& mask,
                   const Tensor& num) {
    const Shape& shape = in[0].shape();
    ctx.save("m", in[0], BudgetClass::msa);
    ctx.save("mask", mask, BudgetClass::msa, in[1].shape());
    ctx.save("num", num, BudgetClass::pair, {shape[0], shape[2], shape[2]});
    for (std::size_t k = 2; k < in.size(); ++k) ctx.save(inputs[k], in[k], BudgetClass::parameter);
  }

  // Factors of so many channels per token.
  static PanelSizes sizes(const Formula& channels, const char* element_bytes) {
    return {sym("B") / sym("dp"), sym("S"), sym("N") * channels, sym(element_bytes)};
  }
  static Formula tile_bytes(const PanelSizes& s) {
    return s.batch * s.rows * s.cols / (sym("R0") * sym("R1")) * s.element_bytes;
  }

  static std::vector<ContractMessage> replay_messages(Pass pass, const Formula& channels) {
    const PanelSizes factor = sizes(channels, "e");
    return {skew_message(pass, Side::x, factor, kA), skew_message(pass, Side::y, factor, kB),
            ring_message(pass, Side::x, kA.name, tile_bytes(factor)),
            ring_message(pass, Side::y, kB.name, tile_bytes(factor))};
  }
  static std::vector<ContractMessage> sum_messages() {
    const PanelSizes sum = sizes(sym("H"), "acc");
    return {sums_message(Pass::backward, Side::x, kA.name, tile_bytes(sum)),
            sums_message(Pass::backward, Side::y, kB.name, tile_bytes(sum)),
            unskew_message(Pass::backward, Side::x, sum, kA),
            unskew_message(Pass::backward, Side::y, sum, kB)};
  }
};

}  // namespace

OuterProductMean::OuterProductMean(const Build& build, std::int64_t c_in, std::int64_t c_hidden,
                                   std::int64_t c_out)
    : Module(build),
      norm_(build, c_in),
      proj_a_(build, c_in, c_hidden, Init::fan_in),
      proj_b_(build, c_in, c_hidden, Init::fan_in),
      proj_o_(build, c_hidden * c_hidden, c_out, true, Init::zero) {
  add_child("norm", norm_);
  add_child("proj_a", proj_a_);
  add_child("proj_b", proj_b_);
  add_child("proj_o", proj_o_);
}

Var OuterProductMean::forward(const Var& m, const Var& mask) const {
  const Scope scope(name());
  refuse_gradient(mask, OuterProductMeanFunction::name, "mask");
  return apply(OuterProductMeanFunction{}, {m, mask, norm_.weight(), norm_.bias(), proj_a_.weight(),
                                            proj_b_.weight(), proj_o_.weight(), proj_o_.bias()});
}

}  // namespace tessera
