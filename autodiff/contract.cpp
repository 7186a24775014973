// SPDX-License-Identifier: MIT
#include "tessera/autodiff/contract.hpp"

#include <fmt/format.h>

#include <map>
#include <tuple>

#include "tessera/runtime/error.hpp"

namespace tessera {
namespace {

constexpr const char* kLeading = "...";

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

void check_placement(const char* function, const ContractTensor& t, const DTensor& x,
                     const DTensor& first) {
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
      for (const Placement& p : x.placements())
        if (is_shard(p, x.ndim() - 1))
          throw PlacementError({.problem = "the last dim must not be sharded",
                                .operation = function,
                                .tensor = t.name,
                                .found = x.describe(),
                                .expected = format(t.placement)});
      break;
    case PlacementRule::Kind::any:
      break;
  }
  expect(x, function, t.name.c_str(), expected);
}

Symbols mesh_symbols(const DTensor& first) {
  const DeviceMesh& mesh = first.mesh();
  const auto e = static_cast<std::int64_t>(size_of(first.dtype()));
  const auto acc = static_cast<std::int64_t>(size_of(at_least_f32(first.dtype())));
  const bool grid = mesh.ndim() > kCp1;  // else the flat mesh (dp, cp)
  return {{"dp", mesh.size(kDp)},
          {"R0", mesh.size(kCp0)},
          {"R1", grid ? mesh.size(kCp1) : 1},
          {"i", mesh.coordinate(kCp0)},
          {"j", grid ? mesh.coordinate(kCp1) : 0},
          {"e", e},
          {"acc", acc}};
}

}  // namespace

std::string format(const PlacementRule& rule) {
  switch (rule.kind) {
    case PlacementRule::Kind::exactly:
      return format(rule.placements);
    case PlacementRule::Kind::whole_last:
      return "any S/R, last dim whole";
    case PlacementRule::Kind::any:
      return "any S/R";
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
                      mesh_symbols(operands[0]),
                      budget_of(operands[0].placements()),
                      operands[0].mesh()};
  for (std::size_t k = 0; k < count; ++k) {
    const ContractTensor& t = bound.contract.inputs.at(k);
    if (!unify(t, operands[k].shape(), bound.symbols))
      throw ShapeError({.problem = "operand does not fit",
                        .operation = function,
                        .tensor = t.name,
                        .found = operands[k].describe(),
                        .expected = expected_shape(t, bound.symbols)});
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
