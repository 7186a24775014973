// SPDX-License-Identifier: MIT
#include "support/mpi.hpp"

#include <mpi.h>

#include "support/session.hpp"

namespace tessera {

Communicator test_world() {
  return test::world.value();
}

int test_rank() {
  return test_world().rank();
}

int test_ranks() {
  return test_world().size();
}

Communicator test_subworld() {
  return test_world().split(test_rank() == 0 ? -1 : 0, -test_rank());
}

std::vector<MeshShape> test_meshes(int ranks) {
  std::vector<MeshShape> meshes;
  for (int dp = 1; dp <= ranks; ++dp)
    for (int cp0 = 1; cp0 <= ranks; ++cp0)
      if (ranks % (dp * cp0) == 0) meshes.push_back({dp, cp0, ranks / (dp * cp0)});
  return meshes;
}

bool true_on_all_ranks(bool value) {
  int mine = value ? 1 : 0;
  int all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return all == 1;
}

bool same_on_all_ranks(std::string_view text) {
  int length = static_cast<int>(text.size());
  MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD);
  std::string first(text);
  first.resize(static_cast<std::size_t>(length));
  MPI_Bcast(first.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD);
  return true_on_all_ranks(first == text);
}

}  // namespace tessera
