// SPDX-License-Identifier: MIT
#include "tessera/mesh/gpu_binding.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/mailbox.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/info.hpp"

namespace tessera {
namespace {

// As Open MPI, MVAPICH, the Hydra launcher of MPICH and Slurm say it.
std::optional<int> launched_local_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
                               "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == '\0') continue;
    char* end = nullptr;
    const long rank = std::strtol(text, &end, 10);
    if (*end == '\0' && rank >= 0) return static_cast<int>(rank);
  }
  return std::nullopt;
}

// The GPUs that each rank of the node sees, on all of them.
std::vector<std::vector<std::string>> visible_on(const Communicator& node, DeviceKind kind) {
  const DeviceMesh line = DeviceMesh::create(node, {1, 1, node.size()});
  std::vector<std::string> own = gpu_identities(kind);
  own.emplace_back();  // ends the list
  std::string all;
  for (const std::string& list : gather_strings(line, pack_fields(own))) all += list;
  std::vector<std::vector<std::string>> visible(1);
  for (const std::string& gpu : unpack_fields(broadcast_string(line, all)))
    gpu.empty() ? visible.push_back({}) : visible.back().push_back(gpu);
  visible.pop_back();
  return visible;
}

}  // namespace

std::vector<int> assign_gpus(const std::vector<std::vector<std::string>>& visible,
                             GpuSharing sharing) {
  std::map<std::vector<std::string>, int> ranks_before;  // that see the same GPUs
  std::set<std::string> there, taken;
  std::vector<int> chosen;
  for (const std::vector<std::string>& gpus : visible) {
    if (gpus.empty())
      throw DeviceError({.problem = "a rank sees no GPU",
                         .operation = "bind_gpu",
                         .found = fmt::format("local rank {} of {}", chosen.size(), visible.size()),
                         .hint = "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu"});
    const int index = ranks_before[gpus]++ % static_cast<int>(gpus.size());
    chosen.push_back(index);
    there.insert(gpus.begin(), gpus.end());
    taken.insert(gpus[static_cast<std::size_t>(index)]);
  }
  if (taken.size() < visible.size() && sharing == GpuSharing::refuse)
    throw InitError(
        {.problem = "ranks of one node would share a GPU",
         .operation = "bind_gpu",
         .found = fmt::format("{} ranks on a node with {} GPU(s)", visible.size(), there.size()),
         .expected = "a GPU for each rank",
         .hint = "start fewer ranks per node, or allow it: --oversubscribe-gpus, "
                 "GpuSharing::allow"});
  return chosen;
}

Device bind_gpu(const Communicator& communicator, DeviceKind kind, GpuSharing sharing) {
  const Communicator node = communicator.split_by_node(launched_local_rank().value_or(0));
  const auto visible = visible_on(node, kind);
  Device device{kind, 0};
  collective_try(DeviceMesh::create(communicator, {1, 1, communicator.size()}), [&] {
    device.index = assign_gpus(visible, sharing)[static_cast<std::size_t>(node.rank())];
  });
  set_default_gpu(device.index);
  return device;
}

void choose_gpu_before_mpi(DeviceKind kind) {
  const std::optional<int> local = launched_local_rank();
  const auto count = static_cast<int>(gpu_identities(kind).size());
  if (!local || count == 0) return;
  set_default_gpu(*local % count);
  synchronize({kind, *local % count});  // makes it current
}

}  // namespace tessera
