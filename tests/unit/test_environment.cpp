// SPDX-License-Identifier: MIT
// ranks: 1 4
#include <mpi.h>

#include <climits>
#include <thread>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "support/variable.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;

namespace {

void make_environment() {
  int argc = 0;
  char** argv = nullptr;
  const Environment environment(argc, argv);
  CHECK(environment.world().size() == test_ranks());
}

bool mpi_is_running() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

}  // namespace

TEST_CASE("MPI that is running already is left running", "[environment]") {
  make_environment();
  make_environment();
  CHECK(mpi_is_running());
}

TEST_CASE("the world of Environment is a duplicate", "[environment]") {
  const Communicator world = test_world();
  CHECK(world.size() == test_ranks());
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  CHECK(world.rank() == rank);
}

TEST_CASE("a launcher that disagrees with the world is found", "[environment]") {
  const std::string other = std::to_string(test_ranks() + 3);
  const std::string has = "MPI_COMM_WORLD has " + std::to_string(test_ranks());
  const Variable ours("OMPI_COMM_WORLD_SIZE", nullptr);
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    const Variable wrong(name, other.c_str());
    require_error<InitError>(make_environment, std::string(name) + "=" + other, has,
                             "mpiexec -n " + other);
  }
  const Variable right("PMI_SIZE", std::to_string(test_ranks()).c_str());
  make_environment();
}

TEST_CASE("Slurm's task count matters only under srun with separate worlds", "[environment]") {
  const Variable ours("OMPI_COMM_WORLD_SIZE", nullptr);
  const Variable of_mpich("PMI_SIZE", nullptr);
  const Variable tasks("SLURM_NTASKS", std::to_string(test_ranks() + 3).c_str());
  make_environment();  // in an allocation, started by mpirun
  const Variable process("SLURM_PROCID", "0");
  const Variable step("SLURM_STEP_ID", "0");
  if (test_ranks() > 1)
    make_environment();
  else
    require_error<InitError>(make_environment, "SLURM_NTASKS=4", "srun --mpi=");
}

TEST_CASE("threads are TESSERA_THREADS, or the cores divided among the ranks", "[environment]") {
  const int before = thread_count();
  {
    const Variable threads("TESSERA_THREADS", nullptr);
    make_environment();
    const int cores = int(std::thread::hardware_concurrency());
    CHECK(thread_count() >= 1);
    CHECK(thread_count() <= std::max(1, cores));
  }
  {
    const Variable threads("TESSERA_THREADS", "3");
    set_thread_count(2);
    make_environment();
    CHECK(thread_count() == 2);  // what was chosen stays; the variable is read when first asked
  }
  set_thread_count(before);
}

TEST_CASE("facts about MPI", "[environment]") {
  const MpiInfo info = mpi_info();
  CHECK(info.initialized);
  CHECK_FALSE(info.library.empty());
  CHECK(info.library.find('\n') == std::string::npos);
  CHECK(info.standard.empty() == (info.library == "none (built without)"));
  CHECK((info.standard.empty() || info.standard.find('.') != std::string::npos));
  CHECK((info.thread_level == "funneled" || info.thread_level == "serialized" ||
         info.thread_level == "multiple"));
  CHECK((info.cuda_aware == "yes" || info.cuda_aware == "no" || info.cuda_aware == "unknown"));
}

TEST_CASE("a wrong launch of a program ends with code 3", "[environment]") {
  if (test_ranks() > 1) return;  // starts a program of its own
  char self[PATH_MAX] = {};
  REQUIRE(realpath("/proc/self/exe", self) != nullptr);
  // A child of this process, with nothing of this job in its environment.
  const std::string child =
      "env -i PATH=/usr/bin:/bin HOME=/tmp OMPI_ALLOW_RUN_AS_ROOT=1 "
      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ";
  const std::string rest = std::string(" ") + self + " 'facts about MPI' >/dev/null 2>&1";
  const auto exit_code = [](const std::string& command) {
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  CHECK(exit_code(child + "PMI_SIZE=4" + rest) == int(ExitCode::environment));
  CHECK(exit_code(child + rest) == 0);
}
