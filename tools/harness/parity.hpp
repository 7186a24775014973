// SPDX-License-Identifier: MIT
// Runs a case on a mesh and holds it against the serial layer (parity) or against a file (golden).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/harness/case.hpp"
#include "tessera/harness/memory_tree.hpp"
#include "tessera/mesh/comm_ledger.hpp"
#include "tessera/runtime/safetensors.hpp"

namespace tessera::harness {

struct Comparison {
  std::string tensor;    // "y", "grad x", "grad p_in.weight"
  double max_abs = 0;    // largest difference
  double max_rel = 0;    // the same over the largest reference value
  double tolerance = 0;  // on max_rel
};

enum class Kind { golden, parity };
inline const char* name_of(Kind kind) {
  return kind == Kind::golden ? "golden" : "parity";
}

struct CaseResult {
  std::string name;
  Kind kind = Kind::parity;
  std::string problem;              // "B=2 N=12 C=16"; the file of a golden
  double tolerance = 0;             // on max_rel, if a tensor has no other
  std::vector<Comparison> tensors;  // outputs, input gradients, parameter gradients
  int outputs_checked = 0;
  int inputs_checked = 0;
  int params_checked = 0;
  // What makes a test able to fail.
  bool sharding_active = false;  // or one rank
  bool replicas_identical = false;
  bool gradients_nonzero = false;
  bool finite = false;
  bool inputs_unmodified = false;
  // Maxima over ranks, in bytes.
  std::int64_t saved_bytes = 0;
  std::int64_t saved_budget = 0;
  bool within_budget = false;       // every saved tensor of every rank
  std::int64_t saved_measured = 0;  // what stays alive after forward beside inputs and output
  // Where ledgers and contract differ: of the lowest rank that found something.
  std::vector<std::string> contract_differences;
  std::vector<std::string> ledger_differences;  // to the run on RunOptions::reference
  std::int64_t peak_bytes = 0;                  // of the layer's run, inputs and gradients included
  std::vector<MemoryEntry> memory;              // the same by module path and purpose
  std::vector<CommTotal> forward, backward;     // of the busiest rank, by operation and axis
  double seconds = 0;                           // forward + backward on the mesh

  const Comparison& worst() const;
  bool pass() const;
  std::vector<std::string> failures() const;  // in words; empty iff pass()
};

struct RunOptions {
  DType dtype = DType::f64;
  std::uint64_t seed = 1;
  double tolerance = 0;  // 0: default_tolerance
  bool trace = false;    // record the timeline of the run on the mesh
  // A mesh of the same ranks on another device: parity is then with the layer there, instead of
  // with the serial layer, and the ledgers of both must say the same.
  std::optional<DeviceMesh> reference = {};
};

// Relative to the largest reference value of each tensor.
double default_tolerance(Kind kind, DType dtype);

// Collective over the mesh; equal on all ranks. A serial reference runs on rank 0.
CaseResult run_parity(const Case& c, const Sizes& sizes, const DeviceMesh& mesh,
                      const RunOptions& options);
// The distributed layer against the numbers of the file.
CaseResult run_golden(const Case& c, const SafetensorsFile& file, const std::string& path,
                      const DeviceMesh& mesh, const RunOptions& options);

}  // namespace tessera::harness
