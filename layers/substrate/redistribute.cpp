// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/redistribute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/layers/schedule/column.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/mesh/relayout.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

const Placement& at(const Placements& placements, int axis) {
  return placements[static_cast<std::size_t>(axis)];
}

int dim_of(const Placement& placement) {
  return std::get<Shard>(placement).dim;
}

// --- the table of transitions ------------------------------------------------------------------

// What a change of placements sends; `elements`, those of the own block, become those of the
// result.
std::vector<ContractMessage> transition_messages(Pass pass, const DeviceMesh& mesh, DType dtype,
                                                 const Placements& from, const Placements& to,
                                                 Formula& elements, const char* label) {
  std::vector<ContractMessage> all;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const Placement& a = at(from, axis);
    const Placement& b = at(to, axis);
    if (a == b) continue;
    const Formula size = number(mesh.axis_name(axis), mesh.size(axis));
    if (is_partial(a)) {
      const ReduceOp op = std::get<Partial>(a).op;
      const bool scatters = is_shard(b) && (op == ReduceOp::sum || op == ReduceOp::avg);
      all.push_back(scatters ? reduce_scatter_message(pass, mesh, axis, elements, dtype, label)
                             : all_reduce_message(pass, mesh, {axis}, elements, dtype, label));
    } else if (is_shard(a)) {
      all.push_back(is_shard(b) ? all_to_all_message(pass, mesh, axis, elements, dtype, label)
                                : all_gather_message(pass, mesh, axis, elements, dtype, label));
    }
    if (is_shard(a) && !is_shard(b)) elements = elements * size;
    if (!is_shard(a) && is_shard(b)) elements = elements / size;
  }
  return all;
}

struct Redistribute {
  static constexpr const char* name = "redistribute";
  Placements from, to;

  Contract contract(const Tensors& in) const {
    const DTensor& x = in[0];
    Contract c{.inputs = {{"x", any_shape(), {PlacementRule::Kind::anything}}},
               .outputs = {{"y", same_shape("x"), {.text = "the given ones"}}},
               .messages = {},
               .saved = {}};
    Formula elements = sym("n(x)");
    c.messages = transition_messages(Pass::forward, x.mesh(), x.dtype(), from, to, elements, "x");
    append(c.messages,
           transition_messages(Pass::backward, x.mesh(), x.dtype(), gradient_placements(to),
                               gradient_placements(from), elements, "gradient"));
    return c;
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {redistribute(in[0], to, "x")};
  }
  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    const DTensor dx = redistribute(g[0], gradient_placements(from), "gradient");
    const double factor = share(ctx.mesh());
    if (factor == 1) return {dx};
    const DTensor scaled = empty_like(dx, dx.dtype());
    binary(Binary::multiply, factor, dx.local(), scaled.local());
    return {scaled};
  }

 private:
  // The part that each value has in the means that were formed.
  double share(const DeviceMesh& mesh) const {
    double factor = 1;
    for (int axis = 0; axis < mesh.ndim(); ++axis)
      if (at(from, axis) == Placement(Partial{ReduceOp::avg}) && at(from, axis) != at(to, axis))
        factor /= mesh.size(axis);
    return factor;
  }
};

// --- transposes --------------------------------------------------------------------------------

DTensor transposed_view(const DTensor& x, int dim0, int dim1) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::vector<int> to = numbers_without(x.ndim(), {});
  const auto a = static_cast<std::size_t>(dim0), b = static_cast<std::size_t>(dim1);
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  std::swap(to[a], to[b]);
  return DTensor::from_local(x.local().transpose(dim0, dim1), x.mesh(),
                             renumbered(x.placements(), to), std::move(shape), std::move(strides));
}

// Two mesh axes whose placements are exchanged.
struct AxisPair {
  int a = -1;
  int b = -1;
  bool valid() const { return a >= 0 && b >= 0; }
  Placements exchanged(Placements placements) const {
    std::swap(placements[static_cast<std::size_t>(a)], placements[static_cast<std::size_t>(b)]);
    return placements;
  }
};

// One name for both directions.
std::string axes_name(const DeviceMesh& mesh, AxisPair axes) {
  const std::array ascending{std::min(axes.a, axes.b), std::max(axes.a, axes.b)};
  return mesh.axes_name(ascending);
}

// The plan of tiles that are cut along two axes, which exchange what they cut.
RelayoutPlan tile_plan(const DeviceMesh& mesh, std::int64_t rows, std::int64_t cols,
                       AxisPair axes) {
  return plan_relayout(tiles(mesh, rows, cols, axes.a, axes.b),
                       tiles(mesh, rows, cols, axes.b, axes.a), mesh.rank());
}

DTensor exchange_tiles(const DTensor& x, AxisPair axes, const char* label) {
  const int row = dim_of(at(x.placements(), axes.a)), col = dim_of(at(x.placements(), axes.b));
  std::vector<int> order;  // of dims: the batch first, rows and columns last
  for (int d = 0; d < x.ndim(); ++d)
    if (d != row && d != col) order.push_back(d);
  order.insert(order.end(), {row, col});

  const Tensor tile = x.local().permute(order).contiguous();
  const std::int64_t batch = tile.numel() / tile.size(-1) / tile.size(-2);
  const Tensor moved =
      relayout(x.mesh(), tile_plan(x.mesh(), x.size(row), x.size(col), axes),
               {tile.view({batch, tile.size(-2), tile.size(-1)})}, axes_name(x.mesh(), axes), label)
          .front();
  const DTensor y = empty_carried(x, x.shape(), axes.exchanged(x.placements()), x.dtype());
  const Tensor place = y.local().permute(order);
  copy(moved.view(place.shape()), place);
  return y;
}

DTensor mesh_transposed(const DTensor& x, AxisPair axes, const char* label) {
  const bool a = is_shard(at(x.placements(), axes.a)), b = is_shard(at(x.placements(), axes.b));
  if (a && b) return exchange_tiles(x, axes, label);
  return exchange_column(x, a ? axes.a : axes.b, a ? axes.b : axes.a, label);
}

// The line of exchange_tiles(): `rest` elements of the own block for each element of the matrix.
ContractMessage tile_message(Pass pass, const DTensor& x, AxisPair axes, std::int64_t rows,
                             std::int64_t cols, const char* label) {
  const std::int64_t rest = x.local().numel() * x.mesh().size(axes.a) * x.mesh().size(axes.b) /
                            rows / cols * static_cast<std::int64_t>(size_of(x.dtype()));
  const auto count = [=, mesh = x.mesh()](const char* what, std::int64_t (*of)(const RelayoutPlan&),
                                          std::int64_t k) {
    return Formula::function(
        what, [=](const Symbols&) { return k * of(tile_plan(mesh, rows, cols, axes)); });
  };
  return {pass,
          "relayout",
          axes_name(x.mesh(), axes),
          label,
          1,
          count("overlapping tiles", sent_messages, 1),
          count("overlaps of the tile of x", sent_elements, rest)};
}

// There and back.
std::vector<ContractMessage> transpose_messages(const DTensor& x, AxisPair axes) {
  const AxisPair back{axes.b, axes.a};
  const Placement& a = at(x.placements(), axes.a);
  const Placement& b = at(x.placements(), axes.b);
  if (is_shard(a) && is_shard(b)) {
    const std::int64_t rows = x.size(dim_of(a)), cols = x.size(dim_of(b));
    return {tile_message(Pass::forward, x, axes, rows, cols, "x"),
            tile_message(Pass::backward, x, back, rows, cols, "gradient")};
  }
  const auto [from, to] = is_shard(a) ? axes : back;
  return {column_message(Pass::forward, x, "x", from, to, "x"),
          column_return_message(Pass::backward, x, "x", from, to, "gradient")};
}

struct LocalTranspose {
  static constexpr const char* name = "local_transpose";
  int dim0, dim1;

  Contract contract(const Tensors&) const {
    return {
        .inputs = {{"x",
                    any_shape(),
                    {PlacementRule::Kind::whole, {}, {dim0, dim1}, "any S/R, both dims whole"}}},
        .outputs = {{"y",
                     {sym("shape of x with dims exchanged")},
                     {PlacementRule::Kind::like_first}}},
        .messages = {},
        .saved = {}};
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {transposed_view(in[0], dim0, dim1)};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const {
    return {transposed_view(g[0], dim0, dim1)};
  }
};

struct MeshTranspose {
  static constexpr const char* name = "mesh_transpose";
  AxisPair axes;

  Contract contract(const Tensors& in) const {
    return {.inputs = {{"x", any_shape(), {PlacementRule::Kind::any}}},
            .outputs = {{"y", same_shape("x"), {.text = "like x, two mesh axes exchanged"}}},
            .messages = transpose_messages(in[0], axes),
            .saved = {}};
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {mesh_transposed(in[0], axes, "x")};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const {
    return {mesh_transposed(g[0], axes, "gradient")};
  }
};

struct GlobalTranspose {
  static constexpr const char* name = "global_transpose";
  int dim0, dim1;

  static AxisPair axes(const DTensor& x, int dim0, int dim1) {
    return {sharding_axis(x, dim0), sharding_axis(x, dim1)};
  }
  Contract contract(const Tensors& in) const {
    Contract c{.inputs = {{"x",
                           any_shape(),
                           {PlacementRule::Kind::sharded, {}, {dim0, dim1}, "both dims sharded"}}},
               .outputs = {{"y",
                            {sym("shape of x with dims exchanged")},
                            {PlacementRule::Kind::like_first}}},
               .messages = {},
               .saved = {}};
    const AxisPair pair = axes(in[0], dim0, dim1);
    if (pair.valid()) c.messages = transpose_messages(in[0], pair);
    return c;
  }
  Tensors forward(FunctionContext&, const Tensors& in) const { return {moved(in[0], "x")}; }
  Tensors backward(FunctionContext&, const Tensors& g) const { return {moved(g[0], "gradient")}; }

 private:
  DTensor moved(const DTensor& x, const char* label) const {
    return transposed_view(mesh_transposed(x, axes(x, dim0, dim1), label), dim0, dim1);
  }
};

// --- checks ------------------------------------------------------------------------------------

void check_sizes(const DTensor& x, const Placements& to, const char* operation) {
  block_of(x.shape(), to, x.mesh().shape(), x.mesh().coordinate(), operation, "x");
}

AxisPair exchanged_axes(const DTensor& x, const Placements& to) {
  std::vector<int> changed;
  for (int axis = 0; axis < x.mesh().ndim(); ++axis)
    if (at(x.placements(), axis) != at(to, axis)) changed.push_back(axis);
  if (changed.size() == 2) {
    const AxisPair axes{changed[0], changed[1]};
    if (axes.exchanged(x.placements()) == to) return axes;
  }
  throw PlacementError(
      {.problem = "not an exchange of the placements of two mesh axes",
       .operation = MeshTranspose::name,
       .tensor = "x",
       .found = x.describe() + " to " + format(to),
       .expected = "for example (S0,S1,R) to (S0,R,S1)",
       .hint = fmt::format("redistribute(x, {}) changes placements axis by axis", format(to))});
}

void check_axis(const DTensor& x, int axis, const char* operation) {
  if (axis >= 0 && axis < x.mesh().ndim()) return;
  throw RangeError({.problem = "no such mesh axis",
                    .operation = operation,
                    .tensor = "x",
                    .found = fmt::format("axis {}", axis),
                    .expected = x.mesh().describe()});
}

Var with_placement(const Var& x, int axis, const Placement& placement, const char* operation) {
  expect(x.value(), operation, "x", {.allow_partial = true});
  check_axis(x.value(), axis, operation);
  Placements placements = x.value().placements();
  placements[static_cast<std::size_t>(axis)] = placement;
  return redistribute(x, placements);
}

}  // namespace

Var redistribute(const Var& x, const Placements& placements) {
  const DTensor& value = x.value();
  check_redistribution(value, placements, "x");
  if (placements == value.placements()) return x;
  const auto has_no_gradient = [](const Placement& p) {
    return p == Placement(Partial{ReduceOp::max}) || p == Placement(Partial{ReduceOp::min});
  };
  const Placements& from = value.placements();
  if (x.requires_grad() && std::any_of(from.begin(), from.end(), has_no_gradient))
    throw GradientError({.problem = "a maximum or minimum over ranks has no gradient",
                         .operation = Redistribute::name,
                         .tensor = "x",
                         .found = value.describe()});
  return apply_many(Redistribute{from, placements}, {x}).front();
}

Var replicate(const Var& x, int axis) {
  return with_placement(x, axis, Replicate{}, "replicate");
}

Var shard(const Var& x, int axis, int dim) {
  return with_placement(x, axis, Shard{normalize_dim(dim, x.value().ndim(), "shard")}, "shard");
}

Var local_transpose(const Var& x, int dim0, int dim1) {
  constexpr const char* name = LocalTranspose::name;
  const int d0 = normalize_dim(dim0, x.value().ndim(), name);
  const int d1 = normalize_dim(dim1, x.value().ndim(), name);
  return apply_many(LocalTranspose{d0, d1}, {x}).front();
}

Var mesh_transpose(const Var& x, const Placements& placements) {
  const DTensor& value = x.value();
  expect(value, MeshTranspose::name, "x", {});
  check_sizes(value, placements, MeshTranspose::name);
  if (placements == value.placements()) return x;
  return apply_many(MeshTranspose{exchanged_axes(value, placements)}, {x}).front();
}

Var global_transpose(const Var& x, int dim0, int dim1) {
  const DTensor& value = x.value();
  constexpr const char* name = GlobalTranspose::name;
  const int d0 = normalize_dim(dim0, value.ndim(), name);
  const int d1 = normalize_dim(dim1, value.ndim(), name);
  if (d0 == d1)
    throw RangeError({.problem = "a dim cannot be exchanged with itself",
                      .operation = name,
                      .tensor = "x",
                      .found = fmt::format("dims {} and {}", dim0, dim1)});
  const AxisPair axes = GlobalTranspose::axes(value, d0, d1);
  if (axes.valid()) check_sizes(value, axes.exchanged(value.placements()), name);
  return apply_many(GlobalTranspose{d0, d1}, {x}).front();
}

}  // namespace tessera
