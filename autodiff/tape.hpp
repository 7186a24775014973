// SPDX-License-Identifier: MIT
// Tape-based reverse mode. A Var is a DTensor with its place on a tape. A Function is a plain
// struct with a forward and a backward; apply() runs the forward and records the backward.
//
// The gradient convention: a gradient has the placement of its value, and on a replicated axis it
// is the complete gradient, not a share. Only gradients of parameters may be Partial, until
// reduce_gradients() (autodiff/gradients.hpp).
//
// Backward visits the nodes in descending order of creation, so that collectives in it match on all
// ranks. One tape per thread of execution; all ranks record the same functions in the same order.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/autodiff/budget.hpp"
#include "tessera/autodiff/contract.hpp"
#include "tessera/autodiff/finite.hpp"
#include "tessera/mesh/dtensor.hpp"
#include "tessera/mesh/replicas.hpp"

namespace tessera {

class Tape;

// Gradient contributions to a leaf, one sum per distinct placement.
struct LeafState {
  std::string name;
  DTensor value;
  bool requires_grad = false;
  std::vector<DTensor> contributions;
};

class Var {
 public:
  Var() = default;
  // A value without gradient and without tape.
  static Var constant(DTensor value);
  // A parameter: a leaf that belongs to no tape and outlives them.
  static Var parameter(std::string name, DTensor value, bool requires_grad = true);

  const DTensor& value() const;
  bool requires_grad() const { return requires_grad_; }
  bool is_leaf() const { return leaf_ != nullptr; }
  const std::string& name() const;  // of a leaf
  void set_value(DTensor value);    // leaves only: same shape and mesh (parameters being loaded)

  // Leaves: the sum of the contributions. GradientError if none arrived, if it is not a leaf, or
  // if contributions with unlike placements were not yet reduced.
  DTensor grad() const;
  bool has_grad() const;
  void zero_grad();
  LeafState& leaf() const;

 private:
  friend class Tape;
  friend struct TapeAccess;
  DTensor value_;  // of intermediate results and constants
  std::shared_ptr<LeafState> leaf_;
  Tape* tape_ = nullptr;
  std::int64_t node_ = -1;
  bool requires_grad_ = false;
};

// What a function sees in its forward and, with the same saved tensors, in its backward.
class FunctionContext {
 public:
  FunctionContext(std::string function, DeviceMesh mesh, std::vector<bool> needs_grad, bool record);

  const DeviceMesh& mesh() const { return mesh_; }
  // False when nothing is recorded; then nothing needs to be saved.
  bool recording() const { return recording_; }
  bool needs_grad(std::size_t input) const { return needs_grad_.at(input); }

  // Keeps a reference for the backward pass. `global` is the shape of the whole tensor of which
  // this rank keeps its part; more than the class allows throws BudgetError in builds with
  // assertions and is a failed line of the parity report in every build.
  void save(const std::string& name, const Tensor& tensor, BudgetClass budget, const Shape& global);
  void save(const std::string& name, const DTensor& x, BudgetClass budget);
  // GradientError if it was written to since.
  const Tensor& saved(const std::string& name) const;

  // In backward: no longer needed, its memory may go before the function ends.
  void drop(const std::string& name);

  const std::vector<SavedRecord>& records() const { return records_; }
  std::string scope;
  void release();  // drops the saved tensors

 private:
  struct Entry {
    std::string name;
    Tensor tensor;
    std::uint64_t version;
  };
  std::string function_;
  DeviceMesh mesh_;
  std::vector<bool> needs_grad_;
  bool recording_;
  std::vector<Entry> saved_;
  std::vector<SavedRecord> records_;
};

// While it lives, apply() records nothing on this thread.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

class Tape {
 public:
  Tape() = default;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // An input of the computation.
  Var input(std::string name, DTensor value, bool requires_grad);

  // The same leaf, as an input on this tape.
  Var adopt(const Var& leaf);

  // Starts at the given outputs with the given gradients (placements and shapes of the values) and
  // adds to the leaves. Frees what was saved; a second call is a GradientError.
  struct Seed {
    Var output;
    DTensor gradient;
  };
  void backward(const std::vector<Seed>& seeds);
  void backward(const Var& output, const DTensor& gradient) { backward({{output, gradient}}); }

  std::size_t size() const { return nodes_.size(); }
  // What is kept for backward now, by function; and its bytes, with shared storage counted once and
  // without parameters, which live anyway.
  std::vector<SavedRecord> saved() const;
  std::int64_t saved_bytes() const;
  std::int64_t saved_bound() const;
  // The contracts of everything recorded: the contract of whatever was built of these functions.
  std::vector<BoundContract> contracts() const;

 private:
  friend struct TapeAccess;
  struct Node {
    std::string function;
    std::vector<Var> inputs;
    BoundContract contract;
    FunctionContext context;
    Shape shape;  // of the output; its memory lives only as long as somebody uses it
    DeviceMesh mesh;
    Placements placements;
    std::function<std::vector<DTensor>(FunctionContext&, const DTensor&)> backward;
    DTensor gradient;
  };
  void deliver(const Var& input, DTensor gradient, const Node& from, std::size_t slot);
  void add_gradient(Node& node, DTensor gradient, const char* operation);

  std::vector<Node> nodes_;
  bool consumed_ = false;
};

struct TapeAccess {
  static Tape* tape_of(const Var* inputs, std::size_t count, const char* function);
  static Var record(Tape& tape, std::string function, std::vector<Var> inputs,
                    BoundContract contract, FunctionContext context, const DTensor& output,
                    std::function<std::vector<DTensor>(FunctionContext&, const DTensor&)> backward);
};

// What is looked at where functions begin and end, if it was asked for: replicas, finite values.
inline void watch(const DTensor& x, const char* function, const char* tensor) {
  check_replicas(x, function, tensor);
  if (finite_watch()) check_finite(x, function, tensor);
}

// A function F has
//   static constexpr const char* name;
//   static constexpr std::array<const char*, n> inputs;   // names of the operands
//   Contract contract() const;                             // of the same operands
//   DTensor forward(FunctionContext&, const std::array<DTensor, n>&) const;
//   std::array<DTensor, n> backward(FunctionContext&, const DTensor& gradient) const;
// and perhaps data members as options. Operands are checked against the contract before forward is
// called. backward returns one slot per input, undefined for those
// without gradient; it must be defined for every input that needs one.
template <class F>
Var apply(const F& function, const std::array<Var, F::inputs.size()>& inputs) {
  constexpr std::size_t n = F::inputs.size();
  Tape* tape = TapeAccess::tape_of(inputs.data(), n, F::name);
  std::vector<bool> needs_grad(n);
  std::array<DTensor, n> values;
  for (std::size_t k = 0; k < n; ++k) {
    needs_grad[k] = tape != nullptr && inputs[k].requires_grad();
    values[k] = inputs[k].value();
  }
  Scope scope(F::name);
  BoundContract contract = bind(F::name, function.contract(), values.data(), n);
  FunctionContext context(F::name, contract.mesh, needs_grad, tape != nullptr);
  for (std::size_t k = 0; k < n; ++k) watch(values[k], F::name, F::inputs[k]);
  DTensor output = function.forward(context, values);
  watch(output, F::name, "output");
  if (tape == nullptr) return Var::constant(std::move(output));
  auto backward = [function](FunctionContext& ctx, const DTensor& gradient) {
    std::array<DTensor, n> gradients = function.backward(ctx, gradient);
    return std::vector<DTensor>(gradients.begin(), gradients.end());
  };
  return TapeAccess::record(*tape, F::name, {inputs.begin(), inputs.end()}, std::move(contract),
                            std::move(context), output, std::move(backward));
}

}  // namespace tessera
