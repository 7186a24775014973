// SPDX-License-Identifier: MIT
// Relayout by plan: any movement of rectangular pieces of matrices between ranks. It replaces
// transposes, skews, swaps and home moves; its backward is the plan with source and target
// exchanged, with sums where targets overlap. The plan is pure arithmetic; one call to move() does
// the exchange.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/shard.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// A rectangle of a global matrix of index pairs.
struct Box {
  Interval rows;
  Interval cols;
  std::int64_t area() const { return rows.size() * cols.size(); }
  bool operator==(const Box&) const = default;
};
Box intersect(const Box& a, const Box& b);

// Who holds what: pieces[rank] lists the boxes of a rank of the mesh in the order of its local
// tensors. The boxes of a source are disjoint over all ranks; those of a target may overlap. Ranks
// that hold other matrices (another dp coordinate) have none.
struct Ownership {
  std::vector<std::vector<Box>> pieces;
};
// One tile each: rows cut along `row_axis`, columns along `col_axis` (-1: not cut), by the ranks
// that share the other coordinates of this rank.
Ownership tiles(const DeviceMesh& mesh, std::int64_t rows, std::int64_t cols, int row_axis,
                int col_axis);

// One rank's part of a relayout.
struct RelayoutPlan {
  struct Part {
    int peer;    // rank
    int piece;   // index of the own piece
    Box region;  // in global indices
  };
  int rank = 0;
  std::vector<Box> source;     // own source pieces
  std::vector<Box> target;     // own target pieces
  std::vector<Part> sends;     // ordered by (peer, target piece, source piece) of the receiver
  std::vector<Part> receives;  // same order on both sides
};
// Throws ShapeError, on every rank, if some target element has no source or more than one.
RelayoutPlan plan_relayout(const Ownership& source, const Ownership& target, int rank);
// The way back. Only if the target pieces are disjoint too and hold every source element;
// otherwise plan_relayout(target, source) says what is wrong.
RelayoutPlan reversed(const RelayoutPlan& plan);

// Elements sent to other ranks, of one matrix (for contracts).
std::int64_t sent_elements(const RelayoutPlan& plan);
std::int64_t sent_messages(const RelayoutPlan& plan);

// Moves batched matrices: source[k] is [batch, rows, cols] of plan.source[k]; returns tensors
// [batch, rows, cols] of plan.target. One message per peer. A piece that goes unchanged to one peer
// is sent from where it is and received where it will be used; others are packed. A target piece
// that equals an own source piece shares its storage. Collective over the mesh. Any strides, one
// batch and dtype. A rank that holds nothing passes an empty piece, [batch, 0, 0].
std::vector<Tensor> relayout(const DeviceMesh& mesh, const RelayoutPlan& plan,
                             const std::vector<Tensor>& source, const std::string& axis,
                             const std::string& label, CallSite where = CallSite::current());

// Which target pieces share the storage of an own source piece: those that equal it, or also those
// that are a part of it, as views with its strides.
enum class Sharing { wholes, parts };

// The same, started only, so that several can be on their way. The source must stay as it is until
// wait() has returned the targets.
class [[nodiscard]] PendingRelayout {
 public:
  struct State;
  explicit PendingRelayout(std::unique_ptr<State> state);
  PendingRelayout(PendingRelayout&&) noexcept;
  PendingRelayout& operator=(PendingRelayout&&) noexcept;
  ~PendingRelayout();
  void progress();  // lets MPI move data
  std::vector<Tensor> wait();

 private:
  std::unique_ptr<State> state_;
};
PendingRelayout start_relayout(const DeviceMesh& mesh, const RelayoutPlan& plan,
                               const std::vector<Tensor>& source, const std::string& axis,
                               const std::string& label, Sharing sharing = Sharing::wholes,
                               CallSite where = CallSite::current());
// The adjoint: target[k] is [batch, rows, cols] of plan.target; returns tensors of plan.source, the
// sum over all target pieces that hold an element, zero where none does. Added in the order of the
// ranks, the own parts in their place: reproducible. Floating.
std::vector<Tensor> relayout_add(const DeviceMesh& mesh, const RelayoutPlan& plan,
                                 const std::vector<Tensor>& target, const std::string& axis,
                                 const std::string& label, CallSite where = CallSite::current());

}  // namespace tessera
