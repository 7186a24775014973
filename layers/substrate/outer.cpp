// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/outer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tessera/layers/schedule/column.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;
constexpr const char* kOuterOp = "outer_op";
constexpr const char* kShardwiseOuter = "shardwise_outer";

// The shape of all pairs of positions of rows and columns along a dim, at axis and axis + 1.
Shape pair_shape(const Shape& rows, std::int64_t columns, int axis) {
  Shape shape = rows;
  shape.insert(shape.begin() + axis + 1, columns);
  return shape;
}

// As a view of that shape: rows have no dim axis + 1 of their own, columns no dim axis.
Tensor across(const Tensor& t, int missing, const Shape& shape) {
  return t.unsqueeze(missing).expand(shape);
}

// --- singles to pairs --------------------------------------------------------------------------

bool all_single(const Tensors& in) {
  return std::all_of(in.begin(), in.end(),
                     [](const DTensor& x) { return x.placements() == single_placements(); });
}

Contract outer_contract(const Tensors& in, const char* result) {
  const PlacementRule single{PlacementRule::Kind::exactly, single_placements()};
  Contract c{.inputs = {{"x", any_shape(), single}},
             .outputs = {{"y", {sym(result)}, {PlacementRule::Kind::exactly, pair_placements()}}},
             .messages = {},
             .saved = {}};
  if (in.size() > 1) c.inputs.push_back({"x_t", same_shape("x"), single});
  if (all_single(in))  // others are refused
    c.messages = {
        column_message(Pass::forward, in.back(), c.inputs.back().name, kCp0, kCp1, "x_t")};
  return c;
}

Tensor column_block(const DTensor& x_t) {
  return exchange_column(x_t, kCp0, kCp1, "x_t").local();
}

// sum, subtract, multiply and cdist.
struct OuterOp {
  static constexpr const char* name = kOuterOp;
  Outer op;
  Shape shape;       // of x
  bool symmetric;    // one operand has both roles
  bool left, right;  // the roles that need a gradient

  Contract contract(const Tensors& in) const {
    Contract c = outer_contract(
        in, op == Outer::cdist ? "[B, N, N, ...] without the last dim" : "[B, N, N, ...]");
    if (!all_single(in)) return c;
    c.saved = saved_lines(in);
    const std::string& columns = c.inputs.back().name;
    const DType dtype = at_least_f32(promote(in[0].dtype(), in.back().dtype()));
    if (right)
      c.messages.push_back(add_columns_message(Pass::backward, in.back(), columns, kCp0, kCp1,
                                               dtype, "gradient of x_t"));
    const auto reduction = [&](const char* label) {
      c.messages.push_back(
          all_reduce_message(Pass::backward, in[0].mesh(), {kCp1}, sym("n(x)"), dtype, label));
    };
    if (left) reduction("gradient of x");
    if (right && !symmetric) reduction("gradient of x_t");
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& x = in[0];
    const Tensor columns = column_block(in.back());
    Shape global = pair_shape(shape, shape[1], 1);
    if (op == Outer::cdist) global.pop_back();
    const DTensor y =
        empty(global, promote(x.dtype(), in.back().dtype()), x.mesh(), pair_placements());
    const Shape local = pair_shape(x.local().shape(), columns.size(1), 1);
    if (op == Outer::cdist)
      distance(difference(x.local(), columns, local), y.local());
    else
      binary(binary_form(), across(x.local(), 2, local), across(columns, 1, local), y.local());
    if (saves_x()) ctx.save("x", x);
    if (saves_columns()) ctx.save("columns", columns, BudgetClass::own, columns.shape());
    if (op == Outer::cdist) ctx.save("y", y);
    return {y};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradient) const {
    const DTensor& g = gradient[0];
    const Tensor terms = op == Outer::cdist ? distance_terms(ctx, g.local()) : g.local();
    Tensor of_left, of_right;
    if (left) of_left = summed(op == Outer::multiply ? times(terms, ctx, "columns", 1) : terms, 2);
    if (right) {
      const Tensor columns = summed(op == Outer::multiply ? times(terms, ctx, "x", 2) : terms, 1);
      if (op == Outer::subtract || op == Outer::cdist) scale(-1, columns);
      of_right = add_columns(g.mesh(), columns, 1, shape[1], kCp0, kCp1, "gradient of x_t");
    }
    if (!symmetric)
      return {reduced(of_left, g, "gradient of x"), reduced(of_right, g, "gradient of x_t")};
    add(1, of_left, 1, of_right, of_left);
    return {reduced(of_left, g, "gradient of x")};
  }

 private:
  bool saves_x() const { return op == Outer::cdist || (op == Outer::multiply && right); }
  bool saves_columns() const { return op == Outer::cdist || (op == Outer::multiply && left); }
  std::vector<ContractSaved> saved_lines(const Tensors& in) const {
    std::vector<ContractSaved> lines;
    const bool one = in.size() == 1;
    if (saves_x()) lines.push_back(saved_block("x"));
    if (saves_columns())
      lines.push_back({"columns", sym(one ? "n(x)" : "n(x_t)") * sym("R0") / sym("R1"),
                       sym(one ? "e(x)" : "e(x_t)"), false, BudgetClass::own});
    if (op == Outer::cdist) {
      const DType dtype = promote(in[0].dtype(), in.back().dtype());
      lines.push_back(
          {"y", sym("n(x)") / number("C", shape.back()) * (number("N", shape[1]) / sym("R1")),
           static_cast<std::int64_t>(size_of(dtype)), false, BudgetClass::own});
    }
    return lines;
  }

  Binary binary_form() const {
    if (op == Outer::sum) return Binary::add;
    return op == Outer::subtract ? Binary::subtract : Binary::multiply;
  }
  // l - r, in at least f32.
  static Tensor difference(const Tensor& rows, const Tensor& columns, const Shape& local) {
    const DType dtype = at_least_f32(promote(rows.dtype(), columns.dtype()));
    const Tensor d = Tensor::empty(local, dtype, rows.device());
    binary(Binary::subtract, across(rows, 2, local), across(columns, 1, local), d);
    return d;
  }
  static void distance(const Tensor& d, const Tensor& y) {
    binary(Binary::multiply, d, d, d);
    Shape ones = d.shape();
    ones.back() = 1;
    const Tensor squares = Tensor::empty(ones, d.dtype(), d.device());
    fold(Fold::sum, d, {-1}, squares);
    unary(Unary::sqrt, squares.squeeze(-1), y);
  }
  // g (l - r)/(y + tiny): 0 where y is.
  static Tensor distance_terms(FunctionContext& ctx, const Tensor& g) {
    const Tensor& x = ctx.saved("x");
    const Tensor& columns = ctx.saved("columns");
    const Tensor& y = ctx.saved("y");
    const Tensor d = difference(x, columns, pair_shape(x.shape(), columns.size(1), 1));
    const double tiny = y.dtype() == DType::f64 ? std::numeric_limits<double>::min()
                                                : std::numeric_limits<float>::min();
    const Tensor size = Tensor::empty(y.shape(), d.dtype(), y.device());
    binary(Binary::add, y, tiny, size);
    binary(Binary::divide, d, across(size, size.ndim(), d.shape()), d);
    binary(Binary::multiply, d, across(g, g.ndim(), d.shape()), d);
    return d;
  }
  static Tensor times(const Tensor& g, FunctionContext& ctx, const char* other, int missing) {
    const Tensor product = Tensor::empty(g.shape(), at_least_f32(g.dtype()), g.device());
    binary(Binary::multiply, g, across(ctx.saved(other), missing, g.shape()), product);
    return product;
  }
  static Tensor summed(const Tensor& terms, int dim) {
    Shape ones = terms.shape();
    ones[static_cast<std::size_t>(dim)] = 1;
    const Tensor sum = Tensor::empty(ones, at_least_f32(terms.dtype()), terms.device());
    fold(Fold::sum, terms, {dim}, sum);
    return sum.squeeze(dim);
  }
  // The gradient of an operand from the summands of the ranks of a row; nothing from nothing.
  DTensor reduced(const Tensor& summands, const DTensor& g, const char* label) const {
    if (!summands.defined()) return {};
    all_reduce(g.mesh(), kCp1, ReduceOp::sum, summands, label);
    const DTensor dx = empty(shape, g.dtype(), g.mesh(), single_placements());
    copy(summands, dx.local());
    return dx;
  }
};

// equal and bit_and.
struct OuterTest {
  static constexpr const char* name = kOuterOp;
  Outer op;

  Contract contract(const Tensors& in) const { return outer_contract(in, "[B, N, N, ...]"); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    const DTensor& x = in[0];
    const Tensor columns = column_block(in.back());
    const DType dtype = op == Outer::equal ? DType::boolean : promote(x.dtype(), in.back().dtype());
    const DTensor y =
        empty(pair_shape(x.shape(), x.size(1), 1), dtype, x.mesh(), pair_placements());
    const Shape& local = y.local().shape();
    binary(op == Outer::equal ? Binary::equal : Binary::bit_and, across(x.local(), 2, local),
           across(columns, 1, local), y.local());
    return {y};
  }
};

// --- along a whole dim -------------------------------------------------------------------------

Contract shardwise_contract(int axis) {
  return {
      .inputs = {{"x",
                  any_shape(),
                  {PlacementRule::Kind::whole, {}, {axis}, "any S/R, axis whole"}},
                 {"y", any_shape(), {PlacementRule::Kind::like_first}}},
      .outputs = {{"z", {sym("[..., L, R, ...] at axis")}, {.text = "S(d > axis) become S(d+1)"}}},
      .messages = {},
      .saved = {}};
}

DTensor shardwise_pairs(const DTensor& x, const DTensor& y, int axis, Binary op, DType dtype) {
  const DTensor z = empty(pair_shape(x.shape(), y.size(axis), axis), dtype, x.mesh(),
                          renumbered(x.placements(), numbers_with(x.ndim(), axis + 1)));
  const Shape& local = z.local().shape();
  binary(op, across(x.local(), axis + 1, local), across(y.local(), axis, local), z.local());
  return z;
}

struct ShardwiseOuterOp {
  static constexpr const char* name = kShardwiseOuter;
  int axis;
  bool subtracts;

  Contract contract(const Tensors&) const { return shardwise_contract(axis); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {shardwise_pairs(in[0], in[1], axis, subtracts ? Binary::subtract : Binary::add,
                            promote(in[0].dtype(), in[1].dtype()))};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const {
    const DTensor dy = summed(g[0], axis);
    if (subtracts) scale(-1, dy.local());
    return {summed(g[0], axis + 1), dy};
  }

 private:
  static DTensor summed(const DTensor& g, int dim) {
    Shape shape = g.shape();
    shape.erase(shape.begin() + dim);
    const DTensor sum = empty(shape, g.dtype(), g.mesh(),
                              renumbered(g.placements(), numbers_without(g.ndim(), {dim})));
    fold(Fold::sum, g.local(), {dim}, sum.local().unsqueeze(dim));
    return sum;
  }
};

struct ShardwiseOuterTest {
  static constexpr const char* name = kShardwiseOuter;
  int axis;
  Binary op;

  Contract contract(const Tensors&) const { return shardwise_contract(axis); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {shardwise_pairs(in[0], in[1], axis, op, DType::boolean)};
  }
};

// --- checks ------------------------------------------------------------------------------------

void check_outer(const DTensor& x, const DTensor& x_t, Outer op, int axis) {
  const int dim = normalize_dim(axis, x.ndim(), kOuterOp);
  if (dim != 1)
    throw RangeError({.problem = "pairs are formed of dim 1",
                      .operation = kOuterOp,
                      .tensor = "x",
                      .found = fmt::format("axis {} of {}", axis, x.describe()),
                      .expected = "axis 1",
                      .hint = "shardwise_outer() takes any dim that is not sharded"});
  if (op == Outer::cdist && x.ndim() < 3)
    throw ShapeError({.problem = "a distance needs a dim of coordinates",
                      .operation = kOuterOp,
                      .tensor = "x",
                      .found = x.describe(),
                      .expected = "[B, N, ..., C]"});
  for (const auto& [operand, tensor] : {std::pair(&x, "x"), std::pair(&x_t, "x_t")})
    if (op == Outer::cdist && !is_floating(operand->dtype()))
      throw TypeError({.problem = "a distance is no whole number",
                       .operation = kOuterOp,
                       .tensor = tensor,
                       .found = operand->describe(),
                       .expected = "f64, f32 or bf16"});
  if (op == Outer::bit_and && (is_floating(x.dtype()) || is_floating(x_t.dtype())))
    throw TypeError({.problem = "no bitwise operation of floating tensors",
                     .operation = kOuterOp,
                     .tensor = is_floating(x.dtype()) ? "x" : "x_t",
                     .found = (is_floating(x.dtype()) ? x : x_t).describe(),
                     .expected = "i64, i32, bool"});
  if (x.placements() == single_placements())
    block_of(pair_shape(x.shape(), x.size(1), 1), pair_placements(), x.mesh().shape(),
             x.mesh().coordinate(), kOuterOp, "x");
}

Var outer(const std::vector<Var>& in, Outer op, int axis) {
  const DTensor& x = in[0].value();
  check_outer(x, in.back().value(), op, axis);
  if (op == Outer::equal || op == Outer::bit_and) return apply_many(OuterTest{op}, in).front();
  return apply_many(OuterOp{op, x.shape(), in.size() == 1, in[0].requires_grad(),
                            in.back().requires_grad()},
                    in)
      .front();
}

}  // namespace

Var outer_op(const Var& x, Outer op, int axis) {
  return outer({x}, op, axis);
}

Var outer_op(const Var& x, const Var& x_t, Outer op, int axis) {
  return outer({x, x_t}, op, axis);
}

Var shardwise_outer(const Var& x, const Var& y, int axis, ShardwiseOuter op) {
  const int dim = normalize_dim(axis, x.value().ndim(), kShardwiseOuter);
  Shape shape = x.value().shape();
  if (y.value().ndim() == x.value().ndim())
    shape[static_cast<std::size_t>(dim)] = y.value().size(dim);
  expect(y.value(), kShardwiseOuter, "y", {.shape = shape, .allow_partial = true});
  if (op == ShardwiseOuter::subtract || op == ShardwiseOuter::add)
    return apply_many(ShardwiseOuterOp{dim, op == ShardwiseOuter::subtract}, {x, y}).front();
  const Binary form = op == ShardwiseOuter::equal ? Binary::equal : Binary::logical_and;
  return apply_many(ShardwiseOuterTest{dim, form}, {x, y}).front();
}

}  // namespace tessera
