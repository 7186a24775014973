// SPDX-License-Identifier: MIT
// ranks: 1 6
// Which keys every rank of many grids gets when and from whom, all ranks at once; and the move.
#include <algorithm>
#include <numeric>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/schedule/key_panels.hpp"
#include "tessera/mesh/collectives.hpp"

using namespace tessera;

namespace {

const std::vector<MeshShape> kGrids{{1, 1, 1}, {1, 1, 3}, {1, 3, 1}, {1, 2, 2}, {1, 2, 3},
                                    {1, 3, 2}, {1, 3, 3}, {1, 2, 4}, {1, 4, 2}, {1, 4, 6},
                                    {1, 6, 4}, {1, 5, 3}, {2, 3, 2}};

std::int64_t tokens_of(const MeshShape& shape) {
  return 2 * std::lcm(shape.cp0, shape.cp1);
}

}  // namespace

TEST_CASE("every rank gets each key of its column block once, at most a row block per round") {
  for (const MeshShape& shape : kGrids)
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      CAPTURE(format(shape), rank);
      const std::int64_t tokens = tokens_of(shape);
      const DeviceMesh mesh = DeviceMesh::dry_run(shape, rank);
      const KeyPlan plan(mesh, tokens);
      const Interval block = shard_of(tokens, shape.cp1, mesh.coordinate(kCp1));
      std::vector<int> times(static_cast<std::size_t>(block.size()), 0);
      for (int round = 0; round < plan.rounds(); ++round) {
        const Interval keys = plan.keys(round);
        CHECK(keys.size() <= tokens / shape.cp0);
        std::int64_t at = keys.begin;
        for (const Box& box : plan.relayout(round, 1).target) {
          if (box.rows.empty()) continue;
          CHECK(box.rows.begin - block.begin == at);  // one behind the other
          at = box.rows.end - block.begin;
        }
        CHECK(at == keys.end);
        for (std::int64_t k = keys.begin; k < keys.end; ++k) ++times[static_cast<std::size_t>(k)];
      }
      CHECK(std::count(times.begin(), times.end(), 1) == block.size());
    }
}

TEST_CASE("a square grid has one exchange with the mirror rank, one row of ranks none") {
  for (const MeshShape& shape : kGrids)
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      CAPTURE(format(shape), rank);
      const DeviceMesh mesh = DeviceMesh::dry_run(shape, rank);
      const KeyPlan plan(mesh, tokens_of(shape));
      CHECK((plan.rounds() == 1) == (shape.cp1 >= shape.cp0));
      const RelayoutPlan relayout = plan.relayout(0, 7);
      if (shape.cp0 == 1) CHECK(sent_messages(relayout) == 0);
      if (shape.cp0 != shape.cp1) continue;
      const int mirror =
          mesh.rank_of({mesh.coordinate(kDp), mesh.coordinate(kCp1), mesh.coordinate(kCp0)});
      REQUIRE(relayout.sends.size() == 1);
      CHECK(relayout.sends.front().peer == mirror);
      CHECK(relayout.sends.front().region == relayout.source.front());
    }
}

TEST_CASE("the replicas share the work: a rank sends its keys to R0/R1 others, rounded up") {
  for (const MeshShape& shape : kGrids)
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      CAPTURE(format(shape), rank);
      const std::int64_t tokens = tokens_of(shape);
      const KeyPlan plan(DeviceMesh::dry_run(shape, rank), tokens);
      std::int64_t sent = 0;
      for (int round = 0; round < plan.rounds(); ++round)
        sent += sent_elements(plan.relayout(round, 1));
      CHECK(sent <= (shape.cp0 + shape.cp1 - 1) / shape.cp1 * tokens / shape.cp0);
    }
}

TEST_CASE("keys arrive with their values, and gradients return to where the keys came from") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    CAPTURE(format(shape));
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    const std::int64_t tokens = tokens_of(shape), width = 3, batch = 2;
    const Interval own = shard_of(tokens, shape.cp0, mesh.coordinate(kCp0));
    const Interval block = shard_of(tokens, shape.cp1, mesh.coordinate(kCp1));
    const Tensor full = random_tensor({batch, tokens, width}, DType::f64, "keys");
    const KeyPlan plan(mesh, tokens);
    KeyStream stream(mesh, plan, full.narrow(1, own.begin, own.size()).contiguous(), "keys");
    const Tensor sum = Tensor::zeros({batch, own.size(), width}, DType::f64);
    int rounds = 0;
    while (stream.next()) {
      stream.progress();
      CHECK(stream.round() == rounds++);
      const Interval keys = plan.keys(stream.round());
      REQUIRE(stream.block().size(1) == keys.size());
      if (!keys.empty())
        CHECK(bitwise_equal(stream.block(), full.narrow(1, block.begin + keys.begin, keys.size())));
      const Tensor gradients =
          keys.empty() ? Tensor::zeros({batch, 0, width}, DType::f64) : stream.block();
      const Tensor home = return_keys(mesh, plan, stream.round(), gradients, "back");
      add(1, sum, 1, home, sum);
    }
    CHECK(rounds == plan.rounds());
    // Every one of the R0 ranks of a column gave each of its keys once.
    all_reduce(mesh, kCp1, ReduceOp::sum, sum, "sum");
    const Tensor expected = full.narrow(1, own.begin, own.size()).clone();
    scale(shape.cp0, expected);
    check_close(sum, to_values(expected), 1e-14);
  }
}
