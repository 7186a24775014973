// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/triangle_attention.hpp"

#include <cmath>
#include <utility>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/math/attention.hpp"
#include "tessera/layers/math/triangle_attention.hpp"
#include "tessera/layers/schedule/panel_ring.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

// How the two nodes differ: which side keys and biases are on, and whether the order of the
// attention, [B, R, Q], is that of the tile or of its transpose.
struct Sides {
  Side keys, biases;
  PanelOperand xh, mask, bias;

  static Sides of(TriangleNode node) {
    if (node == TriangleNode::starting) {
      constexpr auto cols = Contracted::cols;
      return {Side::x, Side::y, {"xh", cols}, {"mask", cols}, {"bias", cols}};
    }
    constexpr auto rows = Contracted::rows;
    return {Side::y, Side::x, {"xh", rows, true}, {"mask", rows, true}, {"bias", rows, true}};
  }
  // A view; its own inverse.
  Tensor in_order(const Tensor& tile) const { return xh.transposed ? tile.transpose(1, 2) : tile; }
};

// Of the local tile in the order of the attention: rows of all samples, B * R; width: channels of a
// head.
struct Extents {
  std::int64_t batch, rows, queries, channels, heads, width;
};

// Heads that are taken together.
struct Heads {
  std::int64_t begin, count;
};

std::vector<Heads> head_groups(const DeviceMesh& mesh, const Tensor& x, std::int64_t heads) {
  const auto groups = static_cast<int>(
      ring_groups(std::int64_t{mesh.size(kCp0)} * mesh.size(kCp1), x.bytes(), heads));
  std::vector<Heads> all;
  for (int k = 0; k < groups; ++k) {
    const Interval part = shard_of(heads, groups, k);
    all.push_back({part.begin, part.size()});
  }
  return all;
}

// Whatever leaves its place before the ring.
struct Start {
  Window xh, mask, bias;
};
struct PendingStart {
  PendingRelayout xh, mask, bias;
  Start wait() { return {xh.wait(), mask.wait(), bias.wait()}; }
};

// A group of heads on its way around the ring. The keys of a panel, [rows, K, heads, 2, width], are
// keys and values; one buffer holds them and, behind them, the mask [rows, K].
class GroupRing {
 public:
  GroupRing(const DeviceMesh& mesh, const Sides& sides, const Extents& extents, const Heads& heads,
            double infinity)
      : mesh_(mesh), sides_(sides), e_(extents), heads_(heads), infinity_(infinity) {}

  // [rows, Q, heads, width]
  Tensor queries(const Tensor& xh, const Tensor& weight) const {
    const Tensor q =
        Tensor::empty({e_.rows, e_.queries, heads_.count, e_.width}, xh.dtype(), xh.device());
    project(xh, part_of_projection(weight).to(xh.dtype()), q);
    return q;
  }

  math::AttentionState attend(const Tensor& q, const Start& start, const Tensor& stacked) const {
    Travelling keys = keys_of(start, stacked), biases = biases_of(start);
    const math::AttentionState state = math::make_state(q);
    rotate(keys, biases, [&](const PanelStep& s) {
      math::attention_block(operands(q, s), s.step == 0, state, s.progress);
    });
    math::finish(state);
    return state;
  }

  struct Gradients {
    Tensor q;           // like q, in acc
    Window keys, bias;  // in acc, in the start position
  };
  Gradients attend_backward(const Tensor& q, const Start& start, const Tensor& stacked,
                            const math::AttentionState& finished, const Tensor& dout,
                            const Tensor& d) const {
    Travelling keys = keys_of(start, stacked), biases = biases_of(start);
    const auto zeros = [&](const Shape& shape) {
      return Tensor::zeros(shape, d.dtype(), d.device());
    };
    for (const Tensor& mask : start.mask) keys.sums.push_back(zeros(keys_shape(mask.size(2))));
    for (const Tensor& panel : biases.panels) biases.sums.push_back(zeros(panel.shape()));
    const Tensor dq = zeros(q.shape());
    rotate(keys, biases, [&](const PanelStep& s) {
      math::attention_block_backward(operands(q, s), finished.maximum, finished.sum, dout, d,
                                     {dq, s.dx.select(3, 0), s.dx.select(3, 1), by_sample(s.dy)},
                                     s.progress);
    });
    return {dq, std::move(keys.sums), std::move(biases.sums)};
  }

  // Of the heads' part in [H * width, C]; in [H, 2, width, C], as a matrix; in [H * B, Q, K].
  Tensor part_of_projection(const Tensor& weight) const {
    return weight.narrow(0, heads_.begin * e_.width, heads_.count * e_.width);
  }
  Tensor part_of_stacked(const Tensor& stacked) const {
    return stacked.narrow(0, heads_.begin, heads_.count)
        .view({heads_.count * 2 * e_.width, e_.channels});
  }
  Tensor part_of_bias(const Tensor& t) const {
    return t.narrow(0, heads_.begin * e_.batch, heads_.count * e_.batch);
  }

 private:
  Shape keys_shape(std::int64_t keys) const { return {e_.rows, keys, heads_.count, 2, e_.width}; }

  // What travels with the keys: projections of a panel of xh, and its mask.
  Travelling keys_of(const Start& start, const Tensor& stacked) const {
    const PurposeScope purpose(Purpose::communication);
    Travelling keys{"keys", {}};
    for (std::size_t p = 0; p < start.xh.size(); ++p) {
      const Tensor& xh = start.xh[p];
      const Tensor& mask = start.mask[p];
      const Shape shape = keys_shape(mask.size(2));
      const std::int64_t count = numel(shape);
      const Tensor buffer = Tensor::empty({count + mask.numel()}, xh.dtype(), xh.device());
      project(xh, part_of_stacked(stacked), buffer.narrow(0, 0, count));
      copy(mask, buffer.narrow(0, count, mask.numel()).view(mask.shape()));
      keys.panels.push_back(buffer);
    }
    return keys;
  }
  Travelling biases_of(const Start& start) const {
    Travelling biases{"bias", {}};
    for (const Tensor& panel : start.bias) biases.panels.push_back(part_of_bias(panel));
    return biases;
  }

  // The block is given the side of the keys as x.
  void rotate(Travelling& keys, Travelling& biases, const PanelBlock& block) const {
    if (sides_.keys == Side::x) return rotate_panels(mesh_, keys, biases, block);
    rotate_panels(mesh_, biases, keys, [&](const PanelStep& s) {
      block({s.y, s.x, s.dy, s.dx, s.step, s.progress});
    });
  }

  math::AttentionOperands operands(const Tensor& q, const PanelStep& s) const {
    const std::int64_t count = s.y.size(2);
    const Tensor keys = s.x.narrow(0, 0, numel(keys_shape(count))).view(keys_shape(count));
    const Tensor mask = s.x.narrow(0, keys.numel(), e_.rows * count).view({e_.rows, 1, count});
    return {.q = q,
            .k = keys.select(3, 0),
            .v = keys.select(3, 1),
            .mask = mask.expand({e_.rows, e_.queries, count}),
            .bias = by_sample(s.y),
            .scale = 1 / std::sqrt(static_cast<double>(e_.width)),
            .infinity = infinity_,
            .mask_first = true};
  }
  // A panel of biases [heads * B, Q, K] as [B, heads, Q, K].
  Tensor by_sample(const Tensor& panel) const {
    const std::vector<std::int64_t>& stride = panel.strides();  // of a view, if it never travels
    return panel.as_strided({e_.batch, heads_.count, panel.size(1), panel.size(2)},
                            {stride[0], e_.batch * stride[0], stride[1], stride[2]}, 0);
  }

  // out = x w^T, x with channels last, out of any shape.
  void project(const Tensor& x, const Tensor& w, const Tensor& out) const {
    const std::int64_t positions = x.numel() / e_.channels;
    gemm(1, x.contiguous().view({positions, e_.channels}), w.transpose(0, 1), 0,
         out.view({positions, w.size(0)}));
  }

  const DeviceMesh& mesh_;
  const Sides& sides_;
  const Extents& e_;
  Heads heads_;
  double infinity_;
};

// Results of all heads: o [B, R, Q, H * width] in x's dtype; the others [rows, H, Q] in acc.
struct Attended {
  Tensor o, maximum, log_sum;
};

// Gradients of what entered the ring, of all heads.
struct RingGradients {
  Tensor q;         // [H * width, C] in acc
  Tensor stacked;   // [H, 2, width, C] in acc
  Window xh, bias;  // in the start position: in acc; in x's dtype
};

// What forward and backward share.
struct Schedule {
  DeviceMesh mesh;
  Sides sides;
  Extents e;
  double infinity;
  math::TriangleAttentionWeights w;

  Schedule(const DeviceMesh& on, TriangleNode node, const Shape& tile,
           math::TriangleAttentionWeights weights, double infinity_)
      : mesh(on), sides(Sides::of(node)), infinity(infinity_), w(std::move(weights)) {
    const auto [rows, queries] =
        std::pair(tile[sides.xh.transposed ? 2 : 1], tile[sides.xh.transposed ? 1 : 2]);
    e = {tile[0], tile[0] * rows, queries, tile[3], w.bias.size(0), w.q.size(0) / w.bias.size(0)};
  }

  // [rows, Q, H, width] of channels-last positions.
  Tensor by_head(const Tensor& x) const { return x.view({e.rows, e.queries, e.heads, e.width}); }

  PendingStart start_from(const math::NormalizedTile& tile, const Tensor& mask) const {
    const Shape& s = tile.xh.shape();
    return {start_skew(mesh, sides.keys, sides.xh, tile.xh.view({s[0], s[1], s[2] * s[3]})),
            start_skew(mesh, sides.keys, sides.mask, mask),
            start_skew(mesh, sides.biases, sides.bias, tile.t)};
  }

  Attended attend(const Tensor& xh, const Start& start) const {
    const Tensor stacked = math::stack_keys(w.k, w.v, e.heads).to(xh.dtype());
    Attended all;
    for (const Heads& heads : head_groups(mesh, xh, e.heads)) {
      const GroupRing ring(mesh, sides, e, heads, infinity);
      keep(all, heads, ring.attend(ring.queries(xh, w.q), start, stacked), xh);
    }
    return all;
  }

  // `saved`: finished states of all heads. d [rows, H, Q], do [B, R, Q, H * width]. Adds the
  // queries' part to dxh.
  RingGradients attend_backward(const Tensor& xh, const Start& start, const Attended& saved,
                                const Tensor& d_o, const Tensor& d, const Tensor& dxh) const {
    const Tensor stacked = math::stack_keys(w.k, w.v, e.heads).to(xh.dtype());
    RingGradients all = zero_gradients(start, d.dtype());
    for (const Heads& heads : head_groups(mesh, xh, e.heads)) {
      const GroupRing ring(mesh, sides, e, heads, infinity);
      const auto part = [&](const Tensor& x) {
        return x.narrow(1, heads.begin, heads.count).contiguous();
      };
      const math::AttentionState finished{part(saved.maximum), part(saved.log_sum), {}};
      collect(all, ring,
              ring.attend_backward(ring.queries(xh, w.q), start, stacked, finished,
                                   by_head(d_o).narrow(2, heads.begin, heads.count), part(d)),
              xh, start, stacked, dxh);
    }
    return all;
  }

 private:
  // The results of a group: all there are, or a part of them.
  void keep(Attended& all, const Heads& heads, const math::AttentionState& state,
            const Tensor& xh) const {
    const Shape shape{xh.size(0), xh.size(1), xh.size(2), e.heads * e.width};
    if (heads.count == e.heads) {
      all = {state.weighted.to(xh.dtype()).view(shape), state.maximum, state.sum};
      return;
    }
    if (!all.o.defined()) {
      const auto numbers = [&] {
        return Tensor::empty({e.rows, e.heads, e.queries}, state.sum.dtype(), xh.device());
      };
      all = {Tensor::empty(shape, xh.dtype(), xh.device()), numbers(), numbers()};
    }
    copy(state.weighted, by_head(all.o).narrow(2, heads.begin, heads.count));
    copy(state.maximum, all.maximum.narrow(1, heads.begin, heads.count));
    copy(state.sum, all.log_sum.narrow(1, heads.begin, heads.count));
  }

  RingGradients zero_gradients(const Start& start, DType acc) const {
    const Device device = w.q.device();
    RingGradients zero{Tensor::zeros(w.q.shape(), acc, device),
                       Tensor::zeros({e.heads, 2, e.width, e.channels}, acc, device),
                       {},
                       {}};
    for (const Tensor& panel : start.xh)
      zero.xh.push_back(Tensor::zeros(panel.shape(), acc, device));
    for (const Tensor& panel : start.bias)
      zero.bias.push_back(Tensor::empty(panel.shape(), panel.dtype(), device));
    return zero;
  }

  // From the gradients of a group's queries, keys and biases to those of xh, t and the weights.
  void collect(RingGradients& all, const GroupRing& ring, const GroupRing::Gradients& group,
               const Tensor& xh, const Start& start, const Tensor& stacked,
               const Tensor& dxh) const {
    const auto rows = [&](const Tensor& x, std::int64_t channels) {
      return x.contiguous().view({x.numel() / channels, channels});
    };
    const std::int64_t width = group.q.size(2) * e.width;
    math::projection_backward(rows(group.q, width), rows(xh, e.channels),
                              ring.part_of_projection(w.q), rows(dxh, e.channels),
                              ring.part_of_projection(all.q));
    for (std::size_t p = 0; p < start.xh.size(); ++p)
      math::projection_backward(rows(group.keys[p], 2 * width), rows(start.xh[p], e.channels),
                                ring.part_of_stacked(stacked), rows(all.xh[p], e.channels),
                                ring.part_of_stacked(all.stacked));
    for (std::size_t p = 0; p < start.bias.size(); ++p)
      copy(group.bias[p], ring.part_of_bias(all.bias[p]));
  }
};

struct TriangleAttentionFunction {
  TriangleNode node;
  double infinity;

  static constexpr const char* name = "triangle_attention";
  static constexpr std::array inputs{"x",
                                     "mask",
                                     "layer_norm.weight",
                                     "layer_norm.bias",
                                     "linear.weight",
                                     "mha.linear_q.weight",
                                     "mha.linear_k.weight",
                                     "mha.linear_v.weight",
                                     "mha.linear_o.weight",
                                     "mha.linear_g.weight"};
  using Operands = std::array<DTensor, 10>;

  Contract contract() const {
    const Formula B = sym("B"), N = sym("N"), C = sym("C"), H = sym("H"), W = sym("Hc");
    const Formula positions = B * N * N;
    const PlacementRule pair{PlacementRule::Kind::exactly, pair_placements()};
    Contract c;
    c.inputs = {{"x", {B, N, N, C}, pair}, {"mask", {B, N, N}, pair}};
    const std::vector<std::vector<Formula>> shapes{{C},    {C},    {H, C}, {W, C},
                                                   {W, C}, {W, C}, {C, W}, {W, C}};
    for (std::size_t k = 0; k < shapes.size(); ++k)
      c.inputs.push_back(parameter_operand(inputs[k + 2], shapes[k]));
    c.outputs = {{"y", {B, N, N, C}, pair}};
    append(c.messages, start_and_ring(Pass::forward));
    append(c.messages, start_and_ring(Pass::backward));
    append(c.messages, gradients_home());
    c.saved = {{"x", positions * C, sym("e")},        {"mask", positions, sym("e")},
               {"o", positions * W, sym("e")},        {"mean", positions, sym("acc")},
               {"rstd", positions, sym("acc")},       {"maximum", positions * H, sym("acc")},
               {"log_sum", positions * H, sym("acc")}};
    return c;
  }

  DTensor forward(FunctionContext& ctx, const Operands& in) const {
    const DTensor& x = in[0];
    const Schedule schedule(x.mesh(), node, x.local().shape(),
                            weights([&](std::size_t k) { return in[k].local(); }), infinity);
    const Sides& sides = schedule.sides;
    const Tensor mask = sides.in_order(in[1].local()).contiguous().to(x.dtype());
    math::NormalizedTile tile =
        math::triangle_attention_normalize(sides.in_order(x.local().contiguous()), schedule.w);
    Start start = schedule.start_from(tile, mask).wait();
    tile.t = Tensor();
    const Attended attended = schedule.attend(tile.xh, start);
    start = {};
    const Tensor y = Tensor::empty(x.local().shape(), x.dtype(), x.local().device());
    math::triangle_attention_output(tile.xh, attended.o, schedule.w, sides.in_order(y));
    if (ctx.recording()) save(ctx, in, mask, tile.statistics, attended);
    return Form(x).with(y);
  }

  Operands backward(FunctionContext& ctx, const DTensor& gradient) const {
    const Schedule schedule(gradient.mesh(), node, gradient.local().shape(),
                            weights([&](std::size_t k) { return ctx.saved(inputs[k]); }), infinity);
    const Sides& sides = schedule.sides;
    const Tensor x = sides.in_order(ctx.saved("x").contiguous());
    math::NormalizedTile tile =
        math::triangle_attention_normalize(x, schedule.w, {ctx.saved("mean"), ctx.saved("rstd")});
    PendingStart pending = schedule.start_from(tile, ctx.saved("mask"));
    math::TriangleAttentionOutputGradients output = math::triangle_attention_output_backward(
        sides.in_order(gradient.local().contiguous()), tile.xh, ctx.saved("o"), schedule.w);
    const Tensor d = math::row_dots(schedule.by_head(output.o), schedule.by_head(ctx.saved("o")));
    ctx.drop("o");
    Start start = pending.wait();
    tile.t = Tensor();
    RingGradients ring = schedule.attend_backward(
        tile.xh, start, {{}, ctx.saved("maximum"), ctx.saved("log_sum")}, output.o, d, output.xh);
    output.o = Tensor();
    start = {};
    const Tensor dx = Tensor::empty(gradient.local().shape(), x.dtype(), x.device());
    const math::TriangleAttentionInputGradients input =
        input_backward(schedule, ring, tile, x, output.xh, sides.in_order(dx));
    const math::KeyWeights keys = math::unstack_keys(ring.stacked);
    const std::array parts{input.norm_weight, input.norm_bias, input.bias, ring.q, keys.k, keys.v,
                           output.o_weight,   output.g_weight};
    Operands out;
    out[0] = Form(gradient).with(dx);
    for (std::size_t k = 0; k < parts.size(); ++k)
      out[k + 2] = parameter_gradient(parts[k], like_parameter(parts[k], gradient.mesh()),
                                      gradient.placements());
    return out;
  }

 private:
  template <class Get>
  static math::TriangleAttentionWeights weights(const Get& get) {
    return {get(2), get(3), get(4), get(5), get(6), get(7), get(8), get(9)};
  }

  // Brings the gradients of keys and biases home.
  static math::TriangleAttentionInputGradients input_backward(const Schedule& schedule,
                                                              RingGradients& ring,
                                                              const math::NormalizedTile& tile,
                                                              const Tensor& x, const Tensor& dxh,
                                                              const Tensor& dx) {
    const Sides& sides = schedule.sides;
    for (Tensor& panel : ring.xh) panel = panel.to(x.dtype());  // as it left
    const Tensor dxh_keys = unskew(schedule.mesh, sides.keys, sides.xh, ring.xh);
    const Tensor dt = unskew(schedule.mesh, sides.biases, sides.bias, ring.bias);
    ring.xh.clear();
    ring.bias.clear();
    return math::triangle_attention_input_backward(dxh, dxh_keys.view(x.shape()), dt, tile, x,
                                                   schedule.w, dx);
  }

  void save(FunctionContext& ctx, const Operands& in, const Tensor& mask,
            const math::Statistics& statistics, const Attended& attended) const {
    const Shape& x = in[0].shape();
    const std::int64_t heads = in[4].shape()[0], width = in[5].shape()[0];
    const Shape positions{x[0], x[1], x[2]}, per_head{x[0], x[1], x[2], heads};
    const BudgetClass pair = BudgetClass::pair;
    ctx.save("x", in[0], pair);
    ctx.save("mask", mask, pair, positions);
    ctx.save("o", attended.o, pair, {x[0], x[1], x[2], width});
    ctx.save("mean", statistics.mean, pair, positions);
    ctx.save("rstd", statistics.rstd, pair, positions);
    ctx.save("maximum", attended.maximum, pair, per_head);
    ctx.save("log_sum", attended.log_sum, pair, per_head);
    for (std::size_t k = 2; k < in.size(); ++k) ctx.save(inputs[k], in[k], BudgetClass::parameter);
  }

  // Sizes of the messages.
  struct Traffic {
    Formula batch = sym("B") / sym("dp"), N = sym("N"), C = sym("C"), H = sym("H"), W = sym("Hc");
    Formula positions = batch * N * N / (sym("R0") * sym("R1"));
    Formula e = sym("e"), groups = ring_groups(positions * C * e, H);

    PanelSizes xh(const PanelOperand& operand) const {
      if (operand.transposed) return {batch, N * C, N, e};
      return {batch, N, N * C, e};
    }
    PanelSizes mask() const { return {batch, N, N, e}; }
    PanelSizes bias() const { return {batch * H, N, N, e}; }
  };

  std::vector<ContractMessage> start_and_ring(Pass pass) const {
    const Sides s = Sides::of(node);
    const Traffic t;
    const Formula keys = t.positions * (2 * t.W + t.groups) * t.e;
    const Formula biases = t.positions * t.H * t.e;
    std::vector<ContractMessage> lines{skew_message(pass, s.keys, t.xh(s.xh), s.xh),
                                       skew_message(pass, s.keys, t.mask(), s.mask),
                                       skew_message(pass, s.biases, t.bias(), s.bias)};
    append(lines, in_groups({ring_message(pass, s.keys, "keys", keys),
                             ring_message(pass, s.biases, "bias", biases)},
                            t.groups));
    return lines;
  }

  std::vector<ContractMessage> gradients_home() const {
    const Sides s = Sides::of(node);
    const Traffic t;
    const Pass pass = Pass::backward;
    const Formula acc = sym("acc");
    std::vector<ContractMessage> lines =
        in_groups({sums_message(pass, s.keys, "keys", t.positions * 2 * t.W * acc),
                   sums_message(pass, s.biases, "bias", t.positions * t.H * acc)},
                  t.groups);
    append(lines, {unskew_message(pass, s.keys, t.xh(s.xh), s.xh),
                   unskew_message(pass, s.biases, t.bias(), s.bias)});
    return lines;
  }
};

}  // namespace

TriangleAttention::Projections::Projections(const Build& build, std::int64_t c_in,
                                            std::int64_t width)
    : Module(build),
      q(build, c_in, width, Init::glorot),
      k(build, c_in, width, Init::glorot),
      v(build, c_in, width, Init::glorot),
      o(build, width, c_in, Init::zero),
      g(build, c_in, width, Init::zero) {
  add_child("linear_q", q);
  add_child("linear_k", k);
  add_child("linear_v", v);
  add_child("linear_o", o);
  add_child("linear_g", g);
}

TriangleAttention::TriangleAttention(const Build& build, std::int64_t c_in, std::int64_t c_hidden,
                                     std::int64_t no_heads, TriangleNode node, double infinity)
    : Module(build),
      node_(node),
      infinity_(infinity),
      layer_norm_(build, c_in),
      linear_(build, c_in, no_heads, Init::normal),
      mha_(build, c_in, no_heads * c_hidden) {
  add_child("layer_norm", layer_norm_);
  add_child("linear", linear_);
  add_child("mha", mha_);
}

Var TriangleAttention::forward(const Var& x, const Var& mask) const {
  const Scope scope(name());
  refuse_gradient(mask, TriangleAttentionFunction::name, "mask");
  return apply(
      TriangleAttentionFunction{node_, infinity_},
      {x, mask, layer_norm_.weight(), layer_norm_.bias(), linear_.weight(), mha_.q.weight(),
       mha_.k.weight(), mha_.v.weight(), mha_.o.weight(), mha_.g.weight()});
}

}  // namespace tessera
