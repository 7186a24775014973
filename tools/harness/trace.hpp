// SPDX-License-Identifier: MIT
// Timelines of all ranks as one file for Perfetto or chrome://tracing.
#pragma once

#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.hpp"
#include "tessera/runtime/trace.hpp"

namespace tessera::harness {

// How long messages were in flight (from posting to the end of their wait, overlaps counted once),
// and for how much of that this rank was not waiting.
struct Overlap {
  double in_flight = 0;
  double hidden = 0;
  double percent() const { return in_flight > 0 ? 100 * hidden / in_flight : 0; }
};
Overlap overlap_of(const std::vector<trace::Event>& events);

struct TraceFile {
  std::string json;     // on rank 0
  std::string summary;  // one line, on rank 0
};

// The timelines that a run records while it holds a trace::Recording.
class Timelines {
 public:
  explicit Timelines(const DeviceMesh& mesh);           // collective: time zero is here
  TraceFile collect(const std::string& command) const;  // collective: takes all ranks' events

 private:
  DeviceMesh mesh_;
  double origin_;
};

}  // namespace tessera::harness
