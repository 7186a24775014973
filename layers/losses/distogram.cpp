// SPDX-License-Identifier: MIT
#include "tessera/layers/losses/distogram.hpp"

#include <fmt/format.h>

#include "tessera/layers/math/distogram.hpp"
#include "tessera/layers/schedule/column.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;
constexpr double kEps = 1e-5;  // of the denominator

// [B, C, D] 1/(C den_b) where d is the first of the smallest over d, else 0, and batch [B, 1, 1].
struct Choice {
  Tensor weights;
  Tensor batch;
};
Choice choose(const Tensor& sums, std::int64_t conformers, std::int64_t distograms) {
  const std::int64_t batch = sums.size(0);
  const std::int64_t terms = conformers * distograms;
  const Shape shape{batch, conformers, distograms};
  const Shape per_conformer{batch, conformers, 1};
  const auto empty = [&](const Shape& s, DType dtype) {
    return Tensor::empty(s, dtype, sums.device());
  };
  const Tensor denominator = empty({batch, 1, 1}, DType::f64);
  binary(Binary::add, sums.narrow(1, terms, 1).unsqueeze(2), kEps, denominator);
  const Tensor loss = empty(shape, DType::f64);
  binary(Binary::divide, sums.narrow(1, 0, terms).contiguous().view(shape),
         denominator.expand(shape), loss);

  const Tensor negative = empty(shape, DType::f64);
  unary(Unary::negate, loss, negative);
  const Tensor first = empty(per_conformer, DType::i64);
  fold(Fold::argmax, negative, {2}, first);
  Choice choice{empty(shape, DType::f64), empty({batch, 1, 1}, DType::f64)};
  binary(Binary::equal, first.expand(shape),
         arange(distograms, sums.device()).view({1, 1, distograms}).expand(shape), choice.weights);

  multiply(loss, choice.weights, loss);
  fold(Fold::sum, loss, {1, 2}, choice.batch);
  const double per = 1.0 / static_cast<double>(conformers);
  scale(per, choice.batch);
  binary(Binary::divide, choice.weights, denominator.expand(shape), choice.weights);
  scale(per, choice.weights);
  return choice;
}

struct DistogramLossFunction {
  static constexpr const char* name = "distogram_loss";
  bool aggregate;

  Contract contract(const Tensors& in) const {
    const DeviceMesh& mesh = in[0].mesh();
    const Formula B = sym("B"), T = sym("T"), D = sym("D"), K = sym("K"), C = sym("C");
    const PlacementRule pair{PlacementRule::Kind::exactly, pair_placements()};
    const bool dense = in[1].ndim() == 5;
    Contract c;
    c.inputs = {{"logits", {B, T, T, D, K}, pair},
                {"target", dense ? std::vector{B, T, T, C, K} : std::vector{B, T, T, C}, pair},
                {"mask", {B, T}, {PlacementRule::Kind::exactly, single_placements()}}};
    c.outputs = {
        {"global", {}, {PlacementRule::Kind::exactly, replicated_placements()}},
        {"batch", {B}, {PlacementRule::Kind::exactly, {Shard{0}, Replicate{}, Replicate{}}}}};
    if (in[2].ndim() != 2 || in[2].placements() != single_placements()) return c;  // is refused
    const Formula samples = B / sym("dp");
    const Formula terms = aggregate ? Formula(1) : C * D;
    c.messages = {column_message(Pass::forward, in[2], "mask", kCp0, kCp1, "mask"),
                  all_reduce_message(Pass::forward, mesh, {kCp0, kCp1}, samples * (terms + 1),
                                     DType::f64, "sums"),
                  all_reduce_message(Pass::forward, mesh, {kDp}, 1, DType::f64, "batch")};
    c.saved = {saved_block("logits"),
               saved_block("target"),
               saved_block("mask"),
               {"column mask", samples * T / sym("R1"), sym("e(mask)"), false, BudgetClass::own},
               {"weights", samples * terms, 8, false, BudgetClass::own}};
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& logits = in[0];
    const DTensor& mask = in[2];
    const DeviceMesh& mesh = ctx.mesh();
    const DTensor columns = exchange_column(mask, kCp0, kCp1, "mask");
    const math::DistogramTile tile =
        tile_of(mesh, logits.local(), in[1].local(), mask.local(), columns.local());
    const Tensor sums = math::distogram_sums(tile);
    const std::array axes{kCp0, kCp1};
    all_reduce(mesh, axes, ReduceOp::sum, sums, "sums");
    const Choice choice = choose(sums, aggregate ? 1 : in[1].size(3), logits.size(3));

    ctx.save("logits", logits);
    ctx.save("target", in[1]);
    ctx.save("mask", mask);
    ctx.save("column mask", columns.local(), BudgetClass::own, columns.local().shape());
    ctx.save("weights", choice.weights, BudgetClass::own, choice.weights.shape());
    return results(mesh, logits, choice.batch);
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const math::DistogramTile tile = tile_of(ctx.mesh(), ctx.saved("logits"), ctx.saved("target"),
                                             ctx.saved("mask"), ctx.saved("column mask"));
    // Every sample's share of the global loss, and its own.
    const Tensor& chosen = ctx.saved("weights");
    const Tensor upstream = Tensor::zeros({chosen.size(0)}, DType::f64, chosen.device());
    if (gradients[0].defined())
      add(1, upstream, 1.0 / static_cast<double>(logits_shape[0]),
          gradients[0].local().unsqueeze(0).expand(upstream.shape()), upstream);
    if (gradients[1].defined()) add(1, upstream, 1, gradients[1].local(), upstream);
    const Tensor weights = Tensor::empty(chosen.shape(), DType::f64, chosen.device());
    multiply(chosen, upstream.view({chosen.size(0), 1, 1}).expand(chosen.shape()), weights);
    const DTensor dx =
        DTensor::from_local(math::distogram_gradient(tile, weights), ctx.mesh(), pair_placements(),
                            logits_shape, row_major_strides(logits_shape));
    return {dx, DTensor(), DTensor()};
  }

  Shape logits_shape;

 private:
  math::DistogramTile tile_of(const DeviceMesh& mesh, const Tensor& logits, const Tensor& target,
                              const Tensor& mask, const Tensor& columns) const {
    const std::vector<Interval> own =
        block_of(logits_shape, pair_placements(), mesh.shape(), mesh.coordinate());
    return {logits, target, mask, columns, own[1], own[2], aggregate};
  }

  static Tensors results(const DeviceMesh& mesh, const DTensor& logits, const Tensor& batch) {
    const DType dtype = at_least_f32(logits.dtype());
    const Tensor total = Tensor::empty({1, 1, 1}, DType::f64, batch.device());
    fold(Fold::sum, batch, {0}, total);
    all_reduce(mesh, kDp, ReduceOp::sum, total, "batch");
    scale(1.0 / static_cast<double>(logits.size(0)), total);
    return {DTensor::from_local(total.view({}).to(dtype), mesh, replicated_placements(), {}, {}),
            DTensor::from_local(batch.view({batch.size(0)}).to(dtype), mesh,
                                {Shard{0}, Replicate{}, Replicate{}}, {logits.size(0)}, {1})};
  }
};

}  // namespace

DistogramLoss distogram_loss(const Var& logits, const Var& target, const Var& mask,
                             bool aggregate) {
  constexpr const char* kName = DistogramLossFunction::name;
  expect(logits.value(), kName, "logits", {.ndim = 5, .allow_partial = true});
  if (aggregate && logits.value().size(3) != 1)
    throw ShapeError({.problem = "aggregated targets need one predicted distogram",
                      .operation = kName,
                      .tensor = "logits",
                      .found = logits.value().describe(),
                      .expected = "[B, T, T, 1, K]"});
  require_floating(logits, kName, "logits");
  if (target.value().ndim() == 4) require_index(target, kName, "target");
  refuse_gradient(target, kName, "target");
  refuse_gradient(mask, kName, "mask");
  const std::vector<Var> results =
      apply_many(DistogramLossFunction{aggregate, logits.value().shape()}, {logits, target, mask});
  return {results[0], results[1]};
}

}  // namespace tessera
