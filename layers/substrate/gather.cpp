// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/gather.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/indices.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

std::int64_t product(Shape::const_iterator first, Shape::const_iterator last) {
  return std::accumulate(first, last, std::int64_t{1}, std::multiplies<>());
}

// [batch, rows, features] of a tensor with so many dims of the first two.
Tensor as_rows(const Tensor& t, int batch_dims, int row_dims) {
  const auto rows = t.shape().begin() + batch_dims;
  const std::int64_t batch = product(t.shape().begin(), rows);
  const std::int64_t count = product(rows, rows + row_dims);
  return t.contiguous().view({batch, count, product(rows + row_dims, t.shape().end())});
}

int position_dims(const GatherPlan& plan) {
  return static_cast<int>(plan.indices.size()) - plan.dim;
}

// The shape with other dims from `dim` on, `count` of them.
Shape replaced(const Shape& shape, int dim, int count, Shape::const_iterator first,
               Shape::const_iterator last) {
  Shape result(shape.begin(), shape.begin() + dim);
  result.insert(result.end(), first, last);
  result.insert(result.end(), shape.begin() + dim + count, shape.end());
  return result;
}
Shape with_positions(const GatherPlan& plan, const Shape& shape) {
  return replaced(shape, plan.dim, 1, plan.indices.begin() + plan.dim, plan.indices.end());
}
Shape with_size(const GatherPlan& plan, const Shape& shape) {
  const Shape size{plan.size};
  return replaced(shape, plan.dim, position_dims(plan), size.begin(), size.end());
}

// --- plans -------------------------------------------------------------------------------------

// Completes a plan. It has no result on the tape.
struct MakePlan {
  static constexpr const char* name = "gather_plan";
  std::shared_ptr<GatherPlan> plan;  // without interval and places
  bool aligned;

  Contract contract(const Tensors& in) const {
    Contract c;
    c.inputs = {
        {"idx", any_shape(), {.text = "dim sharded, dims before it any S/R, dims after it whole"}}};
    if (in.size() > 1)
      c.inputs.push_back({"mask", same_shape("idx"), {PlacementRule::Kind::like_first}});
    if (!aligned)
      c.messages = {all_gather_message(Pass::forward, in[0].mesh(), sharding_axis(in[0], plan->dim),
                                       2, DType::i64, "needs")};
    return c;
  }

  Tensors forward(FunctionContext&, const Tensors& in) const {
    const DTensor& idx = in[0];
    const DTensor mask = in.size() > 1 ? in[1] : DTensor();
    const auto values = own_indices(name, {idx, mask}, plan->size);
    plan->interval = interval_of(idx, values);
    plan->places = places_of(idx, values, plan->interval.need.begin);
    return {};
  }

  using Values = std::optional<std::vector<std::int64_t>>;

  IntervalPlan interval_of(const DTensor& idx, const Values& values) const {
    const int axis = sharding_axis(idx, plan->dim);
    const Interval need =
        values ? hull(values->data(), values->data() + values->size()) : Interval{};
    if (!aligned) return agree_on_intervals(idx.mesh(), axis, plan->size, need, "needs");
    std::vector<Interval> owned;
    for (int c = 0; c < idx.mesh().size(axis); ++c)
      owned.push_back(shard_of(plan->size, idx.mesh().size(axis), c));
    IntervalPlan interval = plan_intervals(idx.mesh(), axis, plan->size, owned);
    if (values) check_aligned(idx, need, interval.own);
    interval.local = true;
    return interval;
  }

  static void check_aligned(const DTensor& idx, Interval need, Interval own) {
    collective_try(idx.mesh(), [&] {
      if (intersect(need, own) == need) return;
      throw RangeError({.problem = "an index leaves the shard of its rank",
                        .operation = name,
                        .tensor = "idx",
                        .found = fmt::format("indices from {} to {}", need.begin, need.end - 1),
                        .expected = fmt::format("from {} to {}", own.begin, own.end - 1),
                        .hint = "gather_plan() takes any indices"});
    });
  }

  Tensor places_of(const DTensor& idx, Values values, std::int64_t begin) const {
    const Shape& local = idx.local().shape();
    const Shape shape{product(local.begin(), local.begin() + plan->dim),
                      product(local.begin() + plan->dim, local.end())};
    if (!values) return Tensor::empty(shape, DType::i64, idx.mesh().device());
    for (std::int64_t& value : *values) value = value < 0 ? -1 : value - begin;
    return index_tensor(*values, idx.mesh().device()).view(shape);
  }
};

// What a plan says before its indices are read.
GatherPlan frame_of(const DTensor& idx, int dim, std::int64_t size) {
  return {.mesh = idx.mesh(),
          .placements = idx.placements(),
          .indices = idx.shape(),
          .dim = dim,
          .size = size,
          .interval = {},
          .places = {}};
}

GatherPlan make_plan(const Var& idx, int dim, std::int64_t size, const Var& mask, bool aligned) {
  const DTensor& x = idx.value();
  dim = normalize_dim(dim, x.ndim(), MakePlan::name);
  check_indices(MakePlan::name, {x, mask.value()}, dim);
  const int axis = sharding_axis(x, dim);
  const int ranks = x.mesh().size(axis);
  if (size < 1 || size % ranks != 0)
    throw UnevenError({.problem = "the dim that the indices point into is not cut evenly",
                       .operation = MakePlan::name,
                       .tensor = "idx",
                       .found = fmt::format("size {} on {} rank(s) of {}", size, ranks,
                                            x.mesh().axis_name(axis))});
  const MakePlan make{std::make_shared<GatherPlan>(frame_of(x, dim, size)), aligned};
  std::vector<Var> operands{idx};
  if (mask.value().defined()) operands.push_back(mask);
  apply_many(make, operands);
  return *make.plan;
}

// --- operands ----------------------------------------------------------------------------------

// That x is [*batch, *rows, *features], its last batch dim perhaps a multiple of that of the
// indices, on their mesh and placed like them.
void check_operand(const char* operation, const char* tensor, const DTensor& x,
                   const GatherPlan& plan, const Shape& rows) {
  Shape expected(plan.indices.begin(), plan.indices.begin() + plan.dim);
  if (plan.dim > 0 && x.ndim() >= plan.dim && x.size(plan.dim - 1) % expected.back() == 0)
    expected.back() = x.size(plan.dim - 1);
  expected.insert(expected.end(), rows.begin(), rows.end());
  for (int d = static_cast<int>(expected.size()); d < x.ndim(); ++d) expected.push_back(x.size(d));
  expect(x, operation, tensor, {.shape = expected, .mesh = plan.mesh, .allow_partial = true});
  if (x.placements() == plan.placements) return;
  throw PlacementError({.problem = "it is not placed like the indices",
                        .operation = operation,
                        .tensor = tensor,
                        .found = x.describe(),
                        .expected = format(plan.placements),
                        .hint = fmt::format("redistribute({}, {}) moves the data", tensor,
                                            format(plan.placements))});
}

PlacementRule like_indices(const GatherPlan& plan) {
  return {PlacementRule::Kind::exactly, plan.placements, {}, "like the indices"};
}

ContractSaved saved_numbers(const char* name, const char* text, const Tensor& tensor) {
  return {name, number(text, tensor.numel()),
          Formula(static_cast<std::int64_t>(size_of(tensor.dtype()))), false, BudgetClass::own};
}

void save_own(FunctionContext& ctx, const char* name, const Tensor& tensor) {
  ctx.save(name, tensor, BudgetClass::own, tensor.shape());
}

// --- gather ------------------------------------------------------------------------------------

struct Gather {
  static constexpr const char* name = "gather";
  GatherPlan plan;
  Shape source;  // shape of x

  Contract contract(const Tensors&) const {
    Contract c;
    c.inputs = {{"x", any_shape(), like_indices(plan)}};
    c.outputs = {{"y",
                  {sym("shape of x with the positions of the indices in place of dim")},
                  like_indices(plan)}};
    const Formula row = sym("n(x)") / number("own rows", plan.interval.own.size());
    c.messages = {
        interval_gather_message(Pass::forward, plan.mesh, plan.interval, row * sym("e(x)"), "x"),
        interval_scatter_add_message(Pass::backward, plan.mesh, plan.interval, row * sym("acc"),
                                     "gradient")};
    c.saved = {saved_numbers("places", "own indices", plan.places)};
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor y =
        empty(with_positions(plan, source), in[0].dtype(), plan.mesh, plan.placements);
    const Tensor rows =
        interval_gather(plan.mesh, plan.interval, as_rows(in[0].local(), plan.dim, 1), "x");
    collect_rows(rows, plan.places, as_rows(y.local(), plan.dim, position_dims(plan)));
    if (ctx.needs_grad(0)) save_own(ctx, "places", plan.places);
    return {y};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    const Tensor gy = as_rows(g[0].local(), plan.dim, position_dims(plan));
    const Tensor sums = Tensor::zeros({gy.size(0), plan.interval.need.size(), gy.size(2)},
                                      at_least_f32(gy.dtype()), gy.device());
    spread_rows(gy, ctx.saved("places"), sums);
    const Tensor own = interval_scatter_add(plan.mesh, plan.interval, sums, "gradient");
    const DTensor gx = empty(source, gy.dtype(), plan.mesh, plan.placements);
    copy(own, as_rows(gx.local(), plan.dim, 1));
    return {gx};
  }
};

// --- scatter -----------------------------------------------------------------------------------

// The rows that others have for the own interval come with one column more if they are to be
// counted.
struct Scatter {
  static constexpr const char* name = "scatter_reduce";
  GatherPlan plan;
  Shape source;  // shape of src
  bool mean;

  Contract contract(const Tensors& in) const {
    Contract c;
    c.inputs = {{"src", any_shape(), like_indices(plan)}};
    c.outputs = {{"y",
                  {sym("shape of src with size in place of the positions of the indices")},
                  like_indices(plan)}};
    const Formula batch = number("own batch", in[0].local().numel() / row_elements(in[0]));
    const Formula features = number("features", features_of(in[0]));
    c.messages = {interval_scatter_add_message(Pass::forward, plan.mesh, plan.interval,
                                               batch * (features + (mean ? 1 : 0)) * sym("acc"),
                                               mean ? "sums and counts" : "sums")};
    c.messages.push_back(interval_gather_message(Pass::backward, plan.mesh, plan.interval,
                                                 batch * features * sym("e(src)"), "gradient"));
    c.saved = {saved_numbers("places", "own indices", plan.places)};
    if (mean)
      c.saved.push_back({"counts", batch * number("own rows", plan.interval.own.size()), sym("acc"),
                         false, BudgetClass::own});
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const Tensor x = as_rows(in[0].local(), plan.dim, position_dims(plan));
    const DTensor y = empty(with_size(plan, source), x.dtype(), plan.mesh, plan.placements);
    const Tensor own = interval_scatter_add(plan.mesh, plan.interval, summed(x),
                                            mean ? "sums and counts" : "sums");
    const Tensor rows = as_rows(y.local(), plan.dim, 1);
    if (ctx.needs_grad(0)) save_own(ctx, "places", plan.places);
    if (!mean) {
      copy(own, rows);
      return {y};
    }
    const Tensor counts = Tensor::empty({own.size(0), own.size(1), 1}, own.dtype(), own.device());
    binary(Binary::maximum, own.narrow(2, x.size(2), 1), 1, counts);
    binary(Binary::divide, own.narrow(2, 0, x.size(2)), counts.expand(rows.shape()), rows);
    if (ctx.needs_grad(0)) save_own(ctx, "counts", counts);
    return {y};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    Tensor gy = as_rows(g[0].local(), plan.dim, 1);
    if (mean) {
      const Tensor share = Tensor::empty(gy.shape(), gy.dtype(), gy.device());
      binary(Binary::divide, gy, ctx.saved("counts").expand(gy.shape()), share);
      gy = share;
    }
    const Tensor rows = interval_gather(plan.mesh, plan.interval, gy, "gradient");
    const DTensor gx = empty(source, gy.dtype(), plan.mesh, plan.placements);
    collect_rows(rows, ctx.saved("places"), as_rows(gx.local(), plan.dim, position_dims(plan)));
    return {gx};
  }

  // Partial sums over the interval that this rank writes, and how many rows are in each.
  Tensor summed(const Tensor& x) const {
    const std::int64_t features = x.size(2);
    const Tensor sums =
        Tensor::zeros({x.size(0), plan.interval.need.size(), features + (mean ? 1 : 0)},
                      at_least_f32(x.dtype()), x.device());
    spread_rows(x, plan.places, sums.narrow(2, 0, features));
    if (mean) {
      const Shape column{x.size(0), x.size(1), 1};
      const Tensor one = Tensor::full({1, x.size(1), 1}, 1, sums.dtype(), x.device());
      spread_rows(one.expand(column), plan.places, sums.narrow(2, features, 1));
    }
    return sums;
  }

  std::int64_t features_of(const DTensor& src) const {
    return product(src.shape().begin() + static_cast<int>(plan.indices.size()), src.shape().end());
  }
  std::int64_t row_elements(const DTensor& src) const {
    return product(src.local().shape().begin() + plan.dim, src.local().shape().end());
  }
};

}  // namespace

GatherPlan gather_plan(const Var& idx, int dim, std::int64_t size, const Var& mask) {
  return make_plan(idx, dim, size, mask, false);
}

GatherPlan aligned_plan(const Var& idx, int dim, std::int64_t size, const Var& mask) {
  return make_plan(idx, dim, size, mask, true);
}

Var gather(const Var& x, const GatherPlan& plan) {
  check_operand(Gather::name, "x", x.value(), plan, {plan.size});
  return apply_many(Gather{plan, x.value().shape()}, {x}).front();
}

Var gather(const Var& x, const Var& idx, int dim, const Var& mask) {
  const int d = normalize_dim(dim, x.value().ndim(), Gather::name);
  const std::int64_t size = x.value().size(d);
  check_indices(Gather::name, {idx.value(), mask.value()}, d);
  check_operand(Gather::name, "x", x.value(), frame_of(idx.value(), d, size), {size});
  return gather(x, gather_plan(idx, d, size, mask));
}

Var scatter_reduce(const Var& src, const GatherPlan& plan, ReduceOp reduction) {
  if (reduction != ReduceOp::sum && reduction != ReduceOp::avg)
    throw UnsupportedError({.problem = "no such reduction",
                            .operation = Scatter::name,
                            .found = name_of(reduction),
                            .expected = "sum or avg"});
  const DTensor& x = src.value();
  check_operand(Scatter::name, "src", x, plan,
                {plan.indices.begin() + plan.dim, plan.indices.end()});
  require_floating(src, Scatter::name, "src");
  const bool mean = reduction == ReduceOp::avg;
  return apply_many(Scatter{plan, x.shape(), mean}, {src}).front();
}

Var scatter_reduce(const Var& src, const Var& idx, int dim, std::int64_t size_per_rank,
                   ReduceOp reduction, const Var& mask) {
  const int d = normalize_dim(dim, idx.value().ndim(), Scatter::name);
  check_indices(Scatter::name, {idx.value(), mask.value()}, d);
  const int ranks = idx.value().mesh().size(sharding_axis(idx.value(), d));
  return scatter_reduce(src, gather_plan(idx, d, size_per_rank * ranks, mask), reduction);
}

}  // namespace tessera
