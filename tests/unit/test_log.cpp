// SPDX-License-Identifier: MIT
// ranks: 1 4
#include "tessera/runtime/log.hpp"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/mesh/environment.hpp"

using namespace tessera;

namespace {

// Keeps what is said while it lives.
class Listener {
 public:
  Listener() {
    set_log_sink(
        [this](LogLevel level, std::string_view line) { lines.emplace_back(level, line); });
  }
  ~Listener() { set_log_sink({}); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  bool heard(LogLevel level, const std::string& words) const {
    for (const auto& [at, line] : lines)
      if (at == level && line.find(words) != std::string::npos) return true;
    return false;
  }
  std::vector<std::pair<LogLevel, std::string>> lines;
};

}  // namespace

TEST_CASE("a sink hears what is said while it is there", "[log]") {
  log_line(LogLevel::error, "to nobody");
  {
    const Listener listener;
    log_line(LogLevel::info, "one");
    log_line(LogLevel::warning, "two");
    REQUIRE(listener.lines.size() == 2);
    CHECK(listener.heard(LogLevel::info, "one"));
    CHECK(listener.heard(LogLevel::warning, "two"));
    CHECK_FALSE(listener.heard(LogLevel::error, "to nobody"));
  }
  log_line(LogLevel::error, "to nobody again");
}

TEST_CASE("what a sink throws stops nothing", "[log]") {
  set_log_sink([](LogLevel, std::string_view) { throw std::runtime_error("the disk is full"); });
  log_line(LogLevel::info, "still here");
  set_log_sink({});
}

TEST_CASE("levels have names", "[log]") {
  for (const LogLevel level : {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error})
    CHECK(parse_log_level(name_of(level)) == level);
  CHECK_FALSE(parse_log_level("loud"));
}

TEST_CASE("environments and meshes are announced", "[log]") {
  const Listener listener;
  int argc = 0;
  char** argv = nullptr;
  const Environment environment(argc, argv);
  CHECK(listener.heard(LogLevel::info, std::to_string(test_ranks()) + " rank(s), threads "));
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  CHECK(listener.heard(LogLevel::info, "rank " + std::to_string(test_rank()) + " of " +
                                           mesh.describe() + " on cpu"));
}
