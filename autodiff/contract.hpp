// SPDX-License-Identifier: MIT
// The contract of a function: what it accepts, what it keeps, what it sends, as data. apply()
// checks operands against it; runs are held against it message by message and byte by byte;
// `tessera contracts` prints it. Contracts of layers that are built of other layers follow from
// those.
#pragma once

#include <string>
#include <vector>

#include "tessera/autodiff/budget.hpp"
#include "tessera/autodiff/formula.hpp"
#include "tessera/mesh/comm_ledger.hpp"
#include "tessera/mesh/dtensor.hpp"

namespace tessera {

enum class Pass { forward, backward };
inline const char* name_of(Pass pass) {
  return pass == Pass::forward ? "forward" : "backward";
}

// Which placements an operand may have. Only `anything` accepts Partial.
struct PlacementRule {
  enum class Kind {
    exactly,     // `placements`
    whole_last,  // any S and R, but the last dim is not sharded
    any,         // any S and R
    like_first,  // those of the first operand
    replicated,  // parameters
    whole,       // any S and R, but none of `dims` is sharded
    sharded,     // each of `dims` is sharded, whatever the others are
    anything,    // Partial too
  };
  Kind kind = Kind::any;
  Placements placements = {};
  std::vector<int> dims = {};
  std::string text = {};  // says in words what `placements` or `dims` were made from
};
std::string format(const PlacementRule& rule);

// Sizes are symbols (bound by the first operand that has them, equal in all others) or formulas of
// them. A first size "..." stands for any number of leading dims; M is their product. The single
// size same_shape("x") is the shape of the operand x. For every operand x there are the symbols
// N(x), n(x), its elements and those of the own block, and e(x), bytes of an element.
struct ContractTensor {
  std::string name;
  std::vector<Formula> shape = {};
  PlacementRule placement = {};
};

std::vector<Formula> same_shape(const std::string& operand);
std::vector<Formula> any_shape();

struct ContractMessage {
  Pass pass;
  std::string op;  // as in the ledger: "shift", "relayout", "all_reduce"
  std::string axis;
  std::string label;
  Formula count;     // operations
  Formula messages;  // sent by this rank
  Formula bytes;     // sent by this rank
};

// Lines of collectives over axes of the operands' mesh, as the ledger shows them
// (mesh/traffic.hpp). `elements`: those that this rank brings, of dtype (reductions travel in at
// least f32).
ContractMessage all_reduce_message(Pass pass, const DeviceMesh& mesh, const std::vector<int>& axes,
                                   Formula elements, DType dtype, std::string label);
ContractMessage all_gather_message(Pass pass, const DeviceMesh& mesh, int axis, Formula elements,
                                   DType dtype, std::string label);
ContractMessage reduce_scatter_message(Pass pass, const DeviceMesh& mesh, int axis,
                                       Formula elements, DType dtype, std::string label);
ContractMessage all_to_all_message(Pass pass, const DeviceMesh& mesh, int axis, Formula elements,
                                   DType dtype, std::string label);

// Kept for backward: `elements` of the global tensor, of which the rank keeps its share.
struct ContractSaved {
  std::string name;
  Formula elements;
  Formula element_bytes;                   // e or acc
  bool activation_class = true;            // the class of the first operand's placements ...
  BudgetClass budget = BudgetClass::pair;  // ... or this one; of `own`, elements are this rank's
};
// The own block of an operand x, as it is placed: n(x) e(x) bytes.
ContractSaved saved_block(const std::string& operand);
// As many elements as the own block of x has, of so many bytes each.
ContractSaved saved_block(std::string name, const std::string& operand, Formula element_bytes);

inline void append(std::vector<ContractMessage>& all, const std::vector<ContractMessage>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

struct Contract {
  std::vector<ContractTensor> inputs;  // of the function, parameters included
  std::vector<ContractTensor> outputs;
  std::vector<ContractMessage> messages;
  std::vector<ContractSaved> saved;  // without parameters, which live anyway
};

// A contract with the sizes of one call.
struct BoundContract {
  std::string function;
  std::string scope;
  Contract contract;
  Symbols symbols;
  BudgetClass activation = BudgetClass::pair;
  DeviceMesh mesh;
};

// Binds the symbols, and checks every operand in the order of the contract: TypeError (undefined),
// ShapeError, MeshError, PlacementError, PartialError, UnevenError, which name function and tensor.
BoundContract bind(const char* function, Contract contract, const DTensor* operands,
                   std::size_t count);

// One line of a contract or of a ledger, in numbers.
struct MessageCount {
  Pass pass;
  std::string scope, op, axis, label;
  std::int64_t count = 0, messages = 0, bytes = 0;
};
struct SavedCount {
  std::string scope, name;
  BudgetClass budget = BudgetClass::pair;
  std::int64_t bytes = 0;
};
std::vector<MessageCount> message_counts(const BoundContract& contract);
std::vector<SavedCount> saved_counts(const BoundContract& contract);
std::vector<MessageCount> message_counts(Pass pass, const std::vector<CommRecord>& records);

// Differences between what was promised and what was done, in words, in both directions.
std::vector<std::string> compare_messages(const std::vector<MessageCount>& promised,
                                          const std::vector<MessageCount>& done);
std::vector<std::string> compare_saved(const std::vector<SavedCount>& promised,
                                       const std::vector<SavedRecord>& done);

}  // namespace tessera
