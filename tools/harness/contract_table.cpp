// SPDX-License-Identifier: MIT
#include "tessera/harness/contract_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera::harness {
namespace {

// Sizes in brackets, or a shape that is described in words.
std::string shape_text(const std::vector<Formula>& shape) {
  if (shape.size() == 1 && shape[0].symbol_name().find(' ') != std::string::npos)
    return shape[0].text();
  std::vector<std::string> sizes;
  for (const Formula& size : shape) sizes.push_back(size.text());
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

std::string message_name(const ContractMessage& m) {
  return fmt::format("{} {} on {}, {}", name_of(m.pass), m.op, m.axis, m.label);
}

// The lines of one function, with the numbers of one rank.
std::vector<ContractLine> lines_of(const BoundContract& b) {
  std::vector<ContractLine> lines;
  const auto operand = [&](const char* what, const ContractTensor& t) {
    lines.push_back(
        {b.scope, what, t.name, fmt::format("{} {}", shape_text(t.shape), format(t.placement))});
  };
  for (const ContractTensor& t : b.contract.inputs) operand("operand", t);
  for (const ContractTensor& t : b.contract.outputs) operand("output", t);
  const std::vector<MessageCount> counts = message_counts(b);
  for (std::size_t k = 0; k < counts.size(); ++k) {
    const ContractMessage& m = b.contract.messages[k];
    lines.push_back({b.scope, "message", message_name(m),
                     fmt::format("{}; {}; {}", m.count.text(), m.messages.text(), m.bytes.text()),
                     counts[k].count, counts[k].messages, counts[k].bytes});
  }
  const std::vector<SavedCount> saved = saved_counts(b);
  for (std::size_t k = 0; k < saved.size(); ++k) {
    const ContractSaved& s = b.contract.saved[k];
    lines.push_back({b.scope, "saved", s.name,
                     fmt::format("share of class {} of {} times {}", name_of(saved[k].budget),
                                 s.elements.text(), s.element_bytes.text()),
                     1, 0, saved[k].bytes});
  }
  return lines;
}

}  // namespace

MemoryComparison compare_memory(const Tape& tape, const std::vector<Var>& inputs,
                                const std::vector<Var>& outputs, std::int64_t grown) {
  std::vector<SavedCount> promised;
  for (const BoundContract& b : tape.contracts()) append(promised, saved_counts(b));
  std::vector<std::string> differences = compare_saved(promised, tape.saved());

  std::set<const void*> known;
  for (const Var& x : inputs) known.insert(x.value().local().storage_id());
  std::int64_t measured = grown;
  for (const Var& y : outputs)  // views of inputs cost nothing
    if (known.insert(y.value().local().storage_id()).second)
      measured -= y.value().local().storage_bytes();
  std::int64_t expected = 0;
  for (const SavedRecord& s : tape.saved())
    if (s.budget != BudgetClass::parameter && known.insert(s.storage).second) expected += s.bytes;
  if (measured != expected)
    differences.push_back(
        fmt::format("{} bytes stay alive after forward, {} of them are saved through the tape",
                    measured, expected));
  return {std::move(differences), measured};
}

DryRun dry_run(const Case& c, const Problem& problem, const MeshShape& shape, int rank,
               DType dtype) {
  const DeviceMesh mesh = DeviceMesh::dry_run(shape, rank);
  const Scope scope(c.name);
  memory_ledger::reset_peak();
  const std::int64_t baseline = memory_ledger::total().live;
  const Setup setup = random_setup(c, problem, mesh, dtype, 1);
  DryRun run;
  Tape tape;
  const std::vector<Var> inputs = inputs_on(tape, setup);
  const std::int64_t before = memory_ledger::total().live;
  const std::vector<Var> outputs = setup.instance.forward(inputs);
  const std::int64_t grown = memory_ledger::total().live - before;
  run.contracts = tape.contracts();
  run.saved_bytes = tape.saved_bytes();
  run.differences = compare_memory(tape, inputs, outputs, grown).differences;
  std::vector<MessageCount> done = message_counts(Pass::forward, mesh.records());
  mesh.clear_records();

  tape.backward(seeds(setup, outputs));
  std::vector<Var> parameters = setup.instance.module->parameters();
  run.reduction = reduction_message(mesh, parameters);
  reduce_gradients(mesh, parameters);
  run.peak_bytes = memory_ledger::total().peak - baseline;
  append(done, message_counts(Pass::backward, mesh.records()));

  std::vector<MessageCount> promised{run.reduction};
  for (const BoundContract& b : run.contracts) append(promised, message_counts(b));
  append(run.differences, compare_messages(promised, done));
  return run;
}

namespace {

std::string joined(const std::vector<std::string>& parts, const char* between) {
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, between));
}

std::vector<std::string> texts_of(const std::vector<ContractTensor>& tensors, bool placements) {
  std::vector<std::string> all;
  for (const ContractTensor& t : tensors)
    all.push_back(
        fmt::format("{}: {}", t.name, placements ? format(t.placement) : shape_text(t.shape)));
  return all;
}

std::string messages_text(const Contract& contract, Pass pass) {
  std::vector<std::string> all;
  for (const ContractMessage& m : contract.messages)
    if (m.pass == pass)
      all.push_back(fmt::format("{} on {}, {}: {} bytes", m.op, m.axis, m.label, m.bytes.text()));
  return joined(all, "; ");
}

std::string saved_text(const Contract& contract) {
  std::vector<std::string> all;
  for (const ContractSaved& s : contract.saved)
    all.push_back(fmt::format("{}: {} {}", s.name, s.elements.text(), s.element_bytes.text()));
  return joined(all, "; ");
}

// Everything but the cases. A bar would end the cell.
std::string row_of(const BoundContract& b) {
  const Contract& c = b.contract;
  const auto operands = [&](bool placements) {
    return fmt::format("{} → {}", joined(texts_of(c.inputs, placements), ", "),
                       joined(texts_of(c.outputs, placements), ", "));
  };
  std::string row =
      fmt::format("| `{}` | {} | {} | {} | {} | {} |", b.function, operands(false), operands(true),
                  messages_text(c, Pass::forward), messages_text(c, Pass::backward), saved_text(c));
  return row;
}

}  // namespace

std::string operations_table(const std::vector<Case>& cases, const Sizes& sizes,
                             const MeshShape& shape, DType dtype) {
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;  // and the cases of each
  for (const Case& c : cases)
    for (const BoundContract& b : dry_run(c, c.problem(sizes), shape, 0, dtype).contracts) {
      const std::string row = row_of(b);
      auto entry = std::find_if(rows.begin(), rows.end(),
                                [&](const auto& known) { return known.first == row; });
      if (entry == rows.end()) entry = rows.insert(rows.end(), {row, {}});
      if (entry->second.empty() || entry->second.back() != c.name) entry->second.push_back(c.name);
    }
  std::string text =
      "| function | operands → results | placements | sent forward | sent backward | saved | cases "
      "|\n|---|---|---|---|---|---|---|\n";
  for (const auto& [row, names] : rows)
    text += fmt::format("{} `{}` |\n", row, fmt::join(names, "`, `"));
  return text;
}

std::vector<ContractLine> contract_table(const Case& c, const Sizes& sizes, const MeshShape& shape,
                                         DType dtype) {
  const Problem problem = c.problem(sizes);
  std::vector<ContractLine> table;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const DryRun run = dry_run(c, problem, shape, rank, dtype);
    std::vector<ContractLine> lines;
    for (const BoundContract& b : run.contracts) append(lines, lines_of(b));
    const MessageCount& r = run.reduction;
    if (r.count > 0)
      lines.push_back({r.scope, "parameters",
                       fmt::format("backward {} on {}, {}", r.op, r.axis, r.label),
                       "sum over the whole mesh of all parameters in one buffer, at least f32",
                       r.count, r.messages, r.bytes});
    if (table.empty()) table = lines;
    for (std::size_t k = 0; k < table.size(); ++k) {
      table[k].count = std::max(table[k].count, lines[k].count);
      table[k].messages = std::max(table[k].messages, lines[k].messages);
      table[k].bytes = std::max(table[k].bytes, lines[k].bytes);
    }
  }
  return table;
}

}  // namespace tessera::harness
