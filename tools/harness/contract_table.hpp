// SPDX-License-Identifier: MIT
// Contracts of cases: dry runs on any mesh, held against their own ledgers, and tables of them.
#pragma once

#include <string>
#include <vector>

#include "tessera/autodiff/contract.hpp"
#include "tessera/harness/case.hpp"

namespace tessera::harness {

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// What is kept for backward against the contract: by name, and as what in fact stays alive, so that
// nothing can be kept behind the tape's back. `grown`: how many more bytes live after forward.
struct MemoryComparison {
  std::vector<std::string> differences;
  std::int64_t measured = 0;  // bytes beside inputs and outputs
};
MemoryComparison compare_memory(const Tape& tape, const std::vector<Var>& inputs,
                                const std::vector<Var>& outputs, std::int64_t grown);

// One rank of a mesh that need not be there: forward, backward and reduction on the meta device.
struct DryRun {
  std::vector<BoundContract> contracts;  // of the functions, in order
  MessageCount reduction;                // of the parameter gradients
  std::vector<std::string> differences;  // between contract and ledgers
  std::int64_t saved_bytes = 0;
  std::int64_t peak_bytes = 0;
};
DryRun dry_run(const Case& c, const Problem& problem, const MeshShape& shape, int rank,
               DType dtype);

// The contract of a case in words and in numbers, those of the busiest rank for each line.
struct ContractLine {
  std::string scope;    // module path and function
  std::string what;     // "operand", "output", "message", "saved", "parameters"
  std::string name;     // of a tensor; "forward shift on cp1, ring a" of a message
  std::string formula;  // shape and placements; "count; messages; bytes" of a message
  std::int64_t count = 0, messages = 0, bytes = 0;
};
std::vector<ContractLine> contract_table(const Case& c, const Sizes& sizes, const MeshShape& shape,
                                         DType dtype);

// The functions that the cases are made of, each once with its contract in words: one row of a
// Markdown table, and the cases in which it occurs.
std::string operations_table(const std::vector<Case>& cases, const Sizes& sizes,
                             const MeshShape& shape, DType dtype);

}  // namespace tessera::harness
