// SPDX-License-Identifier: MIT
// tessera contracts: what every layer accepts, keeps and sends, as formulas and in numbers, for any
// mesh, on one rank and without the memory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "subcommands.hpp"
#include "tessera/harness/contract_table.hpp"
#include "tessera/harness/report.hpp"
#include "tessera/harness/sizes.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera::tools {
namespace {

using namespace harness;

struct Options {
  std::vector<std::string> cases;
  std::string mesh = "2x2", dtype = "f64", json, markdown;
  SizeOptions sizes;
};

std::string text_of(const ContractLine& line) {
  if (line.what == "operand" || line.what == "output")
    return fmt::format("  {:<11} {:<16} {}\n", line.what, line.name, line.formula);
  std::string text =
      fmt::format("  {:<11} {}\n              {}\n", line.what, line.name, line.formula);
  if (line.what == "saved")
    return text + fmt::format("              = {} per rank\n", format_bytes(line.bytes));
  return text + fmt::format("              = {} operations, {} messages, {} ({} bytes)\n",
                            line.count, line.messages, format_bytes(line.bytes), line.bytes);
}

// docs/substrate.md is this page for the cases of the substrate.
std::string page_of(const Options& o, const MeshShape& shape, const Sizes& sizes) {
  return fmt::format(
             R"(# Operations and their contracts

Written by `tessera contracts --case '{}' --markdown FILE` from the contracts that the operations
are checked against when they run; `tessera contracts --case NAME --mesh CP0xCP1` gives the numbers
for any mesh.

S(d): sharded along tensor dim d. R: replicated. N(x), n(x): elements of the tensor x and of a
rank's own block of it; e(x): bytes of one element; e: of the first floating operand; acc: the same
in at least f32. R0, R1, dp: sizes of the mesh axes cp0, cp1, dp. M: product of the leading sizes.
`all_reduce(n)` and the like stand for the bytes that such a collective of n elements sends. What a
function saves is listed for operands that all need a gradient. A Partial operand is refused by
every function, and so is any placement that the table does not admit; the error says which explicit
operation to call.

)",
             fmt::join(o.cases, " ")) +
         operations_table(select_cases(o.cases), sizes, shape, *parse_dtype(o.dtype));
}

int run_contracts(const Session& session, const Options& o) {
  const MeshShape shape = parse_mesh_shape(o.mesh);
  const DType dtype = *parse_dtype(o.dtype);
  const Sizes sizes = sizes_of(o.sizes, shape);
  if (!o.markdown.empty()) {
    write_file(DeviceMesh::create(session.world, squarest(session.world.size())), o.markdown,
               page_of(o, shape, sizes), "--markdown");
    return 0;
  }
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  print(session, fmt::format("Contracts on mesh {} (dp={} R0={} R1={}), {} (e={}), B={} N={} C={}. "
                             "Of messages: operations;\n"
                             "messages; bytes, sent by the busiest rank. acc: bytes of an element "
                             "in at least f32. M: product\n"
                             "of the leading sizes. K: groups of matrices of a ring. i, j: own "
                             "coordinates on cp0, cp1.\n",
                             format(shape), shape.dp, shape.cp0, shape.cp1, o.dtype, size_of(dtype),
                             sizes.batch, sizes.tokens, sizes.channels));
  for (const Case& c : select_cases(o.cases)) {
    nlohmann::ordered_json lines = nlohmann::ordered_json::array();
    std::string text = fmt::format("\n{}: {}\n", c.name, c.description), scope;
    for (const ContractLine& line : contract_table(c, sizes, shape, dtype)) {
      if (line.scope != scope) text += fmt::format("  [{}]\n", scope = line.scope);
      text += text_of(line);
      lines.push_back({{"scope", line.scope},
                       {"what", line.what},
                       {"name", line.name},
                       {"formula", line.formula},
                       {"count", line.count},
                       {"messages", line.messages},
                       {"bytes", line.bytes}});
    }
    print(session, text);
    cases.push_back({{"name", c.name}, {"contract", std::move(lines)}});
  }
  if (!o.json.empty()) {
    const nlohmann::ordered_json report{
        {"version", kReportVersion},
        {"mesh", {{"dp", shape.dp}, {"cp0", shape.cp0}, {"cp1", shape.cp1}}},
        {"dtype", o.dtype},
        {"batch", sizes.batch},
        {"tokens", sizes.tokens},
        {"channels", sizes.channels},
        {"cases", std::move(cases)}};
    write_file(DeviceMesh::create(session.world, squarest(session.world.size())), o.json,
               report.dump(1) + "\n");
  }
  return 0;
}

}  // namespace

Run add_contracts(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  app.add_option("--case", o->cases, "case or glob; may be repeated (default: all)");
  app.add_option("--mesh", o->mesh, "CP0xCP1 or DPxCP0xCP1, of any size")->capture_default_str();
  app.add_option("--dtype", o->dtype, "activations")
      ->check(CLI::IsMember({"f64", "f32", "bf16"}))
      ->capture_default_str();
  add_size_options(app, o->sizes);
  add_group_option(app);
  app.add_option("--json", o->json, "write the table to a file");
  app.add_option("--markdown", o->markdown, "write one row per function to a file instead");
  return [o](const Session& session) { return run_contracts(session, *o); };
}

}  // namespace tessera::tools
