// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Maps between atoms and tokens, as indices and as block-diagonal one-hot matrices.
#include <algorithm>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/errors.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/substrate/atom_maps.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

// `n` sorted indices for each of the cp0 shards, into `targets` of the same shard; some are -1.
Tensor aligned_indices(Draw& draw, std::int64_t batch, int shards, std::int64_t n,
                       std::int64_t targets) {
  std::vector<double> all;
  for (std::int64_t b = 0; b < batch; ++b)
    for (int shard = 0; shard < shards; ++shard) {
      std::vector<double> own;
      for (std::int64_t k = 0; k < n; ++k)
        own.push_back(static_cast<double>(shard * targets + draw.below(static_cast<int>(targets))));
      std::sort(own.begin(), own.end());
      for (double& index : own)
        if (draw.below(5) == 0) index = -1;
      all.insert(all.end(), own.begin(), own.end());
    }
  return Tensor::from_values({batch, shards * n}, all, DType::i64);
}

struct Problem {
  std::int64_t batch, tokens, atoms;
  Operand tok_id, rep, mask;
};

Problem draw_problem(const DeviceMesh& mesh, Draw& draw) {
  const int shards = mesh.size(kCp0);
  const std::int64_t tokens = mesh.size(kCp1) * (1 + draw.below(3));  // of a shard
  const std::int64_t atoms = mesh.size(kCp1) * (1 + draw.below(5));
  Problem p{mesh.size(kDp) * (1 + draw.below(2)), shards * tokens, shards * atoms, {}, {}, {}};
  p.tok_id = {aligned_indices(draw, p.batch, shards, atoms, tokens), single_placements(), false};
  p.rep = {aligned_indices(draw, p.batch, shards, tokens, atoms), single_placements(), false};
  p.mask = {draw.booleans({p.batch, p.atoms}), single_placements(), false};
  return p;
}

// The own diagonal block of the one-hot matrix of these indices.
DTensor one_hot(const DeviceMesh& mesh, const Tensor& indices, std::int64_t targets) {
  const DTensor idx = distribute(indices, mesh, single_placements());
  const std::int64_t own = targets / mesh.size(kCp0);
  const std::vector<double> at = to_values(idx.local());
  std::vector<double> values(at.size() * static_cast<std::size_t>(own));
  for (std::size_t k = 0; k < at.size(); ++k) {
    const auto column = static_cast<std::int64_t>(at[k]) - own * mesh.coordinate(kCp0);
    if (at[k] >= 0)
      values[k * static_cast<std::size_t>(own) + static_cast<std::size_t>(column)] = 1;
  }
  const Shape shape{indices.size(0), indices.size(1), own};
  const Shape local{idx.local().size(0), idx.local().size(1), own};
  return DTensor::from_local(Tensor::from_values(local, values, DType::i64), mesh,
                             single_placements(), shape, row_major_strides(shape));
}

}  // namespace

TEST_CASE("the four maps against one rank, without messages but for columns") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw);
    const std::int64_t copies = 1 + draw.below(3);
    const Operand s{draw.values({copies * p.batch, p.tokens, 2}, -1, 1), single_placements()};
    const Operand a{draw.values({copies * p.batch, p.atoms}, -1, 1), single_placements()};
    const Operand z{draw.values({p.batch, p.tokens, p.tokens, 2}, -1, 1), pair_placements()};
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          const GatherPlan map = atom_map(in[2], p.tokens, in[3]);
          const Vars out{token_to_atom(in[0], map), atom_to_token(in[1], map)};
          for (const CommRecord& r : in[0].value().mesh().records()) CHECK(r.op == "agree");
          return out;
        },
        {s, a, p.tok_id, p.mask}, 1e-13);
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          return Vars{rep_atom_to_token(in[0], representative_map(in[1], p.atoms))};
        },
        {a, p.rep}, 1e-13);
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          return Vars{pair_token_to_atom(in[0], pair_atom_map(in[1], p.tokens, in[2])),
                      pair_token_to_atom(in[0], pair_atom_map(in[1], p.tokens))};
        },
        {z, p.tok_id, p.mask}, 1e-13);
  });
}

TEST_CASE("pairs of atoms have the value of their tokens") {
  on_all_meshes(4, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw);
    const Tensor z = draw.values({p.batch, p.tokens, p.tokens, 1}, -1, 1);
    const Var ids = Var::constant(distribute(p.tok_id.full, mesh, single_placements()));
    const Var y = pair_token_to_atom(Var::constant(distribute(z, mesh, pair_placements())),
                                     pair_atom_map(ids, p.tokens));
    std::vector<double> expected;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t i = 0; i < p.atoms; ++i)
        for (std::int64_t j = 0; j < p.atoms; ++j) {
          const auto row = static_cast<std::int64_t>(p.tok_id.full.item({b, i}));
          const auto col = static_cast<std::int64_t>(p.tok_id.full.item({b, j}));
          expected.push_back(row < 0 || col < 0 ? 0 : z.item({b, row, col, 0}));
        }
    CHECK(to_values(full_tensor(y.value())) == expected);
  });
}

TEST_CASE("one-hot maps say the same as indices") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw);
    const Var map = Var::constant(one_hot(mesh, p.tok_id.full, p.tokens));
    const DTensor idx = one_hot_indices(map).value();
    CHECK(idx.placements() == single_placements());
    CHECK(bitwise_equal(full_tensor(idx), p.tok_id.full));
    const Tensor first = p.tok_id.full.narrow(0, 0, 1);
    if (mesh.size(kDp) > 1) return;  // a map of one sample is not cut
    const std::vector<double> matrix =
        to_values(reconstruct_global(one_hot(mesh, first, p.tokens)));
    std::vector<double> expected(static_cast<std::size_t>(p.atoms * p.tokens));
    for (std::int64_t k = 0; k < p.atoms; ++k)
      if (const auto t = static_cast<std::int64_t>(first.item({0, k})); t >= 0)
        expected[static_cast<std::size_t>(k * p.tokens + t)] = 1;
    CHECK(matrix == expected);
  });
}

TEST_CASE("atom maps: what is refused, for all placements") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  const Tensor diagonal =
      Tensor::from_values({n}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, DType::i64);
  const Tensor ids = Tensor::zeros({n, n}, DType::i64);
  for (std::int64_t b = 0; b < n; ++b) copy(diagonal, ids.select(0, b));
  const Var own = Var::constant(distribute(ids, mesh, single_placements()));
  const GatherPlan map = atom_map(own, n);
  const PairAtomMap pairs = pair_atom_map(own, n);
  int accepted = 0, refused = 0;
  for (const Placements& placements : every_placement(3)) {
    Var s, z, hot;
    try {
      s = Var::constant(zeros({n, n, 1}, DType::f64, mesh, placements));
      z = Var::constant(zeros({n, n, n, 1}, DType::f64, mesh, placements));
      hot = Var::constant(zeros({n, n, n}, DType::i64, mesh, placements));
    } catch (const Error&) {
      continue;  // one dim sharded twice, or a channel that cannot be cut
    }
    INFO(format(placements));
    if (placements == single_placements()) {
      ++accepted;
      CHECK_NOTHROW(token_to_atom(s, map));
      CHECK_NOTHROW(one_hot_indices(hot));
    } else {
      ++refused;
      require_error<PlacementError>([&] { token_to_atom(s, map); }, "token_to_atom", "'x'",
                                    format(placements), "redistribute");
      require_error<PlacementError>([&] { atom_to_token(s, map); }, "atom_to_token", "'src'",
                                    format(placements), "redistribute");
      require_error<PlacementError>([&] { one_hot_indices(hot); }, "one_hot_indices", "'map'",
                                    format(placements));
    }
    if (placements == pair_placements())
      CHECK_NOTHROW(pair_token_to_atom(z, pairs));
    else
      require_error<PlacementError>([&] { pair_token_to_atom(z, pairs); }, "pair_token_to_atom",
                                    "'z'", format(placements));
  }
  CHECK(accepted == 1);
  CHECK(refused > 20);
}

TEST_CASE("atom maps: other errors") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  const auto var = [&](const Shape& shape, DType dtype, double value = 0) {
    return Var::constant(distribute(Tensor::full(shape, value, dtype), mesh, single_placements()));
  };
  const Var none = var({2, n}, DType::i64, -1);
  const GatherPlan map = atom_map(none, n);
  require_error<ShapeError>(
      [&] {
        token_to_atom(var({3, n, 1}, DType::f64), map);
      },
      "token_to_atom", "'x'", "[2, 12, 1]");
  require_error<ShapeError>(
      [&] {
        atom_map(var({2, n, 1}, DType::i64), n);
      },
      "atom_map", "'tok_id'");
  require_error<PlacementError>(
      [&] {
        atom_map(Var::constant(zeros({n, n}, DType::i64, mesh, single_t_placements())), n);
      },
      "atom_map", "'tok_id'", "(S0,R,S1)", "redistribute");
  require_error<RangeError>(
      [&] {
        one_hot_indices(var({2, n, 3}, DType::i64, 1));
      },
      "one_hot_indices", "'map'", "sums to 3");
  require_error<ShapeError>(
      [&] {
        reconstruct_global(var({2, n, 3}, DType::i64).value());
      },
      "reconstruct_global", "'map'", "[1, 12, 3]");
  if (mesh.size(kCp0) > 1)
    require_error<RangeError>(
        [&] {
          atom_map(var({2, n}, DType::i64, 0), n);
        },
        "atom_map", "leaves the shard");
  // A map gets no gradient.
  Tape tape;
  require_error<GradientError>([&] { tape.input("tok_id", none.value(), true); }, "tok_id");
}
