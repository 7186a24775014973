// SPDX-License-Identifier: MIT
// Module: parameters and children by name, in the order of the serial reference, so that
// named_parameters() and a reference state dict line up one to one.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/autodiff/tape.hpp"

namespace tessera {

// Initialisers of weights [out, in]; fan_in is the second dim.
enum class Init {
  lecun,   // truncated normal, standard deviation 1/sqrt(fan_in)
  glorot,  // uniform on +-sqrt(6/(fan_in + fan_out))
  normal,  // normal, standard deviation 1/sqrt(fan_in)
  fan_in,  // uniform on +-1/sqrt(fan_in)
  zero,
  one,
};

struct NamedParameter {
  std::string name;  // "norm.weight"
  Var var;
  Init init = Init::zero;
};

// Full tensors by parameter name, on every rank.
using StateDict = std::map<std::string, Tensor>;

// What a layer is built on: its mesh and the dtype of its parameters (f64 or f32).
struct Build {
  DeviceMesh mesh;
  DType dtype = DType::f32;
};

class Module {
 public:
  explicit Module(const Build& build) : build_(build) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;  // children are referred to by address
  Module& operator=(const Module&) = delete;

  const DeviceMesh& mesh() const { return build_.mesh; }
  // As registered with the parent, "" for a root. A forward() begins with `const Scope
  // scope(name())`, so that ledgers, contracts and errors know the module path.
  const std::string& name() const { return name_; }

  // Own parameters first, then those of the children, each in order of registration.
  std::vector<NamedParameter> named_parameters() const;
  std::vector<Var> parameters() const;

  // Every value from (seed, full name), equal on every mesh.
  void initialize(std::uint64_t seed);
  // The values of a reference state dict, cast to the parameters' dtype. Strict: StateDictError
  // lists all names that are missing or unexpected and all that have the wrong shape; then nothing
  // has been changed. No communication: every rank passes the same state.
  void load_state(const StateDict& state);
  StateDict state() const;
  void zero_grad();

 protected:
  Var add_parameter(const std::string& name, Shape shape, Init init);
  // `child` must be a member of the module, so that it lives as long.
  void add_child(const std::string& name, Module& child);

 private:
  Build build_;
  std::string name_;
  std::vector<NamedParameter> parameters_;
  std::vector<std::pair<std::string, Module*>> children_;
};

}  // namespace tessera
