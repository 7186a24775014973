// SPDX-License-Identifier: MIT
// What a distributed test needs to know about the ranks it runs on.
#pragma once

#include <string_view>
#include <vector>

#include "support/errors.hpp"
#include "tessera/mesh/communicator.hpp"
#include "tessera/mesh/device_mesh.hpp"

namespace tessera {

Communicator test_world();
int test_rank();
int test_ranks();

// All ranks but world rank 0, last one first: rank 0 of it is not world rank 0. Empty (size 0) on
// world rank 0. Collective over the world.
Communicator test_subworld();

// Every (dp, cp0, cp1) whose product is `ranks`, dp = 1 first.
std::vector<MeshShape> test_meshes(int ranks);

// Collective over the world: what was true or equal on every rank.
bool true_on_all_ranks(bool value);
bool same_on_all_ranks(std::string_view text);

}  // namespace tessera
