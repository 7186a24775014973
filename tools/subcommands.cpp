// SPDX-License-Identifier: MIT
#include "subcommands.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "tessera/layers/schedule/panel_ring.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera::tools {

DeviceMesh make_mesh(const Session& session, const std::string& option, Device device) {
  require_device(device);
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

void add_size_options(CLI::App& app, harness::SizeOptions& sizes) {
  app.add_option("--size", sizes.name, "of random problems")
      ->check(CLI::IsMember({"tiny", "small", "medium"}))
      ->capture_default_str();
  app.add_option("--tokens", sizes.tokens, "tokens of random problems")->check(CLI::PositiveNumber);
  app.add_option("--channels", sizes.channels, "channels of random problems")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch", sizes.batch, "samples of random problems")->check(CLI::PositiveNumber);
  app.add_option("--msa", sizes.msa, "MSA rows of random problems (default: twice the tokens)")
      ->check(CLI::PositiveNumber);
}

void add_group_option(CLI::App& app) {
  app.add_option_function<std::int64_t>(
         "--group-bytes",
         [](const std::int64_t& bytes) { set_group_limits({.bytes = bytes, .most = 1 << 20}); },
         "groups of large tiles in rings: bytes of each, as many as it takes (default: 1 MiB, at "
         "most 8)")
      ->check(CLI::PositiveNumber);
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
