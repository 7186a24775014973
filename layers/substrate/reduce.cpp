// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/reduce.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

Shape with_ones(Shape shape, const std::vector<int>& dims) {
  for (const int dim : dims) shape[static_cast<std::size_t>(dim)] = 1;
  return shape;
}

DType sum_dtype(DType dtype) {
  return is_floating(dtype) ? dtype : DType::i64;
}

// Which dims of which operand are reduced, and the way there and back.
struct Reduction {
  std::vector<int> dims;  // ascending
  bool keepdim = false;
  Shape shape;  // of the operand
  Placements placements;

  // From dims of size 1 to the result.
  DTensor finish(DTensor y) const {
    if (keepdim) return y;
    for (std::size_t k = dims.size(); k-- > 0;) y = squeezed(y, dims[k]);
    return y;
  }
  DTensor restore(DTensor g) const {
    if (keepdim) return g;
    for (const int dim : dims) g = unsqueezed(g, dim);
    return g;
  }
  // The gradient of every operand element that a result element is made of.
  DTensor spread(const DTensor& gradient, double factor) const {
    const DTensor g = restore(gradient);
    const DTensor dx = empty_carried(g, shape, placements, g.dtype());
    binary(Binary::multiply, factor, g.local().expand(dx.local().shape()), dx.local());
    return dx;
  }

  Contract contract(PlacementRule::Kind kind) const {
    return {
        .inputs = {{"x",
                    any_shape(),
                    {kind,
                     {},
                     dims,
                     kind == PlacementRule::Kind::whole ? "any S/R, dim whole"
                                                        : "any S/R, each of dims sharded"}}},
        .outputs = {{"y",
                     {sym(keepdim ? "shape of x with 1 at dims" : "shape of x without dims")},
                     {.text = keepdim ? "like x, R for reduced shards"
                                      : "like x, R for reduced shards, later ones moved down"}}},
        .messages = {},
        .saved = {}};
  }
  // Elements of a rank's block of the result.
  Formula result_elements(const DTensor& x) const {
    std::int64_t reduced = 1;
    for (const int dim : dims) reduced *= x.local().size(dim);
    return sym("n(x)") / number("size of dims", reduced);
  }
};

struct ShardedSum {
  static constexpr const char* name = "sharded_sum";
  Reduction over;

  std::vector<int> axes(const DTensor& x) const {
    std::vector<int> all;
    for (const int dim : over.dims) all.push_back(sharding_axis(x, dim));
    std::sort(all.begin(), all.end());
    all.erase(all.begin(), std::find_if(all.begin(), all.end(), [](int a) { return a >= 0; }));
    return all;
  }
  Contract contract(const Tensors& in) const {
    const DTensor& x = in[0];
    Contract c = over.contract(PlacementRule::Kind::sharded);
    for (const int axis : axes(x))
      c.messages.push_back(all_reduce_message(Pass::forward, x.mesh(), {axis},
                                              over.result_elements(x), wire_dtype(x), "sum"));
    return c;
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    const DTensor& x = in[0];
    const Tensor sum =
        Tensor::empty(with_ones(x.local().shape(), over.dims), wire_dtype(x), x.local().device());
    fold(Fold::sum, x.local(), over.dims, sum);
    Placements placements = x.placements();
    for (const int axis : axes(x)) {
      all_reduce(x.mesh(), axis, ReduceOp::sum, sum, "sum");
      placements[static_cast<std::size_t>(axis)] = Replicate{};
    }
    const DTensor y =
        empty_carried(x, with_ones(x.shape(), over.dims), placements, sum_dtype(x.dtype()));
    copy(sum, y.local());
    return {over.finish(y)};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const { return {over.spread(g[0], 1)}; }

 private:
  static DType wire_dtype(const DTensor& x) {
    return is_floating(x.dtype()) ? at_least_f32(x.dtype()) : DType::i64;
  }
};

struct ShardwiseSum {
  static constexpr const char* name = "shardwise_sum";
  Reduction over;

  Contract contract(const Tensors&) const { return over.contract(PlacementRule::Kind::whole); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {over.finish(folded(Fold::sum, in[0], over.dims, sum_dtype(in[0].dtype())))};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const { return {over.spread(g[0], 1)}; }
};

struct ShardwiseMean {
  static constexpr const char* name = "shardwise_mean";
  Reduction over;

  double factor() const {
    return 1.0 / static_cast<double>(over.shape[static_cast<std::size_t>(over.dims[0])]);
  }
  Contract contract(const Tensors&) const { return over.contract(PlacementRule::Kind::whole); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    const DTensor sum = folded(Fold::sum, in[0], over.dims, at_least_f32(in[0].dtype()));
    scale(factor(), sum.local());
    return {over.finish(sum.to(in[0].dtype()))};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const {
    return {over.spread(g[0], factor())};
  }
};

// The numbers 0, 1 ... along one dim of a tensor of this shape.
Tensor positions(const Shape& shape, int dim, Device device) {
  const std::int64_t n = shape[static_cast<std::size_t>(dim)];
  Shape along(shape.size(), 1);
  along[static_cast<std::size_t>(dim)] = n;
  return arange(n, device).view(along).expand(shape);
}

template <Fold Op>
struct ShardwiseExtremum {
  static constexpr const char* name = Op == Fold::maximum ? "shardwise_max" : "shardwise_min";
  Reduction over;

  Contract contract(const Tensors& in) const {
    Contract c = over.contract(PlacementRule::Kind::whole);
    c.saved = {{"index", over.result_elements(in[0]), 8, false, BudgetClass::own}};
    return c;
  }
  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& x = in[0];
    const DTensor y = folded(Op, x, over.dims, x.dtype());
    if (ctx.recording()) {
      const Tensor index = folded(Fold::argmax, ascending(x), over.dims, DType::i64).local();
      ctx.save("index", index, BudgetClass::own, index.shape());
    }
    return {over.finish(y)};
  }
  Tensors backward(FunctionContext& ctx, const Tensors& gradient) const {
    const DTensor g = over.restore(gradient[0]);
    const DTensor dx = empty_carried(g, over.shape, over.placements, g.dtype());
    const Shape& local = dx.local().shape();
    const Device device = dx.local().device();
    const Tensor hit = Tensor::empty(local, DType::boolean, device);
    binary(Binary::equal, positions(local, over.dims[0], device), ctx.saved("index").expand(local),
           hit);
    const Tensor zero = Tensor::zeros(Shape(local.size(), 1), g.dtype(), device).expand(local);
    select(hit, g.local().expand(local), zero, dx.local());
    return {dx};
  }

 private:
  // Something whose maximum is where the extremum of x is.
  static DTensor ascending(const DTensor& x) {
    if constexpr (Op == Fold::maximum) return x;
    const DTensor negative = empty_like(x, x.dtype());
    unary(Unary::negate, x.local(), negative.local());
    return negative;
  }
};

struct ShardwiseArgmax {
  static constexpr const char* name = "shardwise_argmax";
  Reduction over;

  Contract contract(const Tensors&) const { return over.contract(PlacementRule::Kind::whole); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {over.finish(folded(Fold::argmax, in[0], over.dims, DType::i64))};
  }
};

struct ShardwiseNorm {
  static constexpr const char* name = "shardwise_norm";
  Reduction over;

  Contract contract(const Tensors& in) const {
    Contract c = over.contract(PlacementRule::Kind::whole);
    c.saved = {saved_block("x"),
               {"y", over.result_elements(in[0]), sym("e(x)"), false, BudgetClass::own}};
    return c;
  }
  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& x = in[0];
    const DTensor squares = empty_like(x, at_least_f32(x.dtype()));
    binary(Binary::multiply, x.local(), x.local(), squares.local());
    const DTensor sum = folded(Fold::sum, squares, over.dims, squares.dtype());
    const DTensor y = empty_like(sum, x.dtype());
    unary(Unary::sqrt, sum.local(), y.local());
    ctx.save("x", x);
    ctx.save("y", y.local(), BudgetClass::own, y.local().shape());
    return {over.finish(y)};
  }
  // g x/y; both are 0 where y is.
  Tensors backward(FunctionContext& ctx, const Tensors& gradient) const {
    const DTensor g = over.restore(gradient[0]);
    const Tensor& y = ctx.saved("y");
    const Tensor ratio = Tensor::empty(y.shape(), at_least_f32(g.dtype()), y.device());
    binary(Binary::divide, g.local(), y, ratio);
    const Tensor zero = Tensor::zeros(Shape(y.shape().size(), 1), ratio.dtype(), y.device());
    select(y, ratio, zero.expand(y.shape()), ratio);
    const DTensor dx = empty_carried(g, over.shape, over.placements, g.dtype());
    binary(Binary::multiply, ctx.saved("x"), ratio.expand(dx.local().shape()), dx.local());
    return {dx};
  }
};

struct ShardwiseDistogram {
  static constexpr const char* name = "shardwise_distogram";
  std::vector<double> edges;

  Contract contract(const Tensors&) const {
    return {.inputs = {{"x", any_shape(), {PlacementRule::Kind::any}}},
            .outputs = {{"y", same_shape("x"), {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {}};
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    const DTensor count = empty_like(in[0], DType::i64);
    const DTensor below = empty_like(in[0], DType::boolean);
    fill(count.local(), 0);
    for (const double edge : edges) {
      binary(Binary::less, edge, in[0].local(), below.local());
      binary(Binary::add, count.local(), below.local(), count.local());
    }
    return {count};
  }
};

struct ShardwiseOffset {
  static constexpr const char* name = "shardwise_offset";
  int dim;
  Tensor offset;

  Contract contract(const Tensors&) const {
    return {.inputs = {{"x",
                        any_shape(),
                        {PlacementRule::Kind::sharded, {}, {dim}, "any S/R, dim sharded"}}},
            .outputs = {{"y", same_shape("x"), {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {}};
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    const DTensor& x = in[0];
    const int c = x.mesh().coordinate(sharding_axis(x, dim));
    const Tensor mine = Tensor::empty(offset.shape(), offset.dtype(), x.local().device());
    binary(Binary::multiply, static_cast<double>(c), offset.to(mine.device()), mine);
    const DTensor y = empty_like(x, x.dtype());
    binary(Binary::add, x.local(), mine.expand(x.local().shape()), y.local());
    return {y};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const { return g; }
};

Reduction reduction(const Var& x, std::vector<int> dims, bool keepdim, const char* operation) {
  for (int& dim : dims) dim = normalize_dim(dim, x.value().ndim(), operation);
  std::sort(dims.begin(), dims.end());
  if (dims.empty() || std::adjacent_find(dims.begin(), dims.end()) != dims.end())
    throw RangeError({.problem = dims.empty() ? "no dims" : "a dim is given twice",
                      .operation = operation,
                      .tensor = "x",
                      .found = fmt::format("dims [{}]", fmt::join(dims, ", ")),
                      .expected = "at least one dim, each of them once"});
  return {std::move(dims), keepdim, x.value().shape(), x.value().placements()};
}

template <class F>
Var reduce(const Var& x, int dim, bool keepdim) {
  return apply_many(F{reduction(x, {dim}, keepdim, F::name)}, {x}).front();
}

void check_offset(const DTensor& x, const Tensor& offset) {
  const Shape& local = x.local().shape();
  bool fits = offset.defined() && offset.shape().size() == local.size();
  for (std::size_t d = 0; fits && d < local.size(); ++d)
    fits = offset.shape()[d] == 1 || offset.shape()[d] == local[d];
  if (!fits)
    throw ShapeError({.problem = "the offset cannot be added to every block",
                      .operation = ShardwiseOffset::name,
                      .tensor = "offset",
                      .found = offset.defined() ? format_shape(offset.shape()) : "no tensor",
                      .expected = "1 or the size of the block in each dim of " + x.describe()});
  if (is_floating(x.dtype()) || (x.dtype() != DType::boolean && !is_floating(offset.dtype())))
    return;
  throw TypeError({.problem = "whole numbers take whole offsets, and booleans none",
                   .operation = ShardwiseOffset::name,
                   .tensor = "offset",
                   .found = fmt::format("{} for {}", name_of(offset.dtype()), x.describe()),
                   .expected = "an i64 or i32 offset of an i64 or i32 tensor"});
}

}  // namespace

Var sharded_sum(const Var& x, const std::vector<int>& dims, bool keepdim) {
  return apply_many(ShardedSum{reduction(x, dims, keepdim, ShardedSum::name)}, {x}).front();
}

Var shardwise_sum(const Var& x, int dim, bool keepdim) {
  return reduce<ShardwiseSum>(x, dim, keepdim);
}

Var shardwise_mean(const Var& x, int dim, bool keepdim) {
  require_floating(x, ShardwiseMean::name, "x");
  return reduce<ShardwiseMean>(x, dim, keepdim);
}

Var shardwise_max(const Var& x, int dim, bool keepdim) {
  return reduce<ShardwiseExtremum<Fold::maximum>>(x, dim, keepdim);
}

Var shardwise_min(const Var& x, int dim, bool keepdim) {
  return reduce<ShardwiseExtremum<Fold::minimum>>(x, dim, keepdim);
}

Var shardwise_argmax(const Var& x, int dim, bool keepdim) {
  return reduce<ShardwiseArgmax>(x, dim, keepdim);
}

Var shardwise_norm(const Var& x, int dim, bool keepdim) {
  require_floating(x, ShardwiseNorm::name, "x");
  return reduce<ShardwiseNorm>(x, dim, keepdim);
}

Var shardwise_distogram(const Var& x, const std::vector<double>& edges) {
  return apply_many(ShardwiseDistogram{edges}, {x}).front();
}

Var shardwise_offset(const Var& x, int dim, double offset) {
  const DType dtype = is_floating(x.value().dtype()) ? DType::f64 : DType::i64;
  if (dtype == DType::i64 && offset != std::floor(offset))
    throw TypeError({.problem = "the offset of whole numbers is a whole number",
                     .operation = ShardwiseOffset::name,
                     .tensor = "x",
                     .found = fmt::format("{} for {}", offset, x.value().describe())});
  const Shape one(static_cast<std::size_t>(x.value().ndim()), 1);
  return shardwise_offset(x, dim, Tensor::full(one, offset, dtype, x.value().local().device()));
}

Var shardwise_offset(const Var& x, int dim, const Tensor& offset) {
  check_offset(x.value(), offset);
  return apply_many(
             ShardwiseOffset{normalize_dim(dim, x.value().ndim(), ShardwiseOffset::name), offset},
             {x})
      .front();
}

}  // namespace tessera
