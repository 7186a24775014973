// SPDX-License-Identifier: MIT
// ranks: 4 6
// What a rank keeps and sends, exactly.
#include <algorithm>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/harness/parity.hpp"
#include "tessera/layers/schedule/panel_ring.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

const char* const kTriangles[]{"triangle_multiplication_outgoing",
                               "triangle_multiplication_incoming"};

struct Sent {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
};
Sent tiles_sent(const std::vector<CommTotal>& totals) {
  Sent sent;
  for (const CommTotal& t : totals) {
    if (t.op == "all_reduce") continue;  // parameter gradients
    sent.messages += t.messages;
    sent.bytes += t.bytes;
  }
  return sent;
}

}  // namespace

TEST_CASE("saved bytes per rank are the serial ones over cp0 * cp1, exactly") {
  const Sizes sizes{1, 24, 6};
  const DeviceMesh one = DeviceMesh::create(Communicator::self(), {});
  for (const Case& c : all_cases()) {
    if (!std::all_of(c.inputs.begin(), c.inputs.end(),
                     [](const InputSpec& x) { return x.placements == pair_placements(); }))
      continue;
    if (c.name.starts_with("substrate.")) continue;  // they keep own blocks of any placements
    if (c.stack) continue;  // also keeps its dropped rows and columns, which are no pair tensors
    const CaseResult serial = run_parity(c, sizes, one, {});
    for (const MeshShape& shape : test_meshes(test_ranks())) {
      if (shape.dp > 1) continue;
      CAPTURE(c.name, format(shape));
      const CaseResult r = run_parity(c, sizes, DeviceMesh::create(test_world(), shape), {});
      CHECK(r.saved_bytes * shape.cp0 * shape.cp1 == serial.saved_bytes);
      CHECK(r.saved_bytes == r.saved_budget);
    }
  }
}

TEST_CASE("triangle multiplication saves 4D+5 channels of a tile in f64") {
  const std::int64_t n = 24, d = 6;
  for (const char* name : kTriangles) {
    const CaseResult r =
        run_parity(*find_case(name), {1, n, d}, DeviceMesh::create(Communicator::self(), {}), {});
    CHECK(r.saved_bytes == (4 * d + 5) * n * n * 8);
  }
}

TEST_CASE("the peak of a medium problem on 2 x 2 is at most 0.3 of the serial one") {
  if (test_ranks() != 4) return;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 2, 2});
  const Sizes sizes{1, 256, 128};
  for (const char* name : kTriangles) {
    std::int64_t serial = 0;
    if (test_rank() == 0) {
      const DeviceMesh one = DeviceMesh::create(Communicator::self(), {});
      serial = run_parity(*find_case(name), sizes, one, {.dtype = DType::f32}).peak_bytes;
    }
    serial = ControlScalar::broadcast(mesh, serial).value();
    const CaseResult r = run_parity(*find_case(name), sizes, mesh, {.dtype = DType::f32});
    CAPTURE(name, r.peak_bytes, serial);
    CHECK(static_cast<double>(r.peak_bytes) <= 0.3 * static_cast<double>(serial));
    CHECK(r.pass());
  }
}

TEST_CASE("on a P x P grid a triangle multiplication sends 2P tiles forward and 4P backward") {
  if (test_ranks() != 4) return;
  const std::int64_t n = 12, d = 5, p = 2;
  const std::int64_t tile = n * n * d * 8 / (p * p);
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 2, 2});
  for (const char* name : kTriangles) {
    const CaseResult r = run_parity(*find_case(name), {1, n, d}, mesh, {});
    const Sent forward = tiles_sent(r.forward), backward = tiles_sent(r.backward);
    CHECK(forward.messages == 2 * p);
    CHECK(forward.bytes == 2 * p * tile);
    CHECK(backward.messages == 4 * p);
    CHECK(backward.bytes == 4 * p * tile);
  }
}

TEST_CASE("on a line one operand stays and the other one moves P-1 tiles after its swap") {
  const int p = test_ranks();
  const std::int64_t n = 12, d = 5;
  const std::int64_t tile = n * n * d * 8 / p;
  for (const char* name : kTriangles)
    for (const MeshShape& shape : {MeshShape{1, 1, p}, MeshShape{1, p, 1}}) {
      CAPTURE(name, format(shape));
      const CaseResult r =
          run_parity(*find_case(name), {1, n, d}, DeviceMesh::create(test_world(), shape), {});
      // A swap on a line is an all-to-all: each rank keeps 1/P of its tile.
      CHECK(tiles_sent(r.forward).bytes == (p - 1) * tile + (p - 1) * tile / p);
    }
}

TEST_CASE("groups of a tile change memory and messages, not results") {
  const MeshShape shape = test_ranks() == 4 ? MeshShape{1, 2, 2} : MeshShape{1, 2, 3};
  const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
  for (const char* name : {"triangle_multiplication_outgoing", "triangle_attention_starting_node",
                           "triangle_attention_ending_node"}) {
    CAPTURE(name);
    const auto run = [&](const GroupLimits& limits) {
      set_group_limits(limits);
      const CaseResult r = run_parity(*find_case(name), {1, 48, 16}, mesh, {});
      set_group_limits({});
      CHECK(r.pass());
      return r;
    };
    const CaseResult one = run({.most = 1}), many = run({.bytes = 1});
    // A multiplication of this size has its peak outside of the rings.
    if (std::string(name).starts_with("triangle_attention"))
      CHECK(many.peak_bytes < one.peak_bytes);
    CHECK(tiles_sent(many.forward).messages > tiles_sent(one.forward).messages);
  }
  CHECK_THROWS_AS(set_group_limits({.bytes = 0}), RangeError);
}
