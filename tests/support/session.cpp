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
constexpr std::size_t kTextLimit = 1 << 16;  // of one rank and test case

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

// The codes of all ranks, by rank.
std::vector<int> all_codes(int code, const std::function<void()>& last_words) {
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
      last_words();
      Environment::abort(code);
    }
  }
  return codes;
}

std::string text_of(int rank, const std::string& own) {
  std::string text = own.substr(0, kTextLimit);
  int length = static_cast<int>(text.size());
  MPI_Bcast(&length, 1, MPI_INT, rank, ranks_here);
  text.resize(static_cast<std::size_t>(length));
  MPI_Bcast(text.data(), length, MPI_CHAR, rank, ranks_here);
  return text;
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

Verdict agree(int code, const std::string& what, const std::string& text,
              const std::function<void()>& last_words) {
  const std::vector<int> codes = all_codes(code, last_words);
  Verdict verdict;
  verdict.code = *std::max_element(codes.begin(), codes.end());
  if (verdict.code == 0) return verdict;
  verdict.message = "failed on rank";
  for (int rank = 0; rank < world->size(); ++rank) {
    if (codes[static_cast<std::size_t>(rank)] == 0) continue;
    verdict.failed.push_back(rank);
    verdict.message += ' ' + std::to_string(rank);
    verdict.text += "rank " + std::to_string(rank) + ": " + text_of(rank, text);
  }
  verdict.message += " of " + std::to_string(world->size());
  if (!what.empty() && verdict.failed.front() == world->rank()) {
    show_log();
    std::fprintf(stderr, "%s: %s\n", verdict.message.c_str(), what.c_str());
  }
  return verdict;
}

}  // namespace tessera::test
