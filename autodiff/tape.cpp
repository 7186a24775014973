// SPDX-License-Identifier: MIT
#include "tessera/autodiff/tape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

thread_local bool t_no_grad = false;
thread_local bool t_in_backward = false;

class BackwardScope {
 public:
  BackwardScope() : before_(std::exchange(t_in_backward, true)) {}
  ~BackwardScope() { t_in_backward = before_; }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  bool before_;
};

// Gradients may share storage with each other, so a sum is always a new tensor.
DTensor sum_of(const DTensor& a, const DTensor& b) {
  const DType dtype = promote(a.dtype(), b.dtype());
  const DTensor sum = empty_like(a, dtype);
  add(1.0, a.local(), 1.0, b.local(), sum.local());
  return sum;
}

// A leaf's gradient is placed as its value (gradient_placements()); on an axis on which that is
// replicated it may be a summand, until reduce_gradients().
void check_leaf_gradient(const LeafState& leaf, const DTensor& gradient,
                         const std::string& function) {
  expect(gradient, function.c_str(), leaf.name.c_str(),
         {.shape = leaf.value.shape(), .mesh = leaf.value.mesh(), .allow_partial = true});
  const Placements placements = gradient_placements(leaf.value.placements());
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& value = placements[axis];
    const Placement& grad = gradient.placements()[axis];
    if (grad == value || (is_replicate(value) && is_partial(grad))) continue;
    throw PlacementError({.problem = "the gradient is not placed as its value",
                          .operation = function,
                          .tensor = leaf.name,
                          .found = format(gradient.placements()),
                          .expected = format(placements)});
  }
}

}  // namespace

NoGrad::NoGrad() : before_(t_no_grad) {
  t_no_grad = true;
}
NoGrad::~NoGrad() {
  t_no_grad = before_;
}

bool in_backward() {
  return t_in_backward;
}

ForwardAgain::ForwardAgain()
    : no_grad_(std::exchange(t_no_grad, false)),
      in_backward_(std::exchange(t_in_backward, false)),
      purpose_(Purpose::activation) {}
ForwardAgain::~ForwardAgain() {
  t_no_grad = no_grad_;
  t_in_backward = in_backward_;
}

// --- Var ---------------------------------------------------------------------------------------

Var Var::constant(DTensor value) {
  Var v;
  v.value_ = std::move(value);
  return v;
}

Var Var::parameter(std::string name, DTensor value, bool requires_grad) {
  Var v;
  v.leaf_ = std::make_shared<LeafState>();
  v.leaf_->name = std::move(name);
  v.leaf_->value = std::move(value);
  v.leaf_->requires_grad = requires_grad;
  v.requires_grad_ = requires_grad;
  if (requires_grad && !is_floating(v.leaf_->value.dtype()))
    throw GradientError({.problem = "only floating tensors have gradients",
                         .operation = "Var",
                         .tensor = v.leaf_->name,
                         .found = std::string(name_of(v.leaf_->value.dtype()))});
  return v;
}

const DTensor& Var::value() const {
  return leaf_ ? leaf_->value : value_;
}

LeafState& Var::leaf() const {
  if (!leaf_)
    throw GradientError({.problem = "only leaves (inputs and parameters) keep gradients",
                         .operation = "Var::leaf"});
  return *leaf_;
}

const std::string& Var::name() const {
  return leaf().name;
}

void Var::set_value(DTensor value) {
  LeafState& state = leaf();
  expect(value, "Var::set_value", state.name.c_str(),
         {.shape = state.value.shape(),
          .mesh = state.value.mesh(),
          .placements = state.value.placements()});
  state.value = std::move(value);
}

bool Var::has_grad() const {
  return !leaf().contributions.empty();
}

DTensor Var::grad() const {
  const LeafState& state = leaf();
  if (state.contributions.empty())
    throw GradientError({.problem = state.requires_grad
                                        ? "no gradient has arrived"
                                        : "this leaf was made without requires_grad",
                         .operation = "Var::grad",
                         .tensor = state.name,
                         .hint = "call Tape::backward on a result that depends on it"});
  if (state.contributions.size() > 1)
    throw GradientError({.problem = "contributions with unlike placements are not yet one gradient",
                         .operation = "Var::grad",
                         .tensor = state.name,
                         .hint = "call reduce_gradients() first"});
  return state.contributions.front();
}

void Var::zero_grad() {
  leaf().contributions.clear();
}

// --- FunctionContext ---------------------------------------------------------------------------

FunctionContext::FunctionContext(std::string function, DeviceMesh mesh,
                                 std::vector<bool> needs_grad, bool record)
    : scope(current_scope()),
      function_(std::move(function)),
      mesh_(std::move(mesh)),
      needs_grad_(std::move(needs_grad)),
      recording_(record) {}

void FunctionContext::save(const std::string& name, const Tensor& tensor, BudgetClass budget,
                           const Shape& global) {
  if (!recording_) return;
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype()));
  SavedRecord record{.function = function_,
                     .scope = scope,
                     .tensor = name,
                     .budget = budget,
                     .bytes = tensor.bytes(),
                     .bound = budget_elements(budget, global, mesh_) * element,
                     .storage = tensor.storage_id()};
#ifdef TESSERA_ASSERTIONS
  if (!record.within())
    throw BudgetError(
        {.problem = "more is saved for backward than the class allows",
         .operation = function_,
         .tensor = name,
         .found =
             fmt::format("{} bytes, local shape {}", record.bytes, format_shape(tensor.shape())),
         .expected = fmt::format("at most {} bytes of class {}, global shape {}", record.bound,
                                 name_of(budget), format_shape(global))});
#endif
  if (budget != BudgetClass::parameter) tensor.relabel(Purpose::saved);
  records_.push_back(std::move(record));
  saved_.push_back({name, tensor, tensor.version()});
}

void FunctionContext::save(const std::string& name, const DTensor& x, BudgetClass budget) {
  save(name, x.local(), budget, x.shape());
}

void FunctionContext::save(const std::string& name, const DTensor& x) {
  save_block(name, x.local(), x);
}

void FunctionContext::save_block(const std::string& name, const Tensor& tensor, const DTensor& x) {
  save(name, tensor, BudgetClass::own,
       shape_of(block_of(x.shape(), x.placements(), x.mesh().shape(), x.mesh().coordinate())));
}

const Tensor& FunctionContext::saved(const std::string& name) const {
  const auto entry =
      std::find_if(saved_.begin(), saved_.end(), [&](const Entry& e) { return e.name == name; });
  if (entry == saved_.end())
    throw GradientError({.problem = "nothing was saved under this name",
                         .operation = function_,
                         .tensor = name,
                         .layer = scope});
  if (entry->version != entry->tensor.version())
    throw GradientError({.problem = "a tensor saved for backward was written to afterwards",
                         .operation = function_,
                         .tensor = name,
                         .found = fmt::format("version {}", entry->tensor.version()),
                         .expected = fmt::format("version {}", entry->version),
                         .layer = scope});
  return entry->tensor;
}

void FunctionContext::drop(const std::string& name) {
  std::erase_if(saved_, [&](const Entry& e) { return e.name == name; });
}

void FunctionContext::release() {
  saved_.clear();
  records_.clear();
}

// --- Tape --------------------------------------------------------------------------------------

Var Tape::input(std::string name, DTensor value, bool requires_grad) {
  return adopt(Var::parameter(std::move(name), std::move(value), requires_grad));
}

Var Tape::adopt(const Var& leaf) {
  leaf.leaf();  // refuses anything else
  Var v = leaf;
  v.tape_ = this;
  return v;
}

TapeAccess::Found TapeAccess::tape_of(const Var* inputs, std::size_t count, const char* function) {
  Found found;
  for (std::size_t k = 0; k < count; ++k) {
    found.wanted = found.wanted || inputs[k].requires_grad_;
    if (inputs[k].tape_ == nullptr) continue;
    if (found.tape != nullptr && found.tape != inputs[k].tape_)
      throw GradientError(
          {.problem = "operands are recorded on different tapes", .operation = function});
    found.tape = inputs[k].tape_;
  }
  if (t_no_grad) return {};
  if (found.wanted && t_in_backward)
    throw GradientError({.problem = "gradients of gradients are not supported",
                         .operation = function,
                         .hint = "hold a NoGrad for functions that are used in a backward pass"});
  if (found.wanted && found.tape == nullptr)
    throw GradientError({.problem = "an operand requires a gradient, but none is on a tape",
                         .operation = function,
                         .hint = "make an input with Tape::input or Tape::adopt, or hold a NoGrad "
                                 "for inference"});
  found.keeps = found.tape != nullptr && found.tape->keeps_;
  return found;
}

std::vector<Var> TapeAccess::record(Tape& tape, std::string function, std::vector<Var> inputs,
                                    BoundContract contract, FunctionContext context,
                                    const std::vector<DTensor>& outputs, Backward backward,
                                    bool takes_sums) {
  if (tape.consumed_)
    throw GradientError({.problem = "the tape was already used for a backward pass",
                         .operation = function,
                         .hint = "make a new Tape for a new forward pass"});
  std::vector<Var> results;
  std::vector<Tape::Output> facts;
  for (const DTensor& output : outputs) {
    Var result;
    result.value_ = output;
    result.tape_ = &tape;
    result.node_ = static_cast<std::int64_t>(tape.nodes_.size());
    result.output_ = results.size();
    result.requires_grad_ = is_floating(output.dtype());
    results.push_back(std::move(result));
    facts.push_back({output.shape(),
                     output.mesh(),
                     output.dtype(),
                     gradient_placements(output.placements()),
                     {}});
  }
  if (!tape.keeps_) {
    add_contract(tape, std::move(contract));
    return results;
  }
  for (Var& input : inputs)
    if (!input.is_leaf()) input = place_of(input);  // the function saved what it needs
  tape.nodes_.push_back({std::move(function), std::move(inputs), std::move(contract),
                         std::move(context), std::move(facts), std::move(backward), takes_sums});
  return results;
}

std::vector<Var> TapeAccess::note(Tape* tape, BoundContract contract,
                                  const std::vector<DTensor>& outputs) {
  // Without a backward pass nothing is kept for it and nothing sent in it.
  contract.contract.saved.clear();
  std::erase_if(contract.contract.messages,
                [](const ContractMessage& m) { return m.pass == Pass::backward; });
  if (tape != nullptr) tape->without_gradient_.push_back(std::move(contract));
  std::vector<Var> results;
  for (const DTensor& output : outputs) {
    results.push_back(Var::constant(output));
    results.back().tape_ = tape;
  }
  return results;
}

void Tape::add_gradient(const Var& to, DTensor gradient, const char* operation) {
  Output& output = nodes_[static_cast<std::size_t>(to.node_)].outputs[to.output_];
  expect(gradient, operation, "gradient",
         {.shape = output.shape, .mesh = output.mesh, .placements = output.placements});
  output.gradient =
      output.gradient.defined() ? sum_of(output.gradient, gradient) : std::move(gradient);
}

void Tape::deliver(const Var& input, DTensor gradient, const Node& from, std::size_t slot) {
  if (!gradient.defined())
    throw GradientError(
        {.problem = "the backward pass returned no gradient for an operand that needs one",
         .operation = from.function,
         .tensor = from.contract.contract.inputs.at(slot).name,
         .layer = from.context.scope});
  if (!input.is_leaf()) {
    add_gradient(input, std::move(gradient), from.function.c_str());
    return;
  }
  check_leaf_gradient(input.leaf(), gradient, from.function);
  std::vector<DTensor>& contributions = input.leaf().contributions;
  for (DTensor& sum : contributions)
    if (sum.placements() == gradient.placements()) {
      sum = sum_of(sum, gradient);
      return;
    }
  contributions.push_back(std::move(gradient));
}

std::vector<DTensor> Tape::take_sums(const Node& node) {
  std::vector<DTensor> sums(node.inputs.size());
  for (std::size_t k = 0; k < sums.size(); ++k) {
    const Var& x = node.inputs[k];
    if (node.context.needs_grad(k) && !x.is_leaf())
      sums[k] = std::exchange(nodes_[static_cast<std::size_t>(x.node_)].outputs[x.output_].gradient,
                              DTensor());
  }
  return sums;
}

void Tape::run(Node& node) {
  std::vector<DTensor> upstream;
  bool any = false;
  for (Output& output : node.outputs) {
    DTensor gradient = std::exchange(output.gradient, DTensor());
    if (gradient.defined()) {
      any = true;
      watch(gradient, node.function.c_str(), "gradient of output");
      // Users in a wider dtype do not widen what is sent from here on.
      gradient = gradient.to(output.dtype);
    }
    upstream.push_back(std::move(gradient));
  }
  if (!any) return;
  // Errors and ledgers of the backward pass name the layer of the forward pass.
  const LedgerContextScope scope({node.context.scope, Purpose::gradient});
  const trace::Span span(trace::Kind::backward, node.context.scope);
  if (node.takes_sums) node.context.sums = take_sums(node);
  std::vector<DTensor> gradients = node.backward(node.context, std::move(upstream));
  if (finite_watch())
    for (std::size_t slot = 0; slot < gradients.size(); ++slot)
      check_finite(gradients[slot], node.function.c_str(),
                   "gradient of " + node.contract.contract.inputs.at(slot).name);
  for (std::size_t slot = 0; slot < node.inputs.size(); ++slot)
    if (node.context.needs_grad(slot))
      deliver(node.inputs[slot], std::move(gradients.at(slot)), node, slot);
}

void Tape::backward(std::vector<Seed> seeds) {
  if (consumed_)
    throw GradientError({.problem = "second backward pass on one tape",
                         .operation = "Tape::backward",
                         .hint = "what was saved is freed by the first; run the forward again"});
  for (const Seed& seed : seeds) {  // all of them, before any is taken
    if (seed.output.tape_ != this || seed.output.node_ < 0 || !seed.output.requires_grad_)
      throw GradientError(
          {.problem =
               "the output was not computed on this tape from anything that requires a gradient",
           .operation = "Tape::backward"});
    const Output& output =
        nodes_[static_cast<std::size_t>(seed.output.node_)].outputs[seed.output.output_];
    expect(seed.gradient, "Tape::backward", "gradient",
           {.shape = output.shape, .mesh = output.mesh, .placements = output.placements});
    if (!is_floating(seed.gradient.dtype()))
      throw TypeError({.problem = "a gradient has floating-point values",
                       .operation = "Tape::backward",
                       .tensor = "gradient",
                       .found = seed.gradient.describe(),
                       .expected = fmt::format("values of {}", name_of(output.dtype))});
  }
  for (Seed& seed : seeds) add_gradient(seed.output, std::move(seed.gradient), "Tape::backward");
  seeds.clear();
  consumed_ = true;
  const PurposeScope purpose(Purpose::gradient);
  const BackwardScope pass;
  for (std::size_t k = nodes_.size(); k-- > 0;) {
    Node& node = nodes_[k];
    run(node);
    node.context.release();
    node.backward = nullptr;
    node.inputs.clear();
  }
}

namespace {
// Parameters live anyway, and tensors that share storage are kept once.
bool is_extra(const SavedRecord& record, std::set<const void*>& seen) {
  return record.budget != BudgetClass::parameter && seen.insert(record.storage).second;
}
}  // namespace

std::vector<SavedRecord> Tape::saved() const {
  std::vector<SavedRecord> all;
  for (const Node& node : nodes_)
    all.insert(all.end(), node.context.records().begin(), node.context.records().end());
  return all;
}

std::vector<BoundContract> Tape::contracts() const {
  std::vector<BoundContract> all;
  for (const Node& node : nodes_) all.push_back(node.contract);
  all.insert(all.end(), without_gradient_.begin(), without_gradient_.end());
  return all;
}

std::int64_t Tape::saved_bytes() const {
  std::set<const void*> seen;
  std::int64_t bytes = 0;
  for (const SavedRecord& record : saved())
    if (is_extra(record, seen)) bytes += record.bytes;
  return bytes;
}

std::int64_t Tape::saved_bound() const {
  std::set<const void*> seen;
  std::int64_t bytes = 0;
  for (const SavedRecord& record : saved())
    if (is_extra(record, seen)) bytes += record.bound;
  return bytes;
}

}  // namespace tessera
