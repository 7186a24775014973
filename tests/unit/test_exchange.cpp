// SPDX-License-Identifier: MIT
// ranks: 1 4 6 9
#include <random>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

DeviceMesh line_mesh() {
  return DeviceMesh::create(test_world(), {1, 1, test_ranks()});
}

Tensor filled(double value, std::int64_t size = 3) {
  return Tensor::full({size}, value, DType::f64);
}

}  // namespace

TEST_CASE("shift moves to coordinate plus offset on every axis", "[exchange]") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    for (int axis = 0; axis < 3; ++axis)
      for (int offset = -4; offset <= 4; ++offset) {
        CAPTURE(format(shape), axis, offset);
        const Tensor send = filled(test_rank());
        const Tensor receive = filled(-1);
        mesh.clear_records();
        shift(mesh, axis, offset, send, receive, "x").wait();
        std::vector<int> from = mesh.coordinate();
        from[std::size_t(axis)] -= offset;
        CHECK(receive.item({2}) == mesh.rank_of(from));
        const bool moves = offset % mesh.size(axis) != 0;
        REQUIRE(mesh.records().size() == (moves ? 1u : 0u));
        if (moves) {
          CHECK(mesh.records()[0].op == "shift");
          CHECK(mesh.records()[0].axis == mesh.axis_name(axis));
          CHECK(mesh.records()[0].messages == 1);
          CHECK(mesh.records()[0].bytes == 24);
        }
      }
  }
}

TEST_CASE("mirror is the rank on the other side of the diagonal", "[exchange]") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    CAPTURE(format(shape));
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    const Tensor send = filled(test_rank());
    const Tensor receive = filled(-1);
    if (shape.cp0 != shape.cp1) {
      require_error<MeshError>([&] { (void)mirror(mesh, send, receive, "z"); }, "square", "'z'",
                               "cp0=" + std::to_string(shape.cp0));
      continue;
    }
    mirror(mesh, send, receive, "z").wait();
    const auto& c = mesh.coordinate();
    CHECK(receive.item({0}) == mesh.rank_of({c[0], c[2], c[1]}));
    if (shape.cp0 > 1) CHECK(mesh.records().back().messages == (c[1] == c[2] ? 0 : 1));
    const Tensor home = filled(-1);
    mirror(mesh, receive, home, "back").wait();
    CHECK(home.item({0}) == test_rank());
  }
}

TEST_CASE("random patterns, several messages per pair, in list order", "[exchange]") {
  const DeviceMesh mesh = line_mesh();
  std::mt19937 random(11);  // the same numbers on every rank
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    std::vector<double> expected;
    std::int64_t messages = 0;
    for (int k = 0; k < 6 * test_ranks(); ++k) {
      const int from = int(random() % unsigned(test_ranks()));
      const int to = int(random() % unsigned(test_ranks()));
      const auto size = std::int64_t(random() % 5);  // also empty
      if (from == test_rank()) {
        sends.push_back({to, filled(1000 * trial + k, size)});
        messages += to != from && size > 0 ? 1 : 0;
      }
      if (to == test_rank()) {
        receives.push_back({from, filled(-1, size)});
        expected.push_back(1000 * trial + k);
      }
    }
    mesh.clear_records();
    exchange(mesh, {"pattern", "cp1", "x"}, sends, receives).wait();
    for (std::size_t k = 0; k < receives.size(); ++k)
      for (const double v : to_values(receives[k].data)) CHECK(v == expected[k]);
    if (test_ranks() > 1) {
      REQUIRE(mesh.records().size() == 1);
      CHECK(mesh.records()[0].messages == messages);
    }
  }
}

TEST_CASE("many exchanges in flight, waited for in any order", "[exchange]") {
  const DeviceMesh mesh = line_mesh();
  const int n = test_ranks();
  constexpr int kMany = 40;
  std::vector<Tensor> receive;
  std::vector<Pending> pending;
  for (int k = 0; k < kMany; ++k) {
    receive.push_back(Tensor::zeros({1000}, DType::f32));
    const Tensor send = Tensor::full({1000}, 100 * k + test_rank(), DType::f32);
    pending.push_back(shift(mesh, kCp1, k, send, receive.back(), std::to_string(k)));
  }
  // A collective in between does not take their messages.
  const Tensor sum = filled(1, 1);
  all_reduce(mesh, kCp1, ReduceOp::sum, sum, "sum");
  CHECK(sum.item({0}) == n);
  for (int k = kMany; k-- > 0;) {
    pending[std::size_t(k)].progress();
    pending[std::size_t(k)].wait();
    CHECK(receive[std::size_t(k)].item({999}) == 100 * k + ((test_rank() - k) % n + n) % n);
  }
}

TEST_CASE("a message to oneself is a copy", "[exchange]") {
  const DeviceMesh mesh = line_mesh();
  const int me = test_rank();
  const Tensor send = filled(5);
  const Tensor receive = filled(0);
  Pending pending = exchange(mesh, {"self", "cp1", "x"}, {{me, send}}, {{me, receive}});
  fill(send, 9);  // the caller may overwrite at once
  pending.wait();
  CHECK(receive.item({1}) == 5);
  if (test_ranks() > 1) CHECK(mesh.records().back().messages == 0);
}

TEST_CASE("the states of a Pending", "[exchange]") {
  const DeviceMesh mesh = line_mesh();
  Pending nothing;
  nothing.progress();
  nothing.wait();
  nothing.wait();
  Pending pending = shift(mesh, kCp1, 1, filled(1), filled(0), "x");
  Pending moved = std::move(pending);
  pending.wait();  // nothing in flight there any more
  moved.wait();
  moved.progress();
  require_error<CommStateError>([&] { moved.wait(); }, "waited for before");
}

TEST_CASE("dropping a Pending in flight spoils the mesh, not the memory", "[exchange]") {
  const DeviceMesh mesh = line_mesh();
  {
    const Scope scope("ring");
    const Pending dropped = shift(mesh, kCp1, 1, Tensor::full({100000}, 1, DType::f64),
                                  Tensor::zeros({100000}, DType::f64), "skew a");
  }
  if (test_ranks() == 1) {  // nothing was in flight
    barrier(mesh);
    return;
  }
  require_error<CommStateError>([&] { barrier(mesh); }, "shift", "cp1", "skew a", "ring",
                                "did not end");
  require_error<CommStateError>([&] { (void)shift(mesh, kCp1, 1, filled(1), filled(0), "next"); },
                                "skew a");
  barrier(line_mesh());  // another mesh works
}

TEST_CASE("buffers that overlap are refused", "[exchange]") {
  const DeviceMesh mesh = line_mesh();
  const int me = test_rank();
  const OpLabel label{"pattern", "cp1", "x"};
  const Tensor x = filled(1, 10);
  require_error<CommStateError>([&] { (void)shift(mesh, kCp1, 1, x, x, "x"); }, "overlaps", "'x'");
  require_error<CommStateError>(
      [&] {
        (void)exchange(mesh, label, {{me, x.narrow(0, 0, 5)}}, {{me, x.narrow(0, 4, 5)}});
      },
      "overlaps");
  require_error<CommStateError>(
      [&] {
        (void)exchange(mesh, label, {{me, filled(1, 4)}, {me, filled(1, 4)}},
                       {{me, x.narrow(0, 0, 4)}, {me, x.narrow(0, 3, 4)}});
      },
      "overlaps");
  // Neighbours, and one tensor sent twice, are fine.
  exchange(mesh, label, {{me, x.narrow(0, 0, 4)}, {me, x.narrow(0, 0, 4)}},
           {{me, x.narrow(0, 4, 4)}, {me, filled(0, 4)}})
      .wait();
}

TEST_CASE("exchanges that cannot be are refused", "[exchange]") {
  const DeviceMesh mesh = line_mesh();
  const int me = test_rank();
  const OpLabel label{"pattern", "cp1", "k"};
  require_error<RangeError>(
      [&] {
        (void)exchange(mesh, label, {{test_ranks(), filled(1)}}, {});
      },
      "pattern", "peer", std::to_string(test_ranks()));
  require_error<RangeError>([&] { (void)exchange(mesh, label, {}, {{-1, filled(1)}}); }, "-1");
  require_error<RangeError>([&] { (void)shift(mesh, 7, 1, filled(1), filled(1), "x"); }, "axis 7");
  require_error<CommStateError>(
      [&] {
        (void)exchange(mesh, label, {{me, filled(1)}}, {});
      },
      "one-sided", "1 sent, 0 received");
  require_error<ShapeError>(
      [&] {
        (void)exchange(mesh, label, {{me, filled(1, 3)}}, {{me, filled(1, 4)}});
      },
      "[3]", "[4]");
  require_error<ShapeError>([&] { (void)shift(mesh, kCp1, 1, filled(1, 3), filled(1, 4), "k"); },
                            "'k'", "[4]", "[3]");
  require_error<TypeError>([&] { (void)shift(mesh, kCp1, 1, Tensor(), filled(1), "k"); },
                           "undefined", "'k'");
  const Tensor matrix = Tensor::zeros({3, 2}, DType::f32).transpose(0, 1);
  require_error<StrideError>(
      [&] {
        (void)exchange(mesh, label, {{me, matrix}}, {{me, matrix.contiguous()}});
      },
      "contiguous", "'k'");
  barrier(mesh);  // refused before anything was sent
}

TEST_CASE("received tensors count as written", "[exchange]") {
  const DeviceMesh mesh = line_mesh();
  const Tensor receive = filled(0);
  const auto before = receive.version();
  shift(mesh, kCp1, 1, filled(1), receive, "x").wait();
  CHECK(receive.version() > before);
}

#ifdef TESSERA_TEST_HOOKS
TEST_CASE("the mutation of shift goes the other way round", "[exchange]") {
  const DeviceMesh mesh = line_mesh();
  const Tensor receive = filled(-1);
  set_mutation(Mutation::reverse_ring);
  shift(mesh, kCp1, 1, filled(test_rank()), receive, "x").wait();
  set_mutation(Mutation::none);
  CHECK(receive.item({0}) == (test_rank() + 1) % test_ranks());
}
#endif
