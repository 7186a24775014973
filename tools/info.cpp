// SPDX-License-Identifier: MIT
// tessera info: where a bug report starts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "subcommands.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/mesh/transport.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/parallel.hpp"

extern char** environ;

namespace tessera::tools {
namespace {

std::string variables() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::string(*entry).starts_with("TESSERA_")) all.emplace_back(*entry);
  std::sort(all.begin(), all.end());
  return all.empty() ? "none of TESSERA_*" : fmt::format("{}", fmt::join(all, "  "));
}

int run_info(const Session& session, const DeviceOptions& device) {
  const DeviceMesh mesh = make_mesh(session, "", device);
  const MpiInfo mpi = mpi_info();
  std::string text = fmt::format("tessera          {}\n", version());
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<16} {}\n", name, value);
  };
  line("compiler", compiler());
  line("kernels", fmt::format("{} in use; built in: {}", instruction_set(),
                              fmt::join(instruction_sets(), ", ")));
  line("CUDA", built_with_cuda() ? "toolkit " + cuda_version() : "not built in");
  if (session.world.rank() == 0)
    for (const GpuInfo& gpu : cuda_devices()) line("GPU", describe(gpu));
  line("MPI", mpi.standard.empty() ? mpi.library
                                   : fmt::format("{} (standard {})", mpi.library, mpi.standard));
  line("MPI threads", mpi.thread_level);
  line("CUDA-aware MPI", mpi.cuda_aware);
  line("messages", fmt::format("{} on {}", describe(mesh.transport()), name_of(mesh.device())));
  line("ranks", fmt::format("{}, default mesh {}", session.world.size(),
                            format(squarest(session.world.size()))));
  line("threads per rank", fmt::format("{}", thread_count()));
  line("environment", variables());
  print(session, text);
  return 0;
}

}  // namespace

Run add_info(CLI::App& app) {
  const auto device = std::make_shared<DeviceOptions>();
  add_device_options(app, *device);
  return [device](const Session& session) { return run_info(session, *device); };
}

}  // namespace tessera::tools
