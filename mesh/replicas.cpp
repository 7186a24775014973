// SPDX-License-Identifier: MIT
#include "tessera/mesh/replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tessera/mesh/door.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/hash.hpp"
#include "tessera/runtime/memory.hpp"

namespace tessera {
namespace {

std::vector<int> replicated_axes(const DTensor& x) {
  std::vector<int> axes;
  for (int axis = 0; axis < x.mesh().ndim(); ++axis)
    if (x.mesh().size(axis) > 1 && is_replicate(x.placements()[static_cast<std::size_t>(axis)]))
      axes.push_back(axis);
  return axes;
}

// By coordinate on the axes on which x is not replicated.
std::string judge(const std::vector<std::string>& checksums, const DeviceMesh& mesh,
                  const std::vector<int>& axes) {
  std::map<std::vector<int>, std::vector<std::pair<int, std::string>>> groups;
  for (std::size_t k = 0; k < checksums.size(); ++k) {
    const int rank = static_cast<int>(k);
    std::vector<int> coordinate = mesh.coordinate_of(rank);
    for (const int axis : axes) coordinate[static_cast<std::size_t>(axis)] = 0;
    groups[coordinate].emplace_back(rank, checksums[k]);
  }
  std::string different;
  for (const auto& [coordinate, members] : groups)
    if (std::any_of(members.begin(), members.end(),
                    [&](const auto& m) { return m.second != members.front().second; }))
      different += (different.empty() ? "" : "; ") + grouped(members);
  return different;
}

}  // namespace

void check_replicas(const DTensor& x, const char* function, const char* tensor) {
  const DeviceMesh& mesh = x.mesh();
  if (!mesh.state().check_replicas) return;
  const std::vector<int> axes = replicated_axes(x);
  if (axes.empty()) return;
  const CommRecord step{.sequence = mesh.state().sequence,
                        .op = "check_replicas",
                        .axis = mesh.axes_name(axes),
                        .scope = current_scope(),
                        .label = tensor,
                        .dtype = x.dtype()};
  const std::string verdict = judged(
      mesh, step, fmt::format("checksum {:016x}", hash_of(x.local())),
      [&](const std::vector<std::string>& checksums) { return judge(checksums, mesh, axes); });
  if (verdict.empty()) return;
  throw ReplicaError({.problem = fmt::format("the replicas on axis {} differ", step.axis),
                      .operation = function,
                      .tensor = tensor,
                      .found = verdict,
                      .expected = "bitwise equal values on these ranks"});
}

}  // namespace tessera
