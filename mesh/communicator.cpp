// SPDX-License-Identifier: MIT
#include "tessera/mesh/communicator.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/parallel.hpp"

namespace tessera {
namespace {

std::atomic<std::int64_t> max_chunk_bytes{std::numeric_limits<int>::max()};

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  throw MpiError({.problem = text, .operation = call, .found = fmt::format("code {}", code)});
}

// MPI is called by the thread that calls the library, and by no other. Threads that only compute
// are more than MPI_THREAD_SINGLE allows.
void check_thread_level() {
  int level = MPI_THREAD_SINGLE;
  int main_thread = 0;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  check(MPI_Is_thread_main(&main_thread), "MPI_Is_thread_main");
  if (level < MPI_THREAD_SERIALIZED && main_thread == 0)
    throw InitError(
        {.problem = "this thread may not call MPI, only the one that initialised it may",
         .operation = "Communicator::duplicate",
         .expected = "MPI_THREAD_SERIALIZED or more",
         .hint = "ask MPI_Init_thread for it, or call from the main thread"});
  if (level > MPI_THREAD_SINGLE) return;
  set_default_thread_count(1);
  if (thread_count() > 1)
    throw InitError({.problem = "MPI was started for processes of one thread",
                     .operation = "Communicator::duplicate",
                     .found = fmt::format("{} threads per rank", thread_count()),
                     .expected = "MPI_THREAD_FUNNELED or more",
                     .hint = "ask MPI_Init_thread for it, or set TESSERA_THREADS=1"});
}

// Errors about a handle that is none belong to MPI_COMM_WORLD, since MPI 4 to MPI_COMM_SELF. While
// this lives, they return.
class ErrorsReturn {
 public:
  explicit ErrorsReturn(MPI_Comm comm) : comm_(comm) {
    check(MPI_Comm_get_errhandler(comm_, &before_), "MPI_Comm_get_errhandler");
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  ~ErrorsReturn() {
    MPI_Comm_set_errhandler(comm_, before_);
    MPI_Errhandler_free(&before_);
  }
  ErrorsReturn(const ErrorsReturn&) = delete;
  ErrorsReturn& operator=(const ErrorsReturn&) = delete;

 private:
  MPI_Comm comm_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

bool has_two_groups(MPI_Comm given) {
  const ErrorsReturn of_world(MPI_COMM_WORLD);
  const ErrorsReturn of_self(MPI_COMM_SELF);
  int two = 0;
  if (MPI_Comm_test_inter(given, &two) != MPI_SUCCESS)
    throw InitError({.problem = "the handle is no communicator",
                     .operation = "Communicator::duplicate",
                     .expected = "a communicator of the MPI that Tessera was built with"});
  return two != 0;
}

bool mpi_is_running() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

void require_mpi(const char* operation) {
  if (mpi_is_running()) return;
  throw InitError(
      {.problem = "MPI is not running",
       .operation = operation,
       .hint = "make an Environment, or call MPI_Init, before, and MPI_Finalize after"});
}

}  // namespace

struct Communicator::State {
  MPI_Comm comm = MPI_COMM_NULL;  // null for one rank without MPI, and for an empty communicator
  int rank = 0;
  int size = 1;
  int max_tag = std::numeric_limits<int>::max();
  Communicator beside = {};
  int beside_calls = 0;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (comm != MPI_COMM_NULL && mpi_is_running()) MPI_Comm_free(&comm);
  }

  // Takes the communicator over, whose errors must return from here on.
  void adopt(MPI_Comm taken) {
    comm = taken;
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    int* bound = nullptr;
    int found = 0;
    check(MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&bound), &found),
          "MPI_Comm_get_attr");
    max_tag = found != 0 ? *bound : 32767;  // what the standard guarantees
  }
};

struct Communicator::Request::State {
  std::vector<MPI_Request> chunks;
};

Communicator Communicator::self() {
  Communicator c;
  c.state_ = std::make_shared<State>();
  return c;
}

Communicator Communicator::duplicate(const void* mpi_comm) {
  require_mpi("Communicator::duplicate");
  const MPI_Comm given = *static_cast<const MPI_Comm*>(mpi_comm);
  if (given == MPI_COMM_NULL)
    throw InitError({.problem = "MPI_COMM_NULL has no ranks to duplicate",
                     .operation = "Communicator::duplicate"});
  if (has_two_groups(given))
    throw InitError({.problem = "an intercommunicator has two groups of ranks",
                     .operation = "Communicator::duplicate",
                     .expected = "a communicator of one group",
                     .hint = "merge the groups by MPI_Intercomm_merge"});
  check_thread_level();
  Communicator c;
  c.state_ = std::make_shared<State>();
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(given, &copy), "MPI_Comm_dup");
  c.state_->adopt(copy);
  return c;
}

Communicator Communicator::split(int color, int key) const {
  Communicator c;
  if (size() == 0 || state_->comm == MPI_COMM_NULL) {
    if (size() != 0 && color >= 0) c.state_ = std::make_shared<State>();
    return c;
  }
  require_mpi("Communicator::split");
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split(state_->comm, color < 0 ? MPI_UNDEFINED : color, key, &part),
        "MPI_Comm_split");
  if (part == MPI_COMM_NULL) return c;
  c.state_ = std::make_shared<State>();
  c.state_->adopt(part);
  return c;
}

Communicator Communicator::split_by_node(int key) const {
  if (size() == 0 || state_->comm == MPI_COMM_NULL) return split(0, key);
  require_mpi("Communicator::split_by_node");
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(state_->comm, MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
  Communicator c;
  c.state_ = std::make_shared<State>();
  c.state_->adopt(node);
  return c;
}

Communicator::Beside Communicator::beside() const {
  if (state_->beside.size() == 0) state_->beside = split(0, rank());
  return {state_->beside, state_->beside_calls++};
}

int Communicator::rank() const {
  return state_ ? state_->rank : -1;
}
int Communicator::size() const {
  return state_ ? state_->size : 0;
}
int Communicator::max_tag() const {
  return state_ ? state_->max_tag : 0;
}

void Communicator::set_max_chunk_bytes(std::int64_t bytes) {
  max_chunk_bytes = std::clamp<std::int64_t>(bytes, 1, std::numeric_limits<int>::max());
}

template <class Post>
Communicator::Request Communicator::post(int peer, std::int64_t bytes, Parts parts,
                                         const char* call, const Post& post_chunk) const {
  if (peer < 0 || peer >= size() || state_->comm == MPI_COMM_NULL)
    throw RangeError({.problem = "no such peer",
                      .operation = call,
                      .found = fmt::format("rank {}", peer),
                      .expected = fmt::format("a rank of {} joined by MPI", size())});
  require_mpi(call);
  Request request;
  request.state_ = std::make_shared<Request::State>();
  const std::int64_t limit =
      parts == Parts::whole ? std::numeric_limits<int>::max() : max_chunk_bytes.load();
  for (std::int64_t begin = 0; begin < bytes; begin += limit) {
    const auto count = static_cast<int>(std::min(limit, bytes - begin));
    check(post_chunk(begin, count, &request.state_->chunks.emplace_back(MPI_REQUEST_NULL)), call);
  }
  return request;
}

Communicator::Request Communicator::send(int peer, const void* data, std::int64_t bytes, int tag,
                                         Parts parts) const {
  return post(peer, bytes, parts, "MPI_Isend",
              [&](std::int64_t begin, int count, MPI_Request* request) {
                return MPI_Isend(static_cast<const char*>(data) + begin, count, MPI_BYTE, peer, tag,
                                 state_->comm, request);
              });
}

Communicator::Request Communicator::receive(int peer, void* data, std::int64_t bytes, int tag,
                                            Parts parts) const {
  return post(peer, bytes, parts, "MPI_Irecv",
              [&](std::int64_t begin, int count, MPI_Request* request) {
                return MPI_Irecv(static_cast<char*>(data) + begin, count, MPI_BYTE, peer, tag,
                                 state_->comm, request);
              });
}

std::optional<Communicator::Arrived> Communicator::probe(int tag) const {
  if (size() == 0 || state_->comm == MPI_COMM_NULL) return std::nullopt;
  require_mpi("MPI_Iprobe");
  int found = 0;
  MPI_Status status;
  check(MPI_Iprobe(MPI_ANY_SOURCE, tag, state_->comm, &found, &status), "MPI_Iprobe");
  if (found == 0) return std::nullopt;
  int bytes = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  return Arrived{status.MPI_SOURCE, bytes};
}

bool Communicator::Request::test() {
  if (!state_) return true;
  for (MPI_Request& chunk :
       state_->chunks) {  // MPI_Testall knows no communicator whose errors return
    int done = 0;
    check(MPI_Test(&chunk, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return false;
  }
  state_.reset();
  return true;
}

}  // namespace tessera
