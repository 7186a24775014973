// SPDX-License-Identifier: MIT
// A case: one layer with a name, made ready to be run on any mesh with given hyperparameters.
// layer_case.hpp makes one of a layer's class.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tessera/layers/module.hpp"

namespace tessera::harness {

// What the size options of the program mean; a case takes what it needs.
struct Sizes {
  std::int64_t batch = 2;
  std::int64_t tokens = 12;
  std::int64_t channels = 8;
  std::int64_t msa = 0;  // rows; 0: twice the tokens, which every mesh divides that divides those

  std::int64_t msa_rows() const { return msa > 0 ? msa : 2 * tokens; }
};

enum class InputKind {
  values,   // uniform on [low, high), in the dtype of the run
  mask,     // 0 and 1 with gaps, in the dtype of the run
  boolean,  // the same, as bool
  index,    // whole numbers in [low, high), as i64
};

struct InputSpec {
  std::string name;
  Shape shape;
  Placements placements;  // two: the input lies on the flat view (dp, cp) of the mesh
  InputKind kind = InputKind::values;
  bool differentiable = true;
  double low = -1;
  double high = 1;
  // If set, the values by global index, instead of random ones.
  std::function<double(const std::vector<std::int64_t>& index)> at = {};
};

// A random problem of a case: hyperparameters as in the golden files, and inputs.
struct Problem {
  std::shared_ptr<nlohmann::json> hyperparameters;
  std::vector<InputSpec> inputs;
};

// The layer on one mesh.
struct Instance {
  std::unique_ptr<Module> module;
  std::function<std::vector<Var>(const std::vector<Var>& inputs)> forward;
};

struct Case {
  std::string name;         // also the name of its golden files, if it has any
  std::string description;  // one line
  std::vector<std::string> outputs{"y"};
  bool has_golden = false;
  bool any_class = false;  // takes pair, single and other activations alike
  // Parameters whose gradient is rounding only, and is compared absolutely (a bias before a
  // softmax). Golden files say it themselves.
  std::vector<std::string> zero_gradients;
  // Several layers one after the other. In bf16 a result that rounds the other way is then seen
  // through all later ones, as any rounding is, and parity has the bound of golden files.
  bool stack = false;
  // In the order of `forward`.
  std::vector<InputSpec> inputs;  // shape empty
  std::function<Problem(const Sizes&)> problem;
  std::function<Instance(const Build&, const nlohmann::json& hyperparameters)> build;
};

// The layer that hyperparameters describe. Keys and kinds are those of the case's random problems:
// sizes are whole numbers from 1, other numbers are from 0 unless the pattern's is negative, and
// what the layer has a default for may be left out. UsageError names layer, key, value and what is
// expected.
Instance build_layer(const Case& c, const Build& on, const nlohmann::json& hyperparameters);

const std::vector<Case>& all_cases();
// A case of one's own, for all that asks for cases by name; before anything keeps a pointer to one,
// and the same on all ranks. UsageError if the name is empty or taken, or it has no problem or
// build.
void add_case(Case c);
// Globs ("triangle_*"); UsageError for a pattern that matches nothing, with the nearest names.
std::vector<Case> select_cases(const std::vector<std::string>& patterns);
// Placements of an input of a golden file: those of the spec, or by the number of dims.
Placements golden_placements(const Case& c, const InputSpec& spec, int ndim);
// nullptr if this version has no such case.
const Case* find_case(const std::string& name);

}  // namespace tessera::harness
