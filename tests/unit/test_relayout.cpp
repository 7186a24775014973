// SPDX-License-Identifier: MIT
// ranks: 1 4 6 9
#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/relayout.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

std::vector<RelayoutPlan> plans_of_all(const Ownership& source, const Ownership& target) {
  std::vector<RelayoutPlan> plans;
  for (std::size_t rank = 0; rank < source.pieces.size(); ++rank)
    plans.push_back(plan_relayout(source, target, int(rank)));
  return plans;
}

// The regions of the messages from one rank to another, as each side sees them.
std::vector<Box> regions(const std::vector<RelayoutPlan::Part>& parts, int peer) {
  std::vector<Box> boxes;
  for (const auto& part : parts)
    if (part.peer == peer) boxes.push_back(part.region);
  return boxes;
}

bool inside(const Box& inner, const Box& outer) {
  return intersect(inner, outer) == inner;
}

// Each target element is written exactly once, from inside the piece's own region.
bool written_once(const RelayoutPlan& plan, std::size_t target) {
  const Box& piece = plan.target[target];
  std::vector<int> writes(std::size_t(piece.area()), 0);
  for (const auto& part : plan.receives) {
    if (part.piece != int(target)) continue;
    if (!inside(part.region, piece)) return false;
    for (auto r = part.region.rows.begin; r < part.region.rows.end; ++r)
      for (auto c = part.region.cols.begin; c < part.region.cols.end; ++c)
        ++writes[std::size_t((r - piece.rows.begin) * piece.cols.size() + c - piece.cols.begin)];
  }
  return std::all_of(writes.begin(), writes.end(), [](int n) { return n == 1; });
}

// Both sides agree on every message, what is sent lies in the piece it is said to lie in, and
// every target element is written exactly once.
bool fit_together(const std::vector<RelayoutPlan>& plans) {
  bool fit = true;
  for (int a = 0; a < int(plans.size()); ++a) {
    const RelayoutPlan& plan = plans[std::size_t(a)];
    for (int b = 0; b < int(plans.size()); ++b)
      fit = fit && regions(plan.sends, b) == regions(plans[std::size_t(b)].receives, a);
    for (const auto& part : plan.sends)
      fit = fit && inside(part.region, plan.source[std::size_t(part.piece)]);
    for (std::size_t t = 0; t < plan.target.size(); ++t) fit = fit && written_once(plan, t);
    fit = fit && std::is_sorted(plan.sends.begin(), plan.sends.end(),
                                [](const auto& x, const auto& y) { return x.peer < y.peer; });
  }
  return fit;
}

void check_inverse(const Ownership& source, const Ownership& target) {
  for (int rank = 0; rank < int(source.pieces.size()); ++rank) {
    const RelayoutPlan there = plan_relayout(source, target, rank);
    const RelayoutPlan back = plan_relayout(target, source, rank);
    const RelayoutPlan turned = reversed(there);
    REQUIRE(turned.source == back.source);
    REQUIRE(turned.target == back.target);
    // The same pieces go to the same peers; the order in a message may differ.
    for (int peer = 0; peer < int(source.pieces.size()); ++peer) {
      const auto sorted = [&](const std::vector<RelayoutPlan::Part>& parts) {
        std::vector<std::array<std::int64_t, 3>> keys;
        for (const auto& p : parts)
          if (p.peer == peer) keys.push_back({p.piece, p.region.rows.begin, p.region.cols.begin});
        std::sort(keys.begin(), keys.end());
        return keys;
      };
      REQUIRE(sorted(turned.sends) == sorted(back.sends));
      REQUIRE(sorted(turned.receives) == sorted(back.receives));
    }
  }
}

// Tiles of a p x q grid in one of the two orders of axes.
Ownership grid(std::int64_t rows, std::int64_t cols, int p, int q, bool rows_on_first) {
  Ownership owned;
  for (int i = 0; i < p; ++i)
    for (int j = 0; j < q; ++j)
      owned.pieces.push_back(rows_on_first
                                 ? std::vector<Box>{{shard_of(rows, p, i), shard_of(cols, q, j)}}
                                 : std::vector<Box>{{shard_of(rows, q, j), shard_of(cols, p, i)}});
  return owned;
}

// Cuts a matrix at random lines and deals the boxes out, several for each rank or none.
Ownership random_ownership(std::mt19937& random, std::int64_t rows, std::int64_t cols, int ranks) {
  const auto cuts = [&](std::int64_t size) {
    std::set<std::int64_t> lines{0, size};
    for (int k = 0; k < 3; ++k) lines.insert(std::int64_t(random() % unsigned(size)));
    return std::vector<std::int64_t>(lines.begin(), lines.end());
  };
  const auto r = cuts(rows);
  const auto c = cuts(cols);
  Ownership owned{std::vector<std::vector<Box>>(std::size_t(ranks))};
  for (std::size_t i = 0; i + 1 < r.size(); ++i)
    for (std::size_t j = 0; j + 1 < c.size(); ++j)
      owned.pieces[random() % unsigned(ranks)].push_back({{r[i], r[i + 1]}, {c[j], c[j + 1]}});
  for (auto& pieces : owned.pieces)
    if (pieces.empty()) pieces.push_back(Box{});  // so that batch and dtype are known
  return owned;
}

double value_at(std::int64_t batch, std::int64_t row, std::int64_t col) {
  return double(10000 * batch + 100 * row + col);
}

Tensor piece_tensor(const Box& box, std::int64_t batch, DType dtype) {
  std::vector<double> values;
  for (std::int64_t b = 0; b < batch; ++b)
    for (auto r = box.rows.begin; r < box.rows.end; ++r)
      for (auto c = box.cols.begin; c < box.cols.end; ++c) values.push_back(value_at(b, r, c));
  return Tensor::from_values({batch, box.rows.size(), box.cols.size()}, values, dtype);
}

// Moves real data and compares every element; returns the targets.
std::vector<Tensor> check_move(const DeviceMesh& mesh, const Ownership& source,
                               const Ownership& target, DType dtype = DType::f64) {
  const RelayoutPlan plan = plan_relayout(source, target, mesh.rank());
  std::vector<Tensor> pieces;
  for (const Box& box : plan.source) pieces.push_back(piece_tensor(box, 2, dtype));
  mesh.clear_records();
  const std::vector<Tensor> moved = relayout(mesh, plan, pieces, "cp0+cp1", "z");
  REQUIRE(moved.size() == plan.target.size());
  for (std::size_t k = 0; k < moved.size(); ++k)
    CHECK(to_values(moved[k]) == to_values(piece_tensor(plan.target[k], 2, dtype)));
  if (mesh.ranks() > 1) {
    REQUIRE(mesh.records().size() == 1);
    const CommRecord& r = mesh.records()[0];
    CHECK(r.op == "relayout");
    CHECK(r.messages == sent_messages(plan));
    CHECK(r.bytes == 2 * sent_elements(plan) * std::int64_t(size_of(dtype)));
  }
  return moved;
}

}  // namespace

TEST_CASE("plans of all ranks fit together: swap of the grid axes", "[relayout]") {
  for (int p = 1; p <= 5; ++p)
    for (int q = 1; q <= 6; ++q)
      for (const std::int64_t n :
           {std::int64_t{1} * p * q, std::int64_t{2} * p * q, std::int64_t{13}}) {
        CAPTURE(p, q, n);
        CHECK(fit_together(plans_of_all(grid(n, n, p, q, true), grid(n, n, p, q, false))));
        check_inverse(grid(n, n, p, q, true), grid(n, n, p, q, false));
      }
}

TEST_CASE("plans of random ownerships fit together", "[relayout]") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100; ++trial) {
    const int ranks = 1 + int(random() % 7);
    const Ownership a = random_ownership(random, 9, 11, ranks);
    const Ownership b = random_ownership(random, 9, 11, ranks);
    CHECK(fit_together(plans_of_all(a, b)));
    check_inverse(a, b);
  }
}

TEST_CASE("plans that do not fit are noticed", "[relayout]") {
  const auto plans = plans_of_all(grid(12, 12, 2, 3, true), grid(12, 12, 2, 3, false));
  CHECK(fit_together(plans));
  auto lost = plans;
  lost[1].sends.pop_back();
  CHECK_FALSE(fit_together(lost));
  auto never_sent = plans;  // dropped on both sides: an element stays unwritten
  const RelayoutPlan::Part last = never_sent[1].sends.back();
  never_sent[1].sends.pop_back();
  auto& receives = never_sent[std::size_t(last.peer)].receives;
  std::erase_if(receives, [](const auto& part) { return part.peer == 1; });
  CHECK_FALSE(fit_together(never_sent));
  auto moved = plans;
  moved[2].receives[0].region.cols.end += 1;
  CHECK_FALSE(fit_together(moved));
}

TEST_CASE("the swap has the partners and the volume of its formula", "[relayout]") {
  // Partners at most: PxP 1, 2x3 3, 2x4 2, 1xP and Px1 P-1.
  const auto partners = [](int p, int q) {
    const std::int64_t n = 4 * p * q;
    std::int64_t most = 0;
    for (const RelayoutPlan& plan : plans_of_all(grid(n, n, p, q, true), grid(n, n, p, q, false))) {
      most = std::max(most, sent_messages(plan));
      CHECK(sent_elements(plan) <= n * n / (p * q));
    }
    return most;
  };
  CHECK(partners(1, 1) == 0);
  CHECK(partners(2, 2) == 1);
  CHECK(partners(3, 3) == 1);
  CHECK(partners(2, 3) == 3);
  CHECK(partners(2, 4) == 2);
  CHECK(partners(4, 6) == 4);
  CHECK(partners(1, 5) == 4);
  CHECK(partners(5, 1) == 4);
  // 2x2: one message of the whole tile off the diagonal, none on it.
  const auto plans = plans_of_all(grid(8, 8, 2, 2, true), grid(8, 8, 2, 2, false));
  for (const int rank : {0, 3}) CHECK(sent_messages(plans[std::size_t(rank)]) == 0);
  for (const int rank : {1, 2}) {
    CHECK(sent_messages(plans[std::size_t(rank)]) == 1);
    CHECK(sent_elements(plans[std::size_t(rank)]) == 16);
  }
}

TEST_CASE("overlapping targets are copies, overlapping sources an error", "[relayout]") {
  const Ownership source = grid(6, 6, 2, 2, true);
  Ownership everything = source;
  for (auto& pieces : everything.pieces) pieces = {Box{{0, 6}, {0, 6}}, Box{{1, 4}, {2, 5}}};
  CHECK(fit_together(plans_of_all(source, everything)));
  require_error<ShapeError>([&] { plan_relayout(everything, source, 0); }, "source pieces overlap",
                            "rank 0");
  Ownership hole = source;
  hole.pieces[3] = {Box{{3, 6}, {3, 5}}};
  for (int rank = 0; rank < 4; ++rank)
    require_error<ShapeError>([&] { plan_relayout(hole, source, rank); }, "held by no rank",
                              "[3,6)x[3,6) of rank 3", "6 elements", "9");
  require_error<ShapeError>([&] { plan_relayout(source, grid(6, 6, 1, 2, true), 0); }, "4 and 2");
  require_error<ShapeError>([&] { plan_relayout(source, source, 4); }, "rank 4");
}

TEST_CASE("relayout moves every element, on every mesh and with dp", "[relayout]") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    CAPTURE(format(shape));
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    for (const std::int64_t n : {std::int64_t{shape.cp0} * shape.cp1, std::int64_t{13}})
      for (const DType dtype : {DType::f64, DType::f32}) {
        const Ownership pair = tiles(mesh, n, n, kCp0, kCp1);
        check_move(mesh, pair, tiles(mesh, n, n, kCp1, kCp0), dtype);
        check_move(mesh, tiles(mesh, n, n, kCp0, -1), tiles(mesh, n, n, -1, kCp0), dtype);
      }
  }
}

TEST_CASE("relayout of random pieces there and back", "[relayout]") {
  std::mt19937 random(5);  // the same on every rank
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  for (int trial = 0; trial < 30; ++trial) {
    const Ownership a = random_ownership(random, 9, 11, test_ranks());
    const Ownership b = random_ownership(random, 9, 11, test_ranks());
    const std::vector<Tensor> moved = check_move(mesh, a, b);
    const RelayoutPlan back = reversed(plan_relayout(a, b, mesh.rank()));
    const std::vector<Tensor> home = relayout(mesh, back, moved, "cp1", "back");
    for (std::size_t k = 0; k < home.size(); ++k)
      CHECK(to_values(home[k]) == to_values(piece_tensor(back.target[k], 2, DType::f64)));
  }
}

TEST_CASE("relayout_add sums overlapping pieces at the owners", "[relayout]") {
  std::mt19937 random(7);  // the same on every rank
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const auto random_interval = [&](std::int64_t size) {
    const auto begin = std::int64_t(random() % unsigned(size));
    return Interval{begin, begin + 1 + std::int64_t(random() % unsigned(size - begin))};
  };
  for (int trial = 0; trial < 30; ++trial) {
    const Ownership owners = random_ownership(random, 9, 11, test_ranks());
    Ownership pieces{std::vector<std::vector<Box>>(std::size_t(test_ranks()))};
    for (auto& boxes : pieces.pieces) {
      boxes.push_back(Box{});
      for (unsigned k = random() % 4; k > 0; --k)
        boxes.push_back({random_interval(9), random_interval(11)});
      boxes.push_back(owners.pieces.front().front());  // as large as a piece that somebody owns
    }
    std::vector<double> expected(std::size_t(2 * 9 * 11), 0);
    for (int rank = 0; rank < test_ranks(); ++rank)
      for (const Box& box : pieces.pieces[std::size_t(rank)])
        for (std::int64_t b = 0; b < 2; ++b)
          for (auto r = box.rows.begin; r < box.rows.end; ++r)
            for (auto c = box.cols.begin; c < box.cols.end; ++c)
              expected[std::size_t((b * 9 + r) * 11 + c)] += (rank + 1) * value_at(b, r, c);
    const RelayoutPlan plan = plan_relayout(owners, pieces, mesh.rank());
    std::vector<Tensor> own;
    for (const Box& box : plan.target) {
      own.push_back(piece_tensor(box, 2, DType::f64));
      add(test_rank() + 1, own.back(), 0, own.back(), own.back());
    }
    mesh.clear_records();
    const std::vector<Tensor> sums = relayout_add(mesh, plan, own, "cp1", "z");
    const Tensor all = Tensor::from_values({2, 9, 11}, expected, DType::f64);
    for (std::size_t k = 0; k < sums.size(); ++k) {
      const Box& box = plan.source[k];
      CHECK(to_values(sums[k]) == to_values(all.narrow(1, box.rows.begin, box.rows.size())
                                                .narrow(2, box.cols.begin, box.cols.size())
                                                .contiguous()));
    }
    if (test_ranks() > 1) CHECK(mesh.records()[0].messages == sent_messages(reversed(plan)));
  }
}

TEST_CASE("a piece that stays is not copied, nor one that goes whole", "[relayout]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const Ownership rows = tiles(mesh, 4 * test_ranks(), 3, kCp1, -1);
  const RelayoutPlan stay = plan_relayout(rows, rows, mesh.rank());
  const Tensor tile = piece_tensor(stay.source[0], 2, DType::f32);
  CHECK(relayout(mesh, stay, {tile}, "cp1", "x")[0].shares_storage(tile));

  // Everyone's tile goes to the next rank: no buffers, only the target itself.
  Ownership next = rows;
  std::rotate(next.pieces.begin(), next.pieces.begin() + 1, next.pieces.end());
  const RelayoutPlan ring = plan_relayout(rows, next, mesh.rank());
  memory_ledger::reset_peak();
  const std::int64_t before = memory_ledger::total(Purpose::communication).peak;
  const std::vector<Tensor> moved = relayout(mesh, ring, {tile}, "cp1", "x");
  CHECK(memory_ledger::total(Purpose::communication).peak == before);
  CHECK(to_values(moved[0]) == to_values(piece_tensor(ring.target[0], 2, DType::f32)));
}

TEST_CASE("pieces may have any strides", "[relayout]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const std::int64_t n = 2 * test_ranks();
  const RelayoutPlan plan =
      plan_relayout(tiles(mesh, n, n, kCp1, -1), tiles(mesh, n, n, -1, kCp1), mesh.rank());
  const Tensor transposed =
      piece_tensor(plan.source[0], 2, DType::f64).transpose(1, 2).contiguous().transpose(1, 2);
  const std::vector<Tensor> moved = relayout(mesh, plan, {transposed}, "cp1", "x");
  CHECK(to_values(moved[0]) == to_values(piece_tensor(plan.target[0], 2, DType::f64)));
}

TEST_CASE("relayout refuses pieces that do not fit the plan", "[relayout]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const Ownership rows = tiles(mesh, 2 * test_ranks(), 3, kCp1, -1);
  const RelayoutPlan plan = plan_relayout(rows, rows, mesh.rank());
  const auto with = [&](std::vector<Tensor> pieces) { relayout(mesh, plan, pieces, "cp1", "z"); };
  const Tensor tile = Tensor::zeros({1, 2, 3}, DType::f32);
  require_error<ShapeError>([&] { with({}); }, "'z'", "0 tensor(s)", "1 piece(s)");
  require_error<ShapeError>([&] { with({tile, tile}); }, "2 tensor(s)");
  require_error<ShapeError>(
      [&] {
        with({Tensor::zeros({1, 3, 2}, DType::f32)});
      },
      "[1, 3, 2]", "[1, 2, 3]");
  require_error<ShapeError>([&] { with({Tensor::zeros({2, 3}, DType::f32)}); }, "[2, 3]");
  require_error<TypeError>([&] { with({Tensor()}); }, "defined");
  RelayoutPlan other = plan;
  other.rank = test_ranks();
  require_error<MeshError>([&] { relayout(mesh, other, {tile}, "cp1", "z"); }, "another rank");
}
