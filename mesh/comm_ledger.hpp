// SPDX-License-Identifier: MIT
// The communication ledger: what passed the one door of a mesh.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "tessera/runtime/dtype.hpp"

namespace tessera {

// Where an operation was called: a last parameter with this default on every function that makes
// one, so that errors name the line of the layer and not one of the mesh.
using CallSite = std::source_location;
std::string format(const CallSite& where);  // "layers/schedule/panel_ring.cpp:60"

// One collective operation or exchange as this rank saw it. Messages to oneself are local copies
// and are not counted.
struct CommRecord {
  std::int64_t sequence = 0;  // number of the operation on its mesh, equal on all ranks
  std::string op;             // "all_reduce", "shift", "relayout", "transpose" ...
  std::string axis;           // "cp0", "cp1", "dp+cp0+cp1"
  std::string scope;          // module path
  std::string label;          // what travels: "skew a", "parameter gradients"
  DType dtype = DType::f32;
  std::int64_t messages = 0;  // sent by this rank
  std::int64_t bytes = 0;     // sent by this rank
  double begin = 0;           // seconds since the mesh was made
  double end = 0;             // when its wait ended
  CallSite where = {};
};

// Sums of records that share op and axis, in order of first appearance.
struct CommTotal {
  std::string op;
  std::string axis;
  std::int64_t count = 0;     // operations
  std::int64_t messages = 0;  // sent by this rank
  std::int64_t bytes = 0;     // sent by this rank
};
std::vector<CommTotal> totals(const std::vector<CommRecord>& records);

}  // namespace tessera
