// SPDX-License-Identifier: MIT
// ranks: 1 4
#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "support/variable.hpp"
#include "tessera/mesh/gpu_binding.hpp"

using namespace tessera;

namespace {

using Visible = std::vector<std::vector<std::string>>;
using Indices = std::vector<int>;

Indices assigned(const Visible& visible) {
  return assign_gpus(visible, GpuSharing::refuse);
}

}  // namespace

TEST_CASE("ranks that see the same GPUs take them in turn", "[gpu_binding]") {
  CHECK(assigned({{"a", "b"}, {"a", "b"}}) == Indices{0, 1});
  CHECK(assigned({{"a", "b", "c"}, {"a", "b", "c"}}) == Indices{0, 1});
  CHECK(assigned({}) == Indices{});
}

TEST_CASE("a launcher may show each rank a GPU of its own", "[gpu_binding]") {
  CHECK(assigned({{"a"}, {"b"}, {"c"}}) == Indices{0, 0, 0});
  CHECK(assigned({{"a", "b"}, {"c", "d"}, {"a", "b"}, {"c", "d"}}) == Indices{0, 0, 1, 1});
}

TEST_CASE("several ranks per GPU are an error unless allowed", "[gpu_binding]") {
  const Visible three(3, {"a", "b"});
  require_error<InitError>([&] { assigned(three); }, "3 ranks on a node with 2 GPU(s)",
                           "--oversubscribe-gpus");
  CHECK(assign_gpus(three, GpuSharing::allow) == Indices{0, 1, 0});
  // One visible GPU per rank, and all the same one.
  require_error<InitError>([] { assigned({{"a"}, {"a"}}); }, "2 ranks on a node with 1 GPU(s)");
  CHECK(assign_gpus({{"a"}, {"a"}}, GpuSharing::allow) == Indices{0, 0});
  // As many GPUs as ranks, but two ranks see the same one only.
  require_error<InitError>([] { assigned({{"a"}, {"a"}, {"b", "c"}}); }, "3 ranks", "3 GPU(s)");
}

TEST_CASE("a rank without a GPU is an error", "[gpu_binding]") {
  require_error<DeviceError>(
      [] {
        assign_gpus({{"a"}, {}}, GpuSharing::allow);
      },
      "local rank 1 of 2", "CUDA_VISIBLE_DEVICES");
}

TEST_CASE("the ranks of this node take the imitated GPUs in turn", "[gpu_binding]") {
  const Device own = bind_gpu(test_world(), DeviceKind::imitation);
  CHECK(own == Device{DeviceKind::imitation, test_rank()});
  CHECK(parse_device("imitation") == own);
  if (test_ranks() == 1) return;
  const Variable fewer("TESSERA_IMITATION_DEVICES", "2");
  require_error<InitError>([] { bind_gpu(test_world(), DeviceKind::imitation); },
                           "4 ranks on a node with 2 GPU(s)", "--oversubscribe-gpus");
  CHECK(bind_gpu(test_world(), DeviceKind::imitation, GpuSharing::allow).index == test_rank() % 2);
}

TEST_CASE("before MPI starts a rank takes the GPU that it will be given", "[gpu_binding]") {
  for (const char* launcher : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    CAPTURE(launcher);
    const Variable open_mpi("OMPI_COMM_WORLD_LOCAL_RANK", nullptr);
    const Variable local(launcher, "1");
    choose_gpu_before_mpi(DeviceKind::imitation);
    CHECK(parse_device("imitation").index == 1);
    const Variable beyond(launcher, "not a number");
    choose_gpu_before_mpi(DeviceKind::imitation);  // left to bind_gpu()
    CHECK(parse_device("imitation").index == 1);
  }
  bind_gpu(test_world(), DeviceKind::imitation);
}
