// SPDX-License-Identifier: MIT
#include "tessera/mesh/environment.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>

#include "tessera/mesh/communicator.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/hash.hpp"
#include "tessera/runtime/log.hpp"
#include "tessera/runtime/parallel.hpp"

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace tessera {
namespace {

std::optional<int> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0') return std::nullopt;  // SLURM_NTASKS may be a list elsewhere
  return static_cast<int>(value);
}

struct Launcher {
  const char* variable;
  int ranks;
};

// How many ranks the launcher says it started. Inside a Slurm allocation SLURM_NTASKS alone means
// nothing: mpirun may start fewer. It counts if srun started this process, as one of several.
std::optional<Launcher> launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const auto ranks = number_in(variable)) return Launcher{variable, *ranks};
  const char* variable = "SLURM_NTASKS";
  const auto ranks = number_in(variable);
  if (ranks && number_in("SLURM_PROCID") && number_in("SLURM_STEP_ID"))
    return Launcher{variable, *ranks};
  return std::nullopt;
}

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

// "Open MPI v4.1.4", "MPICH 4.0.2"
std::string library() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  text = text.substr(0, text.find_first_of(",\n"));
  const std::string_view mpich = "MPICH Version:\t";
  return text.starts_with(mpich) ? "MPICH " + text.substr(mpich.size()) : text;
}

std::string standard() {
  int version = 0;
  int subversion = 0;
  MPI_Get_version(&version, &subversion);
  return version == 0 ? "" : fmt::format("{}.{}", version, subversion);
}

void check_launch() {
  const int size = world_size();
  const auto started = launcher();
  if (!started || started->ranks == size) return;
  // Under srun a step may be larger than a program's world, but separate one-rank jobs are not it.
  if (std::string_view(started->variable) == "SLURM_NTASKS" && size != 1) return;
  const std::string cause = standard().empty()
                                ? "this build has no MPI and runs on one rank: configure it with "
                                  "TESSERA_MPI=ON, then use the mpiexec of that MPI"
                                : fmt::format(
                                      "the launcher belongs to another MPI; use the "
                                      "mpiexec of {}",
                                      library());
  throw InitError(
      {.problem = fmt::format("the launcher started {} rank(s), but MPI_COMM_WORLD has {}",
                              started->ranks, size),
       .operation = "Environment",
       .found = fmt::format("{}={} and MPI {}", started->variable, started->ranks, library()),
       .expected = "one job of all ranks",
       .hint = fmt::format("{} (mpiexec -n {} PROGRAM), or under Slurm srun --mpi=pmix or "
                           "--mpi=pmi2",
                           cause, started->ranks)});
}

// The cores this rank may use, divided among the ranks of the node that may use the same ones.
int threads_for_this_rank() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  const std::string_view bytes(reinterpret_cast<const char*>(&mask), sizeof mask);
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm sharing = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_split(node, static_cast<int>(hash_bytes(bytes) & 0x7fffffff), 0, &sharing);
  int ranks = 1;
  MPI_Comm_size(sharing, &ranks);
  MPI_Comm_free(&sharing);
  MPI_Comm_free(&node);
  return std::max(1, CPU_COUNT(&mask) / ranks);
}

// One that is wrong on one rank is an error on all of them, or the others would wait for it.
void check_threads_variable() {
  std::exception_ptr refused;
  try {
    thread_count();
  } catch (const UsageError&) {
    refused = std::current_exception();
  }
  int own = world_size();
  if (refused) MPI_Comm_rank(MPI_COMM_WORLD, &own);
  int first = own;
  MPI_Allreduce(&own, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (refused) std::rethrow_exception(refused);
  if (first < world_size())
    throw UsageError({.problem = fmt::format("rank {} has a value that it cannot have", first),
                      .operation = "TESSERA_THREADS",
                      .expected = "a number of threads on all ranks"});
}

const char* name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "single";
    case MPI_THREAD_FUNNELED:
      return "funneled";
    case MPI_THREAD_SERIALIZED:
      return "serialized";
    case MPI_THREAD_MULTIPLE:
      return "multiple";
    default:
      return "unknown";
  }
}

bool initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

}  // namespace

struct Environment::State {
  bool owns_mpi = false;
  int unwinding = std::uncaught_exceptions();
  int default_threads = 0;  // to be restored
  std::optional<Communicator> world;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (default_threads > 0) set_default_thread_count(default_threads);
  }
};

Environment::Environment(int& argc, char**& argv) : state_(std::make_unique<State>()) {
  if (finalized())
    throw InitError({.problem = "MPI has been finalised already", .operation = "Environment"});
  if (!initialized()) {
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    state_->owns_mpi = true;
  }
  try {
    check_launch();
    check_threads_variable();
    state_->default_threads = set_default_thread_count(threads_for_this_rank());
    const MPI_Comm world = MPI_COMM_WORLD;
    state_->world = Communicator::duplicate(&world);
    log_line(LogLevel::info, fmt::format("{}, {} rank(s), threads {}, {} per rank", library(),
                                         world_size(), mpi_info().thread_level, thread_count()));
  } catch (const Error&) {  // on all ranks
    if (state_->owns_mpi) MPI_Finalize();
    throw;
  }
}

// Finalising while an exception unwinds would wait for ranks that may never come.
Environment::~Environment() {
  end_threads();
  state_->world.reset();
  if (state_->owns_mpi && !finalized() && std::uncaught_exceptions() <= state_->unwinding)
    MPI_Finalize();
}

Communicator Environment::world() const {
  return *state_->world;
}

void Environment::abort(int exit_code) {
  if (!initialized() || finalized()) std::_Exit(exit_code);
  end_within(std::chrono::seconds(5), exit_code);  // MPI_Abort may itself wait
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

void Environment::end_within(std::chrono::seconds grace, int exit_code) {
  std::thread([grace, exit_code] {
    std::this_thread::sleep_for(grace);
    std::_Exit(exit_code);
  }).detach();
}

MpiInfo mpi_info() {
  MpiInfo info;
  info.library = library();
  info.standard = standard();
  info.cuda_aware = "unknown";
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  info.cuda_aware = MPIX_Query_cuda_support() != 0 ? "yes" : "no";
#endif
  info.initialized = initialized() && !finalized();
  if (info.initialized) {
    int level = 0;
    MPI_Query_thread(&level);
    info.thread_level = name_of_level(level);
  }
  return info;
}

}  // namespace tessera
