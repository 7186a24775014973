// SPDX-License-Identifier: MIT
// ranks: 1 4
// The library inside a program that owns MPI, its memory and its threads.
#include <mpi.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/layers/trunk/triangle_multiplication.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;

namespace {

constexpr std::int64_t kTokens = 12;
constexpr std::int64_t kChannels = 4;
const Shape kPair{1, kTokens, kTokens, kChannels};

struct Run {
  std::vector<double> output, gradient;
  Var input;
};

// Triangle multiplication of x, forward and backward.
Run run_layer(Tape& tape, const DTensor& x) {
  const DeviceMesh& mesh = x.mesh();
  TriangleMultiplication layer({mesh, DType::f64}, kChannels, TriangleDirection::outgoing);
  layer.initialize(3);
  for (Var parameter : layer.parameters()) fill(parameter.value().local(), 0.1);
  const DTensor mask = empty({1, kTokens, kTokens}, DType::f64, mesh, pair_placements());
  fill(mask.local(), 1);
  const Var in = tape.input("x", x, true);
  const Var y = layer.forward(in, Var::constant(mask));
  tape.backward(y, uniform(kPair, DType::f64, mesh, pair_placements(), {5, 1}, -1, 1));
  return {to_values(y.value().local()), to_values(in.grad().local()), in};
}

DTensor random_pair(const DeviceMesh& mesh) {
  return uniform(kPair, DType::f64, mesh, pair_placements(), {4, 1}, -1, 1);
}

// An array of the caller, whose innermost rows are longer than what is used of them.
struct Array {
  std::shared_ptr<std::vector<double>> memory;
  Shape used, all;

  explicit Array(const Shape& shape) : used(shape), all(shape) {
    all.back() += 3;
    memory = std::make_shared<std::vector<double>>(numel(all), -7.0);
  }
  Tensor wrapped() const {
    return Tensor::wrap(memory->data(), used, row_major_strides(all), DType::f64, cpu_device,
                        memory);
  }
  bool rest_is_untouched() const {
    std::int64_t kept = 0;
    for (std::size_t k = 0; k < memory->size(); ++k)
      if (static_cast<std::int64_t>(k) % all.back() >= used.back() && (*memory)[k] == -7) ++kept;
    return kept == numel(all) - numel(used);
  }
};

std::ptrdiff_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

}  // namespace

TEST_CASE("ranks that are not part of it need not know of it", "[embedding]") {
  // The upper half trains, the lower half goes on with work of its own.
  const bool takes_part = test_rank() >= test_ranks() / 2;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, takes_part ? 1 : 0, test_rank(), &part);
  int fine = 0;
  if (takes_part) {
    const Communicator communicator = Communicator::duplicate(&part);
    for (int k = 0; k < 2; ++k) {
      const DeviceMesh mesh = DeviceMesh::create(communicator, squarest(communicator.size()));
      Tape tape;
      const Run run = run_layer(tape, random_pair(mesh));
      fine = run.output.empty() ? 0 : 1;
    }
  } else {
    for (int k = 1; k <= 100; ++k) MPI_Allreduce(&k, &fine, 1, MPI_INT, MPI_MIN, part);
    fine = fine == 100 ? 1 : 0;
  }
  int all_fine = 0;
  MPI_Allreduce(&fine, &all_fine, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  CHECK(all_fine == 1);
  MPI_Comm_free(&part);
}

TEST_CASE("a layer works on the caller's memory, and gradients go where the caller says",
          "[embedding]") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    CAPTURE(format(shape));
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    if (kPair[0] % shape.dp != 0) continue;
    const DTensor x = random_pair(mesh);
    const Array values(x.local().shape());
    const Array gradients(x.local().shape());
    copy(x.local(), values.wrapped());
    const DTensor wrapped = DTensor::from_local(values.wrapped(), mesh, x.placements(), kPair,
                                                row_major_strides(kPair));
    CHECK(wrapped.local().data() == values.memory->data());

    Tape own_tape, tape;
    const Run expected = run_layer(own_tape, x);
    const Run found = run_layer(tape, wrapped);
    CHECK(found.output == expected.output);
    copy(found.input.grad().local(), gradients.wrapped());
    CHECK(to_values(gradients.wrapped()) == expected.gradient);
    CHECK(gradients.rest_is_untouched());
    CHECK(values.rest_is_untouched());
    CHECK(to_values(values.wrapped()) == to_values(x.local()));
  }
}

TEST_CASE("memory that is handed over lives as long as it is used, and not longer", "[embedding]") {
  const DeviceMesh mesh = DeviceMesh::serial();
  std::weak_ptr<std::vector<double>> alive;
  {
    Tape tape;
    Run run;
    {
      const Array array(kPair);
      alive = array.memory;
      copy(random_pair(mesh).local(), array.wrapped());
      run = run_layer(tape, DTensor::from_local(array.wrapped(), mesh, pair_placements(), kPair,
                                                row_major_strides(kPair)));
    }
    CHECK_FALSE(alive.expired());  // it is the value of the input
    CHECK(run.input.value().local().data() == alive.lock()->data());
  }
  CHECK(alive.expired());
}

TEST_CASE("memory of a device is wrapped like that of the host", "[embedding]") {
  const Device gpu{DeviceKind::imitation, 0};
  const auto owner =
      std::make_shared<Tensor>(Tensor::from_values({2, 3}, {1, 2, 3, 4, 5, 6}, DType::f64).to(gpu));
  const Tensor left = Tensor::wrap(owner->data(), {2, 2}, {3, 1}, DType::f64, gpu, owner);
  scale(10, left);
  CHECK(to_values(*owner) == std::vector<double>{10, 20, 3, 40, 50, 6});
}

TEST_CASE("memory in which indices meet is read, but not written", "[embedding]") {
  std::vector<double> values{1, 2, 3, 4};
  const auto wrap = [&](Shape shape, Strides strides) {
    return Tensor::wrap(values.data(), std::move(shape), std::move(strides), DType::f64, cpu_device,
                        nullptr);
  };
  const Tensor windows = wrap({3, 2}, {1, 1});
  CHECK(to_values(windows) == std::vector<double>{1, 2, 2, 3, 3, 4});
  require_error<StrideError>([&] { fill(windows, 0); }, "[3, 2] with strides [1, 1]");
  require_error<StrideError>([&] { fill(wrap({2, 2}, {0, 1}), 0); }, "strides [0, 1]");
  CHECK(values == std::vector<double>{1, 2, 3, 4});
  fill(wrap({2, 2}, {1, 2}), 5);  // columns first: every element once
  CHECK(values == std::vector<double>{5, 5, 5, 5});
  require_error<StrideError>([&] { wrap({2, 2}, {-2, 1}); }, "wrap", "[-2, 1]");
  require_error<StrideError>([&] { wrap({2, 2}, {1}); }, "wrap", "2 and 1");
  require_error<ShapeError>([&] { wrap({2, -2}, {2, 1}); }, "wrap", "[2, -2]");
  require_error<StrideError>(
      [&] {
        DTensor::from_local(wrap({2, 2}, {0, 1}), DeviceMesh::serial(), replicated_placements(),
                            {2, 2}, {2, 1});
      },
      "from_local");
}

TEST_CASE("threads end with the environment, whose default goes with it", "[embedding]") {
  const int before = thread_count();
  const std::ptrdiff_t alone = threads_of_this_process();
  {
    int argc = 0;
    char** argv = nullptr;
    const Environment environment(argc, argv);
    set_thread_count(3);
    run_lanes(cpu_device, 3, 1, [](std::int64_t, std::int64_t, int) {});
    CHECK(threads_of_this_process() == alone + 2);
  }
  CHECK(threads_of_this_process() == alone);
  int sum = 0;  // made anew when needed
  std::vector<int> parts(3);
  run_lanes(cpu_device, 3, 1,
            [&](std::int64_t begin, std::int64_t, int) { parts[std::size_t(begin)] = 1; });
  for (const int part : parts) sum += part;
  CHECK(sum == 3);
  end_threads();
  set_thread_count(before);
}

TEST_CASE("a thread that may not call MPI is told so", "[embedding]") {
  if (mpi_info().thread_level != "funneled" || mpi_info().standard.empty()) return;
  bool refused = false;
  std::thread([&] {
    const MPI_Comm world = MPI_COMM_WORLD;
    try {
      Communicator::duplicate(&world);
    } catch (const InitError& e) {
      refused = mentions(e, "MPI_THREAD_SERIALIZED", "main thread");
    }
  }).join();
  CHECK(refused);
}

TEST_CASE("communicators come and go", "[embedding]") {
  // Leaked ones would run out of context ids.
  const MPI_Comm world = MPI_COMM_WORLD;
  for (int k = 0; k < 5000; ++k) {
    const Communicator copy = Communicator::duplicate(&world);
    REQUIRE(copy.size() == test_ranks());
  }
}
