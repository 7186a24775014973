// SPDX-License-Identifier: MIT
// ranks: 1 4
// Environment variables with values that they cannot have.
#include "tessera/runtime/variables.hpp"

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/mpi.hpp"
#include "support/variable.hpp"
#include "tessera/mesh/device_mesh.hpp"

using namespace tessera;

namespace {
constexpr const char* kName = "TESSERA_OF_THIS_TEST";

DeviceMesh mesh_of_all() {
  return DeviceMesh::create(test_world(), squarest(test_ranks()));
}
}  // namespace

TEST_CASE("a variable that is not set, or empty, has its default") {
  for (const char* text : {static_cast<const char*>(nullptr), ""}) {
    const Variable variable(kName, text);
    CHECK(text_from_environment(kName).empty());
    CHECK_FALSE(flag_from_environment(kName));
    CHECK(number_from_environment(kName, 7, 1, 9) == 7);
  }
}

TEST_CASE("flags are 0 or 1") {
  CHECK((Variable(kName, "1"), flag_from_environment(kName)));
  CHECK_FALSE((Variable(kName, "0"), flag_from_environment(kName)));
  for (const char* text : {"yes", "on", "true", "2", "01", " 1"}) {
    const Variable variable(kName, text);
    require_error<UsageError>([] { flag_from_environment(kName); }, kName,
                              std::string("'") + text + "'", "0 or 1");
  }
}

TEST_CASE("numbers are whole and within their range") {
  CHECK((Variable(kName, "9"), number_from_environment(kName, 7, 1, 9)) == 9);
  for (const char* text : {"0", "10", "-1", "1.5", "1x", "x", " 1", "99999999999999999999"}) {
    const Variable variable(kName, text);
    require_error<UsageError>([] { number_from_environment(kName, 7, 1, 9); }, kName,
                              std::string("'") + text + "'", "a whole number from 1 to 9");
  }
}

TEST_CASE("a wrong value on one rank is an error on all when a mesh is made") {
  for (const char* name : {"TESSERA_CHECK_FINITE", "TESSERA_LOCKSTEP", "TESSERA_CHECK_REPLICAS",
                           "TESSERA_TIMEOUT_S", "TESSERA_CUDA_AWARE"}) {
    const Variable variable(name, test_rank() == test_ranks() - 1 ? "yes" : nullptr);
    require_error<UsageError>(mesh_of_all, name, "'yes'");
  }
  mesh_of_all();
}

TEST_CASE("so is one of the imitation of a GPU") {
  for (const char* name :
       {"TESSERA_IMITATION_DEVICES", "TESSERA_IMITATION_MEMORY_MIB", "TESSERA_IMITATION_GUARD"}) {
    const Variable variable(name, test_rank() == test_ranks() - 1 ? "yes" : nullptr);
    const Device gpu{DeviceKind::imitation, test_rank()};
    require_error<UsageError>(
        [&] { DeviceMesh::create(test_world(), squarest(test_ranks()), gpu); }, name, "'yes'");
  }
}

TEST_CASE("the ranks agree on whether values must be finite") {
  const Variable variable("TESSERA_CHECK_FINITE", test_rank() == 0 ? "1" : nullptr);
  if (test_ranks() == 1)
    mesh_of_all();
  else
    require_error<UsageError>(mesh_of_all, "TESSERA_CHECK_FINITE", "one value on all ranks");
}
