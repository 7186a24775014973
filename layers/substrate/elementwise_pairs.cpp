// SPDX-License-Identifier: MIT
// Elementwise operations of several tensors.
#include <algorithm>

#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/elementwise.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

// --- two operands of one shape -----------------------------------------------------------------

// Which operands require a gradient: what is saved follows from it.
struct Needs {
  bool a = false, b = false;
};

DType common_dtype(const Tensors& in) {
  return promote(in[0].dtype(), in[1].dtype());
}

Contract pair_contract(std::vector<ContractSaved> saved) {
  return {.inputs = {{"a", any_shape(), {PlacementRule::Kind::any}},
                     {"b", same_shape("a"), {PlacementRule::Kind::like_first}}},
          .outputs = {{"y", same_shape("a"), {PlacementRule::Kind::like_first}}},
          .messages = {},
          .saved = std::move(saved)};
}

DTensor pair_result(Binary op, const Tensors& in, DType dtype) {
  DTensor y = empty_like(in[0], dtype);
  binary(op, in[0].local(), in[1].local(), y.local());
  return y;
}

// g op other, placed as g.
DTensor gradient_of(Binary op, const DTensor& g, const Tensor& other) {
  DTensor d = empty_like(g, g.dtype());
  binary(op, g.local(), other, d.local());
  return d;
}

struct Add {
  static constexpr const char* name = "add";
  Contract contract(const Tensors&) const { return pair_contract({}); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {pair_result(Binary::add, in, common_dtype(in))};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const { return {g[0], g[0]}; }
};

struct Subtract {
  static constexpr const char* name = "subtract";
  Contract contract(const Tensors&) const { return pair_contract({}); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {pair_result(Binary::subtract, in, common_dtype(in))};
  }
  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    return {g[0], ctx.needs_grad(1) ? negated(g[0]) : DTensor()};
  }
};

struct Multiply {
  static constexpr const char* name = "multiply";
  Needs needs;

  Contract contract(const Tensors&) const {
    std::vector<ContractSaved> saved;
    if (needs.b) saved.push_back(saved_block("a"));
    if (needs.a) saved.push_back(saved_block("b"));
    return pair_contract(saved);
  }
  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    if (needs.b) ctx.save("a", in[0]);
    if (needs.a) ctx.save("b", in[1]);
    return {pair_result(Binary::multiply, in, common_dtype(in))};
  }
  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    Tensors d(2);
    if (needs.a) d[0] = gradient_of(Binary::multiply, g[0], ctx.saved("b"));
    if (needs.b) d[1] = gradient_of(Binary::multiply, g[0], ctx.saved("a"));
    return d;
  }
};

struct Divide {
  static constexpr const char* name = "divide";
  Needs needs;

  static DType result(const Tensors& in) {
    const DType dtype = common_dtype(in);
    return is_floating(dtype) ? dtype : DType::f32;
  }
  Contract contract(const Tensors& in) const {
    std::vector<ContractSaved> saved;
    if (needs.a) saved.push_back(saved_block("b"));
    if (needs.b) {
      const auto bytes = static_cast<std::int64_t>(size_of(result(in)));
      saved.push_back(saved_block("a/b^2", "a", bytes));
    }
    return pair_contract(saved);
  }
  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor y = pair_result(Binary::divide, in, result(in));
    if (needs.a) ctx.save("b", in[1]);
    if (needs.b) ctx.save("a/b^2", pair_result(Binary::divide, {y, in[1]}, y.dtype()));
    return {y};
  }
  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    Tensors d(2);
    if (needs.a) d[0] = gradient_of(Binary::divide, g[0], ctx.saved("b"));
    if (needs.b) d[1] = negated(gradient_of(Binary::multiply, g[0], ctx.saved("a/b^2")));
    return d;
  }
};

struct Equal {
  static constexpr const char* name = "equal";
  Contract contract(const Tensors&) const { return pair_contract({}); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {pair_result(Binary::equal, in, DType::boolean)};
  }
};

struct BitAnd {
  static constexpr const char* name = "bit_and";
  Contract contract(const Tensors&) const { return pair_contract({}); }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {pair_result(Binary::bit_and, in, common_dtype(in))};
  }
};

Needs needs_of(const Var& a, const Var& b) {
  return {a.requires_grad(), b.requires_grad()};
}

// --- where -------------------------------------------------------------------------------------

struct Where {
  static constexpr const char* name = "where";
  bool needs_grad;

  Contract contract(const Tensors&) const {
    Contract c{.inputs = {{"cond", any_shape(), {PlacementRule::Kind::any}},
                          {"x", same_shape("cond"), {PlacementRule::Kind::like_first}},
                          {"y", same_shape("cond"), {PlacementRule::Kind::like_first}}},
               .outputs = {{"z", same_shape("cond"), {PlacementRule::Kind::like_first}}},
               .messages = {},
               .saved = {}};
    if (needs_grad) c.saved = {saved_block("cond", "cond", 1)};
    return c;
  }
  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& cond = in[0];
    const DType dtype = promote(in[1].dtype(), in[2].dtype());
    const DTensor z = empty(cond.shape(), dtype, cond.mesh(), cond.placements());
    const Tensor chosen = cond.local().to(DType::boolean);
    select(chosen, in[1].local(), in[2].local(), z.local());
    if (needs_grad) ctx.save_block("cond", chosen, cond);
    return {z};
  }
  Tensors backward(FunctionContext& ctx, const Tensors& g) const {
    const Tensor& cond = ctx.saved("cond");
    Tensors d(3);
    if (ctx.needs_grad(1)) d[1] = where_set(cond, g[0]);
    if (ctx.needs_grad(2)) d[2] = where_not_set(cond, g[0]);
    return d;
  }
};

// --- replicate_op ------------------------------------------------------------------------------

Binary local_op(Arithmetic op) {
  switch (op) {
    case Arithmetic::add:
      return Binary::add;
    case Arithmetic::subtract:
      return Binary::subtract;
    case Arithmetic::multiply:
      return Binary::multiply;
    default:
      return Binary::divide;
  }
}

struct ReplicateOp {
  static constexpr const char* name = "replicate_op";
  int dim;
  Arithmetic op;
  Needs needs;  // a: lhs, b: rhs

  bool is_linear() const { return op == Arithmetic::add || op == Arithmetic::subtract; }
  bool keeps_lhs() const { return needs.b && !is_linear(); }
  bool keeps_rhs() const {
    return (needs.a && !is_linear()) || (needs.b && op == Arithmetic::divide);
  }

  static DType result(const Tensors& in) {
    const DType dtype = common_dtype(in);
    return is_floating(dtype) ? dtype : DType::f32;
  }
  // Placements of rhs.
  Placements without_dim(const DTensor& lhs) const {
    Placements placements = lhs.placements();
    for (Placement& p : placements)
      if (is_shard(p, dim)) p = Replicate{};
    return renumbered(placements, numbers_without(lhs.ndim(), {dim}));
  }

  Contract contract(const Tensors& in) const {
    const DTensor& lhs = in[0];
    const int axis = sharding_axis(lhs, dim);
    Contract c;
    c.inputs = {{"lhs", any_shape(), {PlacementRule::Kind::sharded, {}, {dim}, "dim sharded"}},
                {"rhs",
                 any_shape(),
                 {PlacementRule::Kind::exactly,
                  without_dim(lhs),
                  {},
                  "that of lhs, R for dim, later shards moved down"}}};
    c.outputs = {{"y", same_shape("lhs"), {PlacementRule::Kind::like_first}}};
    if (needs.b && axis >= 0)
      c.messages = {all_reduce_message(Pass::backward, lhs.mesh(), {axis}, sym("n(rhs)"),
                                       result(in), kReduction)};
    if (keeps_lhs()) c.saved.push_back(saved_block("lhs"));
    if (keeps_rhs()) c.saved.push_back(saved_block("rhs"));
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& lhs = in[0];
    const DTensor y = empty_like(lhs, result(in));
    binary(local_op(op), lhs.local(), along_dim(in[1].local(), lhs.local()), y.local());
    if (keeps_lhs()) ctx.save("lhs", lhs);
    if (keeps_rhs()) ctx.save("rhs", in[1]);
    return {y};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const DTensor& g = gradients[0];
    Tensors d(2);
    if (needs.a)
      d[0] = is_linear() ? g : gradient_of(local_op(op), g, along_dim(ctx.saved("rhs"), g.local()));
    if (needs.b) d[1] = reduced(summand(ctx, g.local()), g);
    return d;
  }

 private:
  static constexpr const char* kReduction = "gradient of rhs";

  // rhs for every index of dim.
  Tensor along_dim(const Tensor& rhs, const Tensor& lhs) const {
    return rhs.unsqueeze(dim).expand(lhs.shape());
  }

  // What the gradient of rhs is the sum of, along dim.
  Tensor summand(FunctionContext& ctx, const Tensor& g) const {
    if (op == Arithmetic::add) return g;
    const PurposeScope purpose(Purpose::workspace);
    const Tensor t = Tensor::empty(g.shape(), at_least_f32(g.dtype()), g.device());
    if (op == Arithmetic::subtract) unary(Unary::negate, g, t);
    if (is_linear()) return t;
    binary(Binary::multiply, g, ctx.saved("lhs"), t);
    if (op == Arithmetic::multiply) return t;
    const Tensor rhs = along_dim(ctx.saved("rhs"), g);
    binary(Binary::divide, t, rhs, t);
    binary(Binary::divide, t, rhs, t);
    scale(-1, t);
    return t;
  }

  // Every rank of the axis saw only its part of dim.
  DTensor reduced(const Tensor& summands, const DTensor& g) const {
    Shape local = summands.shape();
    local[static_cast<std::size_t>(dim)] = 1;
    const Tensor sum = Tensor::empty(local, at_least_f32(g.dtype()), summands.device());
    fold(Fold::sum, summands, {dim}, sum);
    const int axis = sharding_axis(g, dim);
    all_reduce(g.mesh(), axis, ReduceOp::sum, sum, kReduction);
    Shape shape = g.shape();
    shape[static_cast<std::size_t>(dim)] = 1;
    Placements placements = g.placements();
    placements[static_cast<std::size_t>(axis)] = Replicate{};
    const DTensor kept = empty_carried(g, shape, placements, g.dtype());
    copy(sum, kept.local());
    return squeezed(kept, dim);
  }
};

}  // namespace

Var add(const Var& a, const Var& b) {
  return apply_many(Add{}, {a, b}).front();
}
Var subtract(const Var& a, const Var& b) {
  return apply_many(Subtract{}, {a, b}).front();
}
Var multiply(const Var& a, const Var& b) {
  return apply_many(Multiply{needs_of(a, b)}, {a, b}).front();
}
Var divide(const Var& a, const Var& b) {
  return apply_many(Divide{needs_of(a, b)}, {a, b}).front();
}

Var equal(const Var& a, const Var& b) {
  refuse_gradient(a, "equal", "a");
  refuse_gradient(b, "equal", "b");
  return apply_many(Equal{}, {a, b}).front();
}

Var bit_and(const Var& a, const Var& b) {
  for (const auto& [x, tensor] : {std::pair(&a, "a"), std::pair(&b, "b")}) {
    refuse_gradient(*x, "bit_and", tensor);
    if (is_floating(x->value().dtype()))
      throw TypeError({.problem = "floating numbers have no bits to combine",
                       .operation = "bit_and",
                       .tensor = tensor,
                       .found = x->value().describe(),
                       .expected = "integers or booleans"});
  }
  return apply_many(BitAnd{}, {a, b}).front();
}

Var where(const Var& cond, const Var& x, const Var& y) {
  refuse_gradient(cond, "where", "cond");
  return apply_many(Where{x.requires_grad() || y.requires_grad()}, {cond, x, y}).front();
}

Var replicate_op(const Var& lhs, const Var& rhs, int dim, Arithmetic op) {
  const int d = normalize_dim(dim, lhs.value().ndim(), ReplicateOp::name);
  Shape expected = lhs.value().shape();
  expected.erase(expected.begin() + d);
  expect(rhs.value(), ReplicateOp::name, "rhs", {.shape = expected, .allow_partial = true});
  return apply_many(ReplicateOp{d, op, needs_of(lhs, rhs)}, {lhs, rhs}).front();
}

}  // namespace tessera
