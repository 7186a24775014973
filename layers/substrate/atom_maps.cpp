// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/atom_maps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tessera/layers/schedule/column.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/indices.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

const PlacementRule kSingle{PlacementRule::Kind::exactly, single_placements(), {}, {}};
const PlacementRule kPair{PlacementRule::Kind::exactly, pair_placements(), {}, {}};

GatherPlan single_map(const char* operation, const char* tensor, const Var& idx, std::int64_t size,
                      const Var& mask) {
  const Scope scope(operation);
  expect(idx.value(), operation, tensor, {.ndim = 2});
  if (idx.value().placements() != single_placements())
    throw PlacementError({.problem = "wrong placements",
                          .operation = operation,
                          .tensor = tensor,
                          .found = idx.value().describe(),
                          .expected = format(single_placements()),
                          .hint = "redistribute() moves the data"});
  return aligned_plan(idx, 1, size, mask);
}

// Ids of the own rows to ids of the own columns; -1 where the mask is false.
struct ColumnIds {
  static constexpr const char* name = "column_ids";

  Contract contract(const Tensors& in) const {
    Contract c;
    c.inputs = {{"tok_id", {sym("B"), sym("A")}, kSingle}};
    if (in.size() > 1)
      c.inputs.push_back({"mask", same_shape("tok_id"), {PlacementRule::Kind::like_first}});
    c.outputs = {{"ids",
                  {sym("B"), sym("A")},
                  {PlacementRule::Kind::exactly, single_t_placements(), {}, {}}}};
    c.messages = {column_message(Pass::forward, in[0], "tok_id", kCp0, kCp1, "ids")};
    return c;
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    if (in.size() == 1) return {exchange_column(in[0], kCp0, kCp1, "ids")};
    const DTensor ids = empty_like(in[0], in[0].dtype());
    const Tensor none = Tensor::full({1, 1}, -1, ids.dtype(), in[0].mesh().device());
    select(in[1].local(), in[0].local(), none.expand(ids.local().shape()), ids.local());
    return {exchange_column(ids, kCp0, kCp1, "ids")};
  }
};

// Columns first, as rows of the transposed tile; then rows.
struct PairTokenToAtom {
  static constexpr const char* name = "pair_token_to_atom";
  PairAtomMap map;

  Contract contract(const Tensors&) const {
    const IntervalPlan& columns = map.cols.interval;
    const DeviceMesh& mesh = map.rows.mesh;
    const Formula column = sym("n(z)") / number("own columns", columns.own.size());
    Contract c;
    c.inputs = {{"z", {sym("B"), sym("T"), sym("T"), sym("C")}, kPair}};
    c.outputs = {{"y", {sym("B"), sym("A"), sym("A"), sym("C")}, kPair}};
    c.messages = {
        interval_gather_message(Pass::forward, mesh, columns, column * sym("e(z)"), "columns"),
        interval_scatter_add_message(Pass::backward, mesh, columns, column * sym("acc"),
                                     "gradient")};
    c.saved = {
        {"rows", number("ids of own rows", map.rows.places.numel()), 8, false, BudgetClass::own},
        {"cols", number("ids of own columns", map.cols.places.numel()), 8, false,
         BudgetClass::own}};
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const Tensor& z = in[0].local();
    const std::int64_t batch = z.size(0), rows = z.size(1), channels = z.size(3);
    const Tensor tile = turned(z).view({batch, z.size(2), rows * channels});
    const Tensor read = interval_gather(ctx.mesh(), map.cols.interval, tile, "columns");
    const Tensor wide = Tensor::empty({batch, own_cols(), rows * channels}, z.dtype(), z.device());
    collect_rows(read, map.cols.places, wide);
    const Tensor half = turned(wide.view({batch, own_cols(), rows, channels}));
    const DTensor y = empty({in[0].size(0), atoms(), atoms(), channels}, z.dtype(), ctx.mesh(),
                            pair_placements());
    collect_rows(half.view({batch, rows, own_cols() * channels}), map.rows.places,
                 y.local().view({batch, own_rows(), own_cols() * channels}));
    if (ctx.needs_grad(0)) {
      ctx.save("rows", map.rows.places, BudgetClass::own, map.rows.places.shape());
      ctx.save("cols", map.cols.places, BudgetClass::own, map.cols.places.shape());
    }
    return {y};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    const Tensor gy = g[0].local().contiguous();
    const std::int64_t batch = gy.size(0), channels = gy.size(3), tokens = map.rows.size;
    const std::int64_t rows = map.rows.interval.own.size();
    const auto zeros_of = [&](std::int64_t n, std::int64_t features) {
      return Tensor::zeros({batch, n, features}, at_least_f32(gy.dtype()), gy.device());
    };
    const Tensor half = zeros_of(rows, own_cols() * channels);
    spread_rows(gy.view({batch, own_rows(), own_cols() * channels}), ctx.saved("rows"), half);
    const Tensor sums = zeros_of(map.cols.interval.need.size(), rows * channels);
    spread_rows(turned(half.view({batch, rows, own_cols(), channels}))
                    .view({batch, own_cols(), rows * channels}),
                ctx.saved("cols"), sums);
    const Tensor own = interval_scatter_add(ctx.mesh(), map.cols.interval, sums, "gradient");
    const DTensor gz =
        empty({g[0].size(0), tokens, tokens, channels}, gy.dtype(), ctx.mesh(), pair_placements());
    copy(own.view({batch, own.size(1), rows, channels}).transpose(1, 2), gz.local());
    return {gz};
  }

  static Tensor turned(const Tensor& tile) { return tile.transpose(1, 2).contiguous(); }
  std::int64_t atoms() const { return map.rows.indices.back(); }
  std::int64_t own_rows() const { return map.rows.places.size(1); }
  std::int64_t own_cols() const { return map.cols.places.size(1); }
};

// Sums of the rows of a one-hot map; RangeError on all ranks unless they are 0 or 1.
Tensor row_sums(const char* operation, const DTensor& map) {
  Shape shape = map.local().shape();
  shape.back() = 1;
  const Tensor sums = Tensor::empty(shape, DType::f32, map.mesh().device());
  fold(Fold::sum, map.local(), {-1}, sums);
  if (!has_values(sums)) return sums;
  collective_try(map.mesh(), [&] {
    for (const double sum : to_values(sums))
      if (sum != 0 && sum != 1)
        throw RangeError({.problem = "a row of a one-hot map has a one or none",
                          .operation = operation,
                          .tensor = "map",
                          .found = fmt::format("a row that sums to {}", sum),
                          .expected = "0 or 1"});
  });
  return sums;
}

struct OneHotIndices {
  static constexpr const char* name = "one_hot_indices";

  Contract contract(const Tensors&) const {
    Contract c;
    c.inputs = {{"map", {sym("B"), sym("N"), sym("n")}, kSingle}};
    c.outputs = {{"idx", {sym("B"), sym("N")}, kSingle}};
    return c;
  }
  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& map = in[0];
    const Tensor sums = row_sums(name, map);
    const DTensor idx =
        empty({map.size(0), map.size(1)}, DType::i64, ctx.mesh(), single_placements());
    const Tensor places = idx.local().unsqueeze(-1);
    const Tensor none = Tensor::full({1, 1, 1}, -1, DType::i64, ctx.mesh().device());
    fold(Fold::argmax, map.local(), {-1}, places);
    binary(Binary::add, places, static_cast<double>(map.size(2) * ctx.mesh().coordinate(kCp0)),
           places);
    select(sums, places, none.expand(places.shape()), places);
    return {idx};
  }
};

}  // namespace

GatherPlan atom_map(const Var& tok_id, std::int64_t tokens, const Var& mask) {
  return single_map("atom_map", "tok_id", tok_id, tokens, mask);
}

GatherPlan representative_map(const Var& rep, std::int64_t atoms, const Var& mask) {
  return single_map("representative_map", "rep", rep, atoms, mask);
}

Var token_to_atom(const Var& s, const GatherPlan& map) {
  const Scope scope("token_to_atom");
  return gather(s, map);
}

Var atom_to_token(const Var& a, const GatherPlan& map) {
  const Scope scope("atom_to_token");
  return scatter_reduce(a, map, ReduceOp::avg);
}

Var rep_atom_to_token(const Var& a, const GatherPlan& map) {
  const Scope scope("rep_atom_to_token");
  return gather(a, map);
}

PairAtomMap pair_atom_map(const Var& tok_id, std::int64_t tokens, const Var& mask) {
  const Scope scope("pair_atom_map");
  PairAtomMap map{atom_map(tok_id, tokens, mask), {}};
  std::vector<Var> operands{tok_id};
  if (mask.value().defined()) operands.push_back(mask);
  map.cols = gather_plan(apply_many(ColumnIds{}, operands).front(), 1, tokens);
  return map;
}

Var pair_token_to_atom(const Var& z, const PairAtomMap& map) {
  const DTensor& x = z.value();
  const std::int64_t tokens = map.rows.size;
  expect(x, PairTokenToAtom::name, "z", {.ndim = 4, .allow_partial = true});
  expect(x, PairTokenToAtom::name, "z",
         {.shape = Shape{map.rows.indices.front(), tokens, tokens, x.size(3)},
          .mesh = map.rows.mesh,
          .allow_partial = true});
  return apply_many(PairTokenToAtom{map}, {z}).front();
}

Var one_hot_indices(const Var& map) {
  return apply_many(OneHotIndices{}, {map}).front();
}

Tensor reconstruct_global(const DTensor& map) {
  constexpr const char* kOperation = "reconstruct_global";
  expect(map, kOperation, "map",
         {.shape = Shape{1, map.size(1), map.size(2)}, .placements = single_placements()});
  row_sums(kOperation, map);
  const DeviceMesh& mesh = map.mesh();
  const Tensor whole =
      Tensor::zeros({map.size(1), map.size(2) * mesh.size(kCp0)}, DType::f32, mesh.device());
  const int i = mesh.coordinate(kCp0);
  const Tensor block = map.local().select(0, 0);
  // Copies along cp1 are equal: one of them counts.
  if (mesh.coordinate(kCp1) == 0)
    copy(block, whole.narrow(0, i * block.size(0), block.size(0))
                    .narrow(1, i * block.size(1), block.size(1)));
  all_reduce(mesh, std::array{kCp0, kCp1}, ReduceOp::sum, whole, "map");
  return whole;
}

}  // namespace tessera
