// SPDX-License-Identifier: MIT
// main() of every test program. Rank 0 prints, the others write logs, and the exit code is the
// largest of all ranks. Listing and help start no MPI.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using ListenerBase = Catch::EventListenerBase;
static void no_colour(Catch::ConfigData& config) {
  config.defaultColourMode = Catch::ColourMode::None;
}
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
using ListenerBase = Catch::TestEventListenerBase;
static void no_colour(Catch::ConfigData& config) {
  config.useColour = Catch::UseColour::No;
}
#endif

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/session.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/runtime/error.hpp"

namespace {

// Ranks leave a test case together, so that one that failed does not meet the others in the next.
class KeepInStep : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override { name_ = info.name; }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    tessera::test::agree(stats.totals.assertions.failed > 0 ? 1 : 0, name_);
  }

 private:
  std::string name_;
};
CATCH_REGISTER_LISTENER(KeepInStep)

bool only_lists(Catch::Session& session) {
  const Catch::ConfigData& config = session.configData();
  return config.showHelp || config.listTests || config.listTags || config.listReporters
#if !__has_include(<catch2/catch_session.hpp>)
         || config.listTestNamesOnly
#endif
      ;
}

// CTest says how many ranks it asked for: a launcher that belongs to another MPI starts as many
// separate one-rank jobs, each of which would pass.
bool launched_as_registered(const char* program) {
  const char* expected = std::getenv("TESSERA_TEST_RANKS");
  const int found = tessera::test::world->size();
  if (expected == nullptr || std::to_string(found) == expected) return true;
  if (tessera::test::world->rank() == 0)
    std::fprintf(stderr,
                 "the test was registered for %s ranks and runs on %d; start it with\n"
                 "  TESSERA_TEST_RANKS=%s mpiexec -n %s %s\n",
                 expected, found, expected, expected, program);
  return false;
}

int run_ranks(Catch::Session& session, int argc, char** argv) {
  tessera::Environment environment(argc, argv);
  tessera::test::world = environment.world();
  int code = static_cast<int>(tessera::ExitCode::environment);
  if (launched_as_registered(argv[0])) {
    try {
      tessera::test::begin(argv[0]);
      code = tessera::test::agree(session.run());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", tessera::test::world->rank(), error.what());
      tessera::Environment::abort(1);
    }
  }
  tessera::test::world.reset();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Catch::Session session;
  session.configData().rngSeed = 1;  // the same order on every rank
  no_colour(session.configData());   // launchers give ranks a terminal that ends in a log
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
  if (only_lists(session)) return session.run();
  try {
    return run_ranks(session, argc, argv);
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
