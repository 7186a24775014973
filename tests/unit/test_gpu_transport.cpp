// SPDX-License-Identifier: MIT
// ranks: 1 4
// On the imitation, which is as late as a GPU can be: work waits in its streams until the host
// waits for it. Hence MPI gets wrong data in every run if it gets memory too early.
#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "support/variable.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/mesh/transport.hpp"
#include "tessera/runtime/stream.hpp"

using namespace tessera;

namespace {

constexpr const char* kCudaAware = "TESSERA_CUDA_AWARE";

Device own_gpu() {
  return {DeviceKind::imitation, test_rank()};
}

DeviceMesh gpu_mesh(const char* cuda_aware, MeshShape shape = {1, 1, test_ranks()}) {
  const Variable asked(kCudaAware, cuda_aware);
  return DeviceMesh::create(test_world(), shape, own_gpu());
}

// The memory of rank `rank` in these tests.
Tensor values_of(int rank, std::int64_t size, DType dtype = DType::f64) {
  return random_tensor({size}, dtype, "rank " + std::to_string(rank));
}

class Mistake {
 public:
  explicit Mistake(Mutation mutation) { set_mutation(mutation); }
  ~Mistake() { set_mutation(Mutation::none); }
  Mistake(const Mistake&) = delete;
  Mistake& operator=(const Mistake&) = delete;
};

// A shift around the ranks whose send buffer is still to be computed and whose receive buffer is
// still to be read when the messages start. The buffers are of a kind that MPI may be given, or
// not.
struct Shifted {
  Tensor expected, arrived;  // on the host
  Tensor before, copied_before;
};
Shifted shift_in_flight(const DeviceMesh& mesh, std::int64_t size,
                        Purpose purpose = Purpose::communication) {
  const PurposeScope scope(purpose);
  const int from = (test_rank() + test_ranks() - 1) % test_ranks();
  const Tensor own = values_of(test_rank(), size).to(mesh.device());
  const Tensor send = Tensor::zeros({size}, DType::f64, mesh.device());
  const Tensor receive = Tensor::full({size}, -1, DType::f64, mesh.device());
  const Tensor copied = Tensor::zeros({size}, DType::f64, mesh.device());
  const Tensor result = Tensor::zeros({size}, DType::f64, mesh.device());
  synchronize(mesh.device());
  add(2, own, 0, own, send);
  add(1, receive, 0, own, copied);
  shift(mesh, kCp1, 1, send, receive, "x").wait();
  add(1, receive, 0, own, result);
  record(mesh.device()).wait();  // the operations, and the copies that they were told to wait for
  const Tensor expected = values_of(from, size);
  scale(2, expected);
  return {expected, result.to(cpu_device), Tensor::full({size}, -1, DType::f64),
          copied.to(cpu_device)};
}

// Odd ranks send what they have at once, even ones still have to read the memory that it goes to.
// Returns what these read.
Tensor receive_into_use(const DeviceMesh& mesh) {
  const PurposeScope purpose(Purpose::communication);
  const Tensor receive = Tensor::full({1000}, -1, DType::f64, mesh.device());
  const Tensor read = Tensor::zeros({1000}, DType::f64, mesh.device());
  synchronize(mesh.device());
  add(1, receive, 0, receive, read);
  const int peer = test_rank() ^ 1;
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  if (test_rank() % 2 == 0)
    receives.push_back({peer, receive});
  else
    sends.push_back({peer, values_of(0, 1000)});
  exchange(mesh, {"exchange", "cp1", "x"}, sends, receives).wait();
  record(mesh.device()).wait();
  return read.to(cpu_device);
}

}  // namespace

TEST_CASE("the route is what was asked for", "[gpu_transport]") {
  if (test_ranks() == 1) {
    CHECK(describe(gpu_mesh("on").transport()) == "none (one rank)");
    CHECK(describe(DeviceMesh::create(test_world(), {}).transport()) == "host memory");
    return;
  }
  CHECK(describe(DeviceMesh::create(test_world(), {1, 2, 2}).transport()) == "host memory");
  CHECK(gpu_mesh("on").transport().route == Route::direct);
  CHECK(describe(gpu_mesh("on", {1, 2, 2}).transport()) == "direct (CUDA-aware MPI, probed)");
  CHECK(describe(gpu_mesh("off").transport()) ==
        "staged through pinned host memory (TESSERA_CUDA_AWARE=off)");
  for (const char* automatic : {"auto", "", static_cast<const char*>(nullptr)})
    CHECK(describe(gpu_mesh(automatic).transport()) ==
          "staged through pinned host memory (the MPI does not say that it is CUDA-aware)");
}

TEST_CASE("all ranks refuse a wrong or unequal setting", "[gpu_transport]") {
  require_error<UsageError>([] { gpu_mesh("yes"); }, kCudaAware, "'yes'", "auto, on or off");
  if (test_ranks() == 1) return;
  require_error<UsageError>([] { gpu_mesh(test_rank() == 2 ? "yes" : "on"); }, kCudaAware, "'yes'");
  require_error<UsageError>([] { gpu_mesh(test_rank() == 2 ? "off" : "on"); }, kCudaAware,
                            "on and off", "one value on all ranks");
}

TEST_CASE("a probe that fails on one rank counts for all", "[gpu_transport]") {
  if (test_ranks() == 1) return;
  const DeviceMesh mesh = gpu_mesh("off");
  const auto automatic = [&](bool asserted) {
    return choose_transport(mesh, CudaAware::automatic, asserted);
  };
  CHECK(automatic(true).route == Route::direct);
  CHECK(automatic(test_rank() != 1).route == Route::staged);  // one rank's MPI says no
  const Mistake mistake(test_rank() == 2 ? Mutation::corrupt_probe : Mutation::none);
  CHECK(automatic(true).route == Route::staged);
  CHECK(automatic(true).reason == "the MPI says that it is CUDA-aware, but the probe failed");
  require_error<InitError>([] { gpu_mesh("on"); }, "TESSERA_CUDA_AWARE=on", "imitation",
                           "TESSERA_CUDA_AWARE=auto or off");
}

TEST_CASE("messages wait for the device, and the device for messages", "[gpu_transport]") {
  constexpr std::int64_t piece = kStagedPieceBytes / 8;
  for (const char* aware : {"on", "off"}) {
    const DeviceMesh mesh = gpu_mesh(aware);
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{1000}, piece, 2 * piece + 3}) {
      for (const Purpose purpose : {Purpose::communication, Purpose::activation}) {
        CAPTURE(aware, size, name_of(purpose));
        mesh.clear_records();
        const Shifted shifted = shift_in_flight(mesh, size, purpose);
        CHECK(bitwise_equal(shifted.arrived, shifted.expected));
        CHECK(bitwise_equal(shifted.copied_before, shifted.before));
        if (test_ranks() == 1) continue;
        CHECK(mesh.records().at(0).messages == 1);  // in however many pieces
        CHECK(mesh.records().at(0).bytes == 8 * size);
      }
    }
    if (test_ranks() > 1)
      for (const double value : to_values(receive_into_use(mesh))) CHECK(value == -1);
  }
}

TEST_CASE("whoever does not wait gets wrong data", "[gpu_transport]") {
  if (test_ranks() == 1) return;
  const auto shifted = [](const char* aware, Mutation mutation) {
    const DeviceMesh mesh = gpu_mesh(aware);
    const Mistake mistake(mutation);
    return shift_in_flight(mesh, 100);  // so small that MPI reads them at once
  };
  for (const char* aware : {"on", "off"}) {
    CAPTURE(aware);
    const Shifted early = shifted(aware, Mutation::send_too_early);
    CHECK_FALSE(bitwise_equal(early.arrived, early.expected));
  }
  const Shifted unseen = shifted("off", Mutation::read_too_early);
  CHECK_FALSE(bitwise_equal(unseen.arrived, unseen.expected));
  const DeviceMesh direct = gpu_mesh("on");
  const Mistake overwritten(Mutation::receive_too_early);
  const bool new_values = bitwise_equal(receive_into_use(direct), values_of(0, 1000));
  CHECK(new_values == (test_rank() % 2 == 0));
}

TEST_CASE("messages of a pair keep their order, whatever memory they are in", "[gpu_transport]") {
  for (const char* aware : {"on", "off"}) {
    CAPTURE(aware);
    const DeviceMesh mesh = gpu_mesh(aware);
    const int to = (test_rank() + 1) % test_ranks();
    const int from = (test_rank() + test_ranks() - 1) % test_ranks();
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (int k = 0; k < 6; ++k) {
      const Device send_from = k % 2 == 0 ? mesh.device() : cpu_device;  // ready at once
      const Device receive_in = k % 3 == 0 ? cpu_device : mesh.device();
      const Tensor x = Tensor::zeros({5}, DType::f64, send_from);
      fill(x, 10 * test_rank() + k);
      sends.push_back({to, x});
      receives.push_back({from, Tensor::zeros({5}, DType::f64, receive_in)});
    }
    exchange(mesh, {"exchange", "cp1", "x"}, sends, receives).wait();
    for (int k = 0; k < 6; ++k) CHECK(receives[std::size_t(k)].data.item({4}) == 10 * from + k);
  }
}

TEST_CASE("buffers live until the device is done with them", "[gpu_transport]") {
  constexpr int kRounds = 40;
  for (const char* aware : {"on", "off"}) {
    CAPTURE(aware);
    const DeviceMesh mesh = gpu_mesh(aware);
    const Tensor sum = Tensor::zeros({300}, DType::f64, mesh.device());
    for (int round = 0; round < kRounds; ++round) {  // no value is read in between
      const Tensor send =
          Tensor::full({300}, test_rank() + 100.0 * round, DType::f64, mesh.device());
      const Tensor receive = Tensor::empty({300}, DType::f64, mesh.device());
      shift(mesh, kCp1, 1, send, receive, "x").wait();
      add(1, receive, 1, sum, sum);
    }
    const int from = (test_rank() + test_ranks() - 1) % test_ranks();
    const double expected = kRounds * from + 100.0 * kRounds * (kRounds - 1) / 2;
    for (const double value : to_values(sum)) CHECK(value == expected);
  }
}

TEST_CASE("collectives have the bits, messages and memory of the CPU's", "[gpu_transport]") {
  struct Run {
    std::vector<Tensor> results;
    std::vector<CommRecord> records;
    std::int64_t peak, communication;
  };
  const auto run = [](const DeviceMesh& mesh, DType dtype) {
    // Made on the CPU and moved while nothing is counted.
    const std::int64_t rows = 12;
    const Tensor x =
        random_tensor({rows, 5000}, dtype, "x" + std::to_string(mesh.rank())).to(mesh.device());
    mesh.clear_records();
    memory_ledger::reset_peak();
    const std::int64_t before = memory_ledger::total().live;
    Run all;
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min}) {
      all.results.push_back(x.clone());
      all_reduce(mesh, kCp1, op, all.results.back(), "x");
      all.results.push_back(x.narrow(0, 0, 1).clone());  // by doubling
      all_reduce(mesh, kCp0, op, all.results.back(), "x");
    }
    all.results.push_back(reduce_scatter(mesh, kCp1, x, 0, "x"));
    all.results.push_back(all_gather(mesh, kCp0, x, 1, "x"));
    all.results.push_back(all_to_all(mesh, kCp1, x, 0, 1, "x"));
    all.results.push_back(x.clone());
    broadcast(mesh, kCp1, 0, all.results.back(), "x");
    all.peak = memory_ledger::total().peak - before;
    all.communication = memory_ledger::total(Purpose::communication).peak;
    all.records = mesh.records();
    return all;
  };
  const MeshShape shape = squarest(test_ranks());
  const DeviceMesh cpu = DeviceMesh::create(test_world(), shape);
  for (const DType dtype : {DType::f64, DType::bf16}) {
    const Run expected = run(cpu, dtype);
    for (const char* aware : {"on", "off"}) {
      CAPTURE(aware, name_of(dtype));
      const Run found = run(gpu_mesh(aware, shape), dtype);
      REQUIRE(found.results.size() == expected.results.size());
      for (std::size_t k = 0; k < found.results.size(); ++k) {
        CAPTURE(k);
        CHECK(bitwise_equal(found.results[k].to(cpu_device), expected.results[k]));
      }
      CHECK(found.peak == expected.peak);
      CHECK(found.communication == expected.communication);
      REQUIRE(found.records.size() == expected.records.size());
      for (std::size_t k = 0; k < found.records.size(); ++k) {
        CHECK(found.records[k].op == expected.records[k].op);
        CHECK(found.records[k].messages == expected.records[k].messages);
        CHECK(found.records[k].bytes == expected.records[k].bytes);
      }
    }
  }
}
