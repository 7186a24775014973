// SPDX-License-Identifier: MIT
// ranks: 1 2 4 6
// The contraction engine on every grid against dense products: results, gradients that travel, and
// what a rotation too few would do.
#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/layers/schedule/panel_ring.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

constexpr std::int64_t kBatch = 2, kI = 12, kP = 24, kJ = 36;

// Small whole numbers, so that sums are exact in any order.
Tensor numbers(const Shape& shape, std::int64_t seed) {
  const Tensor t = Tensor::empty(shape, DType::f64);
  double* data = t.host_data<double>();
  for (std::int64_t k = 0; k < t.numel(); ++k)
    data[k] = static_cast<double>((k * 7 + seed * 13 + k * k % 11) % 9 - 4);
  return t;
}

// One side: the operand [batch, shared, P] as a matrix, stored as the tile at rest says.
struct Stored {
  PanelOperand operand;
  Tensor whole;  // [batch, rows, cols] at rest

  Tensor tile(const DeviceMesh& mesh) const {
    const int r = mesh.size(kCp0), c = mesh.size(kCp1);
    const Interval rows = shard_of(whole.size(1), r, mesh.coordinate(kCp0));
    const Interval cols = shard_of(whole.size(2), c, mesh.coordinate(kCp1));
    const Tensor own = whole.narrow(1, rows.begin, rows.size()).narrow(2, cols.begin, cols.size());
    return (operand.transposed ? own.transpose(1, 2) : own).contiguous();
  }
  // A panel (or tile) as [batch, shared, contracted].
  Tensor oriented(const Tensor& t) const {
    return (operand.contracted == Contracted::cols) != operand.transposed ? t : t.transpose(1, 2);
  }
};

Stored store(const char* name, const Tensor& shared_by_contracted, Contracted contracted,
             bool transposed) {
  return {{name, contracted, transposed},
          contracted == Contracted::cols ? shared_by_contracted
                                         : shared_by_contracted.transpose(1, 2).contiguous()};
}

struct Result {
  Tensor z, dx, dy;  // own tiles
};

Result contract(const DeviceMesh& mesh, const Stored& x, const Stored& y, const Tensor& g) {
  PendingRelayout x_skew = start_skew(mesh, Side::x, x.operand, x.tile(mesh));
  PendingRelayout y_skew = start_skew(mesh, Side::y, y.operand, y.tile(mesh));
  Travelling xs{"x", x_skew.wait()}, ys{"y", y_skew.wait()};
  for (Travelling* side : {&xs, &ys})
    for (const Tensor& panel : side->panels)
      side->sums.push_back(Tensor::zeros(panel.shape(), DType::f64));
  const Tensor z = Tensor::zeros(g.shape(), DType::f64);
  rotate_panels(mesh, xs, ys, [&](const PanelStep& s) {
    const Tensor a = x.oriented(s.x).contiguous(), b = y.oriented(s.y).contiguous();
    gemm(1, a, b.transpose(1, 2), 1, z);
    const Tensor da = Tensor::zeros(a.shape(), DType::f64),
                 db = Tensor::zeros(b.shape(), DType::f64);
    gemm(1, g, b, 0, da);
    s.progress();
    gemm(1, g.transpose(1, 2), a, 0, db);
    add(1, x.oriented(s.dx), 1, da, x.oriented(s.dx));
    add(1, y.oriented(s.dy), 1, db, y.oriented(s.dy));
  });
  return {z, unskew(mesh, Side::x, x.operand, xs.sums), unskew(mesh, Side::y, y.operand, ys.sums)};
}

bool equal(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && max_difference(a, b).max_abs == 0;
}

// Whether results and gradients are those of dense products, on all ranks.
bool right(const DeviceMesh& mesh, Contracted of_x, bool x_transposed, Contracted of_y,
           bool y_transposed) {
  const Tensor a = numbers({kBatch, kI, kP}, 1), b = numbers({kBatch, kJ, kP}, 2);
  const Tensor g = numbers({kBatch, kI, kJ}, 3);
  const Tensor z = Tensor::empty(g.shape(), DType::f64), da = Tensor::empty(a.shape(), DType::f64);
  const Tensor db = Tensor::empty(b.shape(), DType::f64);
  gemm(1, a, b.transpose(1, 2), 0, z);
  gemm(1, g, b, 0, da);
  gemm(1, g.transpose(1, 2), a, 0, db);

  const Stored x = store("x", a, of_x, x_transposed), y = store("y", b, of_y, y_transposed);
  const Stored dx = store("x", da, of_x, x_transposed), dy = store("y", db, of_y, y_transposed);
  const Stored of_g{{"g"}, g}, of_z{{"z"}, z};
  const Result r = contract(mesh, x, y, of_g.tile(mesh));
  const bool own =
      equal(r.z, of_z.tile(mesh)) && equal(r.dx, dx.tile(mesh)) && equal(r.dy, dy.tile(mesh));
  const Tensor wrong = Tensor::full({1}, own ? 0 : 1, DType::f64);
  for (int axis = 0; axis < mesh.ndim(); ++axis)
    all_reduce(mesh, axis, ReduceOp::max, wrong, "wrong");
  return *wrong.host_data<double>() == 0;
}

}  // namespace

TEST_CASE("products and travelling gradients on every grid, for every way a tile may lie") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    for (const Contracted x : {Contracted::rows, Contracted::cols})
      for (const Contracted y : {Contracted::rows, Contracted::cols})
        for (const bool transposed : {false, true}) {
          CAPTURE(format(shape), x == Contracted::rows, y == Contracted::rows, transposed);
          CHECK(right(mesh, x, transposed, y, !transposed));
          CHECK(right(mesh, x, transposed, y, transposed));
        }
  }
}

TEST_CASE("sums that rotate once too few end one rank away") {
  if (test_ranks() == 1) return;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  set_mutation(Mutation::drop_last_rotation);
  const bool holds = right(mesh, Contracted::cols, false, Contracted::rows, false);
  set_mutation(Mutation::none);
  CHECK_FALSE(holds);
}
