// SPDX-License-Identifier: MIT
#include "tessera/autodiff/contract.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "tessera/mesh/traffic.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera {
namespace {

constexpr const char* kLeading = "...";
constexpr const char* kAnyShape = "any shape";
const std::string kShapeOf = "shape of ";

bool is_any_shape(const ContractTensor& t) {
  return t.shape.size() == 1 && t.shape.front().symbol_name() == kAnyShape;
}

// The operand whose shape it has, "" if it is described by sizes.
std::string shape_source(const ContractTensor& t) {
  if (t.shape.size() != 1) return {};
  const std::string name = t.shape.front().symbol_name();
  return name.starts_with(kShapeOf) ? name.substr(kShapeOf.size()) : std::string();
}

bool has_leading(const ContractTensor& t) {
  return !t.shape.empty() && t.shape.front().symbol_name() == kLeading;
}

std::string expected_shape(const ContractTensor& t, const Symbols& symbols) {
  std::string text;
  for (const Formula& size : t.shape) {
    text += text.empty() ? "[" : ", ";
    text += size.text();
    const auto value = symbols.find(size.symbol_name());
    if (value != symbols.end()) text += fmt::format("={}", value->second);
  }
  return text.empty() ? "[]" : fmt::format("{}]", text);
}

// Binds new symbols; true if all sizes fit.
bool unify(const ContractTensor& t, const Shape& shape, Symbols& symbols) {
  std::size_t dim = 0;
  std::size_t term = 0;
  if (has_leading(t)) {
    if (shape.size() + 1 < t.shape.size()) return false;
    std::int64_t leading = 1;
    for (; dim < shape.size() - (t.shape.size() - 1); ++dim) leading *= shape[dim];
    if (symbols.try_emplace("M", leading).first->second != leading) return false;
    term = 1;
  }
  if (shape.size() - dim != t.shape.size() - term) return false;
  for (; term < t.shape.size(); ++term, ++dim) {
    const std::string name = t.shape[term].symbol_name();
    if (!name.empty()) symbols.try_emplace(name, shape[dim]);
    if (t.shape[term].evaluate(symbols) != shape[dim]) return false;
  }
  return true;
}

// Which explicit operation leads from one placement to another.
std::string how_to_get(const Placements& from, const Placements& to) {
  if (std::any_of(from.begin(), from.end(), is_partial))
    return "reduce it first: reduce_gradients() for gradients of parameters, redistribute() for "
           "others";
  if (from.size() != to.size()) return "";
  std::vector<std::size_t> changed;
  for (std::size_t axis = 0; axis < from.size(); ++axis)
    if (from[axis] != to[axis]) changed.push_back(axis);
  if (changed.size() == 2 && from[changed[0]] == to[changed[1]] &&
      from[changed[1]] == to[changed[0]])
    return fmt::format("mesh_transpose(x, {}) moves the blocks", format(to));
  return changed.empty() ? "" : fmt::format("redistribute(x, {}) moves the data", format(to));
}

void check_mesh(const char* function, const ContractTensor& t, const DTensor& x,
                const DTensor& first) {
  expect(x, function, t.name.c_str(), {.mesh = first.mesh(), .allow_partial = true});
}

void check_dims(const char* function, const ContractTensor& t, const DTensor& x,
                const std::vector<int>& dims, bool sharded) {
  for (const int dim : dims) {
    const int d = normalize_dim(dim, x.ndim(), function);
    const bool is = std::any_of(x.placements().begin(), x.placements().end(),
                                [&](const Placement& p) { return is_shard(p, d); });
    if (is == sharded) continue;
    throw PlacementError(
        {.problem = fmt::format("dim {} must {}be sharded", d, sharded ? "" : "not "),
         .operation = function,
         .tensor = t.name,
         .found = x.describe(),
         .expected = format(t.placement),
         .hint = sharded ? "call the shardwise form of the operation for a dim that is not sharded"
                         : "call the sharded form of the operation, or redistribute() first"});
  }
}

void check_placement(const char* function, const ContractTensor& t, const DTensor& x,
                     const DTensor& first) {
  check_mesh(function, t, x, first);
  Expect expected{.mesh = first.mesh()};
  switch (t.placement.kind) {
    case PlacementRule::Kind::exactly:
      expected.placements = t.placement.placements;
      break;
    case PlacementRule::Kind::like_first:
      expected.placements = first.placements();
      break;
    case PlacementRule::Kind::replicated:
      expected.placements = Placements(static_cast<std::size_t>(first.mesh().ndim()), Replicate{});
      break;
    case PlacementRule::Kind::whole_last:
      if (x.ndim() > 0) check_dims(function, t, x, {-1}, false);
      break;
    case PlacementRule::Kind::whole:
    case PlacementRule::Kind::sharded:
      check_dims(function, t, x, t.placement.dims,
                 t.placement.kind == PlacementRule::Kind::sharded);
      break;
    case PlacementRule::Kind::any:
      break;
    case PlacementRule::Kind::anything:
      expected.allow_partial = true;
      break;
  }
  if (expected.placements && x.placements() != *expected.placements)
    throw PlacementError({.problem = "wrong placements",
                          .operation = function,
                          .tensor = t.name,
                          .found = x.describe(),
                          .expected = format(*expected.placements),
                          .hint = how_to_get(x.placements(), *expected.placements)});
  expect(x, function, t.name.c_str(), expected);
}

// Masks and indices come with activations of another dtype.
const DTensor& first_floating(const DTensor* operands, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k)
    if (is_floating(operands[k].dtype())) return operands[k];
  return operands[0];
}

Symbols mesh_symbols(const DTensor* operands, std::size_t count) {
  const DeviceMesh& mesh = operands[0].mesh();
  const DType dtype = first_floating(operands, count).dtype();
  const auto e = static_cast<std::int64_t>(size_of(dtype));
  const auto acc = static_cast<std::int64_t>(size_of(at_least_f32(dtype)));
  const bool grid = mesh.ndim() > kCp1;  // else the flat mesh (dp, cp)
  return {{"dp", mesh.size(kDp)},
          {"R0", mesh.size(kCp0)},
          {"R1", grid ? mesh.size(kCp1) : 1},
          {"i", mesh.coordinate(kCp0)},
          {"j", grid ? mesh.coordinate(kCp1) : 0},
          {"e", e},
          {"acc", acc}};
}

void bind_sizes(const std::string& name, const DTensor& x, Symbols& symbols) {
  symbols[fmt::format("N({})", name)] = numel(x.shape());
  symbols[fmt::format("n({})", name)] = x.local().numel();
  symbols[fmt::format("e({})", name)] = static_cast<std::int64_t>(size_of(x.dtype()));
}

const DTensor& operand_named(const std::string& name, const Contract& contract,
                             const DTensor* operands) {
  std::size_t k = 0;
  while (contract.inputs.at(k).name != name) ++k;
  return operands[k];
}

}  // namespace

std::vector<Formula> any_shape() {
  return {Formula::symbol(kAnyShape)};
}

std::vector<Formula> same_shape(const std::string& operand) {
  return {Formula::symbol(kShapeOf + operand)};
}

ContractSaved saved_block(const std::string& operand) {
  return saved_block(operand, operand, Formula::symbol(fmt::format("e({})", operand)));
}

ContractSaved saved_block(std::string name, const std::string& operand, Formula element_bytes) {
  return {std::move(name), Formula::symbol(fmt::format("n({})", operand)), std::move(element_bytes),
          false, BudgetClass::own};
}

std::string format(const PlacementRule& rule) {
  if (!rule.text.empty()) return rule.text;
  switch (rule.kind) {
    case PlacementRule::Kind::whole:
      return fmt::format("any S/R, dims {} whole", fmt::join(rule.dims, ","));
    case PlacementRule::Kind::sharded:
      return fmt::format("dims {} sharded", fmt::join(rule.dims, ","));
    case PlacementRule::Kind::exactly:
      return format(rule.placements);
    case PlacementRule::Kind::whole_last:
      return "any S/R, last dim whole";
    case PlacementRule::Kind::any:
      return "any S/R";
    case PlacementRule::Kind::anything:
      return "any, Partial too";
    case PlacementRule::Kind::like_first:
      return "like the first";
    default:
      return "R";
  }
}

BoundContract bind(const char* function, Contract contract, const DTensor* operands,
                   std::size_t count) {
  for (std::size_t k = 0; k < count; ++k)
    if (!operands[k].defined())
      throw TypeError({.problem = "operand is undefined",
                       .operation = function,
                       .tensor = contract.inputs.at(k).name});
  BoundContract bound{function,
                      current_scope(),
                      std::move(contract),
                      mesh_symbols(operands, count),
                      budget_of(operands[0].placements()),
                      operands[0].mesh()};
  for (std::size_t k = 0; k < count; ++k) {
    const ContractTensor& t = bound.contract.inputs.at(k);
    bind_sizes(t.name, operands[k], bound.symbols);
    const std::string source = shape_source(t);
    if (!source.empty()) {
      expect(operands[k], function, t.name.c_str(),
             {.shape = operand_named(source, bound.contract, operands).shape(),
              .allow_partial = true});
    } else if (!is_any_shape(t) && !unify(t, operands[k].shape(), bound.symbols)) {
      throw ShapeError({.problem = "operand does not fit",
                        .operation = function,
                        .tensor = t.name,
                        .found = operands[k].describe(),
                        .expected = expected_shape(t, bound.symbols)});
    }
    check_placement(function, t, operands[k], operands[0]);
  }
  return bound;
}

std::vector<MessageCount> message_counts(const BoundContract& b) {
  std::vector<MessageCount> all;
  for (const ContractMessage& m : b.contract.messages)
    all.push_back({m.pass, b.scope, m.op, m.axis, m.label, m.count.evaluate(b.symbols),
                   m.messages.evaluate(b.symbols), m.bytes.evaluate(b.symbols)});
  return all;
}

std::vector<SavedCount> saved_counts(const BoundContract& b) {
  std::vector<SavedCount> all;
  for (const ContractSaved& s : b.contract.saved) {
    const BudgetClass budget = s.activation_class ? b.activation : s.budget;
    const std::int64_t elements = budget_elements(budget, {s.elements.evaluate(b.symbols)}, b.mesh);
    all.push_back({b.scope, s.name, budget, elements * s.element_bytes.evaluate(b.symbols)});
  }
  return all;
}

std::vector<MessageCount> message_counts(Pass pass, const std::vector<CommRecord>& records) {
  std::vector<MessageCount> all;
  // Agreements on errors are the watchers' own, not the layer's.
  for (const CommRecord& r : records)
    if (r.op != "agree")
      all.push_back({pass, r.scope, r.op, r.axis, r.label, 1, r.messages, r.bytes});
  return all;
}

namespace {

// The number of a rank in its group, and the size of the group.
struct Place {
  int n = 1;
  int index = 0;
};
Place place_in(const DeviceMesh& mesh, const std::vector<int>& axes) {
  const std::vector<int> group = mesh.group(axes);
  const auto own = std::find(group.begin(), group.end(), mesh.rank());
  return {static_cast<int>(group.size()), static_cast<int>(own - group.begin())};
}

ContractMessage collective_message(Pass pass, const char* op, const DeviceMesh& mesh,
                                   const std::vector<int>& axes, const Formula& elements,
                                   std::string label,
                                   const std::function<Traffic(std::int64_t)>& traffic) {
  const auto part = [&](const char* what, std::int64_t Traffic::*member) {
    return Formula::function(fmt::format("{}({})", what, elements.text()), [=](const Symbols& s) {
      return traffic(elements.evaluate(s)).*member;
    });
  };
  return {pass,
          op,
          mesh.axes_name(axes),
          std::move(label),
          1,
          part("messages", &Traffic::messages),
          part(op, &Traffic::bytes)};
}

}  // namespace

ContractMessage all_reduce_message(Pass pass, const DeviceMesh& mesh, const std::vector<int>& axes,
                                   Formula elements, DType dtype, std::string label) {
  const Place place = place_in(mesh, axes);
  return collective_message(
      pass, "all_reduce", mesh, axes, elements, std::move(label),
      [=](std::int64_t n) { return all_reduce_traffic(n, dtype, place.n, place.index); });
}

ContractMessage all_gather_message(Pass pass, const DeviceMesh& mesh, int axis, Formula elements,
                                   DType dtype, std::string label) {
  return collective_message(pass, "all_gather", mesh, {axis}, elements, std::move(label),
                            [dtype, n = mesh.size(axis)](std::int64_t count) {
                              return all_gather_traffic(count, dtype, n);
                            });
}

ContractMessage reduce_scatter_message(Pass pass, const DeviceMesh& mesh, int axis,
                                       Formula elements, DType dtype, std::string label) {
  return collective_message(pass, "reduce_scatter", mesh, {axis}, elements, std::move(label),
                            [dtype, n = mesh.size(axis)](std::int64_t count) {
                              return reduce_scatter_traffic(count, dtype, n);
                            });
}

ContractMessage all_to_all_message(Pass pass, const DeviceMesh& mesh, int axis, Formula elements,
                                   DType dtype, std::string label) {
  return collective_message(pass, "all_to_all", mesh, {axis}, elements, std::move(label),
                            [dtype, n = mesh.size(axis)](std::int64_t count) {
                              return all_to_all_traffic(count, dtype, n);
                            });
}

namespace {

using MessageKey = std::tuple<std::string, Pass, std::string, std::string, std::string>;

std::map<MessageKey, MessageCount> sums_of(const std::vector<MessageCount>& counts) {
  std::map<MessageKey, MessageCount> sums;
  for (const MessageCount& c : counts) {
    auto& sum = sums.try_emplace({c.scope, c.pass, c.op, c.axis, c.label},
                                 MessageCount{c.pass, c.scope, c.op, c.axis, c.label})
                    .first->second;
    sum.count += c.count;
    sum.messages += c.messages;
    sum.bytes += c.bytes;
  }
  // What moves nothing on this rank is not compared: groups of one make no record.
  std::erase_if(sums, [](const auto& entry) {
    return entry.second.messages == 0 && entry.second.bytes == 0;
  });
  return sums;
}

std::string numbers(const MessageCount* c) {
  return c == nullptr
             ? "nothing"
             : fmt::format("{} operations, {} messages, {} bytes", c->count, c->messages, c->bytes);
}

}  // namespace

std::vector<std::string> compare_messages(const std::vector<MessageCount>& promised,
                                          const std::vector<MessageCount>& done) {
  const auto expected = sums_of(promised);
  const auto found = sums_of(done);
  std::vector<std::string> differences;
  const auto report = [&](const MessageCount& c, const MessageCount* is, const MessageCount* was) {
    differences.push_back(fmt::format("{}, {}: {} on {} '{}' sent {}, the contract says {}",
                                      c.scope, name_of(c.pass), c.op, c.axis, c.label, numbers(is),
                                      numbers(was)));
  };
  for (const auto& [key, promise] : expected) {
    const auto entry = found.find(key);
    const MessageCount* is = entry == found.end() ? nullptr : &entry->second;
    if (is == nullptr || is->count != promise.count || is->messages != promise.messages ||
        is->bytes != promise.bytes)
      report(promise, is, &promise);
  }
  for (const auto& [key, fact] : found)
    if (!expected.contains(key)) report(fact, &fact, nullptr);
  return differences;
}

std::vector<std::string> compare_saved(const std::vector<SavedCount>& promised,
                                       const std::vector<SavedRecord>& done) {
  using Key = std::pair<std::string, std::string>;
  std::map<Key, std::int64_t> expected, found;
  for (const SavedCount& s : promised) expected[{s.scope, s.name}] += s.bytes;
  for (const SavedRecord& s : done)
    if (s.budget != BudgetClass::parameter) found[{s.scope, s.tensor}] += s.bytes;
  std::vector<std::string> differences;
  for (const auto& [key, bytes] : expected) {
    const auto entry = found.find(key);
    if (entry == found.end())
      differences.push_back(fmt::format("{}: '{}' is not saved, the contract says {} bytes",
                                        key.first, key.second, bytes));
    else if (entry->second != bytes)
      differences.push_back(fmt::format("{}: '{}' keeps {} bytes, the contract says {}", key.first,
                                        key.second, entry->second, bytes));
  }
  for (const auto& [key, bytes] : found)
    if (!expected.contains(key))
      differences.push_back(fmt::format("{}: '{}' keeps {} bytes, the contract says nothing",
                                        key.first, key.second, bytes));
  return differences;
}

}  // namespace tessera
