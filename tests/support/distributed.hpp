// SPDX-License-Identifier: MIT
// A distributed operation against the same operation on one rank, and random things to try it on.
// Draws come from a seed, so that all ranks draw the same.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/autodiff/tape.hpp"

namespace tessera {

struct Operand {
  Tensor full;            // equal on all ranks
  Placements placements;  // two on a mesh of three axes: it lies on the flat view
  bool differentiable = true;
};
using Operation = std::function<std::vector<Var>(const std::vector<Var>&)>;

// Runs the operation on the mesh and, on every rank, on one rank: outputs, and the gradients of the
// differentiable operands for random output gradients, agree to `tolerance` of their maximum (0:
// bitwise). Also checked: operands are not written to, gradients are placed as their operands,
// replicas are identical, each result has the metadata of the full result distributed afresh, and
// records of messages and saved tensors are as the contracts say. Collective.
void check_against_serial(const DeviceMesh& mesh, const Operation& operation,
                          const std::vector<Operand>& operands, double tolerance);

// On one rank: the operation gives the same, to `tolerance`, if its operands lie in memory with
// their dims in reverse order; each has at least two dims.
void check_any_layout(const Operation& operation, const std::vector<Operand>& operands,
                      double tolerance);

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  // 0 <= result < n
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
  double uniform(double low, double high);
  // One of R and S(d) for each mesh axis, a dim at most once and none of `whole`.
  Placements placements(const DeviceMesh& mesh, int ndim, const std::vector<int>& whole = {});
  // Sizes from 1 to 3, times the size of the axis that shards the dim.
  Shape shape(const DeviceMesh& mesh, const Placements& placements, int ndim);
  Tensor values(const Shape& shape, double low, double high, DType dtype = DType::f64);
  Tensor integers(const Shape& shape, int low, int high);  // i64 in [low, high)
  Tensor booleans(const Shape& shape);

 private:
  std::mt19937_64 engine_;
};

// `draws` random problems on every mesh; each is given its own draw of placements and shape.
template <class Problem>
void on_all_meshes(int draws, const Problem& problem) {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    for (int k = 0; k < draws; ++k) {
      Draw draw(static_cast<std::uint64_t>(k));
      INFO(format(shape) << " draw " << k);
      problem(mesh, draw);
    }
  }
}

// All placements of a tensor of `ndim` dims on a mesh of three axes that can exist: R, P(sum) and
// every S(d) for each axis, no dim twice.
std::vector<Placements> every_placement(int ndim);
bool has_partial(const Placements& placements);
bool shards(const Placements& placements, int dim);

}  // namespace tessera
