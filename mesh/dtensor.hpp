// SPDX-License-Identifier: MIT
// DTensor: a local block, the mesh it lives on, one placement per mesh axis, and the global shape
// and strides, all explicit. Nothing redistributes by itself; full_tensor() is for tests and I/O.
#pragma once

#include <optional>
#include <string>

#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/placement.hpp"
#include "tessera/mesh/shard.hpp"
#include "tessera/runtime/random.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

class DTensor {
 public:
  DTensor() = default;

  // No inference, no communication. Checks, in every build: one placement per axis (MeshError),
  // local shape = block of the global shape (ShapeError), exact division (UnevenError), one axis
  // per dim (PlacementError), no zero-size dim (ShapeError), strides positive, unique, exhaustive
  // and in the order of the local ones (StrideError).
  static DTensor from_local(Tensor local, DeviceMesh mesh, Placements placements, Shape shape,
                            Strides strides);

  bool defined() const { return local_.defined(); }
  const Tensor& local() const { return local_; }
  const DeviceMesh& mesh() const { return mesh_; }
  const Placements& placements() const { return placements_; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  DType dtype() const { return local_.dtype(); }
  int ndim() const { return static_cast<int>(shape_.size()); }
  std::int64_t size(int dim) const;  // global

  // Same metadata, another local block of the same shape (and perhaps another dtype).
  DTensor with_local(Tensor local) const;
  // The same values in another dtype, in the same order of dims in memory; itself if it has it.
  DTensor to(DType dtype) const;

  std::string describe() const;  // "f32 [2, 12, 12, 16] (S0,S1,S2) local [1, 6, 6, 16]"

 private:
  Tensor local_;
  DeviceMesh mesh_;
  Placements placements_;
  Shape shape_;
  Strides strides_;
};

// Own block as a GlobalBlock for random fills.
GlobalBlock global_block(const Shape& shape, const DeviceMesh& mesh, const Placements& placements);

// Every rank holds the same full tensor and takes a copy of its slice; no message.
DTensor distribute(const Tensor& full, const DeviceMesh& mesh, const Placements& placements);
// Only mesh rank 0 holds it (others pass an undefined tensor): scatter along S axes, broadcast
// along R axes, in mesh-axis order. shape and dtype are given on all ranks.
DTensor distribute_from_root(const Tensor& full_on_root, const DeviceMesh& mesh,
                             const Placements& placements, const Shape& shape, DType dtype,
                             CallSite where = CallSite::current());

// Builds the local block only.
DTensor empty(const Shape& shape, DType dtype, const DeviceMesh& mesh,
              const Placements& placements);
DTensor zeros(const Shape& shape, DType dtype, const DeviceMesh& mesh,
              const Placements& placements);
// Uninitialised, with x's shape, placements and order of dims in memory.
DTensor empty_like(const DTensor& x, DType dtype);
// The same order of dims in memory as x has, other sizes (carry_strides()): for results that keep
// the dims of an operand.
DTensor empty_carried(const DTensor& x, const Shape& shape, const Placements& placements,
                      DType dtype);
// Random values by seed, stream and global index: shards draw independently, replicas alike, and
// the tensor is the same on every mesh. No messages. PlacementError: Partial. uniform on [low,
// high); standard normal; 0/1 with probability p of 1 (any dtype; RangeError unless 0 <= p <= 1).
DTensor uniform(const Shape& shape, DType dtype, const DeviceMesh& mesh,
                const Placements& placements, RandomStream stream, double low, double high);
DTensor normal(const Shape& shape, DType dtype, const DeviceMesh& mesh,
               const Placements& placements, RandomStream stream);
DTensor bernoulli(const Shape& shape, DType dtype, const DeviceMesh& mesh,
                  const Placements& placements, RandomStream stream, double p);

// The global tensor on every rank: all-gather or all-reduce per axis, last to first. GradientError
// inside a ComputeScope in builds with assertions.
Tensor full_tensor(const DTensor& x, CallSite where = CallSite::current());
// Marks a forward or backward pass of this thread.
class ComputeScope {
 public:
  ComputeScope();
  ~ComputeScope();
  ComputeScope(const ComputeScope&) = delete;
  ComputeScope& operator=(const ComputeScope&) = delete;
};

// Throws what redistribute() would: MeshError, RangeError, UnevenError, PlacementError.
void check_redistribution(const DTensor& x, const Placements& placements, const std::string& label);

// Explicit change of placements (spec table: R->S slice, S->R all-gather, S->S all-to-all, P->R
// all-reduce, P->S reduce-scatter; R->P and S->P are PlacementError), axis by axis, ascending. A
// dim that is sharded stays on its mesh axis (PlacementError: mesh_transpose moves it). The result
// is row-major.
DTensor redistribute(const DTensor& x, const Placements& placements, const std::string& label,
                     CallSite where = CallSite::current());

// The metadata guard. Checks in this order: defined (TypeError), shape (ShapeError), mesh
// (MeshError), placements (PlacementError), no Partial (PartialError). Absent expectations are
// skipped. Shards are even by construction.
struct Expect {
  std::optional<Shape> shape = {};
  std::optional<DeviceMesh> mesh = {};
  std::optional<Placements> placements = {};
  int ndim = -1;  // -1: any
  bool allow_partial = false;
};
void expect(const DTensor& x, const char* operation, const char* tensor, const Expect& expected);

// Global strides for a result that keeps the order of dims of the operand (spec 1.7).
Strides carry_strides(const Shape& old_shape, const Strides& old_strides, const Shape& new_shape);

}  // namespace tessera
