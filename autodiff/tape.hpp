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

#include <algorithm>
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
  std::size_t output_ = 0;  // of the node
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
  // The own block of x or, under another name, something with as many elements as it has: for
  // functions that take any placements. Its contract is saved_block().
  void save(const std::string& name, const DTensor& x);
  void save_block(const std::string& name, const Tensor& tensor, const DTensor& x);
  // GradientError if it was written to since.
  const Tensor& saved(const std::string& name) const;

  // In backward: no longer needed, its memory may go before the function ends.
  void drop(const std::string& name);

  const std::vector<SavedRecord>& records() const { return records_; }
  std::string scope;
  // In backward of a part of the computation that adds to the gradients of its operands itself,
  // term by term: the sums of what arrived from later functions, undefined where nothing did.
  std::vector<DTensor> sums;
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

// True while a backward pass runs on this thread. Gradients are tensors, not functions on a tape:
// gradients of gradients are refused (GradientError).
bool in_backward();

// While it lives, functions are recorded as in a forward pass, whatever pass runs on this thread:
// for backward passes that run a part of the computation again, on a tape of its own.
class ForwardAgain {
 public:
  ForwardAgain();
  ~ForwardAgain();
  ForwardAgain(const ForwardAgain&) = delete;
  ForwardAgain& operator=(const ForwardAgain&) = delete;

 private:
  bool no_grad_, in_backward_;
  PurposeScope purpose_;
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
  void backward(std::vector<Seed> seeds);
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
  struct Output {
    Shape shape;  // its memory lives only as long as somebody uses it
    DeviceMesh mesh;
    DType dtype;
    Placements placements;  // of the gradient
    DTensor gradient;       // undefined until one arrives; perhaps in a wider dtype
  };
  // Owns the gradients, so that they may go before it ends.
  using Backward = std::function<std::vector<DTensor>(FunctionContext&, std::vector<DTensor>)>;
  struct Node {
    std::string function;
    std::vector<Var> inputs;
    BoundContract contract;
    FunctionContext context;
    std::vector<Output> outputs;
    Backward backward;
    bool takes_sums = false;
  };
  void run(Node& node);
  std::vector<DTensor> take_sums(const Node& node);
  void deliver(const Var& input, DTensor gradient, const Node& from, std::size_t slot);
  void add_gradient(const Var& to, DTensor gradient, const char* operation);

  std::vector<Node> nodes_;
  std::vector<BoundContract> without_gradient_;
  bool consumed_ = false;
  bool keeps_ = true;
};

struct TapeAccess {
  using Backward = Tape::Backward;
  struct Found {
    Tape* tape = nullptr;  // of the operands
    bool wanted = false;   // a gradient of one of them
    bool keeps = false;    // the tape keeps what backward needs
  };
  static Found tape_of(const Var* inputs, std::size_t count, const char* function);
  static std::vector<Var> record(Tape& tape, std::string function, std::vector<Var> inputs,
                                 BoundContract contract, FunctionContext context,
                                 const std::vector<DTensor>& outputs, Backward backward,
                                 bool takes_sums = false);
  // Results without gradient; the tape keeps the contract only.
  static std::vector<Var> note(Tape* tape, BoundContract contract,
                               const std::vector<DTensor>& outputs);

  // From now on functions leave their contracts on the tape and keep nothing for a backward pass.
  static void keep_contracts_only(Tape& tape) { tape.keeps_ = false; }
  static bool keeps(const Tape& tape) { return tape.keeps_; }
  static void add_contract(Tape& tape, BoundContract contract) {
    tape.without_gradient_.push_back(std::move(contract));
  }
  // A result as a place where backward may start, without its memory.
  static Var place_of(Var result) {
    result.value_ = DTensor();
    return result;
  }
  static void set_requires_grad(Var& result, bool wanted) { result.requires_grad_ = wanted; }
};

// What is looked at where functions begin and end, if it was asked for: replicas, finite values.
inline void watch(const DTensor& x, const char* function, const char* tensor) {
  check_replicas(x, function, tensor);
  if (finite_watch()) check_finite(x, function, tensor);
}

// The general form. F has
//   static constexpr const char* name;
//   Contract contract(const std::vector<DTensor>& operands) const;
//   std::vector<DTensor> forward(FunctionContext&, const std::vector<DTensor>&) const;
//   std::vector<DTensor> backward(FunctionContext&, const std::vector<DTensor>& gradients) const;
// and perhaps data members as options. It takes any number of operands and gives one result or
// more. Operands are checked against the contract before forward is called. backward is called with
// one slot per result, in its dtype, undefined if nobody produced its gradient (zero), and returns
// one per operand, undefined without gradient; it must be defined for every operand that needs one.
// An F without backward has no gradient: its results are constants.
template <class F>
std::vector<Var> apply_many(const F& function, const std::vector<Var>& inputs) {
  constexpr bool differentiable = requires(FunctionContext & ctx) {
    function.backward(ctx, {});
  };
  const TapeAccess::Found found = TapeAccess::tape_of(inputs.data(), inputs.size(), F::name);
  const bool record = differentiable && found.wanted;
  std::vector<bool> needs_grad;
  std::vector<DTensor> values;
  for (const Var& input : inputs) {
    needs_grad.push_back(record && input.requires_grad());
    values.push_back(input.value());
  }
  const Scope scope(F::name);
  BoundContract contract = bind(F::name, function.contract(values), values.data(), values.size());
  FunctionContext context(F::name, contract.mesh, std::move(needs_grad), record && found.keeps);
  for (std::size_t k = 0; k < values.size(); ++k)
    watch(values[k], F::name, contract.contract.inputs[k].name.c_str());
  const std::vector<DTensor> outputs = function.forward(context, values);
  for (const DTensor& output : outputs) watch(output, F::name, "output");
  if constexpr (differentiable)
    if (record) {
      auto backward = [function](FunctionContext& ctx, const std::vector<DTensor>& gradients) {
        return function.backward(ctx, gradients);
      };
      return TapeAccess::record(*found.tape, F::name, inputs, std::move(contract),
                                std::move(context), outputs, std::move(backward));
    }
  return TapeAccess::note(found.tape, std::move(contract), outputs);
}

// The form with a fixed number of operands and one result. F has
//   static constexpr const char* name;
//   static constexpr std::array<const char*, n> inputs;   // names of the operands
//   Contract contract() const;                             // of the same operands
//   DTensor forward(FunctionContext&, const std::array<DTensor, n>&) const;
//   std::array<DTensor, n> backward(FunctionContext&, const DTensor& gradient) const;
template <class F>
struct FixedOperands {
  static constexpr const char* name = F::name;
  static constexpr std::size_t n = F::inputs.size();
  F function;

  Contract contract(const std::vector<DTensor>&) const { return function.contract(); }
  std::vector<DTensor> forward(FunctionContext& ctx, const std::vector<DTensor>& operands) const {
    std::array<DTensor, n> in;
    std::copy(operands.begin(), operands.end(), in.begin());
    return {function.forward(ctx, in)};
  }
  std::vector<DTensor> backward(FunctionContext& ctx, const std::vector<DTensor>& gradients) const {
    const std::array<DTensor, n> out = function.backward(ctx, gradients.front());
    return {out.begin(), out.end()};
  }
};

template <class F>
Var apply(const F& function, const std::array<Var, F::inputs.size()>& inputs) {
  return apply_many(FixedOperands<F>{function}, {inputs.begin(), inputs.end()}).front();
}

}  // namespace tessera
