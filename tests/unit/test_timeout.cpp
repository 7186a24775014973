// SPDX-License-Identifier: MIT
// ranks: 4
#include <mpi.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/mesh/collectives.hpp"

using namespace tessera;

namespace {

DeviceMesh impatient_mesh() {
  setenv("TESSERA_TIMEOUT_S", "3", 1);
  setenv("TESSERA_LOCKSTEP", "0", 1);  // which finds the absent rank before there is a wait
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 2, 2});
  setenv("TESSERA_TIMEOUT_S", "60", 1);
  return mesh;
}

// Catch needs every rank to reach the end of the test, so the absent rank waits outside the mesh.
void wait_for_the_others() {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

}  // namespace

TEST_CASE("a rank that does not take part is named", "[timeout]") {
  const DeviceMesh mesh = impatient_mesh();
  if (test_rank() == 3) return wait_for_the_others();
  const Scope scope("trunk.tri_mul");
  const auto begin = std::chrono::steady_clock::now();
  // cp1 groups are {0, 1} and {2, 3}: only rank 2 waits.
  const Tensor x = Tensor::zeros({4}, DType::f32);
  const auto reduce = [&] { all_reduce(mesh, kCp1, ReduceOp::sum, x, "bias"); };
  if (test_rank() != 2) return reduce();
  require_error<TimeoutError>(reduce, "all_reduce", "'bias'", "[layer trunk.tri_mul]",
                              "rank 2 waited 3.", "nothing came from rank(s) 3", "axis cp1",
                              "operation number");
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  CHECK(waited.count() > 2.9);
  CHECK(waited.count() < 13);
  // The mesh cannot be used any more, and says why.
  require_error<CommStateError>([&] { barrier(mesh); }, "all_reduce", "bias", "trunk.tri_mul");
}

TEST_CASE("a ring with a missing rank ends on all others", "[timeout]") {
  const DeviceMesh mesh = impatient_mesh();
  if (test_rank() == 1) return wait_for_the_others();
  try {
    barrier(mesh);
    FAIL("nothing was thrown");
  } catch (const TimeoutError& error) {
    CHECK(error.exit_code() == ExitCode::timeout);
    CHECK(mentions(error, "barrier", "dp+cp0+cp1"));
  }
}

TEST_CASE("large messages that nobody takes are named too", "[timeout]") {
  const DeviceMesh mesh = impatient_mesh();
  if (test_rank() != 0) return wait_for_the_others();
  const Tensor x = Tensor::zeros({1 << 20}, DType::f64);
  const Tensor y = Tensor::zeros({1 << 20}, DType::f64);
  Pending pending = shift(mesh, kCp0, 1, x, y, "skew");
  require_error<TimeoutError>([&] { pending.wait(); }, "shift", "rank(s) 2",
                              "did not take their message");
}

TEST_CASE("a time limit that is none", "[timeout]") {
  for (const char* text : {"soon", "-1", "1s", "nan"}) {
    setenv("TESSERA_TIMEOUT_S", text, 1);
    require_error<UsageError>([] { DeviceMesh::serial(); }, "TESSERA_TIMEOUT_S", text);
  }
  setenv("TESSERA_TIMEOUT_S", "60", 1);
}
