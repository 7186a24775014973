// SPDX-License-Identifier: MIT
// Ranks and messages between them, nothing more: a thin, checked layer over MPI point-to-point.
// The only users of this header are mesh/ and people who hand over their own communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace tessera {

// A value; copies share one duplicate of the caller's communicator, freed with the last copy (not
// after MPI_Finalize). Its error handler returns codes, which become MpiError; the caller's own
// communicator and its error handler are not touched.
class Communicator {
 public:
  Communicator() = default;    // empty: size() == 0
  static Communicator self();  // one rank, needs no MPI
  // Collective over the communicator. `mpi_comm` points to an MPI_Comm, so that this header does
  // not need mpi.h: Communicator::duplicate(&comm).
  static Communicator duplicate(const void* mpi_comm);
  // Collective: the ranks that pass the same non-negative colour, ordered by key. A negative
  // colour gives an empty communicator (size() == 0).
  Communicator split(int color, int key) const;

  // Collective: the ranks that share memory with this one, ordered by key.
  Communicator split_by_node(int key) const;

  // The same ranks apart from their messages, made by the first call and then kept as long as this
  // communicator; and a count of calls. Collective: both are equal on all ranks. What belongs to
  // one mesh is told apart by the number, so that a late message of a mesh that others have given
  // up meets nothing: freeing a communicator while messages are on their way to it is no option.
  struct Beside;
  Beside beside() const;

  int rank() const;
  int size() const;

  // Non-blocking messages of bytes; counts above 2^31-1 (or max_chunk_bytes()) go in chunks, unless
  // the message is to be found by probe() as a whole. Buffers must stay until test() has returned
  // true.
  enum class Parts { chunks, whole };
  class Request {
   public:
    bool test();  // true once complete; later calls too
   private:
    friend class Communicator;
    struct State;
    std::shared_ptr<State> state_;
  };
  Request send(int peer, const void* data, std::int64_t bytes, int tag,
               Parts parts = Parts::chunks) const;
  Request receive(int peer, void* data, std::int64_t bytes, int tag,
                  Parts parts = Parts::chunks) const;
  int max_tag() const;

  // A message with this tag that has arrived and can be received, from any rank; never waits.
  struct Arrived {
    int peer;
    std::int64_t bytes;
  };
  std::optional<Arrived> probe(int tag) const;

  // For tests of chunking only. Equal on all ranks.
  static void set_max_chunk_bytes(std::int64_t bytes);

 private:
  template <class Post>
  Request post(int peer, std::int64_t bytes, Parts parts, const char* call,
               const Post& post_chunk) const;
  struct State;
  std::shared_ptr<State> state_;
};

struct Communicator::Beside {
  Communicator communicator;
  int number = 0;
};

}  // namespace tessera
