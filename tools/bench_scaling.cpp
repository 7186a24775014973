// SPDX-License-Identifier: MIT
// tessera bench scaling: what layers need by tokens and mesh.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "subcommands.hpp"
#include "tessera/harness/report.hpp"
#include "tessera/harness/workload.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/parallel.hpp"

namespace tessera::tools {
namespace {

using namespace harness;

struct ScalingOptions {
  std::vector<std::string> cases{"pairformer_layer"};
  std::vector<std::int64_t> tokens{96, 192};
  std::vector<std::string> meshes;
  std::string dtype = "f32", json;
  std::int64_t channels = 64;
  int repeat = 3;
  std::uint64_t seed = 1;
};

// Every grid of every number of ranks that divides `ranks`, the single rank first.
std::vector<MeshShape> all_grids(int ranks) {
  std::vector<MeshShape> grids;
  for (int part = 1; part <= ranks; ++part)
    for (int rows = 1; ranks % part == 0 && rows <= part; ++rows)
      if (part % rows == 0) grids.push_back({1, rows, part / rows});
  return grids;
}

struct Measured {
  double seconds = 0;
  Workload::Usage usage;
};

// On the first ranks of the world; the others return at once. Collective over the world.
Measured measure_on(const Session& session, const MeshShape& shape, const Case& c,
                    const Sizes& sizes, const ScalingOptions& o) {
  const int rank = session.world.rank();
  const Communicator part = session.world.split(rank < shape.ranks() ? 0 : -1, rank);
  if (part.size() == 0) return {};
  const DeviceMesh mesh = DeviceMesh::create(part, shape);
  const Workload workload(c, sizes, mesh, *parse_dtype(o.dtype), o.seed);
  Measured m{0, workload.usage()};
  std::vector<double> seconds;
  for (int k = 0; k < o.repeat; ++k)
    seconds.push_back(seconds_of(mesh, [&] { workload.training(); }));
  m.seconds = median(seconds);
  return m;
}

int bench_scaling(const Session& session, const ScalingOptions& o) {
  const std::vector<Case> cases = select_cases(o.cases);
  std::vector<MeshShape> shapes;
  for (const std::string& text : o.meshes) shapes.push_back(parse_mesh_shape(text));
  if (shapes.empty()) shapes = all_grids(session.world.size());
  const DeviceMesh world = DeviceMesh::create(session.world, {1, 1, session.world.size()});
  print(session,
        fmt::format("tessera {} bench scaling: {}, C={}, {}, {} thread(s) per rank, median "
                    "of {}\n{:<28} {:>6} {:>7} {:>9} {:>8} {:>10} {:>7} {:>10} {:>7} {:>6} "
                    "{:>10}\n",
                    version(), o.dtype, o.channels, instruction_set(), thread_count(), o.repeat,
                    "case", "N", "mesh", "train s", "speed-up", "peak", "of 1st", "saved", "of 1st",
                    "msgs", "sent"));
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Case& c : cases)
    for (const std::int64_t tokens : o.tokens) {
      Measured first;
      for (const MeshShape& shape : shapes) {
        const Measured m = measure_on(session, shape, c, {shape.dp, tokens, o.channels}, o);
        barrier(world);
        if (session.world.rank() != 0) continue;
        if (&shape == &shapes.front()) first = m;
        const auto share = [](std::int64_t a, std::int64_t b) {
          return static_cast<double>(a) / static_cast<double>(b);
        };
        const Workload::Usage& u = m.usage;
        print(
            session,
            fmt::format("{:<28} {:>6} {:>7} {:>9.4f} {:>8.2f} {:>10} {:>7.3f} {:>10} {:>7.3f} "
                        "{:>6} {:>10}\n",
                        c.name, tokens, format(shape), m.seconds, first.seconds / m.seconds,
                        format_bytes(u.peak_bytes), share(u.peak_bytes, first.usage.peak_bytes),
                        format_bytes(u.saved_bytes), share(u.saved_bytes, first.usage.saved_bytes),
                        u.messages, format_bytes(u.sent_bytes)));
        rows.push_back({{"name", c.name},
                        {"tokens", tokens},
                        {"mesh", format(shape)},
                        {"training_seconds", m.seconds},
                        {"peak_bytes", u.peak_bytes},
                        {"saved_bytes", u.saved_bytes},
                        {"messages", u.messages},
                        {"sent_bytes", u.sent_bytes}});
      }
    }
  print(session,
        "Per rank, of the rank that has most. peak: of forward and backward, beside parameters and "
        "inputs.\nBytes and messages are exact; seconds mean something only if every rank has a "
        "core.\n");
  if (!o.json.empty()) {
    const nlohmann::ordered_json report{
        {"version", 1}, {"command", session.command}, {"dtype", o.dtype}, {"runs", rows}};
    write_file(world, o.json, report.dump(1) + "\n");
  }
  return 0;
}

}  // namespace

Run add_scaling(CLI::App& app) {
  const auto o = std::make_shared<ScalingOptions>();
  CLI::App& scaling = *app.add_subcommand(
      "scaling", "time, memory and messages by tokens and mesh, beside the first mesh");
  scaling.add_option("--case", o->cases, "case or glob; may be repeated")->capture_default_str();
  scaling.add_option("--tokens", o->tokens, "tokens; several numbers with commas between them")
      ->delimiter(',')
      ->check(whole_number())
      ->capture_default_str();
  scaling
      .add_option("--mesh", o->meshes,
                  "meshes, with commas (default: all grids of all divisors of the ranks)")
      ->delimiter(',');
  scaling.add_option("--channels", o->channels, "channels")
      ->check(whole_number())
      ->capture_default_str();
  scaling.add_option("--dtype", o->dtype, "activations")
      ->check(CLI::IsMember({"f64", "f32", "bf16"}))
      ->capture_default_str();
  scaling.add_option("--repeat", o->repeat, "timed runs")
      ->check(whole_number())
      ->capture_default_str();
  add_group_option(scaling);
  scaling.add_option("--seed", o->seed, "of the inputs")->capture_default_str();
  scaling.add_option("--json", o->json, "write the results to a file");
  return [o](const Session& session) { return bench_scaling(session, *o); };
}

}  // namespace tessera::tools
