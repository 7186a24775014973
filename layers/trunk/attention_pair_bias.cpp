// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/attention_pair_bias.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/math/attention.hpp"
#include "tessera/layers/math/attention_pair_bias.hpp"
#include "tessera/layers/math/tile.hpp"
#include "tessera/layers/schedule/key_panels.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/reshape.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

// Operands of both functions; a pair mask may follow.
enum Place : std::size_t { kS, kX, kBias, kMask, kQ, kQBias, kK, kV, kG, kO, kPairMask };
constexpr std::array<const char*, kPairMask + 1> kNames{
    "s",           "k_in",          "bias",          "mask",          "proj_q.weight",
    "proj_q.bias", "proj_k.weight", "proj_v.weight", "proj_g.weight", "proj_o.weight",
    "pair_mask"};
// Saved beside operands, and labels of messages.
constexpr const char* kOut = "o";
constexpr const char* kMaximum = "softmax maximum";
constexpr const char* kLogSum = "log sum";
constexpr const char* kKeys = "k, v, mask";
constexpr const char* kSums = "softmax sums";
constexpr const char* kKeyGradients = "dk, dv";
constexpr const char* kGradients = "dq, dk, dv";

// What the two forms have in common.
struct Common {
  std::int64_t heads;
  double infinity;
  bool masks_pairs;
  DType dtype;      // of s
  Form s, x, bias;  // the operands

  std::int64_t channels() const { return s.shape.back(); }
  // [rows * length, C], whatever the stride of a position, as [rows, length, heads, C / heads].
  Tensor heads_of(const Tensor& t, std::int64_t rows) const {
    const std::int64_t stride = t.strides()[0], length = t.size(0) / rows;
    const std::int64_t width = channels() / heads;
    return t.as_strided({rows, length, heads, width}, {length * stride, stride, width, 1}, 0);
  }

  static std::vector<ContractTensor> parameters() {
    std::vector<ContractTensor> all;
    for (const Place k : {kQ, kQBias, kK, kV, kG, kO}) {
      all.push_back(parameter_operand(kNames[k], {sym("C"), sym("C")}));
      if (k == kQBias) all.back().shape.pop_back();
    }
    return all;
  }
  static math::HeadWeights weights(const Tensors& in) {
    return {in[kQ].local(), in[kQBias].local(), in[kK].local(),
            in[kV].local(), in[kG].local(),     in[kO].local()};
  }
  static math::HeadWeights weights(const FunctionContext& ctx) {
    const auto saved = [&](Place k) { return ctx.saved(kNames[k]); };
    return {saved(kQ), saved(kQBias), saved(kK), saved(kV), saved(kG), saved(kO)};
  }

  void save(FunctionContext& ctx, const Tensors& in, const Tensor& o,
            const math::AttentionState& state, BudgetClass single, BudgetClass pair) const {
    ctx.save(kNames[kS], in[kS], single);
    ctx.save(kNames[kX], in[kX], single);
    ctx.save(kNames[kBias], in[kBias], pair);
    if (masks_pairs) ctx.save(kNames[kPairMask], in[kPairMask], pair);
    Shape by_head = s.shape;
    by_head.back() = heads;
    ctx.save(kOut, o, single, s.shape);
    ctx.save(kMaximum, state.maximum, single, by_head);
    ctx.save(kLogSum, state.sum, single, by_head);
    for (std::size_t k = kQ; k < kPairMask; ++k) ctx.save(kNames[k], in[k], BudgetClass::parameter);
  }
  // The same for the contract, by numbers of positions.
  std::vector<ContractSaved> saved(const Formula& queries, const Formula& keys,
                                   const Formula& pairs, BudgetClass single,
                                   BudgetClass pair) const {
    const Formula C = sym("C"), H = sym("H"), e = sym("e"), acc = sym("acc");
    std::vector<ContractSaved> all{{kNames[kS], queries * C, e, false, single},
                                   {kNames[kX], keys * C, e, false, single},
                                   {kNames[kBias], pairs * H, sym("e(bias)"), false, pair},
                                   {kOut, queries * C, e, false, single},
                                   {kMaximum, queries * H, acc, false, single},
                                   {kLogSum, queries * H, acc, false, single}};
    if (masks_pairs) all.push_back({kNames[kPairMask], pairs, sym("e(pair_mask)"), false, pair});
    return all;
  }

  // keys [rows * length, 2C or more]: k, v.
  math::AttentionOperands operands(const Tensor& q, const Tensor& keys, const Tensor& mask,
                                   const Tensor& tiles) const {
    return {.q = q,
            .k = heads_of(keys.narrow(1, 0, channels()), q.size(0)),
            .v = heads_of(keys.narrow(1, channels(), channels()), q.size(0)),
            .mask = mask,
            .bias = tiles,
            .scale = 1 / std::sqrt(static_cast<double>(q.size(3))),
            .infinity = infinity,
            .mask_first = false};
  }

  // What backward begins with: the gradient of the output led to that of the attention.
  struct Begin {
    math::GatedOutputGradients head;
    Tensor dout, d, q;   // by head, as attention takes them
    Tensor bias, dbias;  // [.., H, queries, keys]; zeros in acc
  };
  Begin begin(const FunctionContext& ctx, const Tensors& gradients,
              const math::HeadWeights& w) const {
    const Tensor s_rows = rows_of(ctx.saved(kNames[kS]));
    const Tensor o = ctx.saved(kOut);
    const std::int64_t rows = o.size(0);
    Begin b;
    b.head = math::gated_output_backward(rows_of(gradients.front().local()), s_rows,
                                         o.view(s_rows.shape()), w);
    b.dout = heads_of(b.head.o, rows);
    b.d = math::row_dots(b.dout, o);
    b.q = heads_of(math::project_queries(s_rows, w), rows);
    b.bias = tiles_by_head(ctx.saved(kNames[kBias]));
    b.dbias = Tensor::zeros(b.bias.shape(), b.d.dtype(), b.d.device());
    return b;
  }

  // Gradients of all operands from those of q, of k and v, of the gate and of the bias.
  Tensors gradients(const FunctionContext& ctx, const Tensor& dq, const Tensor& dkeys,
                    const math::GatedOutputGradients& head, const Tensor& dbias) const {
    const math::ProjectionGradients d =
        math::projections_backward(dq, dkeys, head.gate, rows_of(ctx.saved(kNames[kS])),
                                   rows_of(ctx.saved(kNames[kX])), weights(ctx));
    Tensors out(masks_pairs ? kPairMask + 1 : kPairMask);
    out[kS] = s.with(d.s);
    out[kX] = x.with(d.x);
    out[kBias] = from_tiles_by_head(dbias, bias);
    const std::array parts{d.q, d.q_bias, d.k, d.v, d.g, head.projection};
    for (std::size_t k = 0; k < parts.size(); ++k)
      out[kQ + k] = parameter_gradient(parts[k], like_parameter(parts[k], s.mesh), s.placements);
    return out;
  }
};

// --- global form -------------------------------------------------------------------------------

// From the state of the own keys to that of the keys of all columns.
void merge(const DeviceMesh& mesh, const math::AttentionState& state) {
  if (mesh.size(kCp1) == 1) return;
  const PurposeScope purpose(Purpose::communication);
  const Tensor factor = state.maximum.clone();
  all_reduce(mesh, kCp1, ReduceOp::max, state.maximum, kMaximum);
  binary(Binary::subtract, factor, state.maximum, factor);
  unary(Unary::exp, factor, factor);
  const std::int64_t sums = state.sum.numel(), values = state.weighted.numel();
  const Tensor packed = Tensor::empty({sums + values}, state.sum.dtype(), state.sum.device());
  const Tensor sum = packed.narrow(0, 0, sums).view(state.sum.shape());
  const Tensor weighted = packed.narrow(0, sums, values).view(state.weighted.shape());
  binary(Binary::multiply, state.sum, factor, sum);
  binary(Binary::multiply, state.weighted,
         factor.transpose(1, 2).unsqueeze(3).expand(weighted.shape()), weighted);
  all_reduce(mesh, kCp1, ReduceOp::sum, packed, kSums);
  copy(sum, state.sum);
  copy(weighted, state.weighted);
}

struct GlobalAttention {
  Common common;

  static constexpr const char* name = "attention_pair_bias";

  Contract contract(const Tensors&) const {
    const Formula BM = sym("BM"), B = sym("B"), N = sym("N"), C = sym("C"), H = sym("H");
    const PlacementRule single{PlacementRule::Kind::exactly, single_placements()};
    const PlacementRule pair{PlacementRule::Kind::exactly, pair_placements()};
    Contract c;
    c.inputs = {{kNames[kS], {BM, N, C}, single},
                {kNames[kX], {BM, N, C}, single},
                {kNames[kBias], {B, N, N, H}, pair},
                {kNames[kMask], {BM, N}, single}};
    for (const ContractTensor& parameter : Common::parameters()) c.inputs.push_back(parameter);
    if (common.masks_pairs) c.inputs.push_back({kNames[kPairMask], {B, N, N}, pair});
    c.outputs = {{"y", {BM, N, C}, single}};
    const KeyPlan plan = key_plan();
    c.messages = messages(plan);
    c.saved = common.saved(BM * N, BM * N, B * N * N, BudgetClass::single, BudgetClass::pair);
    c.saved.push_back(
        plan.rounds() == 1
            ? ContractSaved{kKeys, BM * N * sym("R0") / sym("R1") * (2 * C + 1), sym("e"), false,
                            BudgetClass::single}
            : ContractSaved{kNames[kMask], BM * N, sym("e"), false, BudgetClass::single});
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DeviceMesh& mesh = common.s.mesh;
    const math::HeadWeights w = Common::weights(in);
    const Tensor s = rows_of(in[kS].local());
    const Tensor mask = in[kMask].local().to(s.dtype()).contiguous();
    const Tensor pair_mask = common.masks_pairs ? in[kPairMask].local() : Tensor();
    const Tensor bias = tiles_by_head(in[kBias].local());
    const KeyPlan plan = key_plan();
    KeyStream stream(mesh, plan, own_keys(rows_of(in[kX].local()), mask, w), kKeys);
    const Tensor q = common.heads_of(math::project_queries(s, w), mask.size(0));
    const math::AttentionState state = math::make_state(q);
    while (stream.next()) {
      if (stream.block().size(1) == 0) continue;
      const Interval keys = plan.keys(stream.round());
      math::attention_block(operands(q, stream.block(), keys, bias, pair_mask), stream.round() == 0,
                            state, [&] { stream.progress(); });
    }
    merge(mesh, state);
    math::finish(state);
    const Tensor o = state.weighted.to(s.dtype());
    if (ctx.recording()) {
      common.save(ctx, in, o, state, BudgetClass::single, BudgetClass::pair);
      save_keys(ctx, plan, stream.block(), mask);
    }
    return {common.s.with(math::gated_output(s, o.view(s.shape()), w))};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const DeviceMesh& mesh = common.s.mesh;
    const math::HeadWeights w = Common::weights(ctx);
    const Common::Begin b = common.begin(ctx, gradients, w);
    const std::int64_t rows = b.q.size(0), channels = common.channels();
    const Tensor pair_mask = common.masks_pairs ? ctx.saved(kNames[kPairMask]) : Tensor();
    // dq, dk, dv of the own positions side by side, to be summed over cp1 at once.
    const Tensor sums =
        Tensor::zeros({rows * b.q.size(1), 3 * channels}, b.d.dtype(), b.d.device());
    const Tensor dq = sums.narrow(1, 0, channels);
    const Tensor dkeys = sums.narrow(1, channels, 2 * channels);
    const KeyPlan plan = key_plan();
    for_each_keys(ctx, plan, w, [&](int round, const Tensor& keys, const auto& progress) {
      const Interval at = plan.keys(round);
      const Tensor part = Tensor::zeros({rows, at.size(), 2 * channels}, b.d.dtype(), b.d.device());
      if (!at.empty()) {
        const Tensor columns = part.view({rows * at.size(), 2 * channels});
        math::attention_block_backward(
            operands(b.q, keys, at, b.bias, pair_mask), ctx.saved(kMaximum), ctx.saved(kLogSum),
            b.dout, b.d,
            {.dq = common.heads_of(dq, rows),
             .dk = common.heads_of(columns.narrow(1, 0, channels), rows),
             .dv = common.heads_of(columns.narrow(1, channels, channels), rows),
             .dbias = b.dbias.narrow(3, at.begin, at.size())},
            progress);
      }
      const Tensor home = return_keys(mesh, plan, round, part, kKeyGradients);
      add(1, dkeys, 1, home.view(dkeys.shape()), dkeys);
    });
    all_reduce(mesh, kCp1, ReduceOp::sum, sums, kGradients);
    return common.gradients(ctx, dq, dkeys, b.head, b.dbias);
  }

 private:
  KeyPlan key_plan() const { return KeyPlan(common.s.mesh, common.s.shape.at(1)); }

  // k, v and mask of the own positions [rows, n, 2C + 1]: what a key is, in one message.
  Tensor own_keys(const Tensor& x, const Tensor& mask, const math::HeadWeights& w) const {
    const std::int64_t width = 2 * common.channels() + 1;
    const Tensor keys = Tensor::empty({mask.size(0), mask.size(1), width}, x.dtype(), x.device());
    math::project_keys(x, w, keys.view({x.size(0), width}));
    copy(mask, keys.select(2, width - 1));
    return keys;
  }

  // What a block of keys [rows, K, 2C + 1] is for attention; `at`: their place in the own tile.
  math::AttentionOperands operands(const Tensor& q, const Tensor& keys, Interval at,
                                   const Tensor& bias, const Tensor& pair_mask) const {
    const std::int64_t rows = q.size(0), width = keys.size(2);
    const Shape logits{rows, q.size(1), at.size()};
    Tensor mask = keys.select(2, width - 1).contiguous().unsqueeze(1).expand(logits);
    if (pair_mask.defined()) {
      const std::int64_t problems = pair_mask.size(0);
      const Shape by_problem{problems, rows / problems, logits[1], logits[2]};
      const Tensor both = Tensor::empty(logits, mask.dtype(), mask.device());
      const Tensor of_pairs =
          pair_mask.narrow(2, at.begin, at.size()).unsqueeze(1).expand(by_problem);
      const Tensor of_keys = mask.select(1, 0)
                                 .contiguous()
                                 .view({problems, rows / problems, 1, logits[2]})
                                 .expand(by_problem);
      binary(Binary::multiply, of_keys, of_pairs, both.view(by_problem));
      mask = both;
    }
    return common.operands(q, keys.view({rows * at.size(), width}), mask,
                           bias.narrow(3, at.begin, at.size()));
  }

  // Keys that came in one round are kept; others would be more than a single tensor's share and
  // come again.
  static void save_keys(FunctionContext& ctx, const KeyPlan& plan, const Tensor& keys,
                        const Tensor& mask) {
    const DeviceMesh& mesh = ctx.mesh();
    const std::int64_t rows = mask.size(0) * mesh.size(kDp);
    if (plan.rounds() > 1)
      return ctx.save(kNames[kMask], mask, BudgetClass::single,
                      {rows, mask.size(1) * mesh.size(kCp0)});
    ctx.save(kKeys, keys, BudgetClass::single,
             {rows, keys.size(1) * mesh.size(kCp0), keys.size(2)});
  }
  template <class Block>
  void for_each_keys(const FunctionContext& ctx, const KeyPlan& plan, const math::HeadWeights& w,
                     const Block& block) const {
    if (plan.rounds() == 1) return block(0, ctx.saved(kKeys), [] {});
    const Tensor x = rows_of(ctx.saved(kNames[kX]));
    KeyStream stream(ctx.mesh(), plan, own_keys(x, ctx.saved(kNames[kMask]), w), kKeys);
    while (stream.next()) block(stream.round(), stream.block(), [&] { stream.progress(); });
  }

  std::vector<ContractMessage> messages(const KeyPlan& plan) const {
    const DeviceMesh& mesh = common.s.mesh;
    const Formula rows = sym("BM") / sym("dp"), C = sym("C"), H = sym("H");
    const Formula positions = rows * sym("N") / sym("R0");
    const DType acc = at_least_f32(common.dtype);
    const std::vector<int> columns{kCp1};
    std::vector<ContractMessage> all{
        key_message(Pass::forward, plan, rows * (2 * C + 1) * sym("e"), kKeys),
        all_reduce_message(Pass::forward, mesh, columns, positions * H, acc, kMaximum),
        all_reduce_message(Pass::forward, mesh, columns, positions * (C + H), acc, kSums),
        return_message(Pass::backward, plan, rows * 2 * C * sym("acc"), kKeyGradients),
        all_reduce_message(Pass::backward, mesh, columns, positions * 3 * C, acc, kGradients)};
    if (plan.rounds() > 1)
      all.push_back(key_message(Pass::backward, plan, rows * (2 * C + 1) * sym("e"), kKeys));
    return all;
  }
};

// --- windows -----------------------------------------------------------------------------------

struct WindowAttention {
  Common common;

  static constexpr const char* name = "attention_pair_bias_windows";

  Contract contract(const Tensors&) const {
    const Formula BM = sym("BM"), B = sym("B"), K = sym("K"), W = sym("W"), U = sym("U");
    const Formula C = sym("C");
    const PlacementRule windows{PlacementRule::Kind::exactly, single_placements()};
    Contract c;
    c.inputs = {{kNames[kS], {BM, K, W, C}, windows},
                {kNames[kX], {BM, K, U, C}, windows},
                {kNames[kBias], {B, K, W, U, sym("H")}, windows},
                {kNames[kMask], {B, K, U}, windows}};
    for (const ContractTensor& parameter : Common::parameters()) c.inputs.push_back(parameter);
    c.outputs = {{"y", {BM, K, W, C}, windows}};
    constexpr BudgetClass budget = BudgetClass::atom_window;
    c.saved = common.saved(BM * K * W, BM * K * U, B * K * W * U, budget, budget);
    c.saved.push_back({kNames[kMask], B * K * U, sym("e(mask)"), false, budget});
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const math::HeadWeights w = Common::weights(in);
    const Tensor s = rows_of(in[kS].local()), keys = keys_of(rows_of(in[kX].local()), w);
    const Tensor bias = tiles_by_head(in[kBias].local());
    const Tensor q = common.heads_of(math::project_queries(s, w), rows_of_queries());
    const math::AttentionState state = math::make_state(q);
    for_each_sample(q, keys, in[kMask].local(), bias, [&](const Sample& sample) {
      math::attention_block(
          sample.operands, true,
          {sample.of(state.maximum), sample.of(state.sum), sample.of(state.weighted)}, {});
    });
    math::finish(state);
    const Tensor o = state.weighted.to(s.dtype());
    if (ctx.recording()) {
      common.save(ctx, in, o, state, BudgetClass::atom_window, BudgetClass::atom_window);
      ctx.save(kNames[kMask], in[kMask], BudgetClass::atom_window);
    }
    return {common.s.with(math::gated_output(s, o.view(s.shape()), w))};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const math::HeadWeights w = Common::weights(ctx);
    const Common::Begin b = common.begin(ctx, gradients, w);
    const std::int64_t rows = b.q.size(0), channels = common.channels();
    const Tensor keys = keys_of(rows_of(ctx.saved(kNames[kX])), w);
    const Tensor dq = Tensor::zeros({rows * b.q.size(1), channels}, b.d.dtype(), b.d.device());
    const Tensor dkeys = Tensor::zeros(keys.shape(), b.d.dtype(), b.d.device());
    const Tensor dq_heads = common.heads_of(dq, rows);
    const Tensor dk = common.heads_of(dkeys.narrow(1, 0, channels), rows);
    const Tensor dv = common.heads_of(dkeys.narrow(1, channels, channels), rows);
    for_each_sample(b.q, keys, ctx.saved(kNames[kMask]), b.bias, [&](const Sample& sample) {
      math::attention_block_backward(
          sample.operands, sample.of(ctx.saved(kMaximum)), sample.of(ctx.saved(kLogSum)),
          sample.of(b.dout), sample.of(b.d),
          {sample.of(dq_heads), sample.of(dk), sample.of(dv), sample.of_problem(b.dbias)}, {});
    });
    return common.gradients(ctx, dq, dkeys, b.head, b.dbias);
  }

 private:
  // The windows of one sample, which are rows of attention, and those of its problem.
  struct Sample {
    std::int64_t index, problem, windows;
    math::AttentionOperands operands = {};
    Tensor of(const Tensor& t) const { return t.narrow(0, index * windows, windows); }
    Tensor of_problem(const Tensor& t) const { return t.narrow(0, problem * windows, windows); }
  };

  std::int64_t rows_of_queries() const {
    const Shape local = common.s.local();
    return local[0] * local[1];
  }
  Tensor keys_of(const Tensor& x, const math::HeadWeights& w) const {
    const Tensor keys = Tensor::empty({x.size(0), 2 * common.channels()}, x.dtype(), x.device());
    math::project_keys(x, w, keys);
    return keys;
  }

  // keys [samples * windows * U, 2C]; mask [problems, windows, U]; bias [problems * windows, ..].
  template <class Visit>
  void for_each_sample(const Tensor& q, const Tensor& keys, const Tensor& mask, const Tensor& bias,
                       const Visit& visit) const {
    const std::int64_t problems = mask.size(0), windows = mask.size(1), width = mask.size(2);
    const std::int64_t samples = q.size(0) / windows;
    const Tensor row_masks =
        math::as_workspace(mask, q.dtype()).contiguous().view({problems * windows, width});
    for (std::int64_t k = 0; k < samples; ++k) {
      Sample sample{k, k / (samples / problems), windows};
      const Tensor own_mask =
          sample.of_problem(row_masks).unsqueeze(1).expand({windows, q.size(1), width});
      sample.operands =
          common.operands(sample.of(q), keys.narrow(0, k * windows * width, windows * width),
                          own_mask, sample.of_problem(bias));
      visit(sample);
    }
  }
};

// --- the module --------------------------------------------------------------------------------

constexpr const char* kOperation = "AttentionPairBias";

AttentionPairBiasOptions checked(const AttentionPairBiasOptions& o) {
  const bool divides = o.num_heads > 0 && o.c_s % o.num_heads == 0;
  if (divides) return o;
  throw ShapeError({.problem = "the heads share the channels of s equally",
                    .operation = kOperation,
                    .tensor = "s",
                    .found = fmt::format("{} channels, {} heads", o.c_s, o.num_heads),
                    .expected = "a number of heads that divides the channels"});
}

void require(bool holds, const char* problem, const char* tensor, const char* hint) {
  if (holds) return;
  throw TypeError({.problem = problem, .operation = kOperation, .tensor = tensor, .hint = hint});
}

// What the contract cannot say, and what it is made from.
void check_operands(const DTensor& s, const DTensor& k_in, const DTensor& z, const DeviceMesh& mesh,
                    bool windows) {
  const int ndim = windows ? 4 : 3;
  expect(s, kOperation, "s", {.mesh = mesh, .ndim = ndim});
  expect(k_in, kOperation, "k_in", {.mesh = mesh, .ndim = ndim});
  expect(z, kOperation, "z", {.mesh = mesh, .ndim = windows ? 5 : 4});
  if (k_in.dtype() != s.dtype())
    throw TypeError({.problem = "queries and keys are of one dtype",
                     .operation = kOperation,
                     .tensor = "k_in",
                     .found = k_in.describe(),
                     .expected = std::string(name_of(s.dtype())),
                     .hint = "cast k_in to the dtype of s"});
  if (s.size(0) % z.size(0) == 0) return;
  throw ShapeError({.problem = "every problem has the same number of samples",
                    .operation = kOperation,
                    .tensor = "s",
                    .found = fmt::format("{} samples, {} problems in z", s.size(0), z.size(0)),
                    .expected = "a batch that is a multiple of that of z"});
}

}  // namespace

AttentionPairBias::AttentionPairBias(const Build& build, const AttentionPairBiasOptions& options)
    : Module(build),
      options_(checked(options)),
      proj_q_(build, options.c_s, options.c_s, Init::fan_in, true),
      proj_k_(build, options.c_s, options.c_s, Init::fan_in),
      proj_v_(build, options.c_s, options.c_s, Init::fan_in),
      proj_g_(build, options.c_s, options.c_s, Init::fan_in),
      proj_o_(build, options.c_s, options.c_s, Init::zero) {
  const bool v1 = options.version == PairBiasVersion::v1;
  if (v1 && options.initial_norm) add_child("norm_s", norm_s_.emplace(build, options.c_s));
  add_child("proj_q", proj_q_);
  add_child("proj_k", proj_k_);
  add_child("proj_v", proj_v_);
  add_child("proj_g", proj_g_);
  if (v1 || options.compute_pair_bias)
    add_child("proj_z", proj_z_.emplace(build, options.c_z, options.num_heads));
  add_child("proj_o", proj_o_);
}

Var AttentionPairBias::forward(const Inputs& inputs) const {
  return run(inputs, false);
}
Var AttentionPairBias::forward_windows(const Inputs& inputs) const {
  require(!inputs.pair_mask.value().defined(), "windows have no pair mask", "pair_mask",
          "multiply it into the key mask of each window");
  return run(inputs, true);
}

Var AttentionPairBias::run(const Inputs& inputs, bool windows) const {
  const Scope scope(name());
  const bool v1 = options_.version == PairBiasVersion::v1;
  require(v1 != inputs.k_in.value().defined(),
          v1 ? "version 1 makes its keys itself" : "version 2 needs the source of its keys", "k_in",
          v1 ? "pass to_keys, or nothing for keys from s" : "pass k_in = s for keys from s");
  require(v1 || !inputs.to_keys, "version 2 is given its keys", "to_keys",
          "pass k_in = to_keys(s)");
  const Var s = norm_s_ ? norm_s_->forward(inputs.s) : inputs.s;
  Var k_in = v1 ? s : inputs.k_in, mask = inputs.mask;
  if (inputs.to_keys) {
    k_in = inputs.to_keys(s);
    mask = squeeze(inputs.to_keys(unsqueeze(mask, -1)), -1);
  }
  check_operands(s.value(), k_in.value(), inputs.z.value(), this->mesh(), windows);
  const Var bias = proj_z_ ? proj_z_->forward(inputs.z) : inputs.z;
  refuse_gradient(mask, kOperation, "mask");
  refuse_gradient(inputs.pair_mask, kOperation, "pair_mask");
  std::vector<Var> operands{s,
                            k_in,
                            bias,
                            mask,
                            proj_q_.weight(),
                            proj_q_.bias(),
                            proj_k_.weight(),
                            proj_v_.weight(),
                            proj_g_.weight(),
                            proj_o_.weight()};
  const bool masks_pairs = inputs.pair_mask.value().defined();
  if (masks_pairs) operands.push_back(inputs.pair_mask);
  const Common common{options_.num_heads, options_.inf,       masks_pairs,       s.value().dtype(),
                      Form(s.value()),    Form(k_in.value()), Form(bias.value())};
  if (windows) return apply_many(WindowAttention{common}, operands).front();
  return apply_many(GlobalAttention{common}, operands).front();
}

}  // namespace tessera
