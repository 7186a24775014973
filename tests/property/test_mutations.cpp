// SPDX-License-Identifier: MIT
// ranks: 6
// Parity must be able to fail: each planted mistake makes it fail, and without one it holds.
// Six ranks, because on rings of two a turn to the left is one to the right.
#include <vector>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/harness/parity.hpp"
#include "tessera/mesh/testing.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

bool holds(const char* name, const MeshShape& shape, Mutation mistake) {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
  const std::int64_t batch = shape.dp;
  set_mutation(mistake);
  const CaseResult r = run_parity(*find_case(name), {batch, 12, 5}, mesh, {});
  set_mutation(Mutation::none);
  return r.pass();
}

struct Trial {
  const char* name;
  MeshShape shape;
};
const std::vector<Trial> kTriangles{{"triangle_multiplication_outgoing", {1, 2, 3}},
                                    {"triangle_multiplication_outgoing", {1, 1, 6}},
                                    {"triangle_multiplication_outgoing", {1, 6, 1}},
                                    {"triangle_multiplication_incoming", {1, 3, 2}},
                                    {"triangle_multiplication_incoming", {2, 1, 3}}};

}  // namespace

TEST_CASE("without a mistake everything holds") {
  for (const Trial& t : kTriangles) CHECK(holds(t.name, t.shape, Mutation::none));
  CHECK(holds("transition_outdim", {1, 2, 3}, Mutation::none));
}

TEST_CASE("a ring that turns the other way") {
  for (const Trial& t : kTriangles) {
    CAPTURE(t.name, format(t.shape));
    CHECK_FALSE(holds(t.name, t.shape, Mutation::reverse_ring));
  }
}

TEST_CASE("a dropped skew") {
  // On a line the other operand is in place anyway and the skew is what brings the panels into
  // step.
  for (const Trial& t : {kTriangles[0], kTriangles[3]}) {
    CAPTURE(t.name, format(t.shape));
    CHECK_FALSE(holds(t.name, t.shape, Mutation::drop_skew));
  }
}

TEST_CASE("a parameter gradient that is not reduced") {
  for (const Trial& t : kTriangles)
    CHECK_FALSE(holds(t.name, t.shape, Mutation::skip_parameter_reduction));
  CHECK_FALSE(holds("transition", {6, 1, 1}, Mutation::skip_parameter_reduction));
}

TEST_CASE("a reduction over a replicated axis") {
  CHECK_FALSE(holds("transition_outdim", {1, 2, 3}, Mutation::reduce_over_replicate_axis));
  CHECK_FALSE(holds("linear_single", {1, 3, 2}, Mutation::reduce_over_replicate_axis));
  // A pair activation is sharded on every axis: there is nothing to count twice.
  CHECK(holds("transition", {1, 2, 3}, Mutation::reduce_over_replicate_axis));
}
