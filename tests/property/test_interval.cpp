// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Interval exchange on random needs, and its adjoint.
#include <algorithm>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/errors.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/schedule/interval.hpp"
#include "tessera/mesh/collectives.hpp"

using namespace tessera;

namespace {

// Any part of [0, size), often empty.
Interval draw_need(Draw& draw, int size) {
  if (draw.below(4) == 0) return {};
  const int begin = draw.below(size);
  return {begin, begin + 1 + draw.below(size - begin)};
}

struct Problem {
  int axis;
  std::int64_t size;
  std::vector<Interval> needs;  // by coordinate
  Tensor full;                  // [2, size, 3]
};

Problem draw_problem(const DeviceMesh& mesh, Draw& draw) {
  Problem p;
  p.axis = draw.below(3);
  p.size = (1 + draw.below(4)) * mesh.size(p.axis);
  for (int c = 0; c < mesh.size(p.axis); ++c)
    p.needs.push_back(draw_need(draw, static_cast<int>(p.size)));
  p.full = draw.values({2, p.size, 3}, -1, 1);
  return p;
}

IntervalPlan agreed(const DeviceMesh& mesh, const Problem& p) {
  const Interval need = p.needs[static_cast<std::size_t>(mesh.coordinate(p.axis))];
  return agree_on_intervals(mesh, p.axis, p.size, need, "needs");
}

Tensor part(const Tensor& full, Interval interval) {
  return full.narrow(1, interval.begin, interval.size());
}

}  // namespace

TEST_CASE("every rank gets exactly what it needs") {
  on_all_meshes(20, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw);
    const IntervalPlan plan = agreed(mesh, p);
    for (const bool transposed : {false, true}) {
      Tensor own = part(p.full, plan.own).clone();
      if (transposed) own = own.transpose(0, 2).contiguous().transpose(0, 2);
      mesh.clear_records();
      const Tensor y = interval_gather(mesh, plan, own, "x");
      CHECK(bitwise_equal(y, part(p.full, plan.need)));
      std::int64_t sent = 0;
      for (const CommRecord& r : mesh.records()) sent += r.bytes;
      CHECK(sent == 2 * rows_in(plan.sends) * 3 * 8);
      CHECK((plan.local ? mesh.records().empty() : mesh.records().size() == 1));
    }
  });
}

TEST_CASE("the scatter-add is the adjoint of the gather") {
  on_all_meshes(20, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw);
    const IntervalPlan plan = agreed(mesh, p);
    const Tensor mine = part(draw.values({2, p.size, 3}, -1, 1), plan.need);
    const Tensor sums = interval_scatter_add(mesh, plan, mine, "x");
    const Tensor readers = interval_scatter_add(
        mesh, plan, Tensor::full({1, plan.need.size(), 1}, 1, DType::f64), "ones");
    for (std::int64_t row = plan.own.begin; row < plan.own.end; ++row) {
      const auto count = std::count_if(p.needs.begin(), p.needs.end(), [&](const Interval& need) {
        return need.begin <= row && row < need.end;
      });
      CHECK(readers.item({0, row - plan.own.begin, 0}) == static_cast<double>(count));
    }
    // <gather x, y> summed over the axis is <x, scatter y>.
    const Tensor x = part(p.full, plan.own).contiguous();
    const auto inner = [&](const Tensor& a, const Tensor& b) {
      const std::vector<double> u = to_values(a), v = to_values(b);
      double sum = 0;
      for (std::size_t k = 0; k < u.size(); ++k) sum += u[k] * v[k];
      const Tensor all = Tensor::full({1}, sum, DType::f64);
      all_reduce(mesh, p.axis, ReduceOp::sum, all, "inner");
      return all.item({0});
    };
    const double left = inner(interval_gather(mesh, plan, x, "x"), mine);
    CHECK(std::abs(left - inner(x, sums)) < 1e-12);
  });
}

TEST_CASE("both ends of a message agree on its rows") {
  for (const MeshShape& shape : {MeshShape{1, 5, 1}, MeshShape{2, 3, 4}, MeshShape{1, 1, 7}}) {
    Draw draw(11);
    const DeviceMesh first = DeviceMesh::dry_run(shape, 0);
    const int axis = first.size(kCp0) > 1 ? kCp0 : kCp1;
    const std::int64_t size = 6 * first.size(axis);
    std::vector<Interval> needs;
    for (int c = 0; c < first.size(axis); ++c)
      needs.push_back(draw_need(draw, static_cast<int>(size)));
    std::vector<IntervalPlan> plans;
    for (int rank = 0; rank < shape.ranks(); ++rank)
      plans.push_back(plan_intervals(DeviceMesh::dry_run(shape, rank), axis, size, needs));
    for (int a = 0; a < shape.ranks(); ++a)
      for (int b = 0; b < shape.ranks(); ++b) {
        const auto with = [](const std::vector<IntervalPlan::Part>& parts, int peer) {
          const auto found = std::find_if(parts.begin(), parts.end(),
                                          [&](const auto& part) { return part.peer == peer; });
          return found == parts.end() ? Interval{} : found->region;
        };
        CHECK(with(plans[static_cast<std::size_t>(a)].sends, b) ==
              with(plans[static_cast<std::size_t>(b)].receives, a));
      }
  }
}

TEST_CASE("needs that no plan can have") {
  const DeviceMesh mesh = DeviceMesh::dry_run({1, 3, 1}, 0);
  const std::vector<Interval> needs(3);
  require_error<UnevenError>([&] { plan_intervals(mesh, kCp0, 7, needs); }, "7", "3");
  require_error<ShapeError>([&] { plan_intervals(mesh, kCp0, 6, {{0, 1}}); }, "1 needs", "3");
  require_error<RangeError>([&] { plan_intervals(mesh, kCp0, 6, {{0, 1}, {5, 7}, {}}); }, "[5, 7)");
  const IntervalPlan plan = plan_intervals(mesh, kCp0, 6, needs);
  require_error<ShapeError>(
      [&] {
        interval_gather(mesh, plan, Tensor::zeros({1, 3, 1}, DType::f64), "x");
      },
      "'x'", "[batch, 2, features]");
}
