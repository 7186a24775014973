// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Changes of placements and transposes on random shapes, placements and meshes.
#include <algorithm>
#include <numeric>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "tessera/layers/substrate/elementwise.hpp"
#include "tessera/layers/substrate/redistribute.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

// Dims are dealt to the mesh axes; an axis then shards one of its own dims or none.
struct Change {
  Placements from, to;
  Shape shape;
};
Change draw_change(const DeviceMesh& mesh, Draw& draw) {
  const int ndim = 1 + draw.below(4);
  Change change;
  std::vector<std::vector<int>> dims(3);
  for (int d = 0; d < ndim; ++d) {
    const int axis = draw.below(3);
    dims[std::size_t(axis)].push_back(d);
    change.shape.push_back((1 + draw.below(3)) * mesh.size(axis));
  }
  const auto choose = [&](const std::vector<int>& own) -> Placement {
    const int k = draw.below(int(own.size()) + 1);
    if (k == int(own.size())) return Replicate{};
    return Shard{own[std::size_t(k)]};
  };
  for (const std::vector<int>& own : dims) {
    change.from.push_back(choose(own));
    change.to.push_back(choose(own));
  }
  return change;
}

// A tensor with a dim of the rows, cut by axis a, one of columns, cut by axis b, and others.
struct Matrix {
  int a, b, rows, cols;
  Placements placements;
  Shape shape;
};
Matrix draw_matrix(const DeviceMesh& mesh, Draw& draw) {
  const int ndim = 2 + draw.below(3);
  Matrix m;
  m.a = draw.below(3);
  m.b = (m.a + 1 + draw.below(2)) % 3;
  m.rows = draw.below(ndim);
  m.cols = (m.rows + 1 + draw.below(ndim - 1)) % ndim;
  const std::int64_t both = std::lcm(mesh.size(m.a), mesh.size(m.b));
  for (int d = 0; d < ndim; ++d)
    m.shape.push_back((1 + draw.below(3)) * (d == m.rows || d == m.cols ? both : 1));
  m.placements = Placements(3, Replicate{});
  m.placements[std::size_t(m.a)] = Shard{m.rows};
  m.placements[std::size_t(m.b)] = Shard{m.cols};
  return m;
}

Placements swapped(Placements placements, int a, int b) {
  std::swap(placements[std::size_t(a)], placements[std::size_t(b)]);
  return placements;
}

// The same tensor, its dims in memory in reversed order.
DTensor reversed_in_memory(const DTensor& x) {
  std::vector<int> order(std::size_t(x.ndim()));
  for (int d = 0; d < x.ndim(); ++d) order[std::size_t(d)] = x.ndim() - 1 - d;
  Shape reversed = x.shape();
  std::reverse(reversed.begin(), reversed.end());
  Strides strides = row_major_strides(reversed);
  std::reverse(strides.begin(), strides.end());
  return DTensor::from_local(x.local().permute(order).clone().permute(order), x.mesh(),
                             x.placements(), x.shape(), strides);
}

// Whether the table has this change, said once more.
bool in_table(const Placements& from, const Placements& to) {
  for (std::size_t a = 0; a < 3; ++a) {
    if (is_partial(to[a]) && !is_partial(from[a])) return false;
    for (std::size_t b = 0; b < 3; ++b)
      if (a != b && is_shard(to[a]) && (to[a] == to[b] || to[a] == from[b])) return false;
  }
  return true;
}

// Every placement of a tensor of two dims of equal size that a tensor can have.
std::vector<DTensor> every_tensor(const DeviceMesh& mesh) {
  std::vector<DTensor> all;
  for (const Placements& placements : every_placement(2))
    all.push_back(zeros({12, 12}, DType::f64, mesh, placements));
  return all;
}

}  // namespace

TEST_CASE("changes of placements and their gradients") {
  on_all_meshes(12, [](const DeviceMesh& mesh, Draw& draw) {
    const Change c = draw_change(mesh, draw);
    const Operand x{draw.values(c.shape, -1, 1), c.from};
    const auto there = [&](const Vars& in) { return Vars{redistribute(in[0], c.to)}; };
    if (c.from == c.to) {
      const Var same = Var::constant(distribute(x.full, mesh, c.from));
      CHECK(redistribute(same, c.to).value().local().shares_storage(same.value().local()));
      return;
    }
    check_against_serial(mesh, there, {x}, 0);
    check_against_serial(mesh, there, {{draw.booleans(c.shape), c.from, false}}, 0);
    const Var before = Var::constant(distribute(x.full, mesh, c.from));
    const Var after = redistribute(redistribute(before, c.to), c.from);
    CHECK(after.value().placements() == c.from);
    CHECK(to_values(after.value().local()) == to_values(before.value().local()));
  });
}

TEST_CASE("gradients of wider users travel in the dtype of the values") {
  on_all_meshes(2, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 2 * std::lcm(mesh.size(kCp0), mesh.size(kCp1));
    const Tensor full = draw.values({2 * mesh.size(kDp), n, n}, 0.5, 1, DType::f32).to(DType::bf16);
    const std::vector<Operand> pair{{full, pair_placements()}};
    const std::vector<Operand> whole{{full, replicated_placements()}};
    const auto widened = [](const Var& y) {
      const DTensor& v = y.value();
      return Vars{multiply(y, Var::constant(uniform(v.shape(), DType::f32, v.mesh(), v.placements(),
                                                    {1, 2}, 0.5, 1)))};
    };
    const auto swapped = [&](const Vars& in) {
      return widened(mesh_transpose(in[0], {Shard{0}, Shard{2}, Shard{1}}));
    };
    check_against_serial(mesh, swapped, pair, 1e-6);
    const auto turned = [&](const Vars& in) { return widened(global_transpose(in[0], 1, 2)); };
    check_against_serial(mesh, turned, pair, 1e-6);
    const auto cut = [&](const Vars& in) {
      return widened(redistribute(in[0], pair_placements()));
    };
    check_against_serial(mesh, cut, whole, 1e-6);
  });
}

TEST_CASE("one axis at a time") {
  on_all_meshes(2, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 2 * mesh.ranks();
    const Operand x{draw.values({n, n}, -1, 1), {Replicate{}, Shard{0}, Replicate{}}};
    check_against_serial(
        mesh, [](const Vars& in) { return Vars{replicate(in[0], kCp0)}; }, {x}, 0);
    check_against_serial(
        mesh, [](const Vars& in) { return Vars{shard(in[0], kCp1, -1)}; }, {x}, 0);
  });
}

TEST_CASE("sums and means over ranks") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int axis = draw.below(3);
    const std::int64_t n = mesh.size(axis);
    const ReduceOp op = draw.below(2) == 0 ? ReduceOp::sum : ReduceOp::avg;
    Placements from(3, Replicate{}), to(3, Replicate{});
    from[std::size_t(axis)] = Partial{op};
    if (draw.below(2) == 0) to[std::size_t(axis)] = Shard{1};
    const Tensor whole = draw.integers({3, 2 * n}, -9, 9).to(DType::f64);
    // Rank c of the axis brings (2c + 1) x: the sum is n^2 x, the mean n x.
    const Tensor mine = whole.clone();
    scale(2 * mesh.coordinate(axis) + 1, mine);
    Tape tape;
    const Var x =
        tape.input("x", DTensor::from_local(mine, mesh, from, whole.shape(), {2 * n, 1}), true);
    const Var y = redistribute(x, to);
    CHECK(y.value().placements() == to);
    const Tensor expected = whole.clone();
    scale(double(op == ReduceOp::sum ? n * n : n), expected);
    CHECK(to_values(y.value().local()) == to_values(distribute(expected, mesh, to).local()));
    const Tensor upstream = draw.integers(whole.shape(), -9, 9).to(DType::f64);
    mesh.clear_records();
    tape.backward(y, distribute(upstream, mesh, to));
    CHECK(x.grad().placements() == Placements(3, Replicate{}));
    const Tensor gradient = upstream.clone();
    if (op == ReduceOp::avg) scale(1.0 / double(n), gradient);
    CHECK(to_values(x.grad().local()) == to_values(gradient));
    for (const CommRecord& record : mesh.records()) CHECK(record.op == "all_gather");
    CHECK(mesh.records().size() == (is_shard(to[std::size_t(axis)]) && n > 1 ? 1U : 0U));
  });
}

TEST_CASE("a Partial axis may stay while another one changes") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  Tape tape;
  const Var x =
      tape.input("x", zeros({12}, DType::f64, mesh, {Replicate{}, Partial{}, Shard{0}}), true);
  const Var y = redistribute(x, {Replicate{}, Partial{}, Replicate{}});
  const Var z = redistribute(y, replicated_placements());
  tape.backward(z, distribute(Tensor::full({12}, 1, DType::f64), mesh, replicated_placements()));
  CHECK(format(x.grad().placements()) == "(R,R,S0)");
  CHECK(to_values(x.grad().local()) ==
        std::vector<double>(std::size_t(x.grad().local().numel()), 1));
}

TEST_CASE("mesh axes exchange what they cut") {
  on_all_meshes(12, [](const DeviceMesh& mesh, Draw& draw) {
    Matrix m = draw_matrix(mesh, draw);
    const int replicated = draw.below(3);  // 0: neither
    if (replicated == 1) m.placements[std::size_t(m.a)] = Replicate{};
    if (replicated == 2) m.placements[std::size_t(m.b)] = Replicate{};
    const Placements to = swapped(m.placements, m.a, m.b);
    const Operand x{draw.values(m.shape, -1, 1), m.placements};
    const auto transpose = [&](const Vars& in) { return Vars{mesh_transpose(in[0], to)}; };
    check_against_serial(mesh, transpose, {x}, 0);
    const DTensor before = reversed_in_memory(distribute(x.full, mesh, m.placements));
    const DTensor after = mesh_transpose(Var::constant(before), to).value();
    CHECK(after.strides() == before.strides());
    CHECK(to_values(after.local()) == to_values(distribute(x.full, mesh, to).local()));
  });
}

TEST_CASE("sharded dims are exchanged") {
  on_all_meshes(10, [](const DeviceMesh& mesh, Draw& draw) {
    const Matrix m = draw_matrix(mesh, draw);
    const Operand x{draw.values(m.shape, -1, 1), m.placements};
    const int ndim = int(m.shape.size());
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{global_transpose(in[0], m.rows, m.cols - ndim)}; },
        {x}, 0);
    const DTensor before = reversed_in_memory(distribute(x.full, mesh, m.placements));
    const DTensor after = global_transpose(Var::constant(before), m.cols, m.rows).value();
    CHECK(after.placements() == m.placements);
    CHECK(to_values(full_tensor(after)) == to_values(x.full.transpose(m.rows, m.cols)));
  });
}

TEST_CASE("whole dims are exchanged without a copy") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 2 + draw.below(3);
    const int a = draw.below(ndim), b = draw.below(ndim);
    const Placements placements = draw.placements(mesh, ndim, {a, b});
    const Operand x{draw.values(draw.shape(mesh, placements, ndim), -1, 1), placements};
    const auto transpose = [&](const Vars& in) {
      return Vars{local_transpose(in[0], a, b - ndim)};
    };
    check_against_serial(mesh, transpose, {x}, 0);
    const Var v = Var::constant(distribute(x.full, mesh, placements));
    CHECK(local_transpose(v, a, b).value().local().shares_storage(v.value().local()));
  });
}

TEST_CASE("on a square grid one message goes to the mirror rank") {
  const MeshShape shape = squarest(test_ranks());
  if (shape.cp0 != shape.cp1) return;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
  const bool diagonal = mesh.coordinate(kCp0) == mesh.coordinate(kCp1);
  const auto check = [&](const DTensor& x, const auto& operation) {
    mesh.clear_records();
    operation(Var::constant(x));
    std::int64_t messages = 0, bytes = 0;
    for (const CommRecord& record : mesh.records()) {
      messages += record.messages;
      bytes += record.bytes;
    }
    CHECK(messages == (diagonal ? 0 : 1));
    CHECK(bytes == (diagonal ? 0 : x.local().bytes()));
  };
  check(zeros({2, 12, 3}, DType::f32, mesh, single_placements()),
        [](const Var& x) { mesh_transpose(x, single_t_placements()); });
  const DTensor pair = zeros({2, 12, 12, 3}, DType::f32, mesh, pair_placements());
  check(pair, [](const Var& x) { mesh_transpose(x, {Shard{0}, Shard{2}, Shard{1}}); });
  check(pair, [](const Var& x) { global_transpose(x, 1, 2); });
}

TEST_CASE("which changes are refused") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  int accepted = 0, refused = 0;
  for (const DTensor& x : every_tensor(mesh))
    for (const Placements& to : every_placement(2)) {
      INFO(format(x.placements()) << " to " << format(to));
      const Var v = Var::constant(x);
      const bool legal = in_table(x.placements(), to);
      ++(legal ? accepted : refused);
      if (legal)
        CHECK(redistribute(v, to).value().placements() == to);
      else
        require_error<PlacementError>([&] { redistribute(v, to); }, "redistribute", "x");
    }
  CHECK(accepted > 50);
  CHECK(refused > 50);
  const Var rows =
      Var::constant(zeros({12, 12}, DType::f64, mesh, {Replicate{}, Shard{0}, Replicate{}}));
  require_error<PlacementError>(
      [&] {
        redistribute(rows, {Replicate{}, Replicate{}, Shard{0}});
      },
      "redistribute", "dim 0 moves from mesh axis cp0 to cp1", "mesh_transpose(x, (R,R,S0))");
  require_error<PlacementError>(
      [&] {
        redistribute(rows, {Replicate{}, Partial{}, Replicate{}});
      },
      "redistribute", "S(0) -> P(sum)");
}

TEST_CASE("which transposes are refused") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  for (const DTensor& x : every_tensor(mesh)) {
    const Placements& from = x.placements();
    INFO(format(from));
    const Var v = Var::constant(x);
    const std::string found = format(from);
    const bool cut0 = shards(from, 0), cut1 = shards(from, 1);
    const auto local = [&] { local_transpose(v, 0, 1); };
    const auto global = [&] { global_transpose(v, 0, 1); };
    if (cut0 || cut1)
      require_error<PlacementError>(local, "local_transpose", "'x'", found, "must not be sharded");
    else if (has_partial(from))
      require_error<PartialError>(local, "local_transpose", "'x'", found);
    else
      CHECK_NOTHROW(local());
    if (!cut0 || !cut1)
      require_error<PlacementError>(global, "global_transpose", "'x'", found, "must be sharded");
    else if (has_partial(from))
      require_error<PartialError>(global, "global_transpose", "'x'", found);
    else
      CHECK_NOTHROW(global());
    for (const Placements& to : every_placement(2)) {
      INFO("to " << format(to));
      const auto transpose = [&] { mesh_transpose(v, to); };
      const bool exchange = to == swapped(from, 0, 1) || to == swapped(from, 0, 2) ||
                            to == swapped(from, 1, 2) || to == from;
      if (has_partial(from))
        require_error<PartialError>(transpose, "mesh_transpose", "'x'", found);
      else if (!exchange)
        require_error<PlacementError>(transpose, "mesh_transpose");
      else
        CHECK_NOTHROW(transpose());
    }
  }
}

TEST_CASE("other refusals of redistribution") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Var x = Var::constant(zeros({12, 12}, DType::f64, mesh, {Replicate{}, Shard{0}, Shard{1}}));
  require_error<RangeError>([&] { global_transpose(x, 1, -1); }, "global_transpose", "itself");
  require_error<RangeError>([&] { local_transpose(x, 0, 2); }, "local_transpose");
  require_error<RangeError>([&] { replicate(x, 3); }, "replicate", "axis 3");
  require_error<RangeError>([&] { shard(x, 0, 2); }, "shard");
  require_error<MeshError>([&] { redistribute(x, {Replicate{}}); }, "redistribute");
  require_error<PlacementError>([&] { mesh_transpose(x, replicated_placements()); },
                                "mesh_transpose", "'x'", "redistribute(x, (R,R,R))");
  Tape tape;
  const Var largest = tape.input(
      "x", zeros({2}, DType::f64, mesh, {Replicate{}, Partial{ReduceOp::max}, Replicate{}}), true);
  require_error<GradientError>([&] { redistribute(largest, replicated_placements()); },
                               "redistribute", "P(max)");
  if (mesh.size(kCp1) < 2) return;
  const std::int64_t odd = mesh.size(kCp1) + 1;
  const Var uneven = Var::constant(zeros({odd}, DType::f64, mesh, replicated_placements()));
  require_error<UnevenError>([&] { shard(uneven, kCp1, 0); }, "redistribute");
}
