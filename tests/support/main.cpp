// SPDX-License-Identifier: MIT
// main() of every test program. Rank 0 prints, the others write logs, all ranks end with one code:
// 0, 1 if a test failed on any rank, 77 if the tests are not for this number of ranks or their
// device is missing and were skipped, or an exit code of the library. `-r junit -o FILE` writes one
// file for all ranks. Listing and help start no MPI.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/catch_session.hpp"
#include "support/junit.hpp"
#include "support/session.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/runtime/device.hpp"
#include "tessera/runtime/error.hpp"

namespace {

using namespace tessera::test;
constexpr int kSkipped = 77;  // as CTest is told in cmake/testing.cmake

Report report;

void write_on_rank_0() {
  if (world->rank() == 0) report.write();
}

// Ranks leave a test case together, so that one that failed does not meet the others in the next.
class KeepInStep : public Listener {
 public:
  using Listener::Listener;

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    name_ = info.name;
    failures_.clear();
    report.start(name_);
    write_on_rank_0();
  }

  AssertionEnd assertionEnded(const Catch::AssertionStats& stats) override {
    if (!stats.assertionResult.isOk()) failures_ += describe(stats);
    return AssertionEnd();
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    const bool failed = stats.totals.assertions.failed > 0;
    const Verdict verdict = agree(failed ? 1 : 0, name_, failures_, [&] {
      const std::string rank = "rank " + std::to_string(world->rank());
      report.finish(Outcome::failed, rank + " failed and the others did not answer",
                    rank + ": " + failures_);
      report.write();
    });
    report.finish(verdict.code == 0 ? Outcome::passed : Outcome::failed, verdict.message,
                  verdict.text);
    write_on_rank_0();
  }

 private:
  std::string name_;
  std::string failures_;
};
CATCH_REGISTER_LISTENER(KeepInStep)

// CTest says how many ranks it asked for: a launcher that belongs to another MPI starts as many
// separate one-rank jobs, each of which would pass.
bool launched_as_registered(const char* program) {
  const char* expected = std::getenv("TESSERA_TEST_RANKS");
  const int found = world->size();
  if (expected == nullptr || std::to_string(found) == expected) return true;
  if (world->rank() == 0)
    std::fprintf(stderr,
                 "the test was registered for %s ranks and runs on %d; start it with\n"
                 "  TESSERA_TEST_RANKS=%s mpiexec -n %s %s\n",
                 expected, found, expected, expected, program);
  return false;
}

int skip_all(Catch::Session& session, const std::string& reason) {
  for (const std::string& name : selected_tests(session)) {
    if (world->rank() == 0) std::printf("skipped (%s): %s\n", reason.c_str(), name.c_str());
    report.start(name);
    report.finish(Outcome::skipped, reason);
  }
  write_on_rank_0();
  return kSkipped;
}

// Why the tests cannot run on this number of ranks; empty if they can.
std::string wrong_ranks() {
  std::string reason = "for";
  for (const int* count = rank_counts; *count != 0; ++count) {
    if (*count == world->size()) return "";
    reason += ' ' + std::to_string(*count);
  }
  return reason + " ranks, not " + std::to_string(world->size());
}

// The same of the device that CTest names for the tests of tests/gpu.
std::string missing_device() {
  const char* device = std::getenv("TESSERA_TEST_DEVICE");
  try {
    if (device != nullptr) tessera::require_device(tessera::parse_device(device));
  } catch (const tessera::DeviceError& error) {
    return error.what();
  }
  return "";
}

int run_tests(Catch::Session& session, const std::string& program) {
  for (const std::string& reason : {wrong_ranks(), missing_device()})
    if (!reason.empty()) return skip_all(session, reason);
  begin(program);
  return agree(session.run() == 0 ? 0 : 1).code;
}

int run_ranks(Catch::Session& session, const std::string& junit_file, int argc, char** argv) {
  tessera::Environment environment(argc, argv);
  world = environment.world();
  report = Report(junit_file, argv[0], world->size());
  int code = static_cast<int>(tessera::ExitCode::environment);
  if (launched_as_registered(argv[0])) {
    try {
      code = run_tests(session, argv[0]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", world->rank(), error.what());
      tessera::Environment::abort(1);
    }
  }
  world.reset();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Catch::Session session;
  session.configData().rngSeed = 1;  // the same order on every rank
  prepare(session.configData());     // launchers give ranks a terminal that ends in a log
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0)
    return static_cast<int>(tessera::ExitCode::usage);
  if (only_lists(session.configData())) return session.run();
  const std::string junit_file = take_junit(session.configData());
  if (junit_file == "-") {
    std::fprintf(stderr, "the reporter junit needs a file: -r junit -o FILE\n");
    return static_cast<int>(tessera::ExitCode::usage);
  }
  try {
    return run_ranks(session, junit_file, argc, argv);
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
