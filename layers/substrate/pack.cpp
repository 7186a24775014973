// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/pack.hpp"

#include <fmt/format.h>

#include "tessera/layers/schedule/interval.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

std::int64_t lines_of(const Form& form, int axis) {
  return product(form.local(), 0, axis);
}

// --- plans ---------------------------------------------------------------------------------------

// Tensors without values have no masks: all is taken to be valid there.
std::vector<std::uint8_t> values_of(const Tensor& mask) {
  if (!has_values(mask))
    return std::vector<std::uint8_t>(static_cast<std::size_t>(mask.numel()), 1);
  const Tensor host = mask.contiguous().to(cpu_device);
  const auto* data = static_cast<const std::uint8_t*>(host.data());
  return {data, data + host.numel()};
}

// The own part of the plan and, by an all-gather, the counts of the others.
PackPlan counted(const DTensor& mask, int axis) {
  const Form form(mask);
  const int mesh_axis = sharding_axis(form.placements, axis);
  PackPlan plan = plan_of_mask(values_of(mask.local()), lines_of(form, axis));
  plan.parts = mask.mesh().size(mesh_axis);
  plan.me = mask.mesh().coordinate(mesh_axis);
  const auto counts = gather_integers(mask.mesh(), mesh_axis, plan.counts, "valid elements");
  const std::vector<std::int64_t> same = std::move(plan.counts);
  plan.counts.clear();
  for (std::size_t part = 0; part < static_cast<std::size_t>(plan.parts); ++part) {
    const std::vector<std::int64_t>& lines = counts.empty() ? same : counts[part];
    plan.counts.insert(plan.counts.end(), lines.begin(), lines.end());
  }
  return plan;
}

// The mesh axes over which lines are cut apart.
std::vector<int> axes_of_lines(const Form& mask, int axis) {
  std::vector<int> axes;
  for (std::size_t m = 0; m < mask.placements.size(); ++m)
    if (is_shard(mask.placements[m]) && !is_shard(mask.placements[m], axis))
      axes.push_back(static_cast<int>(m));
  return axes;
}

// The longest packed line of the whole tensor.
std::int64_t longest_line(const PackPlan& plan, const DTensor& mask, int axis) {
  std::int64_t longest = 0;
  for (std::int64_t line = 0; line < plan.lines; ++line)
    longest = std::max(longest, plan.total(line));
  const PurposeScope purpose(Purpose::communication);
  // Exact up to 2^53.
  const Tensor most =
      Tensor::full({1}, static_cast<double>(longest), DType::f64, mask.mesh().device());
  all_reduce(mask.mesh(), axes_of_lines(Form(mask), axis), ReduceOp::max, most, "longest line");
  return has_values(most) ? static_cast<std::int64_t>(most.item({0})) : longest;
}

// The mask of the packed axis.
Tensor packed_mask(const PackPlan& plan, Device device) {
  const Tensor host = staging({plan.lines * plan.packed}, DType::boolean, device);
  auto* data = static_cast<std::uint8_t*>(host.data());
  for (std::int64_t line = 0; line < plan.lines; ++line)
    for (std::int64_t at = 0; at < plan.packed; ++at)
      *data++ = plan.me * plan.packed + at < plan.total(line);
  return host.to(device);
}

ContractMessage counting(const DTensor& mask, int axis) {
  const Form form(mask);
  const int mesh_axis = sharding_axis(form.placements, axis);
  return all_gather_message(Pass::forward, form.mesh, mesh_axis,
                            number("lines", lines_of(form, axis)), DType::i64, "valid elements");
}

PlacementRule cut_along(int axis) {
  return {PlacementRule::Kind::sharded, {}, {axis}, "any S/R, axis sharded"};
}

// Fills the packing that it is given.
struct PlanPack {
  static constexpr const char* name = "plan_pack";
  std::int64_t w;
  bool keep_length;
  std::shared_ptr<Packing> packing;

  Contract contract(const Tensors& in) const {
    Contract c{.inputs = {{"mask", any_shape(), cut_along(packing->axis)}},
               .outputs = {{"packed mask",
                            {sym("shape of mask, axis in whole windows")},
                            {PlacementRule::Kind::like_first}}},
               .messages = {},
               .saved = {}};
    if (!is_sharded(in[0], packing->axis)) return c;  // will be refused
    c.messages.push_back(counting(in[0], packing->axis));
    const std::vector<int> axes = axes_of_lines(Form(in[0]), packing->axis);
    if (!keep_length && !axes.empty())
      c.messages.push_back(
          all_reduce_message(Pass::forward, in[0].mesh(), axes, 1, DType::f64, "longest line"));
    return c;
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    const DTensor& mask = in[0];
    PackPlan plan = counted(mask, packing->axis);
    const std::int64_t longest =
        keep_length ? mask.size(packing->axis) : longest_line(plan, mask, packing->axis);
    const std::int64_t length = packed_length(longest, w, plan.parts);
    plan.packed = length / plan.parts;
    packing->packed.shape[static_cast<std::size_t>(packing->axis)] = length;
    packing->plan = std::move(plan);
    return {packing->packed.with(packed_mask(packing->plan, mask.local().device()))};
  }
};

// The same from a packed mask, which must be the right one.
struct PlanUnpack {
  static constexpr const char* name = "plan_unpack";
  std::shared_ptr<Packing> packing;

  Contract contract(const Tensors& in) const {
    Contract c{
        .inputs = {{"mask_original", any_shape(), cut_along(packing->axis)},
                   {"mask_packed", any_shape(), {PlacementRule::Kind::like_first}}},
        .outputs = {{"mask_packed", same_shape("mask_packed"), {PlacementRule::Kind::like_first}}},
        .messages = {},
        .saved = {}};
    if (is_sharded(in[0], packing->axis)) c.messages = {counting(in[0], packing->axis)};
    return c;
  }
  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    PackPlan plan = counted(in[0], packing->axis);
    plan.packed = in[1].size(packing->axis) / plan.parts;
    if (has_values(in[1].local())) collective_try(ctx.mesh(), [&] { check(plan, in[1]); });
    packing->plan = std::move(plan);
    return {in[1]};
  }
  static void check(const PackPlan& plan, const DTensor& mask) {
    bool fits = values_of(mask.local()) == values_of(packed_mask(plan, cpu_device));
    for (std::int64_t line = 0; line < plan.lines; ++line)
      fits = fits && plan.total(line) <= plan.packed * plan.parts;
    if (!fits)
      throw ShapeError({.problem = "the packed mask is not what becomes of the original one",
                        .operation = name,
                        .tensor = "mask_packed",
                        .found = mask.describe(),
                        .expected = "the mask that pack() returned",
                        .hint = "give both masks as pack() took and returned them"});
  }
};

// --- moves ---------------------------------------------------------------------------------------

// For each line of x, the line of the mask that it follows. Shapes of the own blocks.
std::vector<std::int64_t> followed_lines(const Shape& x, const Shape& mask, int axis) {
  std::vector<std::int64_t> lines{0};
  for (std::size_t d = 0; d < static_cast<std::size_t>(axis); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t line : lines)
      for (std::int64_t i = 0; i < x[d]; ++i) next.push_back(line * mask[d] + i / (x[d] / mask[d]));
    lines = std::move(next);
  }
  return lines;
}

Tensor empty_rows(std::int64_t n, const Tensor& like) {
  return Tensor::empty({n, like.size(1)}, like.dtype(), like.device());
}

// Rows in the order of `from.counts`, by peer, to those in the order of `to.counts`.
Tensor exchanged(const DeviceMesh& mesh, int axis, const Tensor& leaving, const PackEnd& from,
                 const PackEnd& to, const char* label) {
  if (mesh.size(axis) == 1) return leaving;
  const Tensor arrived = empty_rows(std::ssize(to.rows), leaving);
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  std::int64_t sent = 0, received = 0;
  const std::vector<int> ranks = mesh.group(std::span<const int>(&axis, 1));
  for (std::size_t part = 0; part < ranks.size(); ++part) {
    if (from.counts[part] > 0)
      sends.push_back({ranks[part], leaving.narrow(0, sent, from.counts[part])});
    if (to.counts[part] > 0)
      receives.push_back({ranks[part], arrived.narrow(0, received, to.counts[part])});
    sent += from.counts[part];
    received += to.counts[part];
  }
  exchange(mesh, {"pack", mesh.axis_name(axis), label}, sends, receives).wait();
  return arrived;
}

// rows[from.rows] of all ranks to rows `to.rows` of a block of `length` rows, zero elsewhere.
Tensor move_rows(const DeviceMesh& mesh, int axis, const Tensor& rows, const PackEnd& from,
                 const PackEnd& to, std::int64_t length, const char* label) {
  const Tensor out = empty_rows(length, rows);
  const PurposeScope purpose(Purpose::communication);
  const Tensor leaving = empty_rows(std::ssize(from.rows), rows);
  gather_rows(rows, index_tensor(from.rows, rows.device()), leaving);
  const Tensor arrived = exchanged(mesh, axis, leaving, from, to, label);
  std::vector<std::int64_t> source(static_cast<std::size_t>(length), -1);
  for (std::int64_t k = 0; k < std::ssize(to.rows); ++k)
    source[static_cast<std::size_t>(to.rows[static_cast<std::size_t>(k)])] = k;
  gather_rows(arrived, index_tensor(source, rows.device()), out);
  return out;
}

struct Move {
  SharedPacking packing;
  bool packs;  // else it unpacks
  Form x;      // the operand
  bool needs_grad;

  int axis() const { return packing->axis; }
  int mesh_axis() const { return sharding_axis(packing->original.placements, axis()); }
  Form result() const {
    Form y = x;
    const auto at = static_cast<std::size_t>(axis());
    y.shape[at] = (packs ? packing->packed : packing->original).shape[at];
    return y;
  }
  std::int64_t features() const {
    const Shape local = x.local();
    return product(local, axis() + 1, static_cast<int>(local.size()));
  }
  PackEnd end(bool packed) const {
    const auto lines = followed_lines(x.local(), packing->original.local(), axis());
    return packed ? packed_end(packing->plan, lines) : original_end(packing->plan, lines);
  }

  ContractMessage message(Pass pass, const char* label) const {
    const int me = packing->plan.me;
    const PackEnd from = end(packs == (pass == Pass::backward));
    return {pass,
            "pack",
            x.mesh.axis_name(mesh_axis()),
            label,
            1,
            number("peers", from.peers(me)),
            number("elements that change ranks", from.to_others(me) * features()) * sym("e(x)")};
  }
  Contract contract(const Tensors&) const {
    Contract c{.inputs = {{"x", any_shape(), cut_along(axis())}},
               .outputs = {{"y",
                            {sym("shape of x, axis packed or not")},
                            {PlacementRule::Kind::like_first}}},
               .messages = {message(Pass::forward, "rows")},
               .saved = {}};
    if (needs_grad) c.messages.push_back(message(Pass::backward, "gradients"));
    return c;
  }
  // Of a tensor placed as `from`, towards or away from the packed axis.
  DTensor moved(const DTensor& t, bool pack, const Form& to, const char* label) const {
    const std::int64_t n = features();
    const Tensor rows = t.local().contiguous().view({t.local().numel() / n, n});
    const Tensor out =
        move_rows(x.mesh, mesh_axis(), rows, end(!pack), end(pack), numel(to.local()) / n, label);
    return to.with(out);
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {moved(in[0], packs, result(), "rows")};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const {
    return {moved(g[0], !packs, x, "gradients")};
  }
};

struct Pack : Move {
  static constexpr const char* name = "pack";
};
struct Unpack : Move {
  static constexpr const char* name = "unpack";
};

// --- checks --------------------------------------------------------------------------------------

void check_mask(const DTensor& mask, const char* operation, const char* tensor, int axis) {
  const auto facts = [&](const char* problem, const char* expected, const char* hint) {
    return ErrorFacts{.problem = problem,
                      .operation = operation,
                      .tensor = tensor,
                      .found = mask.describe(),
                      .expected = expected,
                      .hint = hint};
  };
  if (mask.dtype() != DType::boolean)
    throw TypeError(facts("a mask is bool", "bool", "compare with 0 first"));
  for (int d = axis + 1; d < mask.ndim(); ++d)
    if (mask.size(d) != 1)
      throw ShapeError(facts("a mask has one value per position of the axis",
                             "size 1 in the dims after the axis", "pack each feature by itself"));
}

// Whether x goes with a mask of this form; both before or both after packing.
void check_follows(const DTensor& x, const Form& mask, const char* operation, int axis) {
  const auto facts = [&](const char* problem, std::string hint) {
    return ErrorFacts{.problem = problem,
                      .operation = operation,
                      .tensor = "x",
                      .found = x.describe(),
                      .expected = fmt::format("the dims up to {} of a mask {} {}", axis,
                                              format_shape(mask.shape), format(mask.placements)),
                      .hint = std::move(hint)};
  };
  expect(x, operation, "x", {.mesh = mask.mesh, .allow_partial = true});
  bool fits = axis < std::ssize(mask.shape) && std::ssize(mask.shape) <= x.ndim() &&
              x.size(axis) == mask.shape[static_cast<std::size_t>(axis)];
  for (int d = 0; fits && d < axis; ++d)
    fits = x.size(d) % mask.shape[static_cast<std::size_t>(d)] == 0;
  if (!fits) throw ShapeError(facts("the mask does not broadcast to the tensor", {}));
  for (std::size_t m = 0; m < mask.placements.size(); ++m) {
    const Placement& p = x.placements()[m];
    if (is_partial(p)) continue;  // refused by the contract
    const int d = is_shard(p) ? std::get<Shard>(p).dim : -1;
    const bool broadcast =
        d > axis || (d >= 0 && d < axis && mask.shape[static_cast<std::size_t>(d)] == 1);
    const bool fits_here =
        (broadcast && is_replicate(mask.placements[m])) || (d <= axis && p == mask.placements[m]);
    if (!fits_here)
      throw PlacementError(facts("x is not placed as its mask", "redistribute() one of them"));
  }
}

template <class F>
Var move(const Var& x, const SharedPacking& packing, bool packs) {
  check_follows(x.value(), packs ? packing->original : packing->packed, F::name, packing->axis);
  return apply_many(F{{packing, packs, Form(x.value()), x.requires_grad()}}, {x}).front();
}

std::shared_ptr<Packing> packing_of(const DTensor& original, const DTensor& packed, int axis) {
  auto packing = std::make_shared<Packing>();
  packing->axis = axis;
  packing->original = Form(original);
  packing->packed = Form(packed);
  return packing;
}

}  // namespace

MaskPlan plan_pack(const Var& mask, std::int64_t w, int axis, bool keep_length) {
  const DTensor& m = mask.value();
  const int d = normalize_dim(axis, m.ndim(), "plan_pack");
  check_mask(m, "plan_pack", "mask", d);
  if (w < 2 || w % 2 != 0)
    throw RangeError({.problem = "windows have a positive, even length",
                      .operation = "plan_pack",
                      .found = fmt::format("W = {}", w)});
  const std::shared_ptr<Packing> packing = packing_of(m, m, d);
  const Var packed = apply_many(PlanPack{w, keep_length, packing}, {mask}).front();
  return {packing, packed};
}

SharedPacking plan_unpack(const Var& mask_packed, const Var& mask_original, int axis) {
  const DTensor& original = mask_original.value();
  const DTensor& packed = mask_packed.value();
  const int d = normalize_dim(axis, original.ndim(), "plan_unpack");
  check_mask(original, "plan_unpack", "mask_original", d);
  check_mask(packed, "plan_unpack", "mask_packed", d);
  Shape expected = original.shape();
  if (packed.ndim() == original.ndim()) expected[static_cast<std::size_t>(d)] = packed.size(d);
  expect(packed, "plan_unpack", "mask_packed", {.shape = expected, .allow_partial = true});
  const std::shared_ptr<Packing> packing = packing_of(original, packed, d);
  apply_many(PlanUnpack{packing}, {mask_original, mask_packed});
  return packing;
}

Var pack(const Var& x, const SharedPacking& packing) {
  return move<Pack>(x, packing, true);
}

Var unpack(const Var& x, const SharedPacking& packing) {
  return move<Unpack>(x, packing, false);
}

Packed pack(const Var& x, const Var& mask, std::int64_t w, int axis, bool keep_length) {
  const int d = normalize_dim(axis, x.value().ndim(), "pack");
  check_mask(mask.value(), "pack", "mask", d);
  check_follows(x.value(), Form(mask.value()), "pack", d);
  const MaskPlan plan = plan_pack(mask, w, d, keep_length);
  return {pack(x, plan.packing), plan.mask};
}

Var unpack(const Var& x, const Var& mask_packed, const Var& mask_original, int axis) {
  const int d = normalize_dim(axis, x.value().ndim(), "unpack");
  check_mask(mask_packed.value(), "unpack", "mask_packed", d);
  check_follows(x.value(), Form(mask_packed.value()), "unpack", d);
  return unpack(x, plan_unpack(mask_packed, mask_original, d));
}

}  // namespace tessera
