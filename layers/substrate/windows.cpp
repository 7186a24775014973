// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/windows.hpp"

#include <fmt/format.h>

#include "tessera/layers/schedule/halo.hpp"
#include "tessera/layers/schedule/interval.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

// For each batch, window and place in it, the row of [batch, length, n] that is seen there, or -1.
Tensor seen_rows(std::int64_t batch, std::int64_t length, const std::vector<std::int64_t>& starts,
                 std::int64_t h, Device device) {
  std::vector<std::int64_t> rows;
  for (std::int64_t b = 0; b < batch; ++b)
    for (const std::int64_t start : starts)
      for (std::int64_t at = start; at < start + h; ++at)
        rows.push_back(at < 0 || at >= length ? -1 : b * length + at);
  return index_tensor(rows, device);
}

// rows [batch, length, n] -> [batch * windows * h, n].
Tensor windows_of(const Tensor& rows, const std::vector<std::int64_t>& starts, std::int64_t h) {
  const Tensor index = seen_rows(rows.size(0), rows.size(1), starts, h, rows.device());
  const Tensor out = Tensor::empty({index.numel(), rows.size(2)}, rows.dtype(), rows.device());
  gather_rows(rows.view({rows.size(0) * rows.size(1), rows.size(2)}), index, out);
  return out;
}

// The adjoint: g, with as many elements as the windows have, to sums [batch, length, n].
Tensor sums_of(const Tensor& g, std::int64_t batch, std::int64_t length, std::int64_t n,
               const std::vector<std::int64_t>& starts, std::int64_t h) {
  const Tensor index = seen_rows(batch, length, starts, h, g.device());
  const Tensor sums = Tensor::zeros({batch * length, n}, at_least_f32(g.dtype()), g.device());
  scatter_add_rows(g.contiguous().view({index.numel(), n}), index, sums);
  return sums.view({batch, length, n});
}

// `merged` dims of x from `axis` on become these two.
Form windowed(Form x, int axis, int merged, std::int64_t windows, std::int64_t length) {
  const auto at = x.shape.erase(x.shape.begin() + axis, x.shape.begin() + axis + merged);
  x.shape.insert(at, {windows, length});
  if (merged == 1)
    x.placements =
        renumbered(x.placements, numbers_with(static_cast<int>(x.shape.size()) - 1, axis + 1));
  return x;
}

struct SlidingWindows {
  static constexpr const char* name = "sliding_windows";
  Form x;
  int axis;
  std::vector<std::int64_t> starts;
  std::int64_t h;

  Contract contract(const Tensors&) const {
    return {.inputs = {{"x",
                        any_shape(),
                        {PlacementRule::Kind::whole, {}, {axis}, "any S/R, axis whole"}}},
            .outputs = {{"y",
                         {sym("shape of x with n, h at axis")},
                         {.text = "S(d > axis) become S(d+1)"}}},
            .messages = {},
            .saved = {}};
  }
  // x as rows [batch, length, n].
  Shape rows() const {
    const Shape local = x.local();
    return {product(local, 0, axis), local[static_cast<std::size_t>(axis)],
            product(local, axis + 1, static_cast<int>(local.size()))};
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    const Tensor windows = windows_of(in[0].local().contiguous().view(rows()), starts, h);
    return {windowed(x, axis, 1, static_cast<std::int64_t>(starts.size()), h).with(windows)};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const {
    const Shape to = rows();
    const Tensor sums = sums_of(g[0].local(), to[0], to[1], to[2], starts, h);
    return {x.with(sums.to(g[0].dtype()))};
  }
};

// The windows of a cut axis. A half-window is `unit` positions of the dim `axis`; the dims from
// `axis` on that are windows and positions of x are `merged` (1 or 2).
struct KeyWindows {
  const char* operation;
  Form x;
  bool needs_grad;
  int axis;
  int merged;
  std::int64_t unit;
  std::int64_t h;  // half-windows

  int mesh_axis() const { return sharding_axis(x.placements, axis); }
  std::int64_t windows() const { return product(x.shape, axis, axis + merged) / (2 * unit); }
  IntervalPlan plan() const {
    return plan_intervals(x.mesh, mesh_axis(), 2 * windows(),
                          window_needs(windows(), h, x.mesh.size(mesh_axis()), operation));
  }
  // x as half-windows [batch, own, n].
  Shape rows() const {
    const Shape local = x.local();
    return {product(local, 0, axis), product(local, axis, axis + merged) / unit,
            unit * product(local, axis + merged, static_cast<int>(local.size()))};
  }
  // Where the own windows begin in the needed rows.
  std::vector<std::int64_t> starts(const IntervalPlan& plan) const {
    std::vector<std::int64_t> all;
    for (std::int64_t q = plan.own.begin / 2; q < plan.own.end / 2; ++q)
      all.push_back(window_start(q, h) - plan.need.begin);
    return all;
  }

  std::vector<ContractMessage> messages() const {
    if (mesh_axis() < 0) return {};  // will be refused
    const IntervalPlan halo = plan();
    const Formula row = sym("n(x)") / number("own half-windows", halo.own.size());
    std::vector<ContractMessage> all{
        interval_gather_message(Pass::forward, x.mesh, halo, row * sym("e(x)"), "half-windows")};
    if (needs_grad)
      all.push_back(interval_scatter_add_message(Pass::backward, x.mesh, halo, row * sym("acc"),
                                                 "gradients"));
    return all;
  }
  Contract contract(const Tensors&) const {
    return {.inputs = {{"x",
                        any_shape(),
                        {PlacementRule::Kind::sharded, {}, {axis}, "any S/R, axis sharded"}}},
            .outputs = {{"y",
                         {sym("shape of x, key windows at axis")},
                         {.text = "S(axis) stays, later shards as the dims move"}}},
            .messages = messages(),
            .saved = {}};
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const IntervalPlan halo = plan();
    const Tensor own = in[0].local().contiguous().view(rows());
    const Tensor needed = interval_gather(ctx.mesh(), halo, own, "half-windows");
    return {
        windowed(x, axis, merged, windows(), h * unit).with(windows_of(needed, starts(halo), h))};
  }
  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    const IntervalPlan halo = plan();
    const Shape own = rows();
    const Tensor terms = sums_of(g[0].local(), own[0], halo.need.size(), own[2], starts(halo), h);
    return {x.with(interval_scatter_add(ctx.mesh(), halo, terms, "gradients").to(g[0].dtype()))};
  }
};

struct SlidingWindowsSharded : KeyWindows {
  static constexpr const char* name = "sliding_windows_sharded";
};
struct ToWindowKeys : KeyWindows {
  static constexpr const char* name = "to_window_keys";
};
struct QueryWindowsToKeys : KeyWindows {
  static constexpr const char* name = "query_windows_to_keys";
};

void expect_range(bool fits, const char* operation, const char* what, std::int64_t found,
                  std::string expected) {
  if (fits) return;
  throw RangeError({.problem = fmt::format("{} does not fit", what),
                    .operation = operation,
                    .found = fmt::format("{} = {}", what, found),
                    .expected = std::move(expected)});
}

void check_window(const char* operation, std::int64_t w, std::int64_t h) {
  expect_range(w >= 2 && w % 2 == 0, operation, "W", w, "an even number of positions");
  expect_range(h >= w && h % w == 0, operation, "H", h, fmt::format("a multiple of W = {}", w));
}

void expect_dims(const DTensor& x, const char* operation, int at_least) {
  if (x.ndim() >= at_least) return;
  throw ShapeError({.problem = "too few dims",
                    .operation = operation,
                    .tensor = "x",
                    .found = x.describe(),
                    .expected = fmt::format("at least {}", at_least)});
}

void expect_multiple(const DTensor& x, const char* operation, int dim, std::int64_t of,
                     const char* hint) {
  if (x.size(dim) % of == 0) return;
  throw ShapeError({.problem = fmt::format("dim {} is cut into windows", dim),
                    .operation = operation,
                    .tensor = "x",
                    .found = x.describe(),
                    .expected = fmt::format("a multiple of {}", of),
                    .hint = hint});
}

void refuse_sharded(const DTensor& x, const char* operation, int dim) {
  if (!is_sharded(x, dim)) return;
  throw UnsupportedError({.problem = fmt::format("dim {}, within a window, is sharded", dim),
                          .operation = operation,
                          .tensor = "x",
                          .found = x.describe(),
                          .expected = fmt::format("dim {} whole", dim),
                          .hint = "redistribute() it first"});
}

template <class F>
Var key_windows(const Var& x, int axis, int merged, std::int64_t unit, std::int64_t h) {
  return apply_many(F{{F::name, Form(x.value()), x.requires_grad(), axis, merged, unit, h}}, {x})
      .front();
}

}  // namespace

Var sliding_windows(const Var& x, std::vector<std::int64_t> starts, std::int64_t h, int axis) {
  const int d = normalize_dim(axis, x.value().ndim(), "sliding_windows");
  expect_range(!starts.empty(), "sliding_windows", "the number of windows", 0, "at least one");
  expect_range(h >= 1, "sliding_windows", "h", h, "at least 1");
  return apply_many(SlidingWindows{Form(x.value()), d, std::move(starts), h}, {x}).front();
}

Var sliding_windows_sharded(const Var& x, std::int64_t h, int axis) {
  constexpr const char* kName = "sliding_windows_sharded";
  const int d = normalize_dim(axis, x.value().ndim(), kName);
  expect_dims(x.value(), kName, d + 2);
  expect_range(h >= 2 && h % 2 == 0, kName, "h", h, "an even number of half-windows");
  expect_multiple(x.value(), kName, d, 2, "pad to whole windows");
  refuse_sharded(x.value(), kName, d + 1);
  return key_windows<SlidingWindowsSharded>(x, d, 1, 1, h);
}

Var to_window_keys(const Var& x, std::int64_t w, std::int64_t h) {
  check_window("to_window_keys", w, h);
  expect_dims(x.value(), "to_window_keys", 2);
  expect_multiple(x.value(), "to_window_keys", 1, w, "pack() pads to whole windows");
  return key_windows<ToWindowKeys>(x, 1, 1, w / 2, 2 * h / w);
}

Var query_windows_to_keys(const Var& x, std::int64_t h) {
  constexpr const char* kName = "query_windows_to_keys";
  expect_dims(x.value(), kName, 3);
  const std::int64_t w = x.value().size(2);
  check_window(kName, w, h);
  refuse_sharded(x.value(), kName, 2);
  return key_windows<QueryWindowsToKeys>(x, 1, 2, w / 2, 2 * h / w);
}

}  // namespace tessera
