// SPDX-License-Identifier: MIT
// What this process is doing on its meshes, for a thread that watches it: it may be asked for at
// any time and from any thread, also while the rank hangs.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/mesh/comm_ledger.hpp"

namespace tessera {

struct Activity {
  int rank = 0;            // of the mesh that was used last
  int ranks = 1;           // of that mesh
  CommRecord step = {};    // the last operation that began
  bool in_flight = false;  // it has not ended
  double since = 0;        // seconds since it began or ended
  CommTotal totals = {};   // of all operations that ended
};
Activity current_activity();
std::string describe(const Activity& activity);  // some lines of text

// For mesh/ only.
namespace activity {
void begin(const CommRecord& step, int rank, int ranks);
void end(const CommRecord& step);
}  // namespace activity

}  // namespace tessera
