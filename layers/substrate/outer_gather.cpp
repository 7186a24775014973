// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/outer_gather.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "tessera/layers/schedule/interval.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/indices.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;
using Boxes = std::vector<Box>;
constexpr const char* kGrid = "cp0+cp1";

// Windows on all ranks of the grid, not the same on all its columns.
bool is_flat(const DeviceMesh& mesh) {
  return mesh.ndim() == 2;
}
const char* index_rule(const DeviceMesh& mesh) {
  return is_flat(mesh) ? "(S of a batch dim or R, S(dim))" : "(S of a batch dim or R, S(dim), R)";
}

std::int64_t windows_of(const OuterGatherPlan& plan) {
  return plan.row_ids.size(0);
}
std::int64_t own_batch(const OuterGatherPlan& plan) {
  return std::ssize(plan.boxes.source);
}

// --- plans -------------------------------------------------------------------------------------

// The boxes of a rank's windows: `n` and `m` hold W and H indices for each.
Boxes boxes_of(const std::vector<std::int64_t>& n, const std::vector<std::int64_t>& m,
               std::int64_t windows) {
  const std::int64_t w = std::ssize(n) / windows, h = std::ssize(m) / windows;
  Boxes boxes;
  for (std::int64_t k = 0; k < windows; ++k) {
    const std::int64_t* rows = n.data() + k * w;
    const std::int64_t* cols = m.data() + k * h;
    const Box box{hull(rows, rows + w), hull(cols, cols + h)};
    boxes.push_back(box.area() > 0 ? box : Box{});
  }
  return boxes;
}

// Without values: windows of indices without gaps, evenly along both dims.
Boxes assumed_boxes(const OuterGatherPlan& plan, std::int64_t batch, int coordinate) {
  const std::int64_t windows = plan.rows_of[static_cast<std::size_t>(plan.dim)];
  const auto interval = [&](std::int64_t size, std::int64_t width, std::int64_t k) {
    width = std::min(width, size);
    const std::int64_t begin = (size - width) * k / std::max<std::int64_t>(1, windows - 1);
    return Interval{begin, begin + width};
  };
  const Interval own = shard_of(windows, plan.mesh.size(kCp0), coordinate);
  Boxes boxes;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t k = own.begin; k < own.end; ++k)
      boxes.push_back({interval(plan.rows, plan.rows_of.back(), k),
                       interval(plan.cols, plan.cols_of.back(), k)});
  return boxes;
}

// The boxes of all coordinates on the axis that shards the windows.
std::vector<Boxes> agreed_boxes(const OuterGatherPlan& plan, const Boxes& own, std::int64_t batch) {
  std::vector<std::int64_t> table;
  for (const Box& box : own)
    table.insert(table.end(), {box.rows.begin, box.rows.end, box.cols.begin, box.cols.end});
  const auto tables = gather_integers(plan.mesh, kCp0, table, "boxes");
  std::vector<Boxes> all;
  for (const std::vector<std::int64_t>& t : tables) {
    Boxes& boxes = all.emplace_back();
    for (std::size_t k = 0; k < t.size(); k += 4)
      boxes.push_back({{t[k], t[k + 1]}, {t[k + 2], t[k + 3]}});
  }
  for (int c = 0; tables.empty() && c < plan.mesh.size(kCp0); ++c)
    all.push_back(assumed_boxes(plan, batch, c));
  return all;
}

// For the rank that owns this tile.
Interval summed_columns(const OuterGatherPlan& plan, const Box& tile) {
  return is_flat(plan.mesh) ? Interval{0, plan.cols} : tile.cols;
}

// Samples are stacked along the rows.
Box in_sample(Box box, std::int64_t sample, std::int64_t rows) {
  if (box.area() == 0) return {};
  box.rows.begin += sample * rows;
  box.rows.end += sample * rows;
  return box;
}

// To the boxes of all windows or, for the sums, to their parts in the columns that a rank adds up.
RelayoutPlan box_relayout(const OuterGatherPlan& plan, const std::vector<Boxes>& boxes,
                          std::int64_t batch, bool for_sums) {
  const Ownership tile = tiles(plan.mesh.unflatten_cp(), plan.rows, plan.cols, kCp0, kCp1);
  Ownership source{std::vector<Boxes>(tile.pieces.size())};
  Ownership target = source;
  for (std::size_t rank = 0; rank < tile.pieces.size(); ++rank) {
    if (tile.pieces[rank].empty()) continue;  // another dp coordinate
    const Box& own = tile.pieces[rank].front();
    for (std::int64_t b = 0; b < batch; ++b)
      source.pieces[rank].push_back(in_sample(own, b, plan.rows));
    const int coordinate = plan.mesh.coordinate_of(static_cast<int>(rank))[kCp0];
    const Boxes& wanted = boxes[static_cast<std::size_t>(coordinate)];
    const std::int64_t windows = std::ssize(wanted) / batch;
    const Box part{{0, plan.rows}, for_sums ? summed_columns(plan, own) : Interval{0, plan.cols}};
    for (std::int64_t k = 0; k < std::ssize(wanted); ++k)
      target.pieces[rank].push_back(
          in_sample(intersect(wanted[static_cast<std::size_t>(k)], part), k / windows, plan.rows));
  }
  return plan_relayout(source, target, plan.mesh.rank());
}

// Completes a plan. It has no result on the tape.
struct MakePlan {
  static constexpr const char* name = "outer_gather_plan";
  std::shared_ptr<OuterGatherPlan> plan;  // without boxes, sums and ids
  bool has_mask_n, has_mask_m;

  static std::int64_t local_windows(const DTensor& idx) {
    return idx.local().numel() / idx.local().size(-1);
  }

  Contract contract(const Tensors& in) const {
    Contract c;
    const PlacementRule like_first{PlacementRule::Kind::like_first};
    c.inputs = {{"idx_n", any_shape(), {.text = index_rule(plan->mesh)}},
                {"idx_m", any_shape(), like_first}};
    if (has_mask_n) c.inputs.push_back({"mask_n", same_shape("idx_n"), like_first});
    if (has_mask_m) c.inputs.push_back({"mask_m", same_shape("idx_m"), like_first});
    c.messages = {all_gather_message(Pass::forward, plan->mesh, kCp0,
                                     4 * number("own windows", local_windows(in[0])), DType::i64,
                                     "boxes")};
    return c;
  }

  Tensors forward(FunctionContext&, const Tensors& in) const {
    const auto n = own_indices(name, {in[0], has_mask_n ? in[2] : DTensor(), "idx_n"}, plan->rows);
    const auto m =
        own_indices(name, {in[1], has_mask_m ? in.back() : DTensor(), "idx_m"}, plan->cols);
    const std::int64_t windows = local_windows(in[0]);
    const std::int64_t batch = windows / in[0].local().size(plan->dim);
    const Boxes own =
        n ? boxes_of(*n, *m, windows) : assumed_boxes(*plan, batch, plan->mesh.coordinate(kCp0));
    const std::vector<Boxes> boxes = agreed_boxes(*plan, own, batch);
    plan->boxes = box_relayout(*plan, boxes, batch, false);
    plan->columns = summed_columns(*plan, plan->boxes.source.front());
    plan->sums = box_relayout(*plan, boxes, batch, true);
    const auto ids = [&](const DTensor& idx, const std::optional<std::vector<std::int64_t>>& v) {
      const Shape shape{windows, idx.size(-1)};
      const Device device = plan->mesh.device();
      return v ? index_tensor(*v, device).view(shape) : Tensor::empty(shape, DType::i64, device);
    };
    plan->row_ids = ids(in[0], n);
    plan->col_ids = ids(in[1], m);
    return {};
  }
};

// --- operands ----------------------------------------------------------------------------------

void refuse_placements(const char* operation, const char* tensor, const DTensor& x,
                       std::string expected) {
  throw PlacementError({.problem = "wrong placements",
                        .operation = operation,
                        .tensor = tensor,
                        .found = x.describe(),
                        .expected = std::move(expected),
                        .hint = "redistribute() moves the data"});
}

void check_index_pair(const char* operation, const DTensor& n, const DTensor& m, int dim) {
  if (n.ndim() != dim + 2)
    throw ShapeError({.problem = "wrong number of dims",
                      .operation = operation,
                      .tensor = "idx_n",
                      .found = n.describe(),
                      .expected = fmt::format("[*batch, K, W] with K at {}", dim)});
  Shape expected = n.shape();
  if (m.ndim() == n.ndim()) expected.back() = m.size(-1);
  expect(m, operation, "idx_m", {.shape = expected, .mesh = n.mesh(), .allow_partial = true});
  for (const auto& [name, x] : {std::pair{"idx_n", n}, std::pair{"idx_m", m}}) {
    const Placements& p = x.placements();
    const bool batch = !is_shard(p[kDp]) || std::get<Shard>(p[kDp]).dim < dim;
    const bool replicas = std::none_of(p.begin() + kCp1, p.end(),
                                       [](const Placement& other) { return is_shard(other); });
    if (!batch || !is_shard(p[kCp0], dim) || !replicas)
      refuse_placements(operation, name, x, fmt::format("{}, dim = {}", index_rule(n.mesh()), dim));
  }
}

OuterGatherPlan frame_of(const DTensor& n, const DTensor& m, int dim, std::int64_t rows,
                         std::int64_t cols) {
  OuterGatherPlan plan;
  plan.mesh = n.mesh();
  plan.placements = n.placements();
  plan.rows_of = n.shape();
  plan.cols_of = m.shape();
  plan.dim = dim;
  plan.rows = rows;
  plan.cols = cols;
  return plan;
}

Placements pair_like(const OuterGatherPlan& plan) {
  return {plan.placements[kDp], Shard{plan.dim}, Shard{plan.dim + 1}};
}

void check_pair(const char* operation, const DTensor& z, const OuterGatherPlan& plan) {
  Shape expected(plan.rows_of.begin(), plan.rows_of.begin() + plan.dim);
  expected.insert(expected.end(), {plan.rows, plan.cols});
  for (int d = plan.dim + 2; d < z.ndim(); ++d) expected.push_back(z.size(d));
  expect(z, operation, "z",
         {.shape = expected, .mesh = plan.mesh.unflatten_cp(), .allow_partial = true});
  if (z.placements() != pair_like(plan))
    refuse_placements(operation, "z", z, format(pair_like(plan)));
}

// --- the operation -----------------------------------------------------------------------------

// Columns in elements instead of positions.
RelayoutPlan widened(RelayoutPlan plan, std::int64_t features) {
  const auto widen = [&](Box& box) {
    box.cols.begin *= features;
    box.cols.end *= features;
  };
  for (Boxes* boxes : {&plan.source, &plan.target})
    std::for_each(boxes->begin(), boxes->end(), widen);
  for (auto* parts : {&plan.sends, &plan.receives})
    for (RelayoutPlan::Part& part : *parts) widen(part.region);
  return plan;
}

struct OuterGather {
  static constexpr const char* name = "outer_gather";
  OuterGatherPlan plan;
  Shape source;  // shape of z

  std::int64_t features() const { return numel({source.begin() + plan.dim + 2, source.end()}); }
  std::int64_t width() const { return plan.rows_of.back(); }
  std::int64_t height() const { return plan.cols_of.back(); }

  Contract contract(const Tensors&) const {
    Contract c;
    c.inputs = {{"z",
                 any_shape(),
                 {PlacementRule::Kind::exactly,
                  pair_like(plan),
                  {},
                  "(as the indices, S(dim), S(dim+1))"}}};
    c.outputs = {{"y",
                  {sym("shape of z with K, W, H in place of its rows and columns")},
                  {.text = index_rule(plan.mesh)}}};
    c.messages = {
        relayout_message(Pass::forward, kGrid, "z", plan.boxes, "positions that others need",
                         sym("e(z)")),
        relayout_message(Pass::backward, plan.mesh.axis_name(kCp0), "gradient", reversed(plan.sums),
                         "sums for positions of others", sym("acc"))};
    c.saved = {
        {"row ids", number("own row ids", plan.row_ids.numel()), 8, false, BudgetClass::own},
        {"col ids", number("own col ids", plan.col_ids.numel()), 8, false, BudgetClass::own}};
    return c;
  }

  ContractMessage relayout_message(Pass pass, std::string axis, const char* label,
                                   const RelayoutPlan& moved, const char* positions,
                                   const Formula& bytes) const {
    return {pass,
            "relayout",
            std::move(axis),
            label,
            1,
            number("peers with an overlap", sent_messages(moved)),
            number(positions, sent_elements(moved)) * number("features", features()) * bytes};
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const std::vector<Tensor> boxes = relayout(plan.mesh, widened(plan.boxes, features()),
                                               own_tiles(in[0].local().contiguous()), kGrid, "z");
    Shape shape(plan.rows_of);
    shape.push_back(height());
    shape.insert(shape.end(), source.begin() + plan.dim + 2, source.end());
    const DTensor y = empty(shape, in[0].dtype(), plan.mesh, plan.placements);
    const Tensor windows = y.local().view({windows_of(plan), width() * height(), features()});
    for (std::int64_t k = 0; k < windows_of(plan); ++k)
      fill_window(boxes[static_cast<std::size_t>(k)], k, windows.select(0, k));
    if (ctx.needs_grad(0)) {
      ctx.save("row ids", plan.row_ids, BudgetClass::own, plan.row_ids.shape());
      ctx.save("col ids", plan.col_ids, BudgetClass::own, plan.col_ids.shape());
    }
    return {y};
  }

  // z as one matrix [1, rows, cols * features] for each sample.
  std::vector<Tensor> own_tiles(const Tensor& z) const {
    const Box& tile = plan.boxes.source.front();
    const Tensor tiles = z.view({own_batch(plan), tile.rows.size(), tile.cols.size() * features()});
    std::vector<Tensor> all;
    for (std::int64_t b = 0; b < own_batch(plan); ++b) all.push_back(tiles.narrow(0, b, 1));
    return all;
  }

  // From the window's box [1, rows, cols * features] to [W * H, features].
  void fill_window(const Tensor& values, std::int64_t k, const Tensor& window) const {
    const Box& box = plan.boxes.target[static_cast<std::size_t>(k)];
    if (box.area() == 0) return fill(window, 0);
    gather_rows(values.view({box.area(), features()}),
                places_in(box, k, plan.row_ids, plan.col_ids), window);
  }

  // The sums [1, rows, cols * features] of the entries [W * H, features] of a window.
  Tensor window_sums(const Tensor& window, std::int64_t k, const Tensor& row_ids,
                     const Tensor& col_ids) const {
    const Box& box = plan.sums.target[static_cast<std::size_t>(k)];
    const Tensor sums = Tensor::zeros({1, box.rows.size(), box.cols.size() * features()},
                                      at_least_f32(window.dtype()), window.device());
    if (box.area() > 0)
      scatter_add_rows(window, places_in(box, k, row_ids, col_ids),
                       sums.view({box.area(), features()}));
    return sums;
  }

  // Of a window's entries [W * H] in its box, in whose rows samples are stacked.
  Tensor places_in(const Box& box, std::int64_t k, const Tensor& row_ids,
                   const Tensor& col_ids) const {
    const std::int64_t origin = k / (windows_of(plan) / own_batch(plan)) * plan.rows;
    return outer_places(row_ids.select(0, k), col_ids.select(0, k),
                        {box.rows.begin - origin, box.rows.end - origin}, box.cols);
  }

  // (n - rows.begin) * cols.size() + m - cols.begin for n [..., W] and m [..., H], flat; below zero
  // if one of them is.
  static Tensor outer_places(const Tensor& n, const Tensor& m, Interval rows, Interval cols) {
    const Tensor first = Tensor::empty(n.shape(), DType::i64, n.device());
    binary(Binary::multiply, n, static_cast<double>(cols.size()), first);
    binary(Binary::add, first, static_cast<double>(-rows.begin * cols.size() - cols.begin), first);
    Shape shape = n.shape();
    shape.push_back(m.size(-1));
    const Tensor places = Tensor::empty(shape, DType::i64, n.device());
    binary(Binary::add, first.unsqueeze(-1).expand(shape), m.unsqueeze(-2).expand(shape), places);
    return places.view({places.numel()});
  }

  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    const Tensor gy =
        g[0].local().contiguous().view({windows_of(plan), width() * height(), features()});
    const Tensor row_ids = ctx.saved("row ids");
    const Tensor col_ids = ids_inside(ctx.saved("col ids"), plan.columns);
    std::vector<Tensor> sums;
    for (std::int64_t k = 0; k < windows_of(plan); ++k)
      sums.push_back(window_sums(gy.select(0, k), k, row_ids, col_ids));
    const DeviceMesh mesh = plan.mesh.unflatten_cp();
    const std::vector<Tensor> own = relayout_add(mesh, widened(plan.sums, features()), sums,
                                                 plan.mesh.axis_name(kCp0), "gradient");
    const DTensor gz = empty(source, gy.dtype(), mesh, pair_like(plan));
    const std::vector<Tensor> tiles = own_tiles(gz.local());
    for (std::size_t b = 0; b < own.size(); ++b) copy(own[b], tiles[b]);
    return {gz};
  }

  // The ids in the interval; below zero for the others.
  static Tensor ids_inside(const Tensor& ids, Interval interval) {
    const auto made = [&](DType dtype) { return Tensor::empty(ids.shape(), dtype, ids.device()); };
    const Tensor from = made(DType::boolean), to = made(DType::boolean), inside = made(DType::i64);
    binary(Binary::less_equal, static_cast<double>(interval.begin), ids, from);
    binary(Binary::less, ids, static_cast<double>(interval.end), to);
    binary(Binary::logical_and, from, to, from);
    const Tensor none = Tensor::full(Shape(ids.shape().size(), 1), static_cast<double>(kNoIndex),
                                     DType::i64, ids.device());
    select(from, ids, none.expand(ids.shape()), inside);
    return inside;
  }
};

}  // namespace

OuterGatherPlan outer_gather_plan(const Var& idx_n, const Var& idx_m, int dim, std::int64_t rows,
                                  std::int64_t cols, const Var& mask_n, const Var& mask_m) {
  const DTensor& n = idx_n.value();
  dim = normalize_dim(dim, n.ndim(), MakePlan::name);
  check_index_pair(MakePlan::name, n, idx_m.value(), dim);
  check_indices(MakePlan::name, {n, mask_n.value(), "idx_n", "mask_n"}, dim);
  check_indices(MakePlan::name, {idx_m.value(), mask_m.value(), "idx_m", "mask_m"}, dim);
  const DeviceMesh grid = n.mesh().unflatten_cp();
  if (rows < 1 || cols < 1 || rows % grid.size(kCp0) != 0 || cols % grid.size(kCp1) != 0)
    throw UnevenError({.problem = "rows divide by cp0 and columns by cp1",
                       .operation = MakePlan::name,
                       .tensor = "z",
                       .found = fmt::format("{} x {} on {}", rows, cols, grid.describe())});
  const MakePlan make{
      std::make_shared<OuterGatherPlan>(frame_of(n, idx_m.value(), dim, rows, cols)),
      mask_n.value().defined(), mask_m.value().defined()};
  std::vector<Var> operands{idx_n, idx_m};
  if (make.has_mask_n) operands.push_back(mask_n);
  if (make.has_mask_m) operands.push_back(mask_m);
  apply_many(make, operands);
  return *make.plan;
}

Var outer_gather(const Var& z, const OuterGatherPlan& plan) {
  check_pair(OuterGather::name, z.value(), plan);
  return apply_many(OuterGather{plan, z.value().shape()}, {z}).front();
}

Var outer_gather(const Var& z, const Var& idx_n, const Var& idx_m, int dim, const Var& mask_n,
                 const Var& mask_m) {
  const DTensor& x = z.value();
  dim = normalize_dim(dim, x.ndim(), OuterGather::name);
  check_index_pair(OuterGather::name, idx_n.value(), idx_m.value(), dim);
  if (x.ndim() < dim + 2)
    throw ShapeError({.problem = "wrong number of dims",
                      .operation = OuterGather::name,
                      .tensor = "z",
                      .found = x.describe(),
                      .expected = fmt::format("[*batch, rows, cols, ...] with rows at {}", dim)});
  const std::int64_t rows = x.size(dim), cols = x.size(dim + 1);
  check_pair(OuterGather::name, x, frame_of(idx_n.value(), idx_m.value(), dim, rows, cols));
  return outer_gather(z, outer_gather_plan(idx_n, idx_m, dim, rows, cols, mask_n, mask_m));
}

}  // namespace tessera
