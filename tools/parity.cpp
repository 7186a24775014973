// SPDX-License-Identifier: MIT
// tessera parity: every layer on this mesh against its serial twin and against golden files.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "subcommands.hpp"
#include "tessera/harness/growth.hpp"
#include "tessera/harness/memory_tree.hpp"
#include "tessera/harness/parity.hpp"
#include "tessera/harness/report.hpp"
#include "tessera/harness/sizes.hpp"
#include "tessera/harness/trace.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/transport.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera::tools {
namespace {

using namespace harness;
namespace fs = std::filesystem;

struct Options {
  bool list = false, memory = false, growth = false, tf32 = false;
  std::vector<std::string> cases;
  std::string kind = "all";
  std::string mesh, dtype = "f64", against = "serial", golden, json, trace;
  DeviceOptions device;
  SizeOptions sizes;
  std::uint64_t seed = 1;
  double tolerance = 0;
};

struct GoldenFile {
  std::string path;
  SafetensorsFile file;
  Case layer;
};

// TESSERA_GOLDEN_DIR, or where they are seen from the program: when installed, in the build tree.
std::string default_golden() {
  if (const std::string dir = text_from_environment("TESSERA_GOLDEN_DIR"); !dir.empty()) return dir;
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  for (const char* tests : {"libexec/tessera/tests", "tests"})
    if (const fs::path dir = here.parent_path() / tests / "golden"; fs::is_directory(dir))
      return dir.string();
  return "";
}

std::vector<std::string> golden_paths(const std::string& where) {
  std::error_code unreadable;  // is as not there
  if (fs::is_regular_file(where, unreadable)) return {where};
  if (!fs::is_directory(where, unreadable))
    throw FileError({.problem = where + ": no such file or folder",
                     .operation = "--golden, TESSERA_GOLDEN_DIR"});
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(where))
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  if (paths.empty())
    throw FileError({.problem = where + ": no .safetensors file in it", .operation = "--golden"});
  return paths;
}

std::string case_of(const SafetensorsFile& file, const std::string& path) {
  const auto entry = file.metadata().find("case");
  if (entry == file.metadata().end())
    throw FileError({.problem = path + ": no 'case' in the metadata: not a golden file",
                     .operation = "--golden"});
  return entry->second;
}

// The files of the chosen cases, in the order of the cases. `skipped` counts those of others.
std::vector<GoldenFile> open_goldens(const std::string& where, const std::vector<Case>& cases,
                                     std::size_t& skipped) {
  std::vector<GoldenFile> all;
  for (const std::string& path : golden_paths(where)) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    const std::string name = case_of(file, path);
    if (find_case(name) == nullptr) ++skipped;
    const auto chosen =
        std::find_if(cases.begin(), cases.end(), [&](const Case& c) { return c.name == name; });
    if (chosen != cases.end()) all.push_back({path, file, *chosen});
  }
  const auto place = [&](const GoldenFile& g) {
    return std::find_if(cases.begin(), cases.end(),
                        [&](const Case& c) { return c.name == g.layer.name; });
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const GoldenFile& a, const GoldenFile& b) { return place(a) < place(b); });
  return all;
}

int list_cases(const Session& session) {
  std::string text;
  for (const Case& c : all_cases())
    text += fmt::format("{:<34} {}{}\n", c.name, c.description, c.has_golden ? "; golden" : "");
  print(session, text);
  return 0;
}

// A line that is overwritten, for people who watch.
void progress(const Session& session, std::size_t done, std::size_t of, const std::string& name) {
  if (session.world.rank() != 0 || isatty(STDERR_FILENO) == 0) return;
  const std::string text = done < of ? fmt::format("[{}/{}] {}", done + 1, of, name) : "";
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

// --growth: instead of numbers, how the memory of the cases scales.
int run_growth(const Session& session, const Options& o, const std::vector<Case>& cases,
               const Sizes& sizes, const DeviceMesh& mesh, const RunDescription& description) {
  print(session, growth_header(sizes, mesh.ranks()));
  std::vector<CaseGrowth> all;
  bool pass = true;
  for (const Case& c : cases) {
    progress(session, all.size(), cases.size(), "growth " + c.name);
    all.push_back(measure_growth(c, sizes, mesh, {description.dtype, o.seed}));
    progress(session, cases.size(), cases.size(), "");
    print(session, growth_rows(all.back()));
    pass = pass && all.back().failures().empty();
  }
  if (!o.json.empty()) {
    nlohmann::ordered_json report = to_json(description, {});
    report["pass"] = pass;
    report["growth"] = growth_json(all, sizes);
    write_file(mesh, o.json, report.dump(1) + "\n");
  }
  return static_cast<int>(pass ? ExitCode::ok : ExitCode::check_failed);
}

int run_parity_command(const Session& session, const Options& o) {
  if (o.list) return list_cases(session);
  const std::vector<Case> cases = select_cases(o.cases);
  const DeviceMesh mesh = make_mesh(session, o.mesh, o.device);
  use_tf32(o.tf32, mesh);
  const MeshShape shape{mesh.size(kDp), mesh.size(kCp0), mesh.size(kCp1)};
  const Sizes sizes = sizes_of(o.sizes, shape);
  RunOptions run{*parse_dtype(o.dtype), o.seed, o.tolerance, !o.trace.empty()};
  RunDescription description{
      session.command, shape,           run.dtype, mesh.device(), describe(mesh.transport()),
      o.seed,          o.tolerance == 0};
  if (o.against == "cpu") {
    run.reference = DeviceMesh::create(session.world, shape, cpu_device);
    description.against = cpu_device;
  }
  if (o.growth) return run_growth(session, o, cases, sizes, mesh, description);

  std::vector<GoldenFile> goldens;
  std::size_t skipped = 0;
  if (o.kind != "parity") {
    const std::string where = o.golden.empty() ? default_golden() : o.golden;
    collective_try(mesh, [&] {
      if (!where.empty()) goldens = open_goldens(where, cases, skipped);
      if (goldens.empty() && (o.kind == "golden" || !o.golden.empty()))
        throw UsageError({.problem = "no golden file for the chosen cases",
                          .operation = "--golden",
                          .found = where.empty() ? "no folder" : where,
                          .hint = "give a folder of golden files with --golden DIR"});
    });
  }

  const Timelines timelines(mesh);
  print(session, table_header(description));
  std::vector<CaseResult> results;
  const std::size_t total = goldens.size() + (o.kind == "golden" ? 0 : cases.size());
  const auto add = [&](CaseResult result) {
    progress(session, total, total, "");
    print(session, table_row(result));
    results.push_back(std::move(result));
  };
  for (const GoldenFile& g : goldens) {
    progress(session, results.size(), total, "golden " + g.layer.name);
    add(run_golden(g.layer, g.file, g.path, mesh, run));
  }
  if (o.kind != "golden")
    for (const Case& c : cases) {
      progress(session, results.size(), total, "parity " + c.name);
      add(run_parity(c, sizes, mesh, run));
    }
  print(session, table_footer(results, skipped));
  if (o.memory)
    for (const CaseResult& r : results)
      print(session, memory_table(fmt::format("{} ({})", r.name, name_of(r.kind)), r.memory));
  if (run.trace) {
    const TraceFile file = timelines.collect(session.command);
    print(session, file.summary);
    write_file(mesh, o.trace, file.json, "--trace");
  }
  if (!o.json.empty()) write_file(mesh, o.json, to_json(description, results).dump(1) + "\n");
  const bool pass =
      std::all_of(results.begin(), results.end(), [](const CaseResult& r) { return r.pass(); });
  return static_cast<int>(pass ? ExitCode::ok : ExitCode::check_failed);
}

}  // namespace

Run add_parity(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  app.add_flag("--list", o->list, "list the cases and stop");
  app.add_option("--case", o->cases, "case or glob; may be repeated (default: all)");
  app.add_option("--kind", o->kind, "which checks to run")
      ->check(CLI::IsMember({"all", "golden", "parity"}))
      ->capture_default_str();
  app.add_option("--mesh", o->mesh, "CP0xCP1 or DPxCP0xCP1 (default: squarest for the ranks)");
  app.add_option("--dtype", o->dtype, "activations")
      ->check(CLI::IsMember({"f64", "f32", "bf16"}))
      ->capture_default_str();
  add_device_options(app, o->device);
  app.add_flag("--tf32", o->tf32, "let a GPU cut f32 operands of products to TF32");
  app.add_option("--against", o->against,
                 "what parity is with: the serial layer on the same device, or the same ranks on "
                 "the CPU")
      ->check(CLI::IsMember({"serial", "cpu"}))
      ->capture_default_str();
  app.add_option("--golden", o->golden, "folder of golden files, or one file");
  add_size_options(app, o->sizes);
  add_group_option(app);
  add_chunk_option(app);
  app.add_option("--seed", o->seed, "of random problems")->capture_default_str();
  app.add_option(
         "--tolerance", o->tolerance,
         "on the largest difference over the tensor's largest value (default: by kind and dtype)")
      ->check(CLI::PositiveNumber);
  app.add_flag("--memory", o->memory, "print the memory of each case by module path and purpose");
  app.add_flag("--growth", o->growth,
               "only measure how memory grows with tokens and ranks; fails where pair tensors do "
               "not grow as N^2 / ranks");
  app.add_option("--trace", o->trace, "write the timeline of all ranks, for Perfetto");
  app.add_option("--json", o->json, "write the results to a file");
  return [o](const Session& session) { return run_parity_command(session, *o); };
}

}  // namespace tessera::tools
