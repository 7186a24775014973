// SPDX-License-Identifier: MIT
// ranks: 4
#include <chrono>
#include <cstdlib>
#include <string>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/dtensor.hpp"
#include "tessera/mesh/relayout.hpp"
#include "tessera/mesh/replicas.hpp"
#include "tessera/runtime/memory.hpp"

using namespace tessera;

namespace {

DeviceMesh watched_mesh(const char* variable, const char* value = "1",
                        const MeshShape& shape = {1, 2, 2}) {
  const std::string before = getenv(variable) == nullptr ? "0" : getenv(variable);
  setenv(variable, value, 1);
  const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
  setenv(variable, before.c_str(), 1);
  return mesh;
}
DeviceMesh lockstep_mesh() {
  return watched_mesh("TESSERA_LOCKSTEP");
}

// The text of the error, which must be of this kind; "" if there is none.
template <class Kind, class Call>
std::string text_of(const Call& call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  }
  return {};
}

// A difference is one error with one text, on all ranks.
template <class Call>
std::string out_of_step(const Call& call) {
  const std::string text = text_of<LockstepError>(call);
  CHECK(!text.empty());
  CHECK(same_on_all_ranks(text));
  return text;
}

bool has(const std::string& text, const std::string& part) {
  INFO(text << " should have " << part);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

void reduce(const DeviceMesh& mesh, int axis = kCp1, std::int64_t count = 4,
            DType dtype = DType::f32, const char* label = "bias") {
  all_reduce(mesh, axis, ReduceOp::sum, Tensor::zeros({count}, dtype), label);
}

}  // namespace

TEST_CASE("another operation on one rank", "[lockstep]") {
  const DeviceMesh mesh = lockstep_mesh();
  const bool odd = test_rank() == 2;
  const Scope trunk("trunk");
  reduce(mesh);
  const std::string number = "number " + std::to_string(mesh.records().back().sequence + 1);
  SECTION("count") {
    const std::string text = out_of_step([&] { reduce(mesh, kCp1, odd ? 5 : 4); });
    has(text, "[layer trunk]");
    has(text, "operation " + number + " of mesh dp=1 cp0=2 cp1=2");
    has(text, "ranks 0-1, 3: all_reduce on cp1 of 'bias', " + number +
                  ", layer trunk, called at "
                  "tests/unit/test_lockstep.cpp:");
    has(text, ", 4 x f32; rank 2: ");
    has(text, ", 5 x f32");
  }
  SECTION("dtype") {
    has(out_of_step([&] { reduce(mesh, kCp1, 4, odd ? DType::f64 : DType::f32); }), "4 x f64");
  }
  SECTION("axis") {
    has(out_of_step([&] { reduce(mesh, odd ? kCp0 : kCp1); }), "rank 2: all_reduce on cp0");
  }
  SECTION("label") {
    has(out_of_step([&] { reduce(mesh, kCp1, 4, DType::f32, odd ? "gate" : "bias"); }),
        "rank 2: all_reduce on cp1 of 'gate'");
  }
  SECTION("layer") {
    has(out_of_step([&] {
          const Scope layer(odd ? "tri_mul_in" : "tri_mul_out");
          reduce(mesh);
        }),
        "rank 2: all_reduce on cp1 of 'bias', " + number + ", layer trunk.tri_mul_in,");
  }
  SECTION("order") {
    has(out_of_step([&] {
          if (odd) barrier(mesh);
          reduce(mesh);
          if (!odd) barrier(mesh);
        }),
        "rank 2: barrier on dp+cp0+cp1");
  }
  SECTION("two call sites that are alike in everything else") {
    const std::string text = out_of_step([&] {
      if (odd)
        barrier(mesh);
      else
        barrier(mesh);
    });
    has(text, "rank 2: barrier");
  }
  // The mesh is of no use any more, and says why.
  require_error<CommStateError>([&] { reduce(mesh); }, "did not end", number);
}

TEST_CASE("exchanges agree message by message", "[lockstep]") {
  const DeviceMesh mesh = lockstep_mesh();
  const int rank = test_rank();
  const int next = (rank + 1) % 4, before = (rank + 3) % 4;
  const auto of = [](std::int64_t n) { return Tensor::zeros({n}, DType::f32); };
  SECTION("sizes may differ from pair to pair, and some may send nothing") {
    exchange(mesh, {"exchange", "ring", "uneven"}, {{next, of(rank)}}, {{before, of(before)}})
        .wait();
    exchange(mesh, {"exchange", "ring", "none"}, {}, {}).wait();
    CHECK(mesh.records().size() == 2);
  }
  SECTION("a message that is not expected as it is sent") {
    const std::string text = out_of_step([&] {
      exchange(mesh, {"exchange", "ring", "x"}, {{next, of(4)}}, {{before, of(rank == 2 ? 3 : 4)}})
          .wait();
    });
    has(text, "rank 1 sends 4 x f32 to rank 2, which expects 3 x f32");
  }
  SECTION("a message that nobody expects") {
    const std::string text = out_of_step([&] {
      std::vector<Outgoing> sends;
      if (rank == 3) sends.push_back({0, of(2)});
      exchange(mesh, {"exchange", "ring", "x"}, std::move(sends), {}).wait();
    });
    has(text, "rank 3 sends 2 x f32 to rank 0, which expects nothing");
  }
  SECTION("the other way round") {
    const Tensor x = of(4), y = of(4);
    out_of_step([&] { shift(mesh, kCp1, 1, x, y, rank == 0 ? "ring x" : "ring y").wait(); });
  }
}

TEST_CASE("groups of an axis may differ from each other", "[lockstep]") {
  const DeviceMesh mesh = lockstep_mesh();
  const std::int64_t count = mesh.coordinate(kCp0) == 0 ? 4 : 6;
  reduce(mesh, kCp1, count);
  CHECK(mesh.records().size() == 1);
}

TEST_CASE("a rank that does not come is named", "[lockstep][timeout]") {
  const std::string before =
      getenv("TESSERA_TIMEOUT_S") == nullptr ? "" : getenv("TESSERA_TIMEOUT_S");
  for (const int absent : {0, 3}) {
    setenv("TESSERA_TIMEOUT_S", "3", 1);
    const DeviceMesh mesh = lockstep_mesh();
    setenv("TESSERA_TIMEOUT_S", before.c_str(), 1);
    if (test_rank() != absent) {
      const Scope scope("head");
      require_error<TimeoutError>([&] { reduce(mesh); }, "[layer head]",
                                  absent == 0 ? "ranks 1-3: all_reduce" : "ranks 0-2: all_reduce",
                                  "rank " + std::to_string(absent) + " did not answer",
                                  "test_lockstep.cpp");
    }
    CHECK(true_on_all_ranks(true));  // keeps the absent rank here, outside of the mesh
  }
}

TEST_CASE("lockstep is on everywhere if it is on somewhere", "[lockstep]") {
  const DeviceMesh mesh = watched_mesh("TESSERA_LOCKSTEP", test_rank() == 3 ? "1" : "0");
  out_of_step([&] { reduce(mesh, kCp1, test_rank() == 0 ? 1 : 2); });
  setenv("TESSERA_LOCKSTEP", "yes", 1);
  require_error<UsageError>(
      [] {
        DeviceMesh::create(test_world(), {1, 2, 2});
      },
      "TESSERA_LOCKSTEP", "'yes'");
  setenv("TESSERA_LOCKSTEP", "0", 1);
}

TEST_CASE("replicas are compared where they should be equal, and nowhere else", "[replicas]") {
  const bool odd = test_rank() == 2;  // cp0 = 1, cp1 = 0
  const DeviceMesh mesh = watched_mesh("TESSERA_CHECK_REPLICAS");
  const auto make = [&](const Placements& placements) {
    return zeros({4, 4, 4}, DType::f32, mesh, placements);
  };
  const auto flip = [](const DTensor& x) { x.local().host_data<float>()[1] = -0.0F; };
  const Scope scope("trunk");
  SECTION("equal") {
    for (const Placements& p : {replicated_placements(), single_placements(), pair_placements()})
      check_replicas(make(p), "linear", "weight");
  }
  SECTION("a bit that compares equal as a number") {
    const DTensor x = make(replicated_placements());
    if (odd) flip(x);
    const std::string text = text_of<ReplicaError>([&] { check_replicas(x, "linear", "weight"); });
    CHECK(same_on_all_ranks(text));
    has(text, "in linear [layer trunk]");
    has(text, "axis cp0+cp1 differ; tensor 'weight'");
    has(text, "ranks 0-1, 3: checksum");
    has(text, "; rank 2: checksum");
  }
  SECTION("on the axis on which it is replicated") {
    const DTensor x = make(single_placements());  // replicated on cp1: rank 2 against rank 3
    if (odd) flip(x);
    const std::string text = text_of<ReplicaError>([&] { check_replicas(x, "linear", "s"); });
    has(text, "axis cp1 differ");
    CHECK(text.find("ranks 0-1") == std::string::npos);
  }
  SECTION("parts of a tensor are no replicas") {
    const DTensor x = make(pair_placements());
    if (odd) flip(x);
    check_replicas(x, "linear", "z");
  }
  CHECK(mesh.records().empty());  // not an operation of the ledger
}

TEST_CASE("without the variables nothing is compared", "[lockstep][replicas]") {
  setenv("TESSERA_LOCKSTEP", "0", 1);
  const DeviceMesh mesh = watched_mesh("TESSERA_CHECK_REPLICAS", "0");
  const DTensor x = zeros({4}, DType::f32, mesh, replicated_placements());
  x.local().host_data<float>()[0] = static_cast<float>(test_rank());
  check_replicas(x, "linear", "weight");
  reduce(mesh, kCp1, 4, DType::f32, test_rank() == 0 ? "this" : "that");
}
