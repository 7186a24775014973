// SPDX-License-Identifier: MIT
#include "support/session.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tessera/mesh/environment.hpp"

namespace tessera::test {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 20s;

std::filesystem::path log_path;       // empty on rank 0
MPI_Comm ranks_here = MPI_COMM_NULL;  // apart from what tests send

std::filesystem::path log_directory() {
  const char* chosen = std::getenv("TESSERA_TEST_LOG_DIR");
  return chosen != nullptr ? std::filesystem::path(chosen) : std::filesystem::path("logs");
}

// What has been added since the last time.
void show_log() {
  if (log_path.empty()) return;
  std::fflush(stdout);
  static std::streamoff shown = 0;
  std::ifstream log(log_path);
  log.seekg(shown);
  const std::string text{std::istreambuf_iterator<char>(log), {}};
  shown += static_cast<std::streamoff>(text.size());
  std::fprintf(stderr, "---- rank %d, from %s\n%s----\n", world->rank(), log_path.c_str(),
               text.c_str());
}

std::string join(const std::vector<int>& codes) {
  std::string failed;
  for (std::size_t rank = 0; rank < codes.size(); ++rank)
    if (codes[rank] != 0) failed += ' ' + std::to_string(rank);
  return failed;
}

}  // namespace

std::optional<Communicator> world;

void begin(const std::string& program) {
  MPI_Comm_dup(MPI_COMM_WORLD, &ranks_here);
  if (world->rank() == 0) return;
  std::filesystem::create_directories(log_directory());
  const auto name = std::filesystem::path(program).filename().string() + '.' +
                    std::to_string(world->size()) + "ranks.rank" + std::to_string(world->rank());
  log_path = std::filesystem::absolute(log_directory() / (name + ".log"));
  if (std::freopen(log_path.c_str(), "w", stdout) == nullptr) log_path.clear();
}

int agree(int code, const std::string& what) {
  std::vector<int> codes(static_cast<std::size_t>(world->size()));
  MPI_Request request;
  MPI_Iallgather(&code, 1, MPI_INT, codes.data(), 1, MPI_INT, ranks_here, &request);
  const auto start = std::chrono::steady_clock::now();
  for (int done = 0; done == 0;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) std::this_thread::sleep_for(1ms);
    if (done == 0 && code != 0 && std::chrono::steady_clock::now() - start > kPatience) {
      show_log();
      std::fprintf(stderr, "rank %d failed and the others do not answer: ending the job\n",
                   world->rank());
      Environment::abort(code);
    }
  }
  const auto lowest = std::find_if(codes.begin(), codes.end(), [](int c) { return c != 0; });
  if (lowest == codes.end()) return 0;
  if (!what.empty() && lowest - codes.begin() == world->rank()) {
    show_log();
    std::fprintf(stderr, "failed on rank%s of %d: %s\n", join(codes).c_str(), world->size(),
                 what.c_str());
  }
  return *std::max_element(codes.begin(), codes.end());
}

}  // namespace tessera::test
