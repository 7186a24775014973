// SPDX-License-Identifier: MIT
// ranks: 1 4
// Every case on the device against the same ranks on the CPU: outputs, gradients and ledgers.
#include <fmt/format.h>

#include <algorithm>

#include "gpu/device.hpp"
#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/harness/ledgers.hpp"
#include "tessera/harness/parity.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

constexpr Sizes kSizes{2, 12, 7};

std::string report(const CaseResult& r) {
  std::string text =
      fmt::format("{} {}: worst {} {:.2e}", r.name, r.problem, r.worst().tensor, r.worst().max_rel);
  for (const std::string& failure : r.failures()) text += "\n  " + failure;
  return text;
}

CaseResult run_against_cpu(const Case& c, DType dtype, double tolerance = 0) {
  const MeshShape shape = squarest(test_ranks());
  return run_parity(c, kSizes, DeviceMesh::create(test_world(), shape, test_device()),
                    {.dtype = dtype,
                     .tolerance = tolerance,
                     .reference = DeviceMesh::create(test_world(), shape, cpu_device)});
}

void check_cases(DType dtype) {
  for (const Case& c : all_cases()) {
    const CaseResult r = run_against_cpu(c, dtype);
    INFO(report(r));
    CHECK(r.pass());
    CHECK(r.params_checked + r.inputs_checked + r.outputs_checked ==
          static_cast<int>(r.tensors.size()));
  }
}

}  // namespace

TEST_CASE("every layer equals the CPU's, f64") {
  check_cases(DType::f64);
}

TEST_CASE("every layer equals the CPU's, f32") {
  check_cases(DType::f32);
}

TEST_CASE("every layer equals the CPU's, bf16") {
  check_cases(DType::bf16);
}

TEST_CASE("a difference to the CPU and between ledgers is found") {
  const Case& c = *find_case("triangle_multiplication_outgoing");
  // The device adds in another order: not one bit of difference would be no device at all.
  const CaseResult r = run_against_cpu(c, DType::f32, 1e-30);
  CHECK_FALSE(r.pass());
  CHECK(r.ledger_differences.empty());

  CaseResult other = r;
  other.saved_bytes += 8;
  other.backward.push_back({"all_reduce", "cp0", 1, 2, 64});
  other.memory.push_back({c.name + ".extra", Purpose::activation, 64, 64});
  other.memory.push_back({c.name + ".product", Purpose::workspace, 0, 64});  // fits the device
  CHECK(compare_ledgers(other, r).size() == 4);

  CaseResult higher = r;
  const auto entry =
      std::find_if(higher.memory.begin(), higher.memory.end(), [&](const MemoryEntry& e) {
        return e.scope.starts_with(c.name + ".") && e.purpose == Purpose::activation;
      });
  REQUIRE(entry != higher.memory.end());
  entry->peak += 8;
  CHECK(compare_ledgers(higher, r).size() == 1);
}
