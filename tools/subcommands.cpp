// SPDX-License-Identifier: MIT
#include "subcommands.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <system_error>

#include "tessera/layers/schedule/panel_ring.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/gpu_binding.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/tf32.hpp"

namespace tessera::tools {

namespace {

bool has_index(const std::string& device) {
  return device.find(':') != std::string::npos;
}

// One that all ranks name would be shared by those of a node.
Device chosen_device(const Session& session, const DeviceOptions& options) {
  const Device device = parse_device(options.name);
  if (!is_gpu(device) || gpu_count(device.kind) == 0) {
    require_device(device);
    return device;
  }
  if (!has_index(options.name))
    return bind_gpu(session.world, device.kind,
                    options.oversubscribe ? GpuSharing::allow : GpuSharing::refuse);
  if (session.world.size() > 1 && !options.oversubscribe)
    throw UsageError({.problem = "all ranks would use one GPU",
                      .operation = "--device",
                      .found = fmt::format("{} on {} ranks", options.name, session.world.size()),
                      .hint = "leave the index out, or add --oversubscribe-gpus"});
  return device;
}

}  // namespace

void add_device_options(CLI::App& app, DeviceOptions& device) {
  app.add_option("--device", device.name, "cpu, cuda, or imitation (of a GPU, to try things out)")
      ->capture_default_str();
  app.add_flag("--oversubscribe-gpus", device.oversubscribe, "let ranks of a node share its GPUs");
}

void choose_device_before_mpi(const CLI::App& app) {
  for (const CLI::App* subcommand : app.get_subcommands()) choose_device_before_mpi(*subcommand);
  const CLI::Option* option = app.get_option_no_throw("--device");
  if (option == nullptr || option->count() == 0 || has_index(option->as<std::string>())) return;
  const Device device = parse_device(option->as<std::string>());
  if (is_gpu(device)) choose_gpu_before_mpi(device.kind);
}

DeviceMesh make_mesh(const Session& session, const std::string& option,
                     const DeviceOptions& options) {
  const Device device = chosen_device(session, options);
  const int ranks = session.world.size();
  const MeshShape shape = option.empty() ? squarest(ranks) : parse_mesh_shape(option);
  if (shape.ranks() != ranks)
    throw InitError({.problem = "the mesh does not fit the number of ranks",
                     .operation = "--mesh",
                     .found = fmt::format("mesh {} ({} ranks) on {} ranks", format(shape),
                                          shape.ranks(), ranks),
                     .hint = fmt::format("start it with mpirun -n {}, or choose e.g. --mesh {}",
                                         shape.ranks(), format(squarest(ranks)))});
  return DeviceMesh::create(session.world, shape, device);
}

void use_tf32(bool tf32, const DeviceMesh& mesh) {
  if (tf32 && !is_gpu(mesh.device()))
    throw UsageError({.problem = "only a GPU cuts operands to TF32",
                      .operation = "--tf32",
                      .found = "--device " + name_of(mesh.device()),
                      .expected = "--device cuda"});
  set_tf32(tf32);
}

CLI::Validator whole_number() {
  const auto refused = [](const std::string& text) {
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && value >= 1) return std::string();
    return fmt::format("'{}' is not a whole number from 1 to 2^63 - 1", text);
  };
  return {refused, "POSITIVE", "whole_number"};
}

void add_size_options(CLI::App& app, harness::SizeOptions& sizes) {
  app.add_option("--size", sizes.name, "of random problems")
      ->check(CLI::IsMember({"tiny", "small", "medium"}))
      ->capture_default_str();
  app.add_option("--tokens", sizes.tokens, "tokens of random problems")->check(whole_number());
  app.add_option("--channels", sizes.channels, "channels of random problems")
      ->check(whole_number());
  app.add_option("--batch", sizes.batch, "samples of random problems")->check(whole_number());
  app.add_option("--msa", sizes.msa, "MSA rows of random problems (default: twice the tokens)")
      ->check(whole_number());
}

void add_group_option(CLI::App& app) {
  app.add_option_function<std::int64_t>(
         "--group-bytes",
         [](const std::int64_t& bytes) { set_group_limits({.bytes = bytes, .most = 1 << 20}); },
         "groups of large tiles in rings: bytes of each, as many as it takes (default: 1 MiB, at "
         "most 8)")
      ->check(whole_number());
}

void add_chunk_option(CLI::App& app) {
  app.add_option_function<std::int64_t>(
         "--chunk-bytes", [](const std::int64_t& bytes) { set_chunk_bytes(bytes); },
         "chunks of block functions: bytes of workspace of each (default: half of a core's L2, 256 "
         "MiB on a GPU)")
      ->check(whole_number());
}

void print(const Session& session, const std::string& text) {
  if (session.world.rank() != 0) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void write_file(const DeviceMesh& mesh, const std::string& path, const std::string& text,
                const char* option) {
  collective_try(mesh, [&] {
    if (mesh.rank() != 0) return;
    std::ofstream file(path);
    file << text;
    file.close();
    if (!file) throw FileError({.problem = "cannot write " + path, .operation = option});
  });
}

}  // namespace tessera::tools
