// SPDX-License-Identifier: MIT
// Which GPU a rank uses: one rank per GPU of its node, unless the caller allows several.
#pragma once

#include <string>
#include <vector>

#include "tessera/mesh/communicator.hpp"
#include "tessera/runtime/device.hpp"

namespace tessera {

enum class GpuSharing { refuse, allow };

// Collective. The GPU of this rank, which parse_device("cuda") names from then on. The ranks of the
// communicator on one node take the GPUs that they see in turn, in the order of the launcher's
// local ranks. On every rank: DeviceError if a rank sees no GPU; InitError if a node has more ranks
// than GPUs and `sharing` does not allow it.
Device bind_gpu(const Communicator& communicator, DeviceKind kind,
                GpuSharing sharing = GpuSharing::refuse);

// For programs that are about to initialise MPI: some MPI libraries use the current GPU in
// MPI_Init. Takes the one that bind_gpu() would choose if the launcher tells ranks their local rank
// and all see the same GPUs; else, and without GPUs, does nothing.
void choose_gpu_before_mpi(DeviceKind kind);

// The rule of bind_gpu(). visible[r]: identities of the GPUs that local rank r sees, in the order
// of their indices. Returns an index for each rank.
std::vector<int> assign_gpus(const std::vector<std::vector<std::string>>& visible,
                             GpuSharing sharing);

}  // namespace tessera
