// SPDX-License-Identifier: MIT
// ranks: 1 4 6 7
// Packing and unpacking with random masks, shapes, placements and meshes.
#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/substrate/pack.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

// x and a mask that goes with it. `whole_windows`: the axis has the same packed length on one rank.
struct Problem {
  Shape x, mask;
  Placements x_placed, mask_placed;
  int axis = 0;
  std::int64_t w = 2;
  int parts = 1;
};

Problem draw_problem(const DeviceMesh& mesh, Draw& draw, bool whole_windows) {
  Problem p;
  const int ndim = 1 + draw.below(4);
  p.axis = draw.below(ndim);
  p.w = 2 * (1 + draw.below(2));
  p.x_placed = draw.placements(mesh, ndim, {p.axis});
  const int cut = draw.below(mesh.ndim());
  p.x_placed[static_cast<std::size_t>(cut)] = Shard{p.axis};
  p.parts = mesh.size(cut);
  p.x = draw.shape(mesh, p.x_placed, ndim);
  const auto axis = static_cast<std::size_t>(p.axis);
  p.x[axis] *= whole_windows ? p.w : 1 + draw.below(4);
  p.mask = p.x;
  p.mask_placed = p.x_placed;
  const auto replicate = [&](std::size_t dim) {
    p.mask[dim] = 1;
    for (Placement& placement : p.mask_placed)
      if (is_shard(placement, static_cast<int>(dim))) placement = Replicate{};
  };
  for (std::size_t d = 0; d < p.x.size(); ++d) {
    if (d > axis) replicate(d);
    if (d >= axis) continue;
    const int kind = draw.below(3);  // one line each, inner copies, one line for all
    if (kind == 1) p.x[d] *= 2;
    if (kind == 2) replicate(d);
  }
  if (draw.below(2) == 0) p.mask.resize(axis + 1);  // without the dims after the axis
  return p;
}

// Lines of a tensor on one rank, [lines, N, n]; the mask's line that line l of x follows.
Tensor as_lines(const Tensor& t, int axis) {
  std::int64_t lines = 1;
  for (int d = 0; d < axis; ++d) lines *= t.size(d);
  return t.contiguous().view({lines, t.size(axis), t.numel() / lines / t.size(axis)});
}
std::int64_t line_of(const Shape& x, const Shape& mask, int axis, std::int64_t line) {
  std::int64_t result = 0, scale = 1;
  for (int d = axis; d-- > 0;) {
    const auto at = static_cast<std::size_t>(d);
    result += scale * (line % x[at] / (x[at] / mask[at]));
    scale *= mask[at];
    line /= x[at];
  }
  return result;
}

// found is what the definition says, element by element.
void check_definition(const Tensor& found, const Tensor& found_mask, const Tensor& x,
                      const Tensor& mask, const Problem& p, bool keep_length) {
  const Tensor lines = as_lines(x, p.axis), valid = as_lines(mask, p.axis);
  std::int64_t longest = 0;
  for (std::int64_t line = 0; line < valid.size(0); ++line) {
    std::int64_t count = 0;
    for (std::int64_t at = 0; at < valid.size(1); ++at) count += valid.item({line, at, 0}) != 0;
    longest = std::max(longest, count);
  }
  if (keep_length) longest = x.size(p.axis);
  const std::int64_t block = p.w * p.parts;
  const std::int64_t length = std::max<std::int64_t>(1, (longest + block - 1) / block) * block;
  REQUIRE(found.size(p.axis) == length);
  REQUIRE(found_mask.size(p.axis) == length);
  const Tensor y = as_lines(found, p.axis), y_mask = as_lines(found_mask, p.axis);
  for (std::int64_t line = 0; line < lines.size(0); ++line) {
    const std::int64_t m = line_of(p.x, p.mask, p.axis, line);
    std::int64_t next = 0;
    for (std::int64_t at = 0; at < lines.size(1); ++at)
      if (valid.item({m, at, 0}) != 0) {
        REQUIRE(y.item({line, next, 0}) == lines.item({line, at, 0}));
        ++next;
      }
    for (std::int64_t at = 0; at < length; ++at) {
      REQUIRE(y_mask.item({m, at, 0}) == (at < next));
      if (at >= next) REQUIRE(y.item({line, at, 0}) == 0);
    }
  }
}

Tensor constant_mask(const Shape& shape, double value) {
  return Tensor::full(shape, value, DType::boolean);
}

// Valid in one half of the axis only, so that parts have nothing to send or to receive.
Tensor half_mask(const Problem& p, int half) {
  const Tensor mask = constant_mask(p.mask, 0);
  const std::int64_t n = mask.size(p.axis), middle = n / 2;
  fill(half == 0 ? mask.narrow(p.axis, 0, middle) : mask.narrow(p.axis, middle, n - middle), 1);
  return mask;
}

}  // namespace

TEST_CASE("pack is the stable left pack, of the length that the longest line asks for") {
  on_all_meshes(10, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw, false);
    const Tensor x = draw.values(p.x, 1, 2);
    const std::vector<Tensor> masks{draw.booleans(p.mask), constant_mask(p.mask, 0),
                                    constant_mask(p.mask, 1), half_mask(p, 0), half_mask(p, 1)};
    for (const Tensor& mask : masks)
      for (const bool keep_length : {false, true}) {
        const Packed packed = pack(Var::constant(distribute(x, mesh, p.x_placed)),
                                   Var::constant(distribute(mask, mesh, p.mask_placed)), p.w,
                                   p.axis - static_cast<int>(p.x.size()), keep_length);
        CHECK(packed.x.value().placements() == p.x_placed);
        CHECK(packed.mask.value().placements() == p.mask_placed);
        CHECK(packed.mask.value().dtype() == DType::boolean);
        check_definition(full_tensor(packed.x.value()), full_tensor(packed.mask.value()), x, mask,
                         p, keep_length);
      }
  });
}

TEST_CASE("pack and unpack, their gradients and messages, against one rank") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw, true);
    const std::vector<Operand> operands{{draw.values(p.x, -1, 1), p.x_placed},
                                        {draw.booleans(p.mask), p.mask_placed, false}};
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          const Packed packed = pack(in[0], in[1], p.w, p.axis, true);
          return Vars{packed.x, packed.mask};
        },
        operands, 0);
    // Any tensor of the packed form: what stands behind the valid elements is dropped.
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          const Var packed = plan_pack(in[1], p.w, p.axis, true).mask;
          return Vars{unpack(in[0], packed, in[1], p.axis)};
        },
        operands, 0);
  });
}

TEST_CASE("packing on the flat mesh") {
  on_all_meshes(4, [](const DeviceMesh& grid, Draw& draw) {
    const DeviceMesh mesh = grid.flatten_cp();
    const Placements placements{Shard{0}, Shard{1}};
    Shape shape = draw.shape(mesh, placements, 3);
    shape[1] *= 4;
    check_against_serial(
        mesh,
        [](const Vars& in) {
          const Packed packed = pack(in[0], in[1], 4, 1, true);
          return Vars{packed.x, packed.mask};
        },
        {{draw.values(shape, -1, 1), placements},
         {draw.booleans({shape[0], shape[1]}), placements, false}},
        0);
  });
}

TEST_CASE("one plan for many tensors; unpack restores what is valid, of every dtype") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw, false);
    const Tensor mask = draw.booleans(p.mask);
    const SharedPacking packing =
        plan_pack(Var::constant(distribute(mask, mesh, p.mask_placed)), p.w, p.axis).packing;
    const Tensor ones = distribute(Tensor::full(p.x, 1, DType::f64), mesh, p.x_placed).local();
    for (const DType dtype : {DType::f64, DType::bf16, DType::i64, DType::boolean}) {
      const DTensor x = distribute(draw.values(p.x, 1, 100).to(dtype), mesh, p.x_placed);
      mesh.clear_records();
      const Var back = unpack(pack(Var::constant(x), packing), packing);
      for (const CommRecord& record : mesh.records()) CHECK(record.op == "pack");
      CHECK(back.value().dtype() == dtype);
      // x where valid, 0 elsewhere.
      const Var valid = unpack(pack(Var::constant(x.with_local(ones)), packing), packing);
      const Tensor product = Tensor::empty(ones.shape(), DType::f64);
      multiply(valid.value().local(), x.local().to(DType::f64), product);
      CHECK(bitwise_equal(product, back.value().local().to(DType::f64)));
    }
  });
}

TEST_CASE("pack and unpack are each other's gradient") {
  on_all_meshes(4, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw, false);
    const Tensor mask = draw.booleans(p.mask);
    const SharedPacking packing =
        plan_pack(Var::constant(distribute(mask, mesh, p.mask_placed)), p.w, p.axis).packing;
    const DTensor x = distribute(draw.values(p.x, -1, 1), mesh, p.x_placed);
    Tape tape;
    const Var in = tape.input("x", x, true);
    const Var y = pack(in, packing);
    const DTensor g = uniform(y.value().shape(), DType::f64, mesh, p.x_placed, {5, 1}, -1, 1);
    tape.backward(y, g);
    CHECK(bitwise_equal(in.grad().local(), unpack(Var::constant(g), packing).value().local()));
    Tape back;
    const Var packed = back.input("y", g, true);
    back.backward(unpack(packed, packing), x);
    CHECK(bitwise_equal(packed.grad().local(), pack(Var::constant(x), packing).value().local()));
  });
}

TEST_CASE("operands in any layout") {
  on_all_meshes(1, [](const DeviceMesh& mesh, Draw& draw) {
    const Placements placements = single_placements();
    const Shape shape{2 * mesh.size(kDp), 3 * mesh.size(kCp0), 3};
    const DTensor x = distribute(draw.values(shape, -1, 1), mesh, placements);
    const DTensor turned =
        DTensor::from_local(x.local().permute({2, 1, 0}).contiguous().permute({2, 1, 0}), mesh,
                            placements, shape, {1, shape[0], shape[0] * shape[1]});
    const Tensor full = draw.booleans({shape[0], shape[1]});
    const DTensor mask = distribute(full, mesh, placements);
    const DTensor turned_mask =
        DTensor::from_local(mask.local().transpose(0, 1).contiguous().transpose(0, 1), mesh,
                            placements, mask.shape(), {1, shape[0]});
    const Packed a = pack(Var::constant(x), Var::constant(mask), 2, 1);
    const Packed b = pack(Var::constant(turned), Var::constant(turned_mask), 2, 1);
    CHECK(bitwise_equal(a.x.value().local(), b.x.value().local()));
    CHECK(bitwise_equal(a.mask.value().local(), b.mask.value().local()));
  });
}

TEST_CASE("the longest line of all decides, wherever it is") {
  on_all_meshes(1, [](const DeviceMesh& mesh, Draw&) {
    const std::int64_t rows = mesh.size(kDp), n = 8 * mesh.size(kCp0);
    std::vector<double> values(static_cast<std::size_t>(rows * n), 0);
    // All of the last line, on the last dp coordinate only.
    std::fill(values.end() - n, values.end(), 1);
    const Tensor mask = Tensor::from_values({rows, n}, values, DType::boolean);
    const Placements placements{Shard{0}, Shard{1}, Replicate{}};
    const MaskPlan plan = plan_pack(Var::constant(distribute(mask, mesh, placements)), 2, 1);
    CHECK(plan.mask.value().size(1) == n);
  });
}

TEST_CASE("which placements go with a mask") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 2 * test_ranks();
  const Placements placed{Replicate{}, Shard{1}, Replicate{}};
  const Var mask = Var::constant(distribute(constant_mask({n, n}, 1), mesh, placed));
  const SharedPacking packing = plan_pack(mask, 2, 1, true).packing;
  int accepted = 0, refused = 0;
  for (const Placements& placements : every_placement(3)) {
    const DTensor x = zeros({n, n, n}, DType::f64, mesh, placements);
    INFO(format(placements));
    const Var v = Var::constant(x);
    const auto p = [&](int axis) { return placements[static_cast<std::size_t>(axis)]; };
    const auto free = [&](const Placement& q) { return is_replicate(q) || is_shard(q, 2); };
    const bool partial = has_partial(placements);
    const bool goes = (free(p(0)) || is_partial(p(0))) && (is_shard(p(1), 1) || is_partial(p(1))) &&
                      (free(p(2)) || is_partial(p(2)));
    if (goes && !partial) {
      ++accepted;
      CHECK(pack(v, packing).value().placements() == placements);
      CHECK(unpack(v, packing).value().placements() == placements);
      continue;
    }
    ++refused;
    const auto pack_it = [&] { pack(v, packing); };
    const auto unpack_it = [&] { unpack(v, packing); };
    const std::string found = format(placements);
    if (!goes) {
      require_error<PlacementError>(pack_it, "pack", "'x'", found, "redistribute");
      require_error<PlacementError>(unpack_it, "unpack", "'x'", found, "redistribute");
      require_error<PlacementError>([&] { pack(v, mask, 2, 1); }, "pack", "'x'", found);
    } else if (is_shard(p(1), 1)) {
      require_error<PartialError>(pack_it, "pack", "'x'", found, "Partial");
      require_error<PartialError>(unpack_it, "unpack", "'x'", found, "Partial");
    } else {
      require_error<PlacementError>(pack_it, "pack", "'x'", found, "dim 1");
    }
  }
  CHECK(accepted > 2);
  CHECK(refused > 20);
  for (const Placements& placements : every_placement(2)) {
    const DTensor m = zeros({n, n}, DType::boolean, mesh, placements);
    const bool partial = has_partial(placements);
    const bool cut = shards(placements, 1);
    INFO(format(placements));
    const auto plan = [&] { plan_pack(Var::constant(m), 2, 1); };
    if (!cut)
      require_error<PlacementError>(plan, "plan_pack", "'mask'", "dim 1", format(placements));
    else if (partial)
      require_error<PartialError>(plan, "plan_pack", "'mask'", format(placements));
    else
      CHECK(plan_pack(Var::constant(m), 2, 1).packing->plan.packed == 2);
  }
}

TEST_CASE("masks and lengths that do not fit") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, test_ranks(), 1});
  const std::int64_t n = 4 * test_ranks();
  const Placements placed = single_placements();
  const auto tensor = [&](const Shape& shape, DType dtype) {
    return Var::constant(zeros(shape, dtype, mesh, placed));
  };
  const Var x = tensor({2, n, 3}, DType::f64), mask = tensor({2, n}, DType::boolean);
  require_error<TypeError>(
      [&] {
        pack(x, tensor({2, n}, DType::f64), 2, 1);
      },
      "pack", "'mask'", "bool");
  require_error<RangeError>([&] { pack(x, mask, 0, 1); }, "plan_pack", "W = 0");
  require_error<RangeError>([&] { pack(x, mask, 3, 1); }, "plan_pack", "W = 3");
  require_error<RangeError>([&] { pack(x, mask, 2, 3); }, "pack");
  require_error<ShapeError>(
      [&] {
        pack(x, tensor({2, n, 3}, DType::boolean), 2, 1);
      },
      "pack", "'mask'", "size 1");
  require_error<ShapeError>([&] { pack(x, tensor({4, n}, DType::boolean), 2, 1); }, "pack", "'x'");
  require_error<ShapeError>(
      [&] {
        pack(mask, tensor({2, n, 1}, DType::boolean), 2, 1);
      },
      "pack", "'x'");
  require_error<ShapeError>(
      [&] {
        pack(x, tensor({2, 2 * n}, DType::boolean), 2, 1);
      },
      "pack", "'x'");
  require_error<ShapeError>([&] { pack(x, mask, 2, 2); }, "pack", "'x'");
  const DeviceMesh other = DeviceMesh::create(test_world(), {1, test_ranks(), 1});
  const Var elsewhere = Var::constant(zeros({2, n}, DType::boolean, other, placed));
  require_error<MeshError>([&] { pack(x, elsewhere, 2, 1); }, "pack", "'x'");
}

TEST_CASE("a packed mask that is not that of the original one, on all ranks") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, test_ranks(), 1});
  const std::int64_t n = 4 * test_ranks();
  Draw draw(3);
  const DTensor mask = distribute(draw.booleans({2, n}), mesh, single_placements());
  const DTensor packed = plan_pack(Var::constant(mask), 2, 1).mask.value();
  const Var x = Var::constant(zeros({2, packed.size(1), 3}, DType::f64, mesh, single_placements()));
  CHECK(unpack(x, Var::constant(packed), Var::constant(mask), 1).value().size(1) == n);
  const DTensor wrong = packed.with_local(packed.local().clone());
  if (test_rank() == test_ranks() - 1)
    fill(wrong.local().narrow(1, 0, 1), 1 - packed.local().item({0, 0}));
  require_error<ShapeError>([&] { unpack(x, Var::constant(wrong), Var::constant(mask), 1); },
                            "plan_unpack", "'mask_packed'", "pack()");
  // Too short for what is valid: every element of it is 1.
  const DTensor all = distribute(constant_mask({2, n}, 1), mesh, single_placements());
  const DTensor half = distribute(constant_mask({2, n / 2}, 1), mesh, single_placements());
  const Var y = Var::constant(zeros({2, n / 2, 3}, DType::f64, mesh, single_placements()));
  require_error<ShapeError>([&] { unpack(y, Var::constant(half), Var::constant(all), 1); },
                            "plan_unpack", "'mask_packed'");
}
