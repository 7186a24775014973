// SPDX-License-Identifier: MIT
// Each subcommand is one source file.
#include "tessera/program.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>

#include "failure.hpp"
#include "subcommands.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/log.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera::program {
namespace {

using namespace tools;

// So that wrong usage is said once and without a launch.
bool is_first_rank() {
  return launched_rank() == 0;
}

std::string join(int argc, char** argv) {
  std::string text = "tessera";
  for (int k = 1; k < argc; ++k) text += fmt::format(" {}", argv[k]);
  return text;
}

// TESSERA_LOG: what the library has to say, from this level on; warnings by all ranks.
void log_as_told() {
  const std::string text = text_from_environment("TESSERA_LOG");
  if (text.empty()) return;
  const std::optional<LogLevel> least = parse_log_level(text);
  if (!least) refuse_variable("TESSERA_LOG", text, "debug, info, warning or error");
  set_log_sink([least, rank = launched_rank()](LogLevel level, std::string_view line) {
    if (level < *least || (rank != 0 && level < LogLevel::warning)) return;
    std::fputs(fmt::format("tessera {}, rank {}: {}\n", name_of(level), rank, line).c_str(),
               stderr);
  });
}

int launch(int argc, char** argv, const CLI::App& app, const Run& subcommand,
           const std::string& command) {
  // Of this rank, perhaps of no other one: said when there is a world to agree in.
  std::exception_ptr refused;
  try {
    report_on_termination();
    log_as_told();
    choose_device_before_mpi(app);
  } catch (const Error&) {
    refused = std::current_exception();
  }
  Environment environment(argc, argv);
  const Session session{environment.world(), command};
  try {
    if (refused) std::rethrow_exception(refused);
    const int code = subcommand(session);
    stop_reporting();
    return code;
  } catch (const std::exception& e) {
    const int code = agree_on_failure(session.world, e);
    Environment::end_within(std::chrono::seconds(5), code);  // finalising may wait for messages
    return code;
  }
}

}  // namespace

int run(int argc, char** argv, const std::vector<harness::Case>& cases) {
  CLI::App app{
      "Tessera: distributed tensors for context parallelism. Start it with mpirun -n RANKS."};
  app.require_subcommand(1);
  app.set_version_flag("--version", version());
  std::vector<std::pair<CLI::App*, Run>> subcommands;
  const auto add = [&](const char* name, const char* text, Run (*declare)(CLI::App&)) {
    CLI::App* sub = app.add_subcommand(name, text);
    subcommands.emplace_back(sub, declare(*sub));
  };
  add("parity", "hold every layer against its serial twin and against golden numbers", add_parity);
  add("bench", "measure layers, as ratios to a large matrix product in the same run", add_bench);
  add("contracts", "what layers accept, keep and send, as formulas and numbers", add_contracts);
  add("report", "one HTML page of the JSON files that parity wrote", add_report);
  add("info", "what this build and this machine are", add_info);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return is_first_rank() ? app.exit(e) : 0;
    if (is_first_rank())
      std::fprintf(stderr, "tessera: %s (tessera --help shows the options)\n", e.what());
    return static_cast<int>(ExitCode::usage);
  }
  const std::string command = join(argc, argv);
  try {
    for (const harness::Case& c : cases) harness::add_case(c);
    for (const auto& [sub, subcommand] : subcommands)
      if (sub->parsed()) return launch(argc, argv, app, subcommand, command);
  } catch (const Error& e) {  // before there was a world to agree in
    if (is_first_rank()) std::fprintf(stderr, "tessera: %s\n", e.what());
    return static_cast<int>(e.exit_code());
  }
  return 0;
}

}  // namespace tessera::program
