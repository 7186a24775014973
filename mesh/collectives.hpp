// SPDX-License-Identifier: MIT
// Explicit communication on a mesh. Every function here passes the one door (mesh/door.hpp), which
// checks, counts and times it. All ranks of the mesh that take part call in the same order with
// equal dtype and shape. Buffers are contiguous (StrideError). Reductions are our own: formed in at
// least f32, in a fixed order, bitwise equal on all ranks and from run to run on one mesh.
// An axis of size 1 costs nothing and sends nothing. Waits have a deadline (TESSERA_TIMEOUT_S,
// default 300, 0 = none): TimeoutError names operation, axis, layer, label and silent peers.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/placement.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// A started exchange. Owns its buffers until it has been waited for; dropping one that is still in
// flight keeps them alive and makes the next operation on the mesh throw CommStateError.
class [[nodiscard]] Pending {
 public:
  Pending() = default;  // nothing in flight: wait() returns at once
  ~Pending();
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  void progress();  // lets MPI move data; call it between blocks of computation
  void wait();      // CommStateError if it was waited for before
  struct State;
  explicit Pending(std::shared_ptr<State> state);

 private:
  std::shared_ptr<State> state_;
};

struct Outgoing {
  int peer;  // rank of the mesh
  Tensor data;
};
struct Incoming {
  int peer;
  Tensor data;  // written
};
struct OpLabel {
  const char* op;     // "relayout"
  std::string axis;   // "cp1"
  std::string label;  // "skew a"
  CallSite where = CallSite::current();
};

// The primitive under all others: any pattern of messages, receives posted before sends, several
// per pair of ranks in list order. A message to oneself is a copy (the k-th to self goes to the
// k-th from self). The receive buffers may be read after wait().
Pending exchange(const DeviceMesh& mesh, const OpLabel& label, std::vector<Outgoing> sends,
                 std::vector<Incoming> receives);

// Sends to the rank at coordinate + offset of the axis and receives from coordinate - offset.
Pending shift(const DeviceMesh& mesh, int axis, int offset, const Tensor& send,
              const Tensor& receive, const std::string& label,
              CallSite where = CallSite::current());
// Exchange with the mirror rank (j, i) of the CP grid. MeshError unless cp0 == cp1.
Pending mirror(const DeviceMesh& mesh, const Tensor& send, const Tensor& receive,
               const std::string& label, CallSite where = CallSite::current());

// In place; returns when done. Reduces over all ranks of the axes together, as one group.
// sum and avg in at least f32, rounded to the dtype once at the end; max and min exact.
// Small: recursive doubling; large: ring reduce-scatter and all-gather.
void all_reduce(const DeviceMesh& mesh, std::span<const int> axes, ReduceOp op,
                const Tensor& tensor, const std::string& label,
                CallSite where = CallSite::current());
inline void all_reduce(const DeviceMesh& mesh, int axis, ReduceOp op, const Tensor& tensor,
                       const std::string& label, CallSite where = CallSite::current()) {
  all_reduce(mesh, std::span<const int>(&axis, 1), op, tensor, label, where);
}

// Concatenates the locals along dim in coordinate order.
Tensor all_gather(const DeviceMesh& mesh, int axis, const Tensor& local, int dim,
                  const std::string& label, CallSite where = CallSite::current());
// Sum over the axis; returns the own equal part along dim (UnevenError if it does not divide).
Tensor reduce_scatter(const DeviceMesh& mesh, int axis, const Tensor& tensor, int dim,
                      const std::string& label, CallSite where = CallSite::current());
// Splits along `split_dim`, sends part c to coordinate c, concatenates along `concat_dim`.
Tensor all_to_all(const DeviceMesh& mesh, int axis, const Tensor& local, int split_dim,
                  int concat_dim, const std::string& label, CallSite where = CallSite::current());
// In place, from coordinate `root` of the axis.
void broadcast(const DeviceMesh& mesh, int axis, int root, const Tensor& tensor,
               const std::string& label, CallSite where = CallSite::current());
// Equal parts along dim of the root's tensor; other ranks pass an undefined `full`.
Tensor scatter(const DeviceMesh& mesh, int axis, int root, const Tensor& full,
               const Shape& full_shape, DType dtype, int dim, const std::string& label,
               CallSite where = CallSite::current());
void barrier(const DeviceMesh& mesh, CallSite where = CallSite::current());

// A number that steers control flow, equal on all ranks because it comes from rank 0.
class ControlScalar {
 public:
  static ControlScalar broadcast(const DeviceMesh& mesh, std::int64_t value_on_rank_0,
                                 CallSite where = CallSite::current());
  std::int64_t value() const { return value_; }

 private:
  explicit ControlScalar(std::int64_t value) : value_(value) {}
  std::int64_t value_;
};

// Runs work that may fail on one rank only (files, parsing). If any rank threw, every rank throws
// an error of the lowest failing rank's kind, exit code and text, with the number of others.
void collective_try(const DeviceMesh& mesh, const std::function<void()>& work,
                    CallSite where = CallSite::current());

// Bytes from rank 0 to all (metadata, error texts).
std::string broadcast_string(const DeviceMesh& mesh, std::string value_on_rank_0,
                             CallSite where = CallSite::current());

// Bytes from all ranks to rank 0, by rank; empty on the others (timelines, ledgers).
std::vector<std::string> gather_strings(const DeviceMesh& mesh, const std::string& own,
                                        CallSite where = CallSite::current());

// True on all ranks of the axes iff the values are bitwise equal there.
bool replicas_identical(const DeviceMesh& mesh, std::span<const int> axes, const Tensor& tensor,
                        CallSite where = CallSite::current());

}  // namespace tessera
