// SPDX-License-Identifier: MIT
#include "tessera/autodiff/checkpoint.hpp"

#include <algorithm>
#include <utility>

#include "tessera/runtime/error.hpp"

namespace tessera {
namespace {

constexpr const char* kName = "checkpoint";

// An input without its memory. Leaves stay what they are, and gradients go to them directly.
struct Place {
  std::string name;
  bool wanted = false;  // a gradient is handed back
  Var leaf;
  DeviceMesh mesh;
  Placements placements;
  Shape shape;
  Strides strides;
};

Place place_of(const std::string& name, const Var& x) {
  const DTensor& v = x.value();
  if (!v.defined())
    throw TypeError({.problem = "operand is undefined", .operation = kName, .tensor = name});
  const bool leaf = x.is_leaf();
  return {
      name,       x.requires_grad() && !leaf, leaf ? x : Var(), v.mesh(), v.placements(), v.shape(),
      v.strides()};
}

Var on_tape(Tape& tape, const Place& p, const Tensor& value) {
  if (p.leaf.is_leaf()) return tape.adopt(p.leaf);
  return tape.input(p.name, DTensor::from_local(value, p.mesh, p.placements, p.shape, p.strides),
                    p.wanted);
}

Contract contract_of(const std::vector<Place>& places, std::size_t outputs) {
  Contract c;
  for (const Place& p : places) {
    c.inputs.push_back({p.name, any_shape()});
    c.saved.push_back(saved_block(p.name));
  }
  for (std::size_t k = 0; k < outputs; ++k)
    c.outputs.push_back({"output " + std::to_string(k), any_shape()});
  return c;
}

// The contract of a function inside: it keeps nothing, and sends the messages of its forward pass
// again in the backward pass.
BoundContract replayed(BoundContract b) {
  b.contract.saved.clear();
  std::vector<ContractMessage> again = b.contract.messages;
  std::erase_if(again, [](const ContractMessage& m) { return m.pass == Pass::backward; });
  for (ContractMessage& m : again) m.pass = Pass::backward;
  append(b.contract.messages, again);
  return b;
}

void refuse_leaves(const std::vector<Var>& outputs) {
  for (std::size_t k = 0; k < outputs.size(); ++k)
    if (outputs[k].is_leaf())
      throw GradientError({.problem = "a result is not computed in the part of the computation",
                           .operation = kName,
                           .tensor = "output " + std::to_string(k),
                           .found = "the leaf '" + outputs[k].name() + "'",
                           .hint = "use that tensor itself, outside of the checkpoint"});
}

// Where the second run starts its backward pass; the memory of its results is not needed.
std::vector<Tape::Seed> seeds_of(const std::vector<Var>& outputs, std::vector<DTensor> upstream) {
  std::vector<Tape::Seed> seeds;
  for (std::size_t k = 0; k < outputs.size(); ++k)
    if (outputs[k].requires_grad() && upstream[k].defined())
      seeds.push_back({TapeAccess::place_of(outputs[k]), std::move(upstream[k])});
  return seeds;
}

// The backward pass of the node.
struct Replay {
  std::vector<Place> places;
  CheckpointBody body;

  std::vector<DTensor> operator()(FunctionContext& ctx, std::vector<DTensor> upstream) const {
    Tape tape;
    std::vector<Var> inputs;
    for (const Place& p : places) inputs.push_back(on_tape(tape, p, ctx.saved(p.name)));
    for (const Place& p : places) ctx.drop(p.name);
    go_on_with(ctx, inputs);
    {
      const ForwardAgain forward;
      std::vector<Tape::Seed> seeds = seeds_of(body(inputs), std::move(upstream));
      tape.backward(std::move(seeds));
    }
    return gradients_of(inputs);
  }

  // Later functions added to the gradients first, as they do without a checkpoint.
  void go_on_with(FunctionContext& ctx, const std::vector<Var>& inputs) const {
    for (std::size_t k = 0; k < inputs.size(); ++k)
      if (ctx.sums[k].defined())
        inputs[k].leaf().contributions.push_back(std::exchange(ctx.sums[k], DTensor()));
  }

  std::vector<DTensor> gradients_of(const std::vector<Var>& inputs) const {
    std::vector<DTensor> gradients(inputs.size());
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (!places[k].wanted) continue;
      const DTensor& x = inputs[k].value();
      gradients[k] = inputs[k].has_grad() ? inputs[k].grad()
                                          : zeros(x.shape(), x.dtype(), x.mesh(), x.placements());
    }
    return gradients;
  }
};

// The results of the first run as those of one node of the tape.
std::vector<Var> record_part(Tape& tape, const NamedVars& inputs, const Tape& first,
                             const std::vector<Var>& outputs, Replay replay) {
  std::vector<Var> vars;
  std::vector<DTensor> operands, results;
  std::vector<bool> wanted;
  for (const auto& input : inputs) vars.push_back(input.second);
  for (const Var& x : vars) operands.push_back(x.value());
  for (const Var& y : outputs) results.push_back(y.value());
  for (const Place& p : replay.places) wanted.push_back(p.wanted);
  BoundContract contract =
      bind(kName, contract_of(replay.places, outputs.size()), operands.data(), operands.size());
  const bool any =
      std::any_of(outputs.begin(), outputs.end(), [](const Var& y) { return y.requires_grad(); });
  for (const BoundContract& b : first.contracts())
    TapeAccess::add_contract(tape, any ? replayed(b) : b);
  if (!any) return TapeAccess::note(&tape, std::move(contract), results);

  FunctionContext context(kName, contract.mesh, wanted, TapeAccess::keeps(tape));
  for (std::size_t k = 0; k < vars.size(); ++k) context.save(replay.places[k].name, operands[k]);
  std::vector<Var> all = TapeAccess::record(tape, kName, vars, std::move(contract),
                                            std::move(context), results, std::move(replay), true);
  for (std::size_t k = 0; k < all.size(); ++k)
    TapeAccess::set_requires_grad(all[k], outputs[k].requires_grad());
  return all;
}

}  // namespace

std::vector<Var> checkpoint(const NamedVars& inputs, CheckpointBody body) {
  std::vector<Var> vars;
  for (const auto& input : inputs) vars.push_back(input.second);
  const TapeAccess::Found found = TapeAccess::tape_of(vars.data(), vars.size(), kName);
  if (found.tape == nullptr) return body(vars);

  // The functions of the first run leave their contracts on a tape of their own, which keeps no
  // more.
  Tape first;
  TapeAccess::keep_contracts_only(first);
  Replay replay;
  for (const auto& [name, x] : inputs) replay.places.push_back(place_of(name, x));
  for (std::size_t k = 0; k < vars.size(); ++k)
    vars[k] = on_tape(first, replay.places[k], vars[k].value().local());
  const std::vector<Var> outputs = body(vars);
  refuse_leaves(outputs);
  replay.body = std::move(body);
  return record_part(*found.tape, inputs, first, outputs, std::move(replay));
}

}  // namespace tessera
