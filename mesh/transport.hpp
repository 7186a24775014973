// SPDX-License-Identifier: MIT
// How the messages of a mesh travel between GPUs: MPI reads and writes their memory, or copies in
// pinned host memory. Chosen once, when the mesh is made, and equal on all its ranks.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/mesh/device_mesh.hpp"

namespace tessera {

enum class Route { host, direct, staged };

struct Transport {
  Route route = Route::host;
  std::string reason = {};  // why not another
};
// "host memory", "direct (CUDA-aware MPI, probed)",
// "staged through pinned host memory (TESSERA_CUDA_AWARE=off)".
std::string describe(const Transport& transport);

enum class CudaAware { automatic, on, off };

// TESSERA_CUDA_AWARE: auto (or not set), on, off; UsageError otherwise.
CudaAware cuda_aware_from_environment();

// Collective, for a mesh on a GPU. Direct if it is asked for, or if `asserted` (what the MPI says
// of itself) on all ranks, and if patterns of small and large messages arrive from the neighbours
// on every axis. On every rank: UsageError if the ranks ask differently, InitError if direct is
// asked for and the probe fails on any of them.
Transport choose_transport(const DeviceMesh& mesh, CudaAware asked, bool asserted);

// Pieces of a staged message, so that copies and the wire overlap.
inline constexpr std::int64_t kStagedPieceBytes = std::int64_t{4} << 20;

}  // namespace tessera
