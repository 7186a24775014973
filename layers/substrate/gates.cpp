// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/gates.hpp"

#include <fmt/format.h>

#include "tessera/layers/substrate/common.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

// --- swiglu ------------------------------------------------------------------------------------

// Rows of u and w beside each other.
struct Halves {
  Tensor u, w;
  explicit Halves(const Tensor& rows)
      : u(rows.narrow(1, 0, rows.size(1) / 2)),
        w(rows.narrow(1, rows.size(1) / 2, rows.size(1) / 2)) {}
};

struct SwiGlu {
  static constexpr const char* name = "swiglu";

  Contract contract(const Tensors&) const {
    return {.inputs = {{"x", {sym("..."), sym("C")}, {PlacementRule::Kind::whole_last}}},
            .outputs = {{"y", {sym("..."), sym("C") / 2}, {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {saved_block("x")}};
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& x = in[0];
    const Halves halves(rows_of(x.local()));
    const Tensor y = with_last(x.local(), x.size(-1) / 2, x.dtype());
    silu_product(halves.w, halves.u, rows_of(y));
    ctx.save("x", x);
    Shape shape = x.shape();
    shape.back() /= 2;
    return {carried(x, shape, y)};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const DTensor& g = gradients[0];
    const Halves halves(rows_of(ctx.saved("x")));
    const Tensor dx = with_last(g.local(), 2 * g.size(-1), g.dtype());
    const Halves d(rows_of(dx));
    const Tensor rows = rows_of(g.local());
    const PurposeScope purpose(Purpose::workspace);
    const Tensor again = Tensor::empty(rows.shape(), g.dtype(), rows.device());
    silu_product_backward(halves.w, halves.u, rows, d.w, d.u, again);
    Shape shape = g.shape();
    shape.back() *= 2;
    return {carried(g, shape, dx)};
  }

 private:
  // A row-major block like t with another size of the last dim.
  static Tensor with_last(const Tensor& t, std::int64_t size, DType dtype) {
    Shape shape = t.shape();
    shape.back() = size;
    return Tensor::empty(shape, dtype, t.device());
  }
};

// --- dropout -----------------------------------------------------------------------------------

Placements mask_placements(DropoutMask mask) {
  if (mask == DropoutMask::rows) return {Shard{0}, Shard{1}, Replicate{}};
  return {Shard{0}, Replicate{}, Shard{2}};
}

struct DropoutFunction {
  static constexpr const char* name = "dropout";
  double p;
  DropoutMask mask;

  Contract contract(const Tensors&) const {
    const bool rows = mask == DropoutMask::rows;
    const std::vector<Formula> shape{sym("B"), sym("N"), sym("M"), sym("C")};
    const std::vector<Formula> one{sym("B"), rows ? sym("N") : 1, rows ? 1 : sym("M"), 1};
    return {.inputs = {{"x", shape, {PlacementRule::Kind::exactly, pair_placements()}},
                       {"samples", one, {PlacementRule::Kind::exactly, mask_placements(mask)}}},
            .outputs = {{"y", shape, {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {saved_block("mask", "samples", 1)}};
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor keep = empty_like(in[1], DType::boolean);
    binary(Binary::less_equal, p, in[1].local(), keep.local());
    ctx.save("mask", keep);
    return {scaled(in[0], keep.local())};
  }
  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    return {scaled(g[0], ctx.saved("mask")), DTensor()};
  }

 private:
  DTensor scaled(const DTensor& x, const Tensor& keep) const {
    DTensor y = empty_like(x, x.dtype());
    const PurposeScope purpose(Purpose::workspace);
    const Tensor factor = Tensor::empty(keep.shape(), at_least_f32(x.dtype()), keep.device());
    binary(Binary::multiply, 1 / (1 - p), keep.to(factor.dtype()), factor);
    binary(Binary::multiply, x.local(), factor.expand(x.local().shape()), y.local());
    return y;
  }
};

void check_chance(double p) {
  if (p >= 0 && p < 1) return;
  throw RangeError({.problem = "not a chance of being dropped",
                    .operation = "dropout",
                    .found = fmt::format("p = {}", p),
                    .expected = "0 <= p < 1"});
}

}  // namespace

Var swiglu(const Var& x) {
  require_floating(x, SwiGlu::name, "x");
  if (x.value().ndim() == 0 || x.value().size(-1) % 2 != 0)
    throw ShapeError({.problem = "the last dim must have two halves",
                      .operation = SwiGlu::name,
                      .tensor = "x",
                      .found = x.value().describe(),
                      .expected = "an even size"});
  return apply_many(SwiGlu{}, {x}).front();
}

Var dropout(const Var& x, const Dropout& options) {
  check_chance(options.p);
  if (!options.training) return x;
  expect(x.value(), DropoutFunction::name, "x", {.ndim = 4, .allow_partial = true});
  Shape shape = x.value().shape();
  shape[options.mask == DropoutMask::rows ? 2 : 1] = 1;
  shape[3] = 1;
  // In f64 whatever x is: the chance is not rounded.
  const DTensor samples = uniform(shape, DType::f64, x.value().mesh(),
                                  mask_placements(options.mask), options.stream, 0, 1);
  return dropout(x, options, Var::constant(samples));
}

Var dropout(const Var& x, const Dropout& options, const Var& samples) {
  check_chance(options.p);
  if (!options.training) return x;
  require_floating(x, DropoutFunction::name, "x");
  refuse_gradient(samples, DropoutFunction::name, "samples");
  return apply_many(DropoutFunction{options.p, options.mask}, {x, samples}).front();
}

}  // namespace tessera
