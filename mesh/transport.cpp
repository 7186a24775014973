// SPDX-License-Identifier: MIT
#include "tessera/mesh/transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/door.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera {
namespace {

constexpr const char* kVariable = "TESSERA_CUDA_AWARE";
constexpr std::array<std::string_view, 3> kNames{"auto", "on", "off"};  // in the enum's order
constexpr double kProbeSeconds = 20;

// What a rank sends: of another rank, or from another place in the message, it would differ.
Tensor pattern(int rank, std::int64_t elements) {
  const Tensor values = Tensor::empty({elements}, DType::i64);
  auto* v = values.host_data<std::int64_t>();
  for (std::int64_t k = 0; k < elements; ++k) v[k] = (rank + 1) * 1'000'003 + k;
  return values;
}

bool arrives_on(const DeviceMesh& mesh, int axis, std::int64_t elements) {
  const PurposeScope purpose(Purpose::communication);
  std::vector<int> from = mesh.coordinate();
  from[static_cast<std::size_t>(axis)] -= 1;
  const Tensor sent = pattern(mesh.rank(), elements).to(mesh.device());
  const Tensor arrived = Tensor::zeros({elements}, DType::i64, mesh.device());
  shift(mesh, axis, 1, sent, arrived, "probe").wait();
  const Tensor found = arrived.to(cpu_device);
  if (mutation() == Mutation::corrupt_probe) found.host_data<std::int64_t>()[elements - 1] ^= 1;
  return to_values(found) == to_values(pattern(mesh.rank_of(from), elements));
}

// On a mesh of its own: after a message that does not come, a mesh is of no further use.
bool probe(const DeviceMesh& mesh) {
  const DeviceMesh trial = DeviceMesh::create(mesh.state().communicator,
                                              {mesh.size(kDp), mesh.size(kCp0), mesh.size(kCp1)});
  DeviceMesh::State& state = trial.state();
  state.device = mesh.device();
  state.transport = {Route::direct};
  state.timeout_s = state.timeout_s > 0 ? std::min(state.timeout_s, kProbeSeconds) : kProbeSeconds;
  bool arrives = true;
  try {
    for (int axis = 0; axis < trial.ndim(); ++axis)
      for (const std::int64_t elements :
           {8, 1 << 18})  // MPI treats small and large ones differently
        if (trial.size(axis) > 1) arrives = arrives_on(trial, axis, elements) && arrives;
  } catch (const MpiError&) {
    return false;
  } catch (const TimeoutError&) {
    return false;
  }
  return arrives;
}

// The smallest of the values of all ranks.
std::vector<std::int64_t> least(const DeviceMesh& mesh, const std::vector<double>& own) {
  const Tensor values =
      Tensor::from_values({static_cast<std::int64_t>(own.size())}, own, DType::i64);
  all_reduce(mesh, all_axes(mesh), ReduceOp::min, values, "transport");
  const auto* v = values.host_data<std::int64_t>();
  return {v, v + own.size()};
}

}  // namespace

std::string describe(const Transport& transport) {
  switch (transport.route) {
    case Route::direct:
      return fmt::format("direct ({})", transport.reason);
    case Route::staged:
      return fmt::format("staged through pinned host memory ({})", transport.reason);
    default:
      return transport.reason.empty() ? "host memory" : fmt::format("none ({})", transport.reason);
  }
}

CudaAware cuda_aware_from_environment() {
  const std::string text = text_from_environment(kVariable);
  if (text.empty()) return CudaAware::automatic;
  const auto name = std::find(kNames.begin(), kNames.end(), text);
  if (name != kNames.end()) return static_cast<CudaAware>(name - kNames.begin());
  refuse_variable(kVariable, text, "auto, on or off");
}

Transport choose_transport(const DeviceMesh& mesh, CudaAware asked, bool asserted) {
  if (mesh.ranks() == 1) return {Route::host, "one rank"};
  const auto setting = static_cast<double>(asked);
  const auto agreed = least(mesh, {setting, -setting, asserted ? 1.0 : 0.0});
  if (agreed[0] != -agreed[1])
    throw UsageError({.problem = "the ranks differ in how their messages shall travel",
                      .operation = kVariable,
                      .found = fmt::format("{} and {}", kNames[static_cast<std::size_t>(agreed[0])],
                                           kNames[static_cast<std::size_t>(-agreed[1])]),
                      .expected = "one value on all ranks",
                      .hint = "have the launcher pass the variable on: mpirun -x, srun --export"});
  if (asked == CudaAware::off) return {Route::staged, "TESSERA_CUDA_AWARE=off"};
  if (asked == CudaAware::automatic && agreed[2] == 0)
    return {Route::staged, "the MPI does not say that it is CUDA-aware"};
  if (least(mesh, {probe(mesh) ? 1.0 : 0.0})[0] == 1)
    return {Route::direct, "CUDA-aware MPI, probed"};
  if (asked == CudaAware::automatic)
    return {Route::staged, "the MPI says that it is CUDA-aware, but the probe failed"};
  throw InitError({.problem = "messages in the memory of GPUs did not arrive as they were sent",
                   .operation = "TESSERA_CUDA_AWARE=on",
                   .found = mesh.describe() + " on " + std::string(name_of(mesh.device())),
                   .expected = "a CUDA-aware MPI",
                   .hint = "TESSERA_CUDA_AWARE=auto or off stages messages through the host"});
}

}  // namespace tessera
