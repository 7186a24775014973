// SPDX-License-Identifier: MIT
#include "tessera/harness/parity.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/harness/contract_table.hpp"
#include "tessera/harness/ledgers.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/hash.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/tf32.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;

// --- one run of a layer ------------------------------------------------------------------------

struct NamedResult {
  std::string name;
  DTensor value;
};

struct Run {
  std::vector<NamedResult> results;  // output, input gradients, parameter gradients
  std::vector<SavedRecord> saved;
  std::int64_t saved_bytes = 0, saved_budget = 0, peak_bytes = 0;
  std::vector<CommRecord> forward, backward;
  std::vector<std::string> contract_differences;
  std::int64_t saved_measured = 0;
  MemoryEntries memory_after_forward, memory_at_end;
  double seconds = 0;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Forward, backward and reduction of the parameter gradients. `baseline`: live bytes before the
// setup was made.
Run run_layer(const Case& c, const Setup& setup, const DeviceMesh& mesh, std::int64_t baseline,
              bool trace) {
  Run run;
  barrier(mesh);
  const trace::Recording recording(trace);
  const Scope scope(c.name);
  mesh.clear_records();
  const double begin = now();

  Tape tape;
  const std::vector<Var> inputs = inputs_on(tape, setup);
  const std::int64_t before = memory_ledger::total().live;
  const std::vector<Var> outputs = setup.instance.forward(inputs);
  const std::int64_t grown = memory_ledger::total().live - before;
  run.memory_after_forward = memory_ledger::entries();
  run.forward = mesh.records();
  mesh.clear_records();
  run.saved = tape.saved();
  run.saved_bytes = tape.saved_bytes();
  run.saved_budget = tape.saved_bound();
  std::vector<MessageCount> promised;
  for (const BoundContract& b : tape.contracts()) append(promised, message_counts(b));
  MemoryComparison memory = compare_memory(tape, inputs, outputs, grown);
  run.contract_differences = std::move(memory.differences);
  run.saved_measured = memory.measured;
  const std::vector<Tape::Seed> upstream = seeds(setup, outputs);

  tape.backward(upstream);
  std::vector<Var> parameters = setup.instance.module->parameters();
  promised.push_back(reduction_message(mesh, parameters));
  reduce_gradients(mesh, parameters);
  synchronize(mesh.device());
  run.seconds = now() - begin;
  run.backward = mesh.records();
  std::vector<MessageCount> done = message_counts(Pass::forward, run.forward);
  append(done, message_counts(Pass::backward, run.backward));
  append(run.contract_differences, compare_messages(promised, done));
  run.peak_bytes = memory_ledger::total().peak - baseline;
  run.memory_at_end = memory_ledger::entries();

  for (std::size_t k = 0; k < outputs.size(); ++k)
    run.results.push_back({c.outputs.at(k), outputs[k].value()});
  for (std::size_t k = 0; k < inputs.size(); ++k)
    if (setup.specs[k].differentiable && !upstream.empty())
      run.results.push_back({"grad " + setup.specs[k].name, inputs[k].grad()});
  for (const NamedParameter& p : setup.instance.module->named_parameters())
    run.results.push_back({"grad " + p.name, p.var.grad()});
  return run;
}

// --- agreement of ranks ------------------------------------------------------------------------

std::vector<int> all_axes(const DeviceMesh& mesh) {
  std::vector<int> axes(static_cast<std::size_t>(mesh.ndim()));
  for (std::size_t k = 0; k < axes.size(); ++k) axes[k] = static_cast<int>(k);
  return axes;
}

std::vector<double> max_over_ranks(const DeviceMesh& mesh, const std::vector<double>& values) {
  const Tensor t =
      Tensor::from_values({static_cast<std::int64_t>(values.size())}, values, DType::f64);
  all_reduce(mesh, all_axes(mesh), ReduceOp::max, t, "report");
  return to_values(t);
}

bool all_ranks(const DeviceMesh& mesh, bool value) {
  return max_over_ranks(mesh, {value ? 0.0 : 1.0}).front() == 0;
}

// The texts of the lowest rank that has any, with the number of other ranks, on all ranks.
std::vector<std::string> lowest_rank_texts(const DeviceMesh& mesh,
                                           const std::vector<std::string>& own) {
  try {
    collective_try(mesh, [&] {
      if (!own.empty()) throw UsageError({.problem = fmt::format("{}", fmt::join(own, "\n"))});
    });
  } catch (const UsageError& e) {
    return {e.facts().problem + (e.facts().hint.empty() ? "" : " (" + e.facts().hint + ")")};
  }
  return {};
}

// Every rank runs the same operations; the counts are those of the busiest rank for each.
std::vector<CommTotal> busiest(const DeviceMesh& mesh, const std::vector<CommRecord>& records) {
  std::vector<CommTotal> sums = totals(records);
  std::vector<double> packed;
  for (const CommTotal& t : sums)
    for (const std::int64_t value : {t.count, t.messages, t.bytes})
      packed.push_back(static_cast<double>(value));
  if (packed.empty()) return sums;
  packed = max_over_ranks(mesh, packed);
  for (std::size_t k = 0; k < sums.size(); ++k) {
    sums[k].count = static_cast<std::int64_t>(packed[3 * k]);
    sums[k].messages = static_cast<std::int64_t>(packed[3 * k + 1]);
    sums[k].bytes = static_cast<std::int64_t>(packed[3 * k + 2]);
  }
  return sums;
}

bool is_sharded(const DTensor& x) {
  for (int axis = 0; axis < x.mesh().ndim(); ++axis)
    if (x.mesh().size(axis) > 1 && is_shard(x.placements()[static_cast<std::size_t>(axis)]))
      return x.local().numel() < numel(x.shape());
  // Nothing to shard on the axes that this tensor uses (a single tensor on a 1 x P grid).
  return true;
}

bool replicas_agree(const DTensor& x) {
  std::vector<int> axes;
  for (int axis = 0; axis < x.mesh().ndim(); ++axis)
    if (is_replicate(x.placements()[static_cast<std::size_t>(axis)])) axes.push_back(axis);
  return replicas_identical(x.mesh(), axes, x.local().contiguous());
}

// --- comparison --------------------------------------------------------------------------------

struct Reference {
  std::function<DTensor(const NamedResult&)> value;  // placed like the result
  // Gradients that are zero mathematically. They are compared absolutely or, being what is left of
  // sums as large as those of the others, relative to the largest gradient.
  std::set<std::string> zero;
  bool zero_by_largest = false;
  // Placed like the result without its last dims: where it is to be compared. Undefined:
  // everywhere.
  std::function<DTensor(const NamedResult&)> valid = [](const NamedResult&) { return DTensor(); };
};

// Indices and booleans are compared as numbers.
Tensor comparable(const Tensor& t) {
  return is_floating(t.dtype()) ? t : t.to(DType::f64);
}

// x where `choice` is `wanted`, 0 elsewhere; the choice lacks the last dims of x.
Tensor selected(const Tensor& x, Tensor choice, bool wanted) {
  while (choice.ndim() < x.ndim()) choice = choice.unsqueeze(-1);
  const Tensor zero = Tensor::zeros(Shape(x.shape().size(), 1), x.dtype(), x.device());
  const Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor none = zero.expand(x.shape());
  select(choice.expand(x.shape()), wanted ? x : none, wanted ? none : x, out);
  return out;
}

// A tensor, or the valid part or the rest of one, as this rank sees it.
struct Line {
  std::string name;
  double tolerance = 0;
  bool rest = false;
  Difference difference = {};
  double found = 0;  // the largest value
  bool finite = true;
};

Line line_of(std::string name, const Tensor& found, const Tensor& expected, double tolerance) {
  return {std::move(name), tolerance,        false, max_difference(found, expected),
          max_abs(found),  all_finite(found)};
}

// If not everything is valid, two lines. The rest is the averages of queries without keys: in f64
// next to logits like -1e9, sums in another order differ by 1e-7; in f32 they say nothing.
void append_lines(std::vector<Line>& lines, const NamedResult& r, const Reference& reference,
                  double tolerance) {
  constexpr double kMaskedRows = 1e-6;
  const Tensor found = comparable(r.value.local());
  const Tensor expected = comparable(reference.value(r).local());
  const DTensor valid = reference.valid(r);
  if (!valid.defined()) {
    lines.push_back(line_of(r.name, found, expected, tolerance));
    return;
  }
  const auto part = [&](const std::string& name, bool wanted, double bound) {
    lines.push_back(line_of(name, selected(found, valid.local(), wanted),
                            selected(expected, valid.local(), wanted), bound));
    lines.back().rest = !wanted;
  };
  part(r.name, true, tolerance);
  if (found.dtype() == DType::f64) part(r.name + " where all is masked", false, kMaskedRows);
}

// The lines as the whole mesh sees them, in one message.
void agree(const DeviceMesh& mesh, std::vector<Line>& lines) {
  std::vector<double> numbers;
  for (const Line& l : lines)
    for (const double value :
         {l.difference.max_abs, l.difference.max_reference, l.found, l.finite ? 0.0 : 1.0})
      numbers.push_back(value);
  if (numbers.empty()) return;
  numbers = max_over_ranks(mesh, numbers);
  const double* next = numbers.data();
  for (Line& l : lines) {
    l.difference = {next[0], next[1]};
    l.found = next[2];
    l.finite = next[3] == 0;
    next += 4;
  }
}

void compare(const Run& run, const Reference& reference, const DeviceMesh& mesh,
             CaseResult& result) {
  result.gradients_nonzero = result.finite = result.replicas_identical = true;
  std::vector<Line> lines;
  for (const NamedResult& r : run.results) {
    append_lines(lines, r, reference, result.tolerance);
    result.replicas_identical = replicas_agree(r.value) && result.replicas_identical;
  }
  agree(mesh, lines);
  double largest = 1;  // of the gradients
  for (const Line& l : lines)
    if (l.name.starts_with("grad ")) largest = std::max(largest, l.found);
  for (const Line& l : lines) {
    const bool zero = reference.zero.contains(l.name);
    double scale = l.difference.max_reference;
    if (zero) scale = reference.zero_by_largest ? largest : 1;
    if (scale == 0) scale = 1;
    const double difference = l.difference.max_abs;
    result.tensors.push_back({l.name, difference, difference / scale, l.tolerance});
    result.gradients_nonzero = result.gradients_nonzero && (zero || l.rest || l.found > 0);
    result.finite = result.finite && l.finite;
  }
}

std::vector<std::uint64_t> hashes(const Setup& setup) {
  std::vector<std::uint64_t> all;
  for (const DTensor& x : setup.inputs) all.push_back(hash_of(x.local()));
  for (const Var& p : setup.instance.module->parameters())
    all.push_back(hash_of(p.value().local()));
  return all;
}

// Runs the distributed side and fills everything but the comparison.
Run run_distributed(const Case& c, const Setup& setup, const DeviceMesh& mesh,
                    std::int64_t baseline, bool trace, CaseResult& result) {
  const std::vector<std::uint64_t> before = hashes(setup);
  memory_ledger::reset_peak();  // of the layer, not of what it took to make its operands
  Run run = run_layer(c, setup, mesh, baseline, trace);
  result.inputs_unmodified = all_ranks(mesh, before == hashes(setup));

  bool sharded = true;
  for (std::size_t k = 0; k < c.outputs.size(); ++k)
    sharded = sharded && is_sharded(run.results[k].value);
  for (const DTensor& x : setup.inputs) sharded = sharded && is_sharded(x);
  result.sharding_active = all_ranks(mesh, sharded);
  bool within = true;
  for (const SavedRecord& record : run.saved) within = within && record.within();
  result.within_budget = all_ranks(mesh, within);

  const std::vector<double> sizes = max_over_ranks(
      mesh, {static_cast<double>(run.saved_bytes), static_cast<double>(run.saved_budget),
             static_cast<double>(run.peak_bytes), run.seconds});
  result.saved_bytes = static_cast<std::int64_t>(sizes[0]);
  result.saved_budget = static_cast<std::int64_t>(sizes[1]);
  result.peak_bytes = static_cast<std::int64_t>(sizes[2]);
  result.seconds = sizes[3];
  result.saved_measured = static_cast<std::int64_t>(
      max_over_ranks(mesh, {static_cast<double>(run.saved_measured)}).front());
  result.contract_differences = lowest_rank_texts(mesh, run.contract_differences);
  result.memory = memory_over_ranks(mesh, run.memory_after_forward, run.memory_at_end);
  result.forward = busiest(mesh, run.forward);
  result.backward = busiest(mesh, run.backward);
  result.outputs_checked = static_cast<int>(c.outputs.size());
  result.params_checked = static_cast<int>(setup.instance.module->named_parameters().size());
  result.inputs_checked =
      static_cast<int>(run.results.size()) - result.outputs_checked - result.params_checked;
  return run;
}

// --- references of parity ----------------------------------------------------------------------

// The same layer on a mesh of one, on rank 0.
Reference serial_reference(const Case& c, const Problem& problem, const DeviceMesh& mesh,
                           const RunOptions& options) {
  auto serial = std::make_shared<std::map<std::string, Tensor>>();
  collective_try(mesh, [&] {
    if (mesh.rank() != 0) return;
    const DeviceMesh one = DeviceMesh::serial(mesh.device());
    const Run twin =
        run_layer(c, random_setup(c, problem, one, options.dtype, options.seed), one, 0, false);
    for (const NamedResult& r : twin.results) (*serial)[r.name] = r.value.local();
  });
  Reference reference;
  reference.value = [serial, &mesh](const NamedResult& r) {
    const Tensor full = mesh.rank() == 0 ? serial->at(r.name).contiguous() : Tensor();
    return distribute_from_root(full, r.value.mesh(), r.value.placements(), r.value.shape(),
                                r.value.dtype());
  };
  return reference;
}

// The same layer on the same ranks on another device, and what the ledgers counted there.
Reference device_reference(const Case& c, const Problem& problem, const DeviceMesh& mesh,
                           const RunOptions& options, CaseResult& ledgers) {
  auto values = std::make_shared<std::map<std::string, Tensor>>();
  memory_ledger::reset_peak();
  const std::int64_t baseline = memory_ledger::total().live;
  const Setup setup = random_setup(c, problem, mesh, options.dtype, options.seed);
  const Run run = run_distributed(c, setup, mesh, baseline, false, ledgers);
  for (const NamedResult& r : run.results) (*values)[r.name] = r.value.local().clone();
  Reference reference;
  reference.value = [values](const NamedResult& r) {
    DTensor expected = empty_like(r.value, r.value.dtype());
    copy(values->at(r.name).to(expected.local().device()), expected.local());
    return expected;
  };
  return reference;
}

std::string describe(const Problem& problem) {
  const Shape& x = problem.inputs.front().shape;
  if (x.size() < 3) return format_shape(x);
  return fmt::format("B={} N={} C={}", x.front(), x.at(1), x.back());
}

// --- golden files ------------------------------------------------------------------------------

FileError unfit(const std::string& path, std::string problem, std::string tensor = {}) {
  return FileError({.problem = path + ": " + std::move(problem),
                    .operation = "golden",
                    .tensor = std::move(tensor)});
}

json metadata_json(const SafetensorsFile& file, const std::string& path, const char* key) {
  const auto entry = file.metadata().find(key);
  if (entry == file.metadata().end())
    throw unfit(path, fmt::format("no '{}' in the metadata", key));
  try {
    return json::parse(entry->second);
  } catch (const json::exception&) {
    throw unfit(path, fmt::format("'{}' in the metadata is not JSON", key));
  }
}

void check_order(const Module& module, const SafetensorsFile& file, const std::string& path) {
  std::vector<std::string> expected;
  for (const NamedParameter& p : module.named_parameters()) expected.push_back(p.name);
  const json order = metadata_json(file, path, "param_order");
  if (order != json(expected))
    throw unfit(path, fmt::format("parameter order {} differs from the layer's {}", order.dump(),
                                  json(expected).dump()));
}

// The own part of a tensor of the file; every rank has the file mapped.
DTensor read_sharded(const SafetensorsFile& file, const std::string& name, const DeviceMesh& mesh,
                     const Placements& placements, DType dtype) {
  const Tensor full = file.tensor(name);
  block_of(full.shape(), placements, mesh.shape(), mesh.coordinate(), "golden", name.c_str());
  const DTensor x = distribute(full, mesh, placements);
  return x.with_local(x.local().to(dtype).to(mesh.device()));
}

Setup golden_setup(const Case& c, const SafetensorsFile& file, const std::string& path,
                   const DeviceMesh& mesh, DType dtype) {
  Setup setup;
  try {
    setup.instance =
        build_layer(c, {mesh, at_least_f32(dtype)}, metadata_json(file, path, "hyperparameters"));
  } catch (const UsageError& e) {
    ErrorFacts facts = e.facts();
    facts.problem = path + ": " + facts.problem;
    throw FileError(std::move(facts));
  }
  StateDict state;
  const std::string prefix = "param.";
  for (const std::string& name : file.names())
    if (name.starts_with(prefix)) state[name.substr(prefix.size())] = file.tensor(name);
  setup.instance.module->load_state(state);
  check_order(*setup.instance.module, file, path);
  for (InputSpec spec : c.inputs) {
    const std::string name = "in." + spec.name;
    spec.shape = file.info(name).shape;
    const Placements placements = golden_placements(c, spec, static_cast<int>(spec.shape.size()));
    setup.inputs.push_back(read_sharded(file, name, mesh, placements, dtype_of(spec, dtype)));
    setup.specs.push_back(std::move(spec));
  }
  const json with_gradient = metadata_json(file, path, "outputs_with_gout");
  const std::set<std::string> wanted(with_gradient.begin(), with_gradient.end());
  for (const std::string& output : wanted) file.info("gout." + output);
  setup.upstream = [&file, wanted, outputs = c.outputs](const DTensor& y, std::size_t number) {
    const std::string& output = outputs.at(number);
    if (!wanted.contains(output)) return DTensor();
    return read_sharded(file, "gout." + output, y.mesh(), y.placements(), y.dtype());
  };
  return setup;
}

// Name in the file of a result: "y" -> "out.y", "grad x" -> "grad_in.x" or "grad_param.x".
std::string golden_name(const Case& c, const std::string& result) {
  const std::string prefix = "grad ";
  if (!result.starts_with(prefix)) return "out." + result;
  const std::string name = result.substr(prefix.size());
  for (const InputSpec& spec : c.inputs)
    if (spec.name == name) return "grad_in." + name;
  return "grad_param." + name;
}

Reference golden_reference(const Case& c, const SafetensorsFile& file, const std::string& path) {
  Reference reference;
  for (const json& name : metadata_json(file, path, "grads_mathematically_zero")) {
    const std::string full = name.get<std::string>();
    reference.zero.insert("grad " + full.substr(full.find('.') + 1));
  }
  reference.value = [&c, &file](const NamedResult& r) {
    return read_sharded(file, golden_name(c, r.name), r.value.mesh(), r.value.placements(),
                        DType::f64);
  };
  reference.valid = [&file](const NamedResult& r) {
    const std::string name = "valid." + r.name;
    if (!file.contains(name)) return DTensor();
    return read_sharded(file, name, r.value.mesh(), r.value.placements(), DType::boolean);
  };
  return reference;
}

void check_complete(const Case& c, const Setup& setup, const SafetensorsFile& file) {
  for (const std::string& output : c.outputs) file.info("out." + output);
  for (const InputSpec& spec : c.inputs)
    if (spec.differentiable) file.info("grad_in." + spec.name);
  for (const NamedParameter& p : setup.instance.module->named_parameters())
    file.info("grad_param." + p.name);
}

}  // namespace

// Parity bounds: both sides do the same products in another order; a few hundred terms of sums in
// f64 give 1e-14, f32 1e-6. In bf16 a difference of one f32 rounding can flip the rounding of a
// result: two units of 2^-8 of the largest value. Golden bounds in bf16: about eight roundings of
// inputs, weights and intermediates on the way to a result, 8 * 2^-8. TF32 is bf16 with 2^-11.
double default_tolerance(Kind kind, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return kind == Kind::golden ? 1e-10 : 1e-11;
    case DType::f32:
      if (tf32()) return (kind == Kind::golden ? 8.0 : 2.0) / 2048;
      return 1e-4;
    default:
      return kind == Kind::golden ? 8.0 / 256 : 2.0 / 256;
  }
}

CaseResult run_parity(const Case& c, const Sizes& sizes, const DeviceMesh& mesh,
                      const RunOptions& options) {
  CaseResult result;
  result.name = c.name;
  result.kind = Kind::parity;
  const bool roundings = c.stack && options.dtype == DType::bf16;
  result.tolerance =
      options.tolerance > 0
          ? options.tolerance
          : default_tolerance(roundings ? Kind::golden : Kind::parity, options.dtype);
  const Problem problem = c.problem(sizes);
  result.problem = describe(problem);

  // Runs one after the other, so that no ledger has both.
  CaseResult elsewhere;
  elsewhere.name = c.name;
  Reference reference;
  if (options.reference)
    reference = device_reference(c, problem, *options.reference, options, elsewhere);
  memory_ledger::reset_peak();
  const std::int64_t baseline = memory_ledger::total().live;
  const Setup setup = random_setup(c, problem, mesh, options.dtype, options.seed);
  const Run run = run_distributed(c, setup, mesh, baseline, options.trace, result);
  if (options.reference)
    result.ledger_differences = compare_ledgers(result, elsewhere);
  else
    reference = serial_reference(c, problem, mesh, options);
  for (const std::string& name : c.zero_gradients) reference.zero.insert("grad " + name);
  reference.zero_by_largest = true;
  compare(run, reference, mesh, result);
  return result;
}

CaseResult run_golden(const Case& c, const SafetensorsFile& file, const std::string& path,
                      const DeviceMesh& mesh, const RunOptions& options) {
  CaseResult result;
  result.name = c.name;
  result.kind = Kind::golden;
  result.problem = path;
  result.tolerance =
      options.tolerance > 0 ? options.tolerance : default_tolerance(Kind::golden, options.dtype);
  memory_ledger::reset_peak();
  const std::int64_t baseline = memory_ledger::total().live;
  std::optional<Setup> setup;
  collective_try(mesh, [&] {
    setup = golden_setup(c, file, path, mesh, options.dtype);
    check_complete(c, *setup, file);
  });
  const Run run = run_distributed(c, *setup, mesh, baseline, options.trace, result);
  compare(run, golden_reference(c, file, path), mesh, result);
  return result;
}

const Comparison& CaseResult::worst() const {
  return *std::max_element(
      tensors.begin(), tensors.end(), [](const Comparison& a, const Comparison& b) {
        return !(b.max_rel / b.tolerance <= a.max_rel / a.tolerance);  // NaN is worst
      });
}

std::vector<std::string> CaseResult::failures() const {
  std::vector<std::string> all;
  for (const Comparison& t : tensors)
    if (!(t.max_rel <= t.tolerance))
      all.push_back(fmt::format("{} differs by {:.2e} of its maximum", t.tensor, t.max_rel));
  const auto require = [&](bool holds, const char* text) {
    if (!holds) all.emplace_back(text);
  };
  require(sharding_active, "a tensor is not sharded");
  require(replicas_identical, "replicas differ");
  require(gradients_nonzero, "an output or gradient is all zero");
  require(finite, "an output or gradient is not finite");
  require(inputs_unmodified, "an input or parameter was written to");
  for (const std::string& difference : contract_differences)
    all.push_back("contract: " + difference);
  for (const std::string& difference : ledger_differences) all.push_back("ledger: " + difference);
  require(within_budget, "more is saved for backward than the budget allows");
  return all;
}

bool CaseResult::pass() const {
  return failures().empty();
}

}  // namespace tessera::harness
