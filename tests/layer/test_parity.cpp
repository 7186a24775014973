// SPDX-License-Identifier: MIT
// ranks: 1 2 3 4 6 9
// Every case on every mesh of so many ranks, against its serial twin; and against golden files.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "support/catch.hpp"
#include "support/files.hpp"
#include "support/mpi.hpp"
#include "tessera/harness/parity.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

std::string report(const CaseResult& r) {
  std::string text =
      fmt::format("{} {}: worst {} {:.2e}", r.name, r.problem, r.worst().tensor, r.worst().max_rel);
  for (const std::string& failure : r.failures()) text += "\n  " + failure;
  return text;
}

void check_case(const Case& c, const Sizes& sizes, const DeviceMesh& mesh, DType dtype) {
  // The substrate's operations do on a mesh what they do on one rank, but for the order of sums.
  const bool exact = c.name.starts_with("substrate.") && dtype == DType::f64;
  const CaseResult r = run_parity(c, sizes, mesh, {.dtype = dtype, .tolerance = exact ? 1e-12 : 0});
  INFO(mesh.describe() << " " << report(r));
  CHECK(r.pass());
  CHECK(r.saved_bytes == r.saved_budget);
  CHECK(r.params_checked + r.inputs_checked + r.outputs_checked ==
        static_cast<int>(r.tensors.size()));
}

// N, channels and batch are all different and hide no swap.
Sizes sizes_for(const MeshShape& shape) {
  const int step = std::lcm(shape.cp0, shape.cp1);
  return {2 * shape.dp, step * ((10 + step - 1) / step), 7};
}

// Whether the mesh cuts every input of a golden file evenly.
bool divides(const MeshShape& shape, const Case& c, const SafetensorsFile& file) {
  for (const InputSpec& input : c.inputs) {
    const Shape x = file.info("in." + input.name).shape;
    const Placements placements = golden_placements(c, input, static_cast<int>(x.size()));
    const bool flat = placements.size() == 2;  // on the flat view of the mesh
    const std::array<std::int64_t, 3> parts{shape.dp, flat ? shape.cp0 * shape.cp1 : shape.cp0,
                                            shape.cp1};
    for (std::size_t axis = 0; axis < placements.size(); ++axis)
      if (is_shard(placements[axis]) &&
          x[static_cast<std::size_t>(std::get<Shard>(placements[axis]).dim)] % parts[axis] != 0)
        return false;
  }
  return true;
}

}  // namespace

TEST_CASE("every layer equals its serial twin on every mesh, f64") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    for (const Case& c : all_cases()) check_case(c, sizes_for(shape), mesh, DType::f64);
  }
}

TEST_CASE("every layer equals its serial twin on the squarest mesh, f32 and bf16") {
  const MeshShape shape = squarest(test_ranks());
  const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Case& c : all_cases()) check_case(c, sizes_for(shape), mesh, dtype);
}

TEST_CASE("one token per rank and axis, one channel, one sample") {
  const MeshShape shape = squarest(test_ranks());
  const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
  const std::int64_t tokens = std::max<std::int64_t>(2, std::lcm(shape.cp0, shape.cp1));
  for (const char* name :
       {"triangle_multiplication_outgoing", "triangle_multiplication_incoming", "linear"})
    check_case(*find_case(name), {1, tokens, 2}, mesh, DType::f64);
}

TEST_CASE("a mesh on other ranks than the first") {
  const Communicator part = test_subworld();
  if (part.size() == 0) return;
  const MeshShape shape = squarest(part.size());
  const DeviceMesh mesh = DeviceMesh::create(part, shape);
  for (const char* name : {"triangle_multiplication_outgoing", "transition"})
    check_case(*find_case(name), sizes_for(shape), mesh, DType::f64);
}

TEST_CASE("golden files, on every mesh that divides their tokens") {
  for (const Case& c : all_cases()) {
    if (!c.has_golden) continue;
    const std::string path = golden_directory() / (c.name + ".safetensors");
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const MeshShape& shape : test_meshes(test_ranks())) {
      if (!divides(shape, c, file)) continue;
      const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        // The layers of a stack have been everywhere by themselves.
        if (c.stack && dtype != DType::f64 && shape != squarest(test_ranks())) continue;
        const CaseResult r = run_golden(c, file, path, mesh, {.dtype = dtype});
        INFO(mesh.describe() << " " << name_of(dtype) << " " << report(r));
        CHECK(r.pass());
      }
    }
  }
}
