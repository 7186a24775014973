// SPDX-License-Identifier: MIT
// ranks: 1 4 6 7 8
// Windows over atoms on random shapes, placements and meshes, against their definition too.
#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/substrate/windows.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

// Placements with `axis` on a random mesh axis and none of `whole` sharded; other dims may be.
Placements cut_along(const DeviceMesh& mesh, Draw& draw, int ndim, int axis,
                     std::vector<int> whole) {
  whole.push_back(axis);
  Placements placements = draw.placements(mesh, ndim, whole);
  placements[static_cast<std::size_t>(draw.below(mesh.ndim()))] = Shard{axis};
  return placements;
}

// y[b, q, s] = x[b, q W - (H - W)/2 + s], 0 outside; x [B, N], y [B, K, H], on one rank.
void check_definition(const DTensor& found, const Tensor& x, std::int64_t w, std::int64_t h) {
  const Tensor y = full_tensor(found);
  const std::int64_t n = x.size(1);
  REQUIRE(y.shape() == Shape{x.size(0), n / w, h});
  for (std::int64_t b = 0; b < y.size(0); ++b)
    for (std::int64_t q = 0; q < y.size(1); ++q)
      for (std::int64_t s = 0; s < h; ++s) {
        const std::int64_t at = q * w - (h - w) / 2 + s;
        REQUIRE(y.item({b, q, s}) == (at < 0 || at >= n ? 0 : x.item({b, at})));
      }
}

}  // namespace

TEST_CASE("windows of whole dims with any starts") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const int axis = draw.below(ndim);
    const Placements placements = draw.placements(mesh, ndim, {axis});
    Shape shape = draw.shape(mesh, placements, ndim);
    shape[static_cast<std::size_t>(axis)] = 1 + draw.below(6);
    std::vector<std::int64_t> starts;
    for (int k = 0; k <= draw.below(5); ++k) starts.push_back(draw.below(14) - 6);
    const int h = 1 + draw.below(4);
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{sliding_windows(in[0], starts, h, axis - ndim)}; },
        {{draw.values(shape, -1, 1), placements}}, 1e-15);
  });
}

TEST_CASE("half-windows to key windows along any mesh axis") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 2 + draw.below(3);
    const int axis = draw.below(ndim - 1);
    const Placements placements = cut_along(mesh, draw, ndim, axis, {axis + 1});
    Shape shape = draw.shape(mesh, placements, ndim);
    shape[static_cast<std::size_t>(axis)] *= 2;
    const int h = 2 * (1 + draw.below(6));
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{sliding_windows_sharded(in[0], h, axis - ndim)}; },
        {{draw.values(shape, -1, 1), placements}}, 1e-15);
  });
}

TEST_CASE("positions and query windows to key windows") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t w = 2 * (1 + draw.below(3));
    const std::int64_t h = w * (1 + draw.below(4));
    const Placements placements = cut_along(mesh, draw, 4, 1, {2});
    Shape shape = draw.shape(mesh, placements, 4);
    shape[2] = w;
    const Operand windows{draw.values(shape, -1, 1), placements};
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{query_windows_to_keys(in[0], h)}; }, {windows},
        1e-15);
    shape[1] *= w;
    const Operand atoms{draw.values(shape, -1, 1), placements};
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{to_window_keys(in[0], w, h)}; }, {atoms}, 1e-15);
    const Placements rows = cut_along(mesh, draw, 2, 1, {});
    Shape form = draw.shape(mesh, rows, 2);
    form[1] *= w;
    const Tensor x = draw.integers(form, 0, 100);
    const DTensor y = to_window_keys(Var::constant(distribute(x, mesh, rows)), w, h).value();
    CHECK(y.dtype() == DType::i64);
    check_definition(y, x, w, h);
  });
}

TEST_CASE("windows on the flat mesh") {
  on_all_meshes(4, [](const DeviceMesh& grid, Draw& draw) {
    const DeviceMesh mesh = grid.flatten_cp();
    const Placements placements{Shard{0}, Shard{1}};
    Shape shape = draw.shape(mesh, placements, 3);
    shape[1] *= 4;
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{to_window_keys(in[0], 4, 16)}; },
        {{draw.values(shape, -1, 1), placements}}, 1e-15);
  });
}

TEST_CASE("operands in any layout, and every dtype") {
  on_all_meshes(1, [](const DeviceMesh& mesh, Draw& draw) {
    const Placements placements = single_placements();
    const Shape shape{2 * mesh.size(kDp), 4 * mesh.size(kCp0), 3};
    const Tensor x = draw.values(shape, -1, 1);
    const DTensor straight = distribute(x, mesh, placements);
    const DTensor turned =
        DTensor::from_local(straight.local().permute({2, 1, 0}).contiguous().permute({2, 1, 0}),
                            mesh, placements, shape, {1, shape[0], shape[0] * shape[1]});
    const auto keys = [](const DTensor& t) {
      return to_window_keys(Var::constant(t), 4, 8).value();
    };
    CHECK(bitwise_equal(keys(straight).local(), keys(turned).local()));
    CHECK(keys(turned).strides() == row_major_strides(keys(turned).shape()));
    for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::boolean})
      CHECK(bitwise_equal(keys(straight).local().to(dtype),
                          keys(straight.with_local(straight.local().to(dtype))).local()));
  });
}

TEST_CASE("gradients in bf16 are summed in f32") {
  on_all_meshes(1, [](const DeviceMesh& mesh, Draw&) {
    // Each position is seen by up to 5 windows with gradients 1 and 1/256, which bf16 cannot add.
    const std::int64_t k = 5 * mesh.size(kCp0);
    const Placements placements{Replicate{}, Shard{0}, Replicate{}};
    Tape tape;
    const Var x = tape.input("x", zeros({2 * k, 1}, DType::bf16, mesh, placements), true);
    const Var y = sliding_windows_sharded(x, 10, 0);
    const DTensor g = empty({k, 10, 1}, DType::bf16, mesh, placements);
    fill(g.local(), 1.0 / 256);
    if (mesh.coordinate(kCp0) == 0) fill(g.local().narrow(0, 0, 1), 1);
    tape.backward(y, g);
    const Tensor sum = full_tensor(x.grad());
    CHECK(x.grad().dtype() == DType::bf16);
    // Half-window 4 is seen by windows 0..4: one gradient of 1 and four of 1/256.
    CHECK(sum.item({4, 0}) == 1 + 4.0 / 256);
  });
}

TEST_CASE("which placements the windows accept") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 4 * test_ranks();
  int accepted = 0, refused = 0;
  for (const Placements& placements : every_placement(3)) {
    const DTensor x = zeros({n, n, n}, DType::f64, mesh, placements);
    INFO(format(placements));
    const auto sharded = [&](int dim) { return shards(placements, dim); };
    const bool partial = has_partial(placements);
    const Var v = Var::constant(x);
    const std::string found = format(placements);
    if (sharded(2)) {
      require_error<UnsupportedError>([&] { sliding_windows_sharded(v, 4, 1); },
                                      "sliding_windows_sharded", "'x'", "dim 2", found,
                                      "redistribute");
      require_error<UnsupportedError>([&] { query_windows_to_keys(v, 2 * n); },
                                      "query_windows_to_keys", "'x'", "dim 2", found);
    } else if (!sharded(1)) {
      require_error<PlacementError>([&] { sliding_windows_sharded(v, 4, 1); },
                                    "sliding_windows_sharded", "'x'", "dim 1", found);
      require_error<PlacementError>([&] { query_windows_to_keys(v, 2 * n); },
                                    "query_windows_to_keys", "'x'", "dim 1", found);
    } else if (partial) {
      require_error<PartialError>([&] { sliding_windows_sharded(v, 4, 1); },
                                  "sliding_windows_sharded", "'x'", found);
    } else {
      ++accepted;
      CHECK(sliding_windows_sharded(v, 4, 1).value().shape() == Shape{n, n / 2, 4, n});
      CHECK(query_windows_to_keys(v, 2 * n).value().shape() == Shape{n, n, 2 * n});
    }
    if (sharded(1))
      require_error<PlacementError>([&] { sliding_windows(v, {0}, 2, 1); }, "sliding_windows",
                                    "'x'", "dim 1", found);
    else if (partial)
      require_error<PartialError>([&] { sliding_windows(v, {0}, 2, 1); }, "sliding_windows", "'x'");
    else
      CHECK(sliding_windows(v, {0}, 2, 1).value().shape() == Shape{n, 1, 2, n});
    // The dims of positions in a window are not cut; all others may be.
    if (sharded(1) && !partial)
      CHECK(to_window_keys(v, 2, 4).value().size(2) == 4);
    else
      ++refused;
  }
  CHECK(accepted > 5);
  CHECK(refused > 20);
}

TEST_CASE("windows that do not fit") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const std::int64_t p = test_ranks();
  const Placements placements{Replicate{}, Replicate{}, Shard{1}};
  const auto x = [&](std::int64_t n, std::int64_t w = 4) {
    return Var::constant(zeros({2, n, w}, DType::f64, mesh, placements));
  };
  const Var fits = x(8 * p);
  require_error<RangeError>([&] { to_window_keys(fits, 3, 6); }, "to_window_keys", "W = 3");
  require_error<RangeError>([&] { to_window_keys(fits, 0, 4); }, "to_window_keys", "W = 0");
  require_error<RangeError>([&] { to_window_keys(fits, 4, 6); }, "to_window_keys", "H = 6");
  require_error<RangeError>([&] { to_window_keys(fits, 4, 0); }, "to_window_keys", "H = 0");
  require_error<RangeError>([&] { query_windows_to_keys(x(p, 3), 6); }, "query_windows_to_keys",
                            "W = 3");
  require_error<RangeError>([&] { sliding_windows_sharded(fits, 3, 1); }, "sliding_windows_sharded",
                            "h = 3");
  require_error<RangeError>([&] { sliding_windows_sharded(fits, 4, 3); },
                            "sliding_windows_sharded");
  require_error<RangeError>([&] { sliding_windows(fits, {}, 4, 0); }, "sliding_windows");
  require_error<RangeError>([&] { sliding_windows(fits, {0}, 0, 0); }, "sliding_windows", "h = 0");
  require_error<ShapeError>([&] { sliding_windows_sharded(fits, 4, 2); }, "sliding_windows_sharded",
                            "at least 4");
  require_error<ShapeError>([&] { to_window_keys(x(9 * p), 16, 16); }, "to_window_keys",
                            "multiple of 16");
  if (p == 1)
    require_error<ShapeError>([&] { sliding_windows_sharded(x(3), 2, 1); },
                              "sliding_windows_sharded", "multiple of 2");
  if (p % 2 == 1) return;
  // 3P half-windows, P even: 3P/2 windows do not divide by P.
  require_error<UnevenError>([&] { sliding_windows_sharded(x(3 * p), 4, 1); },
                             "sliding_windows_sharded", "windows on", "pack()");
  require_error<UnevenError>([&] { to_window_keys(x(6 * p), 4, 8); }, "to_window_keys",
                             "windows on");
}
