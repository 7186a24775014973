// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Random distributed tensors: what one rank would draw, on every mesh and for every placement.
#include <functional>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/mesh/collectives.hpp"

using namespace tessera;

namespace {

using Draws = std::function<DTensor(const Shape&, DType, const DeviceMesh&, const Placements&)>;
constexpr RandomStream kStream{11, 5};

const std::vector<Draws> kDraws{
    [](const Shape& shape, DType dtype, const DeviceMesh& mesh, const Placements& placements) {
      return uniform(shape, dtype, mesh, placements, kStream, -2, 3);
    },
    [](const Shape& shape, DType dtype, const DeviceMesh& mesh, const Placements& placements) {
      return normal(shape, dtype, mesh, placements, kStream);
    },
    [](const Shape& shape, DType dtype, const DeviceMesh& mesh, const Placements& placements) {
      return bernoulli(shape, dtype, mesh, placements, kStream, 0.3);
    }};

std::vector<int> replicate_axes(const DTensor& x) {
  std::vector<int> axes;
  for (int axis = 0; axis < x.mesh().ndim(); ++axis)
    if (is_replicate(x.placements()[static_cast<std::size_t>(axis)])) axes.push_back(axis);
  return axes;
}

// The draw sends nothing, its replicas are equal, and it is the serial draw, bit for bit. The same
// on all ranks.
bool is_the_serial_draw(const Draws& draw, const Shape& shape, DType dtype, const DeviceMesh& mesh,
                        const Placements& placements) {
  mesh.clear_records();
  const DTensor x = draw(shape, dtype, mesh, placements);
  const bool silent = mesh.records().empty();
  const DeviceMesh one =
      mesh.ndim() == 3 ? DeviceMesh::serial() : DeviceMesh::serial().flatten_cp();
  const DTensor serial = draw(shape, dtype, one, placements);
  const bool replicas = replicas_identical(mesh, replicate_axes(x), x.local());
  const bool equal = bitwise_equal(full_tensor(x), serial.local());
  return true_on_all_ranks(silent && replicas && equal);
}

// Placements of three dims without Partial.
std::vector<Placements> legal_placements() {
  std::vector<Placements> legal = every_placement(3);
  std::erase_if(legal, has_partial);
  return legal;
}

// The parts of a full tensor along dim 0, as plain numbers.
std::vector<std::vector<double>> parts_of(const Tensor& full, std::int64_t parts) {
  std::vector<std::vector<double>> all;
  const std::int64_t size = full.size(0) / parts;
  for (std::int64_t c = 0; c < parts; ++c) all.push_back(to_values(full.narrow(0, c * size, size)));
  return all;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    ab += a[k] * b[k];
    aa += a[k] * a[k];
    bb += b[k] * b[k];
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace

TEST_CASE("every draw is the serial one on every mesh and for every placement") {
  on_all_meshes(1, [](const DeviceMesh& mesh, Draw&) {
    for (const Placements& placements : legal_placements()) {
      INFO(format(placements));
      for (const Draws& draw : kDraws)
        CHECK(is_the_serial_draw(draw, {12, 12, 12}, DType::f64, mesh, placements));
    }
    for (const Draws& draw : kDraws)
      for (const DType dtype : {DType::f32, DType::bf16})
        CHECK(is_the_serial_draw(draw, {12, 12, 12}, dtype, mesh, pair_placements()));
    CHECK(is_the_serial_draw(kDraws[1], {12, 12}, DType::f64, mesh.flatten_cp(),
                             {Shard{0}, Shard{1}}));
    CHECK(is_the_serial_draw(kDraws[2], {12, 12}, DType::boolean, mesh, single_placements()));
  });
}

TEST_CASE("random shapes and placements") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const Placements placements = draw.placements(mesh, ndim);
    const Shape shape = draw.shape(mesh, placements, ndim);
    for (const Draws& draws : kDraws)
      CHECK(is_the_serial_draw(draws, shape, DType::f32, mesh, placements));
  });
}

TEST_CASE("a generator that is seeded per rank is not the serial draw") {
  if (test_ranks() == 1) return;
  const Draws per_rank = [](const Shape& shape, DType dtype, const DeviceMesh& mesh,
                            const Placements& placements) {
    const RandomStream own{kStream.seed + static_cast<std::uint64_t>(mesh.rank()), kStream.stream};
    return normal(shape, dtype, mesh, placements, own);
  };
  on_all_meshes(1, [&](const DeviceMesh& mesh, Draw&) {
    for (const Placements& placements : legal_placements())
      CHECK_FALSE(is_the_serial_draw(per_rank, {12, 12, 12}, DType::f64, mesh, placements));
  });
}

TEST_CASE("a generator that counts local elements repeats itself on every shard") {
  if (test_ranks() == 1) return;
  const Draws local = [](const Shape& shape, DType dtype, const DeviceMesh& mesh,
                         const Placements& placements) {
    const DTensor x = empty(shape, dtype, mesh, placements);
    fill_normal(x.local(), kStream, whole(x.local().shape()));
    return x;
  };
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, test_ranks(), 1});
  CHECK_FALSE(is_the_serial_draw(local, {12, 12}, DType::f64, mesh, single_placements()));
}

TEST_CASE("shards are independent: different and without correlation") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, test_ranks(), 1});
  const Placements placements{Replicate{}, Shard{0}, Replicate{}};
  const std::int64_t n = 4096;
  const DTensor x = normal({test_ranks(), n}, DType::f64, mesh, placements, kStream);
  const auto parts = parts_of(full_tensor(x), test_ranks());
  for (std::size_t a = 0; a < parts.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      CHECK(std::abs(correlation(parts[a], parts[b])) < 5 / std::sqrt(static_cast<double>(n)));
}

TEST_CASE("values are distributed as they should be; streams and seeds differ") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Shape shape{12, 12, 144};
  const auto n = static_cast<double>(numel(shape));
  const auto drawn = [&](RandomStream stream) {
    return to_values(full_tensor(normal(shape, DType::f64, mesh, pair_placements(), stream)));
  };
  const std::vector<double> x = drawn(kStream);
  double sum = 0, squares = 0;
  for (const double v : x) sum += v, squares += v * v;
  CHECK(std::abs(sum / n) < 5 / std::sqrt(n));
  CHECK(std::abs(squares / n - 1) < 5 * std::sqrt(2 / n));
  CHECK(std::abs(correlation(x, drawn({kStream.seed, kStream.stream + 1}))) < 5 / std::sqrt(n));
  CHECK(std::abs(correlation(x, drawn({kStream.seed + 1, kStream.stream}))) < 5 / std::sqrt(n));
  double ones = 0;
  for (const double v : to_values(
           full_tensor(bernoulli(shape, DType::boolean, mesh, pair_placements(), kStream, 0.3))))
    ones += v;
  CHECK(std::abs(ones / n - 0.3) < 5 * std::sqrt(0.21 / n));
}

TEST_CASE("what is refused") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, test_ranks(), 1});
  const Placements partial{Replicate{}, Partial{}, Replicate{}};
  require_error<PlacementError>([&] { normal({4}, DType::f64, mesh, partial, kStream); }, "normal",
                                "P(sum)");
  require_error<PlacementError>([&] { bernoulli({4}, DType::f64, mesh, partial, kStream, 0.5); },
                                "bernoulli", "P(sum)");
  require_error<RangeError>(
      [&] { bernoulli({12}, DType::f64, mesh, replicated_placements(), kStream, 1.5); }, "1.5");
  require_error<TypeError>(
      [&] { normal({12}, DType::i64, mesh, replicated_placements(), kStream); }, "fill_normal");
  if (test_ranks() > 1)
    require_error<UnevenError>(
        [&] {
          normal({test_ranks() + 1}, DType::f64, mesh, {Replicate{}, Shard{0}, Replicate{}},
                 kStream);
        },
        "dim 0");
}
