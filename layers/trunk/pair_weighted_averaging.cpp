// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/pair_weighted_averaging.hpp"

#include <algorithm>
#include <utility>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/math/attention.hpp"
#include "tessera/layers/math/pair_bias.hpp"
#include "tessera/layers/math/pair_weighted_averaging.hpp"
#include "tessera/layers/schedule/panel_ring.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/shard.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

constexpr PanelOperand kValues{"v", Contracted::cols};     // v[S_i, keys]
constexpr PanelOperand kByQuery{"w", Contracted::cols};    // w[queries J_j, keys]
constexpr PanelOperand kGradient{"do", Contracted::cols};  // do[S_i, queries]
constexpr PanelOperand kByKey{"w", Contracted::rows};      // w[queries, keys J_j]
constexpr PanelOperand kWeightSums{"dw", Contracted::rows};

// The operands, whole.
struct Weights {
  math::AveragingMsaWeights msa;
  math::PairBiasWeights pair;
};

// Groups of heads with no more channels than m has, so that beside o nothing is larger than a tile
// of m; fewer where that would make tiles of less than 1 MiB. `tile_bytes`: all heads.
std::int64_t group_count(std::int64_t tile_bytes, std::int64_t heads, std::int64_t channels,
                         std::int64_t m_channels) {
  constexpr std::int64_t least_bytes = 1 << 20;
  const std::int64_t per_group = std::max<std::int64_t>(1, m_channels * heads / channels);
  return std::clamp<std::int64_t>(tile_bytes / least_bytes, 1, (heads + per_group - 1) / per_group);
}

// The heads are taken in groups, one after the other, so that what has H c_h channels need not be
// there as a whole.
struct HeadGroups {
  std::int64_t heads = 1, width = 1;
  int count = 1;

  HeadGroups(const Tensor& m, const Weights& w)
      : heads(w.pair.projection.size(0)), width(w.msa.proj_m.size(0) / heads) {
    const std::int64_t channels = heads * width, tile_bytes = m.bytes() / m.size(-1) * channels;
    count = static_cast<int>(group_count(tile_bytes, heads, channels, m.size(-1)));
  }
  Interval channels(int k) const {
    const Interval h = shard_of(heads, count, k);
    return {h.begin * width, h.end * width};
  }
  // Of o [B*H*c_h, ...], which is ordered by group, sample and head: a stretch.
  Tensor part(const Tensor& all, int k) const {
    const Interval h = shard_of(heads, count, k);
    const std::int64_t each = all.size(0) / heads;
    return all.narrow(0, h.begin * each, h.size() * each);
  }
  // Of weights [B*H, ...], ordered by sample and head: [B, heads of the group, ...].
  Tensor of_weights(const Tensor& all, int k) const {
    const Interval h = shard_of(heads, count, k);
    return all.view({all.size(0) / heads, heads, all.size(1), all.size(2)})
        .narrow(1, h.begin, h.size());
  }
  // The same as a tile; a copy only if there are several samples and groups.
  Tensor weights_tile(const Tensor& all, int k) const {
    const Tensor own = of_weights(all, k);
    return own.contiguous().view({own.size(0) * own.size(1), own.size(2), own.size(3)});
  }
  math::AveragingMsaWeights weights(const math::AveragingMsaWeights& w, int k) const {
    const Interval c = channels(k);
    return {w.norm_weight, w.norm_bias, w.proj_m.narrow(0, c.begin, c.size()),
            w.proj_g.narrow(0, c.begin, c.size()), w.proj_o.narrow(1, c.begin, c.size())};
  }
};

// [B*heads*width, s, n] as one matrix [width*s, n] per sample and head. A panel that never travels
// is a view: some columns of a tile.
Tensor by_head(const Tensor& t, std::int64_t width) {
  return t.as_strided({t.size(0) / width, width * t.size(1), t.size(2)},
                      {width * t.strides()[0], t.strides()[1], 1}, 0);
}

// [B*heads, q, k] as one row of keys per sample, head and query.
Tensor by_row(const Tensor& w) {
  return w.view({w.size(0) * w.size(1), 1, 1, w.size(2)});
}

// a [B*H, q, k] += infinity (mask - 1), mask [B, q, k].
void mask_logits(const Tensor& a, const Tensor& mask, double infinity) {
  const Tensor penalty = Tensor::empty(mask.shape(), a.dtype(), a.device());
  binary(Binary::subtract, mask, 1, penalty);
  scale(infinity, penalty);
  const Tensor by_sample =
      a.view({mask.size(0), a.size(0) / mask.size(0), mask.size(1), mask.size(2)});
  binary(Binary::add, by_sample, penalty.unsqueeze(1).expand(by_sample.shape()), by_sample);
}

// Logits [B*H, q, k] in acc, which are consumed, to weights in `dtype`: the softmax over all keys.
Tensor softmax_over_keys(const DeviceMesh& mesh, const Tensor& a, DType dtype) {
  const Tensor row = Tensor::empty({a.size(0), a.size(1), 1}, a.dtype(), a.device());
  fold(Fold::maximum, a, {-1}, row);
  all_reduce(mesh, kCp1, ReduceOp::max, row, "row maxima");
  binary(Binary::subtract, a, row.expand(a.shape()), a);
  unary(Unary::exp, a, a);
  fold(Fold::sum, a, {-1}, row);
  all_reduce(mesh, kCp1, ReduceOp::sum, row, "row sums");
  const Tensor w = dtype == a.dtype() ? a : Tensor::empty(a.shape(), dtype, a.device());
  binary(Binary::divide, a, row.expand(a.shape()), w);
  return w;
}

// In place, from the gradient of the weights to that of the logits: da = w (dw - sum over keys of
// w dw), once, on what has been summed over the whole MSA.
void softmax_backward(const DeviceMesh& mesh, const Tensor& w, const Tensor& dw) {
  const Tensor sums = math::row_dots(by_row(w), by_row(dw)).view({w.size(0), w.size(1), 1});
  all_reduce(mesh, kCp1, ReduceOp::sum, sums, "softmax gradient");
  binary(Binary::subtract, dw, sums.expand(dw.shape()), dw);
  binary(Binary::multiply, dw, w, dw);
}

// c = a b + beta c, one product per sample and head; messages move in between.
void multiply(const PanelStep& s, const Tensor& a, const Tensor& b, double beta, const Tensor& c) {
  for (std::int64_t k = 0; k < c.size(0); ++k) {
    gemm(1, a.select(0, k), b.select(0, k), beta, c.select(0, k));
    s.progress();
  }
}

// o[S_i, q in J_j] = sum over k of v[S_i, k] w[q, k]^T, in acc.
void average(const DeviceMesh& mesh, const Tensor& v, PendingRelayout w, std::int64_t width,
             const Tensor& o) {
  PendingRelayout v_skew = start_skew(mesh, Side::x, kValues, v);
  Travelling x{kValues.name, v_skew.wait()}, y{kByQuery.name, w.wait()};
  const DType acc = at_least_f32(o.dtype());
  const Tensor sum = o.dtype() == acc ? o : Tensor::empty(o.shape(), acc, o.device());
  rotate_panels(mesh, x, y, [&](const PanelStep& s) {
    multiply(s, by_head(s.x, width), s.y.transpose(1, 2), s.step == 0 ? 0 : 1, by_head(sum, width));
  });
  if (o.dtype() != acc) copy(sum, o);
}

struct AverageGradients {
  Tensor v;  // [B*heads*width, s, n] in acc
  Tensor w;  // [B*heads, q, k] in acc, complete, as w lies
};
// dv[S_i, k in J_j] += do[S_i, q] w[q, k];  dw[q, k] += do[S_i, q]^T v[S_i, k] on its way past all
// rows of the MSA.
AverageGradients average_backward(const DeviceMesh& mesh, PendingRelayout dout, const Tensor& v,
                                  PendingRelayout w, std::int64_t width) {
  const DType acc = at_least_f32(v.dtype());
  const Tensor dv = Tensor::empty(v.shape(), acc, v.device());
  Travelling x{kGradient.name, dout.wait()}, y{kByKey.name, w.wait()};
  for (const Tensor& panel : y.panels)
    y.sums.push_back(Tensor::zeros(panel.shape(), acc, panel.device()));
  rotate_panels(mesh, x, y, [&](const PanelStep& s) {
    const Tensor g = by_head(s.x, width);
    multiply(s, g, s.y, s.step == 0 ? 0 : 1, by_head(dv, width));
    multiply(s, g.transpose(1, 2), by_head(v, width), 1, s.dy);
  });
  return {dv, unskew(mesh, Side::y, kWeightSums, y.sums)};
}

struct AveragingFunction {
  double infinity;

  static constexpr const char* name = "pair_weighted_averaging";
  static constexpr std::array inputs{"m",
                                     "z",
                                     "mask",
                                     "norm_m.weight",
                                     "norm_m.bias",
                                     "norm_z.weight",
                                     "norm_z.bias",
                                     "proj_m.weight",
                                     "proj_g.weight",
                                     "proj_z.weight",
                                     "proj_o.weight"};

  Contract contract(const Tensors& in) const {
    const Formula B = sym("B"), S = sym("S"), N = sym("N"), H = sym("H"), Hc = sym("Hc");
    const Formula Cm = sym("Cm"), Cz = sym("Cz");
    const PlacementRule tiled{PlacementRule::Kind::exactly, pair_placements()};
    Contract c;
    c.inputs = {{"m", {B, S, N, Cm}, tiled},
                {"z", {B, N, N, Cz}, tiled},
                {"mask", {B, N, N}, tiled},
                parameter_operand("norm_m.weight", {Cm}),
                parameter_operand("norm_m.bias", {Cm}),
                parameter_operand("norm_z.weight", {Cz}),
                parameter_operand("norm_z.bias", {Cz}),
                parameter_operand("proj_m.weight", {Hc, Cm}),
                parameter_operand("proj_g.weight", {Hc, Cm}),
                parameter_operand("proj_z.weight", {H, Cz}),
                parameter_operand("proj_o.weight", {Cm, Hc})};
    c.outputs = {{"y", {B, S, N, Cm}, tiled}};
    if (!in[0].defined()) return c;  // is refused
    append(c.messages, messages(in[0].mesh(), in[0].dtype()));
    const auto save = [&](const char* what, const Formula& elements, const char* bytes,
                          BudgetClass budget) {
      c.saved.push_back({what, elements, sym(bytes), false, budget});
    };
    save("m", B * S * N * Cm, "e", BudgetClass::msa);
    save("z", B * N * N * Cz, "e", BudgetClass::pair);
    save("w", B * N * N * H, "e", BudgetClass::pair);
    save("o", B * S * N * Hc, "e", BudgetClass::msa);
    for (const char* statistic : {"m mean", "m rstd"})
      save(statistic, B * S * N, "acc", BudgetClass::msa);
    for (const char* statistic : {"z mean", "z rstd"})
      save(statistic, B * N * N, "acc", BudgetClass::pair);
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DeviceMesh& mesh = ctx.mesh();
    const Tensor m = in[0].local().contiguous(), z = in[1].local().contiguous();
    const Weights weights = weights_of([&](std::size_t k) { return in[k].local(); });
    const HeadGroups groups(m, weights);
    const math::Tile tile(m);

    math::PairBias logits = math::pair_bias(z, weights.pair);
    const math::Statistics z_statistics = logits.statistics;
    mask_logits(logits.bias, in[2].local().contiguous(), infinity);
    const Tensor w = softmax_over_keys(mesh, std::exchange(logits.bias, {}), tile.dtype);

    const math::Statistics m_statistics = tile.statistics();
    const Shape whole{tile.batch * groups.heads * groups.width, m.size(1), m.size(2)};
    const Tensor o = ctx.recording() ? Tensor::empty(whole, tile.dtype, tile.device) : Tensor();
    const Tensor y = Tensor::empty(m.shape(), tile.acc, tile.device);
    for (int k = 0; k < groups.count; ++k) {
      const math::AveragingMsaWeights own = groups.weights(weights.msa, k);
      PendingRelayout w_skew = start_skew(mesh, Side::y, kByQuery, groups.weights_tile(w, k));
      const Tensor v = math::averaging_values(m, own, k == 0, m_statistics);
      const Tensor part =
          o.defined() ? groups.part(o, k) : Tensor::empty(v.shape(), tile.dtype, tile.device);
      average(mesh, v, std::move(w_skew), groups.width, part);
      math::averaging_output(part, m, m_statistics, own, k == 0, y);
    }
    if (ctx.recording()) save(ctx, in, w, o, m_statistics, z_statistics);
    return {Form(in[0]).with(y.to(tile.dtype))};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const DTensor& dy = gradients[0];
    const Tensor m = ctx.saved("m").contiguous(), w = ctx.saved("w");
    const Weights weights = weights_of([&](std::size_t k) { return ctx.saved(inputs[k]); });
    const HeadGroups groups(m, weights);
    const math::Statistics m_statistics{ctx.saved("m mean"), ctx.saved("m rstd")};
    MsaGradients msa(m, weights.msa);
    const Tensor dw = Tensor::empty(w.shape(), at_least_f32(w.dtype()), w.device());
    for (int k = 0; k < groups.count; ++k) {
      const Tensor own = groups.of_weights(dw, k);
      copy(msa_backward(ctx, dy.local().contiguous(), m, m_statistics,
                        groups.weights(weights.msa, k), groups, k, msa)
               .view(own.shape()),
           own);
    }
    ctx.drop("o");
    const math::NormGradients norm =
        math::averaging_norm_backward(msa.mh, m, m_statistics, weights.msa.norm_weight);
    softmax_backward(ctx.mesh(), w, dw);
    const math::PairBiasGradients pair = math::pair_bias_backward(
        dw, ctx.saved("z").contiguous(), {ctx.saved("z mean"), ctx.saved("z rstd")}, weights.pair);

    const std::array parts{
        norm.weight, norm.bias,  pair.weights.norm_weight, pair.weights.norm_bias,
        msa.proj_m,  msa.proj_g, pair.weights.projection,  msa.proj_o};
    Tensors out(inputs.size());
    out[0] = Form(dy).with(norm.x);
    const Shape z_shape{dy.shape()[0], dy.shape()[2], dy.shape()[2], pair.z.size(3)};
    out[1] = DTensor::from_local(pair.z, dy.mesh(), dy.placements(), z_shape,
                                 row_major_strides(z_shape));
    for (std::size_t k = 0; k < parts.size(); ++k)
      out[k + 3] =
          parameter_gradient(parts[k], like_parameter(parts[k], dy.mesh()), dy.placements());
    return out;
  }

 private:
  // Operands in the order of `inputs`.
  template <class Operand>
  static Weights weights_of(const Operand& p) {
    return {{p(3), p(4), p(7), p(8), p(10)}, {p(5), p(6), p(9)}};
  }

  // Gradients of all heads, in acc.
  struct MsaGradients {
    Tensor mh, proj_m, proj_g, proj_o;
    MsaGradients(const Tensor& m, const math::AveragingMsaWeights& w) {
      const auto like = [acc = at_least_f32(m.dtype())](const Tensor& t) {
        return Tensor::empty(t.shape(), acc, t.device());
      };
      mh = like(m);
      proj_m = like(w.proj_m);
      proj_g = like(w.proj_g);
      proj_o = like(w.proj_o);
    }
  };

  // One group of heads on the MSA side; returns the gradient of its weights.
  static Tensor msa_backward(FunctionContext& ctx, const Tensor& dy, const Tensor& m,
                             const math::Statistics& statistics, const math::AveragingMsaWeights& w,
                             const HeadGroups& groups, int k, const MsaGradients& into) {
    PendingRelayout w_skew =
        start_skew(ctx.mesh(), Side::y, kByKey, groups.weights_tile(ctx.saved("w"), k));
    const math::AveragingOutputGradients head = math::averaging_output_backward(
        dy, groups.part(ctx.saved("o"), k), m, statistics, w, k == 0, into.mh);
    PendingRelayout o_skew = start_skew(ctx.mesh(), Side::x, kGradient, head.o);
    const AverageGradients d = average_backward(ctx.mesh(), std::move(o_skew),
                                                math::averaging_values(m, w, false, statistics),
                                                std::move(w_skew), groups.width);
    const Interval c = groups.channels(k);
    copy(math::averaging_values_backward(d.v, m, statistics, w, into.mh),
         into.proj_m.narrow(0, c.begin, c.size()));
    copy(head.proj_g, into.proj_g.narrow(0, c.begin, c.size()));
    copy(head.proj_o, into.proj_o.narrow(1, c.begin, c.size()));
    return d.w;
  }

  static std::vector<ContractMessage> messages(const DeviceMesh& mesh, DType dtype) {
    const Formula B = sym("B") / sym("dp"), S = sym("S"), N = sym("N"), H = sym("H");
    const Formula ranks = sym("R0") * sym("R1"), e = sym("e"), acc = sym("acc");
    const PanelSizes msa{B * sym("Hc"), S, N, e}, pair{B * H, N, N, e}, sums{B * H, N, N, acc};
    const Formula msa_tile = B * sym("Hc") * S * N / ranks, pair_tile = B * H * N * N / ranks;
    const auto over_keys = [&](Pass pass, const char* label) {
      return all_reduce_message(pass, mesh, {kCp1}, B * H * N / sym("R0"), dtype, label);
    };
    std::vector<ContractMessage> moves{
        skew_message(Pass::forward, Side::x, msa, kValues),
        ring_message(Pass::forward, Side::x, kValues.name, msa_tile * e),
        skew_message(Pass::forward, Side::y, pair, kByQuery),
        ring_message(Pass::forward, Side::y, kByQuery.name, pair_tile * e),
        skew_message(Pass::backward, Side::x, msa, kGradient),
        ring_message(Pass::backward, Side::x, kGradient.name, msa_tile * e),
        skew_message(Pass::backward, Side::y, pair, kByKey),
        ring_message(Pass::backward, Side::y, kByKey.name, pair_tile * e),
        sums_message(Pass::backward, Side::y, kByKey.name, pair_tile * acc),
        unskew_message(Pass::backward, Side::y, sums, kWeightSums)};
    const Formula groups = Formula::function("K", [bytes = msa_tile * e](const Symbols& at) {
      return group_count(bytes.evaluate(at), at.at("H"), at.at("Hc"), at.at("Cm"));
    });
    moves = in_groups(std::move(moves), groups);
    append(moves, {over_keys(Pass::forward, "row maxima"), over_keys(Pass::forward, "row sums"),
                   over_keys(Pass::backward, "softmax gradient")});
    return moves;
  }

  static void save(FunctionContext& ctx, const Tensors& in, const Tensor& w, const Tensor& o,
                   const math::Statistics& m, const math::Statistics& z) {
    const Shape& x = in[0].shape();
    const Shape msa{x[0], x[1], x[2]}, pair{x[0], x[2], x[2]};
    const auto with = [](Shape shape, std::int64_t channels) {
      shape.push_back(channels);
      return shape;
    };
    ctx.save("m", in[0], BudgetClass::msa);
    ctx.save("z", in[1], BudgetClass::pair);
    ctx.save("w", w, BudgetClass::pair, with(pair, in[9].shape()[0]));
    ctx.save("o", o, BudgetClass::msa, with(msa, in[7].shape()[0]));
    ctx.save("m mean", m.mean, BudgetClass::msa, msa);
    ctx.save("m rstd", m.rstd, BudgetClass::msa, msa);
    ctx.save("z mean", z.mean, BudgetClass::pair, pair);
    ctx.save("z rstd", z.rstd, BudgetClass::pair, pair);
    for (std::size_t k = 3; k < in.size(); ++k) ctx.save(inputs[k], in[k], BudgetClass::parameter);
  }
};

}  // namespace

PairWeightedAveraging::PairWeightedAveraging(const Build& build, std::int64_t c_m, std::int64_t c_z,
                                             std::int64_t c_h, std::int64_t num_heads, double inf)
    : Module(build),
      inf_(inf),
      norm_m_(build, c_m),
      norm_z_(build, c_z),
      proj_m_(build, c_m, c_h * num_heads, Init::fan_in),
      proj_g_(build, c_m, c_h * num_heads, Init::fan_in),
      proj_z_(build, c_z, num_heads, Init::fan_in),
      proj_o_(build, c_h * num_heads, c_m, Init::zero) {
  add_child("norm_m", norm_m_);
  add_child("norm_z", norm_z_);
  add_child("proj_m", proj_m_);
  add_child("proj_g", proj_g_);
  add_child("proj_z", proj_z_);
  add_child("proj_o", proj_o_);
}

Var PairWeightedAveraging::forward(const Var& m, const Var& z, const Var& mask) const {
  const Scope scope(name());
  refuse_gradient(mask, AveragingFunction::name, "mask");
  const bool both = m.value().defined() && z.value().defined();
  if (both && m.value().dtype() != z.value().dtype())
    throw TypeError({.problem = "m and z have one dtype",
                     .operation = AveragingFunction::name,
                     .tensor = "z",
                     .found = z.value().describe(),
                     .expected = m.value().describe(),
                     .hint = "cast z with DTensor::to()"});
  return apply_many(AveragingFunction{inf_},
                    {m, z, mask, norm_m_.weight(), norm_m_.bias(), norm_z_.weight(), norm_z_.bias(),
                     proj_m_.weight(), proj_g_.weight(), proj_z_.weight(), proj_o_.weight()})
      .front();
}

}  // namespace tessera
