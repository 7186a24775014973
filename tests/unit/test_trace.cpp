// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Timelines: what is recorded, what is hidden, and the file of all ranks.
#include "tessera/runtime/trace.hpp"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/harness/trace.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/memory.hpp"

namespace tessera {

using trace::Event;
using trace::Kind;

TEST_CASE("nothing is recorded unless it is asked for") {
  trace::take();
  {
    const Scope scope("layer");
    const trace::Span span(Kind::block, "block");
  }
  CHECK(trace::take().empty());
}

TEST_CASE("spans nest, know their scope and end in order") {
  trace::take();
  {
    const trace::Recording recording(true);
    const Scope outer("outer");
    const Scope unnamed("");
    const Scope inner("inner");
    const trace::Span span(Kind::block, "product");
  }
  CHECK_FALSE(trace::enabled());
  const std::vector<Event> events = trace::take();
  REQUIRE(events.size() == 3);
  CHECK(events[0].name == "product");
  CHECK(events[0].kind == Kind::block);
  CHECK(events[0].scope == "outer.inner");
  CHECK(events[1].name == "inner");
  CHECK(events[1].scope == "outer");
  CHECK(events[2].name == "outer");
  CHECK(events[2].kind == Kind::layer);
  for (std::size_t k = 0; k < 3; ++k) CHECK(events[k].begin <= events[k].end);
  CHECK(events[2].begin <= events[1].begin);
  CHECK(events[1].end <= events[2].end);
}

TEST_CASE("a recording ends with its block, also inside another") {
  const trace::Recording outer(true);
  {
    const trace::Recording off(false);
    CHECK_FALSE(trace::enabled());
  }
  CHECK(trace::enabled());
  trace::take();
}

TEST_CASE("hidden is what was in flight while nobody waited") {
  const auto event = [](Kind kind, double begin, double end) {
    return Event{.kind = kind, .name = "x", .scope = "", .begin = begin, .end = end};
  };
  const harness::Overlap nothing = harness::overlap_of({});
  CHECK(nothing.percent() == 0);
  // Two messages that overlap: in flight during [0, 6] and [10, 12], waits take [4, 7] of it.
  const harness::Overlap two = harness::overlap_of(
      {event(Kind::message, 0, 5), event(Kind::wait, 4, 7), event(Kind::message, 2, 6),
       event(Kind::message, 10, 12), event(Kind::block, 0, 4)});
  CHECK(two.in_flight == 8);
  CHECK(two.hidden == 6);
  CHECK(two.percent() == 75);
  const harness::Overlap all_waited = harness::overlap_of(
      {event(Kind::message, 1, 3), event(Kind::wait, 0, 2), event(Kind::wait, 2, 4)});
  CHECK(all_waited.hidden == 0);
}

TEST_CASE("texts of all ranks arrive at rank 0") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    // One of them is empty, and they have unlike lengths.
    const std::string own(static_cast<std::size_t>(3 * mesh.rank()),
                          static_cast<char>('a' + mesh.rank()));
    const std::vector<std::string> all = gather_strings(mesh, own);
    if (mesh.rank() != 0) {
      CHECK(all.empty());
      continue;
    }
    REQUIRE(all.size() == static_cast<std::size_t>(mesh.ranks()));
    for (std::size_t k = 0; k < all.size(); ++k)
      CHECK(all[k] == std::string(3 * k, static_cast<char>('a' + static_cast<int>(k))));
  }
}

TEST_CASE("the file has the messages, waits and scopes of every rank") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  trace::take();
  const harness::Timelines timelines(mesh);
  {
    const trace::Recording recording(true);
    const Scope scope("layer");
    const Tensor tensor = Tensor::zeros({5}, DType::f32);
    all_reduce(mesh, kCp1, ReduceOp::sum, tensor, "sum");
  }
  const harness::TraceFile file = timelines.collect("command");
  CHECK(trace::take().empty());
  if (mesh.rank() != 0) {
    CHECK(file.json.empty());
    return;
  }
  CHECK(file.summary.find("hidden") != std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(file.json);
  CHECK(json["otherData"]["command"] == "command");
  std::map<std::string, std::set<int>> ranks;  // by category
  std::map<std::string, int> open;
  for (const nlohmann::json& e : json["traceEvents"]) {
    if (e["ph"] == "M") continue;
    CHECK(e["ts"].get<double>() >= 0);
    ranks[e["cat"]].insert(e["pid"].get<int>());
    if (e["ph"] == "X") CHECK(e["dur"].get<double>() >= 0);
    if (e["ph"] == "b") {
      CHECK(e["args"]["axis"] == "cp1");
      CHECK(e["args"]["label"] == "sum");
      CHECK(e["args"]["scope"] == "layer");
      CHECK(e["args"]["bytes"].get<int>() > 0);
      ++open[e["id"]];
    }
    if (e["ph"] == "e") --open[e["id"]];
  }
  for (const auto& [id, count] : open) CHECK(count == 0);
  const auto all = static_cast<std::size_t>(mesh.ranks());
  CHECK(ranks["layer"].size() == all);
  CHECK(ranks["message"].size() == (all > 1 ? all : 0));
  CHECK(ranks["wait"].size() == (all > 1 ? all : 0));
}

}  // namespace tessera
