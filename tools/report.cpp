// SPDX-License-Identifier: MIT
// tessera report: what parity and its traces wrote, as one HTML page that needs nothing else.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "report/page.hpp"
#include "subcommands.hpp"
#include "tessera/harness/report.hpp"
#include "tessera/layers/schedule/panel_plan.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/info.hpp"

namespace tessera::tools {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::vector<std::string> files;
  std::string output = "report.html";
};

FileError refuse(const std::string& path, const char* problem) {
  return FileError({.problem = fmt::format("{}: {}", path, problem),
                    .operation = "report",
                    .hint = "give files that tessera parity wrote with --json or --trace"});
}

ordered_json read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw refuse(path, "cannot be read");
  try {
    return ordered_json::parse(file);
  } catch (const ordered_json::exception&) {
    throw refuse(path, "not JSON");
  }
}

// Which panels every rank holds in every step of the contraction engine.
ordered_json plan_of(int rows, int cols) {
  ordered_json ranks = ordered_json::array();
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; ++j) {
      const PanelPlan plan = PanelPlan::make(rows, cols, i, j);
      ordered_json steps = ordered_json::array();
      for (int t = 0; t < plan.panels; ++t) {
        // What is left of a window that is not refilled near the end.
        const auto window = [&](int size) {
          ordered_json held = ordered_json::array();
          for (int k = t; k < std::min(t + size, plan.panels); ++k) held.push_back(plan.panel(k));
          return held;
        };
        steps.push_back({{"x", window(plan.x_window)},
                         {"y", window(plan.y_window)},
                         {"x_moves", plan.x_moves(t)},
                         {"y_moves", plan.y_moves(t)}});
      }
      ranks.push_back({{"i", i}, {"j", j}, {"steps", std::move(steps)}});
    }
  return {{"rows", rows},
          {"cols", cols},
          {"panels", PanelPlan::make(rows, cols, 0, 0).panels},
          {"ranks", std::move(ranks)}};
}

// Everything that the page shows.
ordered_json data_of(const std::vector<std::string>& files) {
  ordered_json reports = ordered_json::array(), traces = ordered_json::array();
  ordered_json plans = ordered_json::array();
  std::set<std::pair<int, int>> grids;
  for (const std::string& path : files) {
    ordered_json content = read(path);
    if (!content.is_object()) throw refuse(path, "neither a report nor a timeline");
    content["file"] = path.substr(path.find_last_of('/') + 1);
    if (content.contains("traceEvents")) {
      traces.push_back(std::move(content));
    } else if (content.contains("cases") && content.contains("mesh")) {
      if (content.value("version", 0) != harness::kReportVersion)
        throw refuse(path, "written by another version");
      const int rows = content["mesh"].value("cp0", 1), cols = content["mesh"].value("cp1", 1);
      if (grids.emplace(rows, cols).second) plans.push_back(plan_of(rows, cols));
      reports.push_back(std::move(content));
    } else {
      throw refuse(path, "neither a report of parity nor a timeline");
    }
  }
  return {{"tessera", version()}, {"reports", reports}, {"traces", traces}, {"plans", plans}};
}

void replace(std::string& text, const std::string& mark, const std::string& by) {
  text.replace(text.find(mark), mark.size(), by);
}

std::string page_of(const ordered_json& data) {
  // Inside a script element "</" would end it.
  std::string json = data.dump();
  for (std::size_t at = 0; (at = json.find("</", at)) != std::string::npos; at += 3)
    json.insert(at + 1, "\\");
  std::string page = report_template;
  replace(page, "/*{style}*/", report_style);
  replace(page, "/*{script}*/", report_script);
  replace(page, "/*{data}*/", json);
  return page;
}

int run_report(const Session& session, const Options& o) {
  const DeviceMesh mesh = make_mesh(session, "", {});
  std::string page;
  collective_try(mesh, [&] {
    if (mesh.rank() == 0) page = page_of(data_of(o.files));
  });
  write_file(mesh, o.output, page, "--output");
  print(session, fmt::format("{}: {}\n", o.output,
                             harness::format_bytes(static_cast<std::int64_t>(page.size()))));
  return 0;
}

}  // namespace

Run add_report(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  app.add_option("files", o->files, "what parity wrote with --json and --trace")->required();
  app.add_option("-o,--output", o->output, "the page")->capture_default_str();
  return [o](const Session& session) { return run_report(session, *o); };
}

}  // namespace tessera::tools
