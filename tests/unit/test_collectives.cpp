// SPDX-License-Identifier: MIT
// ranks: 1 4 6 9
#include <mpi.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/traffic.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

const std::vector<std::vector<int>> kAxisSets{{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}};

// In [-1, 1), from rank and index, without any order.
double value_of(int rank, std::int64_t index, int seed = 0) {
  std::uint64_t h = std::uint64_t(index) * 0x9E3779B97F4A7C15u +
                    std::uint64_t(rank) * 0xC2B2AE3D27D4EB4Fu +
                    std::uint64_t(seed) * 0x165667B19E3779F9u + 1;
  h = (h ^ (h >> 31)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return double((h ^ (h >> 31)) >> 11) * 0x1p-52 - 1;
}

Tensor tensor_of(int rank, const Shape& shape, DType dtype, int seed = 0) {
  std::vector<double> values(std::size_t(numel(shape)));
  const double scale = is_floating(dtype) ? 1 : 1e6;
  for (std::size_t k = 0; k < values.size(); ++k)
    values[k] = scale * value_of(rank, std::int64_t(k), seed);
  if (!is_floating(dtype))
    for (double& v : values) v = std::trunc(v);
  return Tensor::from_values(shape, values, dtype);
}

std::string bytes_of(const Tensor& t) {
  return {static_cast<const char*>(t.data()), std::size_t(t.bytes())};
}

// The bytes of every rank, by a path that is not ours.
std::vector<std::string> bytes_of_all(const Tensor& t) {
  std::string all(std::size_t(t.bytes()) * std::size_t(test_ranks()), '\0');
  MPI_Allgather(t.data(), int(t.bytes()), MPI_BYTE, all.data(), int(t.bytes()), MPI_BYTE,
                MPI_COMM_WORLD);
  std::vector<std::string> parts;
  for (int r = 0; r < test_ranks(); ++r)
    parts.push_back(all.substr(std::size_t(r) * std::size_t(t.bytes()), std::size_t(t.bytes())));
  return parts;
}

double reduce(ReduceOp op, double a, double b) {
  if (op == ReduceOp::max) return std::max(a, b);
  if (op == ReduceOp::min) return std::min(a, b);
  return a + b;
}

std::vector<double> expected_reduction(ReduceOp op, const std::vector<int>& group,
                                       std::int64_t count, DType dtype) {
  std::vector<double> result;
  for (const int rank : group) {
    const std::vector<double> v = to_values(tensor_of(rank, {count}, dtype));
    if (result.empty()) {
      result = v;
    } else {
      for (std::size_t k = 0; k < v.size(); ++k) result[k] = reduce(op, result[k], v[k]);
    }
  }
  if (op == ReduceOp::avg)
    for (double& v : result) v /= double(group.size());
  return result;
}

// Values are below 1: n of them are summed with an error of n/2 units of n each, and bf16 is
// rounded once, from f32.
double tolerance_of(DType dtype, std::size_t n) {
  const double size = double(n) * double(n);
  if (dtype == DType::f64) return size * 0x1p-53;
  if (dtype == DType::f32) return size * 0x1p-24;
  return dtype == DType::bf16 ? double(n) * 0x1p-8 + size * 0x1p-24 : 0;
}

int place_in(const std::vector<int>& group, int rank) {
  return int(std::find(group.begin(), group.end(), rank) - group.begin());
}

template <class Check>
void on_all_meshes(const Check& check) {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    CAPTURE(format(shape));
    check(DeviceMesh::create(test_world(), shape));
  }
}

// What the newest record says; nothing if none was made.
std::optional<Traffic> newest(const DeviceMesh& mesh) {
  if (mesh.records().empty()) return std::nullopt;
  const CommRecord& r = mesh.records().back();
  return Traffic{r.messages, r.bytes};
}

void check_reduction(const DeviceMesh& mesh, const std::vector<int>& axes, ReduceOp op, DType dtype,
                     std::int64_t count) {
  CAPTURE(mesh.axes_name(axes), name_of(op), std::string(name_of(dtype)), count);
  const std::vector<int> group = mesh.group(axes);
  const Tensor x = tensor_of(test_rank(), {count}, dtype);
  const Tensor again = x.clone();
  mesh.clear_records();
  all_reduce(mesh, axes, op, x, "x");
  if (group.size() == 1) {
    CHECK(mesh.records().empty());
  } else {
    CHECK(newest(mesh) ==
          all_reduce_traffic(count, dtype, int(group.size()), place_in(group, test_rank())));
    CHECK(mesh.records().back().axis == mesh.axes_name(axes));
  }
  const std::vector<double> expected = expected_reduction(op, group, count, dtype);
  const std::vector<double> found = to_values(x);
  const bool exact = op == ReduceOp::max || op == ReduceOp::min || !is_floating(dtype);
  const double tolerance = exact ? 0 : tolerance_of(dtype, group.size());
  double worst = 0;
  for (std::size_t k = 0; k < found.size(); ++k)
    worst = std::max(worst, std::abs(found[k] - expected[k]));
  CHECK(worst <= tolerance);
  const std::vector<std::string> all = bytes_of_all(x);
  for (const int rank : group) CHECK(all[std::size_t(rank)] == bytes_of(x));
  all_reduce(mesh, axes, op, again, "again");
  CHECK(bytes_of(again) == bytes_of(x));
}

}  // namespace

TEST_CASE("all_reduce of every op, dtype and set of axes", "[collectives]") {
  on_all_meshes([](const DeviceMesh& mesh) {
    for (const std::vector<int>& axes : kAxisSets)
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min})
        for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64, DType::i32}) {
          if (op == ReduceOp::avg && !is_floating(dtype)) continue;
          check_reduction(mesh, axes, op, dtype, 37);
        }
  });
}

TEST_CASE("all_reduce of large tensors is a ring", "[collectives]") {
  on_all_meshes([](const DeviceMesh& mesh) {
    for (const std::vector<int>& axes : kAxisSets)
      for (const DType dtype : {DType::f64, DType::bf16, DType::i64})
        check_reduction(mesh, axes, ReduceOp::sum, dtype, kDoublingBytes / 4 + 5);
    check_reduction(mesh, {0, 1, 2}, ReduceOp::min, DType::f32, kDoublingBytes / 4 + 5);
  });
}

TEST_CASE("all_reduce of nothing, of one and of a matrix", "[collectives]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::array axes{kCp0, kCp1};
  const Tensor none = Tensor::zeros({0, 3}, DType::f32);
  all_reduce(mesh, axes, ReduceOp::sum, none, "none");
  const Tensor scalar = Tensor::full({}, 2, DType::f64);
  all_reduce(mesh, axes, ReduceOp::sum, scalar, "scalar");
  CHECK(scalar.item() == 2 * test_ranks());
  const Tensor matrix = Tensor::full({3, 5}, 0.5, DType::bf16);
  all_reduce(mesh, axes, ReduceOp::avg, matrix, "matrix");
  CHECK(matrix.item({2, 4}) == 0.5);
}

TEST_CASE("bf16 sums are rounded once", "[collectives]") {
  // 256 + 1 is not a bf16: added one by one in bf16, the ones would vanish.
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const Tensor x = Tensor::full({1}, test_rank() == 0 ? 256 : 1, DType::bf16);
  all_reduce(mesh, kCp1, ReduceOp::sum, x, "x");
  const Tensor exact = Tensor::full({1}, 256 + test_ranks() - 1, DType::f32);
  CHECK(x.item() == exact.to(DType::bf16).item());
}

TEST_CASE("signed zeros and NaN give the same bits everywhere", "[collectives]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
    const Tensor x = Tensor::from_values(
        {3}, {test_rank() % 2 == 0 ? 0.0 : -0.0, test_rank() == 1 ? nan : 1.0, double(test_rank())},
        DType::f32);
    all_reduce(mesh, kCp1, op, x, "x");
    for (const std::string& bytes : bytes_of_all(x)) CHECK(bytes == bytes_of(x));
    if (op != ReduceOp::sum && test_ranks() > 1) {
      CHECK(x.item({2}) == (op == ReduceOp::max ? test_ranks() - 1 : 0));
    }
  }
}

TEST_CASE("all_gather, reduce_scatter and all_to_all along every dim", "[collectives]") {
  on_all_meshes([](const DeviceMesh& mesh) {
    for (int axis = 0; axis < 3; ++axis)
      for (int dim = -3; dim < 3; ++dim) {
        const std::array one{axis};
        const std::vector<int> group = mesh.group(one);
        const int n = int(group.size());
        const int me = place_in(group, test_rank());
        CAPTURE(mesh.axis_name(axis), dim);
        const std::int64_t count = 2 * 3 * 2;
        const Tensor local = tensor_of(test_rank(), {2, 3, 2}, DType::f32);

        mesh.clear_records();
        const Tensor whole = all_gather(mesh, axis, local, dim, "x");
        if (n > 1) CHECK(newest(mesh) == all_gather_traffic(count, DType::f32, n));
        const std::int64_t size = local.size(dim);
        REQUIRE(whole.size(dim) == n * size);
        for (int c = 0; c < n; ++c)
          CHECK(to_values(whole.narrow(dim, c * size, size)) ==
                to_values(tensor_of(group[std::size_t(c)], {2, 3, 2}, DType::f32)));

        // Backwards: the sum of what was gathered, of which each takes its part.
        mesh.clear_records();
        const Tensor part = reduce_scatter(mesh, axis, whole, dim, "g");
        if (n > 1) CHECK(newest(mesh) == reduce_scatter_traffic(n * count, DType::f32, n));
        REQUIRE(part.shape() == local.shape());
        const Tensor scaled = local.clone();
        scale(n, scaled);
        CHECK(max_difference(part, scaled).max_abs <= n * n * 0x1p-24);

        for (int concat = 0; concat < 3; ++concat) {
          mesh.clear_records();
          const Tensor mixed = all_to_all(mesh, axis, whole, dim, concat, "x");
          if (n > 1) CHECK(newest(mesh) == all_to_all_traffic(n * count, DType::f32, n));
          REQUIRE(mixed.numel() == whole.numel());
          // `whole` is equal on the group: everyone sends me part `me` of it.
          const std::int64_t length = whole.narrow(dim, me * size, size).size(concat);
          for (int c = 0; c < n; ++c)
            CHECK(to_values(mixed.narrow(concat, c * length, length)) ==
                  to_values(whole.narrow(dim, me * size, size)));
        }
      }
  });
}

TEST_CASE("all_to_all sends part c to coordinate c", "[collectives]") {
  const int n = test_ranks();
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, n});
  for (const DType dtype : {DType::f64, DType::bf16, DType::i32, DType::boolean}) {
    const Tensor local = tensor_of(test_rank(), {2, n, 3}, dtype);
    const Tensor mixed = all_to_all(mesh, kCp1, local, 1, 0, "x");
    REQUIRE(mixed.shape() == Shape{2 * n, 1, 3});
    for (int c = 0; c < n; ++c)
      CHECK(to_values(mixed.narrow(0, 2 * c, 2)) ==
            to_values(tensor_of(c, {2, n, 3}, dtype).narrow(1, test_rank(), 1)));
    CHECK(to_values(all_to_all(mesh, kCp1, mixed, 0, 1, "back")) == to_values(local));
  }
}

TEST_CASE("reduce_scatter sums what differs and rounds once", "[collectives]") {
  const int n = test_ranks();
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, n, 1});
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor part = reduce_scatter(mesh, kCp0, tensor_of(test_rank(), {4 * n}, dtype), 0, "g");
    std::vector<int> group(std::size_t(n), 0);
    for (int r = 0; r < n; ++r) group[std::size_t(r)] = r;
    const std::vector<double> sum = expected_reduction(ReduceOp::sum, group, 4 * n, dtype);
    for (int k = 0; k < 4; ++k)
      CHECK(std::abs(part.item({k}) - sum[std::size_t(4 * test_rank() + k)]) <=
            tolerance_of(dtype, std::size_t(n)));
  }
}

TEST_CASE("broadcast and scatter from every root", "[collectives]") {
  on_all_meshes([](const DeviceMesh& mesh) {
    for (int axis = 0; axis < 3; ++axis) {
      const std::array one{axis};
      const std::vector<int> group = mesh.group(one);
      const int n = int(group.size());
      for (int root = 0; root < n; ++root) {
        CAPTURE(mesh.axis_name(axis), root);
        const int source = group[std::size_t(root)];
        const Tensor x = tensor_of(test_rank(), {5, 2}, DType::f64);
        mesh.clear_records();
        broadcast(mesh, axis, root, x, "x");
        CHECK(to_values(x) == to_values(tensor_of(source, {5, 2}, DType::f64)));
        const int place = (mesh.coordinate(axis) - root + n) % n;
        if (n > 1) CHECK(newest(mesh) == broadcast_traffic(10, DType::f64, n, place));

        const Shape shape{3, 4 * n, 2};
        const bool own = test_rank() == source;
        const Tensor full = own ? tensor_of(source, shape, DType::f32) : Tensor();
        const Tensor part = scatter(mesh, axis, root, full, shape, DType::f32, 1, "x");
        CHECK(to_values(part) ==
              to_values(
                  tensor_of(source, shape, DType::f32).narrow(1, 4 * mesh.coordinate(axis), 4)));
      }
    }
  });
}

TEST_CASE("large messages go in chunks", "[collectives]") {
  Communicator::set_max_chunk_bytes(7);
  const int n = test_ranks();
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, n});
  const Tensor whole = all_gather(mesh, kCp1, tensor_of(test_rank(), {50}, DType::f64), 0, "x");
  for (int c = 0; c < n; ++c)
    CHECK(to_values(whole.narrow(0, 50 * c, 50)) == to_values(tensor_of(c, {50}, DType::f64)));
  check_reduction(mesh, {0, 1, 2}, ReduceOp::sum, DType::f32, 100);
  // Chunks are how a message travels, not messages.
  mesh.clear_records();
  const Tensor x = Tensor::zeros({100}, DType::f32);
  const Tensor y = Tensor::zeros({100}, DType::f32);
  shift(mesh, kCp1, 1, x, y, "x").wait();
  if (n > 1) CHECK(newest(mesh) == Traffic{1, 400});
  Communicator::set_max_chunk_bytes(std::int64_t{1} << 40);
}

TEST_CASE("the ledger holds scope, label and sequence", "[collectives]") {
  const int n = test_ranks();
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, n, 1});
  {
    const Scope outer("trunk");
    const Scope inner("linear");
    all_reduce(mesh, kCp0, ReduceOp::sum, Tensor::zeros({4}, DType::bf16), "weight");
  }
  all_gather(mesh, kCp0, Tensor::zeros({4}, DType::f32), 0, "x");
  all_reduce(mesh, kDp, ReduceOp::sum, Tensor::zeros({4}, DType::f32), "one rank");
  if (n == 1) {
    CHECK(mesh.records().empty());
    return;
  }
  REQUIRE(mesh.records().size() == 2);
  const CommRecord& r = mesh.records()[0];
  CHECK(r.op == "all_reduce");
  CHECK(r.axis == "cp0");
  CHECK(r.scope == "trunk.linear");
  CHECK(r.label == "weight");
  CHECK(r.dtype == DType::bf16);
  CHECK(r.begin <= r.end);
  CHECK(mesh.records()[1].sequence == r.sequence + 1);
  CHECK(mesh.records()[1].scope.empty());
}

TEST_CASE("control scalars, strings and replicas", "[collectives]") {
  on_all_meshes([](const DeviceMesh& mesh) {
    CHECK(ControlScalar::broadcast(mesh, 40 + test_rank()).value() == 40);
    const std::string text = test_rank() == 0 ? std::string("a\0b", 3) : "other";
    CHECK(broadcast_string(mesh, text) == std::string("a\0b", 3));
    CHECK(broadcast_string(mesh, "").empty());
    const std::array all{0, 1, 2};
    Tensor x = tensor_of(0, {10}, DType::f32);
    CHECK(replicas_identical(mesh, all, x));
    if (test_ranks() > 1) {
      if (test_rank() == test_ranks() - 1) x.host_data<float>()[9] += 1e-6f;
      CHECK_FALSE(replicas_identical(mesh, all, x));
      const std::array dp{0};  // groups without the last rank are equal
      CHECK(replicas_identical(mesh, dp, x) ==
            (mesh.size(0) == 1 || mesh.group(dp).back() != test_ranks() - 1));
    }
    barrier(mesh);
  });
}

TEST_CASE("collective_try makes the failure of one rank that of all", "[collectives]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  collective_try(mesh, [] {});
  const int last = test_ranks() - 1;
  try {
    collective_try(mesh, [&] {
      if (test_rank() == last)
        throw FileError({.problem = "cannot read", .tensor = "w", .found = "3 bytes"});
    });
    FAIL("nothing was thrown");
  } catch (const FileError& error) {
    CHECK(error.exit_code() == ExitCode::usage);
    CHECK(error.facts().tensor == "w");
    CHECK(mentions(error, "cannot read", "3 bytes"));
    if (last > 0) CHECK(mentions(error, "on rank " + std::to_string(last)));
    CHECK(same_on_all_ranks(error.what()));
  }
  try {
    collective_try(mesh, [] {
      throw OutOfMemoryError({.problem = "no memory on " + std::to_string(test_rank())});
    });
    FAIL("nothing was thrown");
  } catch (const OutOfMemoryError& error) {
    CHECK(error.exit_code() == ExitCode::out_of_memory);
    CHECK(mentions(error, "no memory on 0"));
    if (last > 0) CHECK(mentions(error, std::to_string(last) + " other rank(s) failed"));
  }
  if (last == 0) return;
  require_error<Error>([&] { collective_try(mesh, [] { throw std::runtime_error("plain"); }); },
                       "plain", "on rank 0");
  require_error<OutOfMemoryError>([&] { collective_try(mesh, [] { throw std::bad_alloc(); }); },
                                  "no memory left");
}

TEST_CASE("collectives refuse what cannot be", "[collectives]") {
  const int n = test_ranks();
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, n});
  const Tensor x = Tensor::zeros({4, 6}, DType::f32);
  require_error<RangeError>([&] { all_reduce(mesh, 3, ReduceOp::sum, x, "x"); }, "axis 3");
  require_error<StrideError>(
      [&] { all_reduce(mesh, kCp1, ReduceOp::sum, x.transpose(0, 1), "weight"); }, "'weight'",
      "contiguous", "[6, 4]");
  require_error<TypeError>([&] { all_reduce(mesh, kCp1, ReduceOp::sum, Tensor(), "x"); },
                           "undefined");
  require_error<TypeError>(
      [&] { all_reduce(mesh, kCp1, ReduceOp::avg, Tensor::zeros({2}, DType::i64), "x"); }, "avg",
      "i64");
  require_error<TypeError>(
      [&] { all_reduce(mesh, kCp1, ReduceOp::sum, Tensor::zeros({2}, DType::boolean), "x"); },
      "bool");
  require_error<TypeError>(
      [&] { reduce_scatter(mesh, kCp1, Tensor::zeros({2 * n}, DType::i64), 0, "x"); }, "i64");
  require_error<RangeError>([&] { all_gather(mesh, kCp1, x, 2, "x"); }, "all_gather", "dim 2");
  require_error<RangeError>([&] { broadcast(mesh, kCp1, n, x, "x"); }, "coordinate");
  require_error<ShapeError>(
      [&] {
        scatter(mesh, kCp1, 0, x, {4, 6 * n}, DType::f64, 1, "table");
      },
      "'table'", "f64");
  if (n == 1) return;
  const Tensor odd = Tensor::zeros({n + 1, 2}, DType::f32);
  const std::string next = "next valid size is " + std::to_string(2 * n);
  require_error<UnevenError>([&] { reduce_scatter(mesh, kCp1, odd, 0, "g"); }, "'g'", next);
  require_error<UnevenError>([&] { all_to_all(mesh, kCp1, odd, 0, 1, "x"); }, next);
  require_error<UnevenError>(
      [&] {
        scatter(mesh, kCp1, 0, odd, {n + 1, 2}, DType::f32, 0, "x");
      },
      next);
}
