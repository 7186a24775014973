// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/pair_bias.hpp"

#include <algorithm>
#include <numeric>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/math/pair_bias.hpp"
#include "tessera/layers/substrate/common.hpp"

namespace tessera {
namespace {

// [.., n, m, C] as [tiles, n, m, C].
Tensor tiles_of(const Tensor& z) {
  const Shape tile{z.size(-3), z.size(-2), z.size(-1)};
  return z.contiguous().view({z.numel() / numel(tile), tile[0], tile[1], tile[2]});
}

struct PairBiasFunction {
  Form z;

  static constexpr const char* name = "pair_bias";
  static constexpr std::array inputs{"z", "0.weight", "0.bias", "1.weight"};
  using Operands = std::array<DTensor, 4>;

  Contract contract() const {
    const Formula C = sym("C"), H = sym("H"), positions = sym("n(z)") / C;
    return {.inputs = {{"z", {sym("..."), C}, {PlacementRule::Kind::whole_last}},
                       parameter_operand("0.weight", {C}),
                       parameter_operand("0.bias", {C}),
                       parameter_operand("1.weight", {H, C})},
            .outputs = {{"t", {sym("..."), H}, {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {saved_block("z"),
                      {"mean", positions, sym("acc"), false, BudgetClass::own},
                      {"rstd", positions, sym("acc"), false, BudgetClass::own}}};
  }

  DTensor forward(FunctionContext& ctx, const Operands& in) const {
    const math::PairBiasWeights w{in[1].local(), in[2].local(), in[3].local()};
    const math::PairBias made = math::pair_bias(tiles_of(in[0].local()), w);
    if (ctx.recording()) {
      ctx.save("z", in[0]);
      ctx.save("mean", made.statistics.mean, BudgetClass::own, made.statistics.mean.shape());
      ctx.save("rstd", made.statistics.rstd, BudgetClass::own, made.statistics.rstd.shape());
      for (std::size_t k = 1; k < in.size(); ++k)
        ctx.save(inputs[k], in[k], BudgetClass::parameter);
    }
    Form t = z;
    t.shape.back() = w.projection.size(0);
    return from_tiles_by_head(made.bias, t);
  }

  Operands backward(FunctionContext& ctx, const DTensor& gradient) const {
    const math::PairBiasWeights w{ctx.saved(inputs[1]), ctx.saved(inputs[2]), ctx.saved(inputs[3])};
    const Tensor tiles = tiles_of(ctx.saved("z"));
    const Tensor dt =
        tiles_by_head(gradient.local())
            .view({tiles.size(0) * w.projection.size(0), tiles.size(1), tiles.size(2)});
    const math::PairBiasGradients d =
        math::pair_bias_backward(dt, tiles, {ctx.saved("mean"), ctx.saved("rstd")}, w);
    Operands out{z.with(d.z)};
    const std::array parts{d.weights.norm_weight, d.weights.norm_bias, d.weights.projection};
    for (std::size_t k = 0; k < parts.size(); ++k)
      out[k + 1] =
          parameter_gradient(parts[k], like_parameter(parts[k], z.mesh), gradient.placements());
    return out;
  }
};

}  // namespace

Tensor tiles_by_head(const Tensor& t) {
  const int ndim = t.ndim();
  const Shape tile{t.size(-1), t.size(-3), t.size(-2)};
  const Tensor by_head = t.transpose(ndim - 1, ndim - 2).transpose(ndim - 2, ndim - 3);
  return by_head.contiguous().view({t.numel() / numel(tile), tile[0], tile[1], tile[2]});
}

DTensor from_tiles_by_head(const Tensor& tiles, const Form& t) {
  // Where dim d of [.., n, m, H] is in [.., H, n, m].
  std::vector<int> to(t.shape.size());
  std::iota(to.begin(), to.end(), 0);
  std::rotate(to.end() - 3, to.end() - 2, to.end());
  const auto in_memory = [](Shape shape) {
    std::rotate(shape.end() - 3, shape.end() - 1, shape.end());
    return shape;
  };
  const Strides ordered = row_major_strides(in_memory(t.shape));
  Strides strides;
  for (const int d : to) strides.push_back(ordered[static_cast<std::size_t>(d)]);
  return DTensor::from_local(tiles.view(in_memory(t.local())).permute(to), t.mesh, t.placements,
                             t.shape, strides);
}

PairBias::PairBias(const Build& build, std::int64_t channels, std::int64_t heads)
    : Module(build), norm_(build, channels), projection_(build, channels, heads, Init::fan_in) {
  add_child("0", norm_);
  add_child("1", projection_);
}

Var PairBias::forward(const Var& z) const {
  const Scope scope(name());
  return apply(PairBiasFunction{Form(z.value())},
               {z, norm_.weight(), norm_.bias(), projection_.weight()});
}

}  // namespace tessera
