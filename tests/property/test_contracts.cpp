// SPDX-License-Identifier: MIT
// ranks: 1
// Contracts against ledgers for every rank of meshes that are not there, and offenders that the
// watchers must catch although their numbers are right.
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/autodiff/gradients.hpp"
#include "tessera/harness/contract_table.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

const std::vector<MeshShape> kMeshes{{1, 1, 1}, {1, 2, 2}, {1, 3, 3}, {1, 2, 3},
                                     {1, 3, 2}, {1, 1, 5}, {1, 5, 1}, {1, 4, 6},
                                     {2, 2, 2}, {3, 1, 2}, {1, 5, 7}, {1, 8, 8}};

Sizes sizes_for(const MeshShape& shape, std::int64_t channels) {
  const std::int64_t step = std::lcm(shape.cp0, shape.cp1);
  return {shape.dp, step * ((8 + step - 1) / step), channels};
}

bool mentions(const std::vector<std::string>& texts, const std::string& word) {
  for (const std::string& text : texts)
    if (text.find(word) != std::string::npos) return true;
  return false;
}

// --- offenders: y = 2x with a habit
// ---------------------------------------------------------------

enum class Habit { none, saves_full_size, saves_behind_the_tape, gathers, forgets_reduction };

struct Doubled {
  Habit habit;
  static constexpr const char* name = "doubled";
  static constexpr std::array inputs{"x", "w"};

  Contract contract() const {
    const Formula n = Formula::symbol("N"), b = Formula::symbol("B"), c = Formula::symbol("C");
    Contract k;
    k.inputs = {{"x", {b, n, n, c}, {PlacementRule::Kind::exactly, pair_placements()}},
                {"w", {c}, {PlacementRule::Kind::replicated}}};
    k.outputs = {{"y", {b, n, n, c}, {PlacementRule::Kind::like_first}}};
    k.saved = {{"x", b * n * n * c, Formula::symbol("e")}};
    // A ring of one step, as an honest schedule would have.
    const Formula tile = b * n * n * c / Formula::symbol("dp") /
                         (Formula::symbol("R0") * Formula::symbol("R1")) * Formula::symbol("e");
    k.messages = {{Pass::forward, "shift", "cp1", "ring x", 1, 1, tile},
                  {Pass::backward, "all_reduce", "cp1", "sum", 1, 1, c * Formula::symbol("acc")}};
    return k;
  }

  DTensor forward(FunctionContext& ctx, const std::array<DTensor, 2>& in) const {
    const DTensor& x = in[0];
    const DeviceMesh& mesh = ctx.mesh();
    const Tensor y = Tensor::empty(x.local().shape(), x.dtype(), mesh.device());
    add(2, x.local(), 0, x.local(), y);
    if (habit == Habit::gathers)
      all_gather(mesh, kCp1, x.local(), 2, "ring x");
    else
      shift(mesh, kCp1, 1, x.local(), Tensor::empty(y.shape(), y.dtype(), mesh.device()), "ring x")
          .wait();
    if (habit == Habit::saves_full_size)
      ctx.save("x", Tensor::empty(x.shape(), x.dtype(), mesh.device()), BudgetClass::pair,
               x.shape());
    else
      ctx.save("x", x, BudgetClass::pair);
    if (habit == Habit::saves_behind_the_tape) hidden() = y.clone();
    return x.with_local(y);
  }

  std::array<DTensor, 2> backward(FunctionContext& ctx, const DTensor& g) const {
    const DeviceMesh& mesh = ctx.mesh();
    const std::int64_t channels = g.size(3);
    const Tensor dw = Tensor::zeros({channels}, DType::f64, mesh.device());
    if (habit != Habit::forgets_reduction) all_reduce(mesh, kCp1, ReduceOp::sum, dw, "sum");
    const Tensor dx = Tensor::empty(g.local().shape(), g.dtype(), mesh.device());
    add(2, g.local(), 0, g.local(), dx);
    const DTensor w = DTensor::from_local(dw, mesh, replicated_placements(), {channels}, {1});
    return {g.with_local(dx), parameter_gradient(dw, w, g.placements())};
  }

  static Tensor& hidden() {
    static Tensor tensor;
    return tensor;
  }
};

class Offender : public Module {
 public:
  Offender(const Build& build, Habit habit)
      : Module(build), habit_(habit), w_(add_parameter("w", {3}, Init::one)) {}
  Var forward(const Var& x) const { return apply(Doubled{habit_}, {x, w_}); }

 private:
  Habit habit_;
  Var w_;
};

DryRun run_offender(Habit habit) {
  Case c;
  c.name = "offender";
  const InputSpec x{"x", {1, 8, 8, 3}, pair_placements()};
  c.build = [habit](const Build& build, const nlohmann::json&) {
    auto module = std::make_unique<Offender>(build, habit);
    const Offender* layer = module.get();
    return Instance{std::move(module), [layer](const std::vector<Var>& in) {
                      return std::vector<Var>{layer->forward(in[0])};
                    }};
  };
  const Problem problem{std::make_shared<nlohmann::json>(), {x}};
  DryRun run = dry_run(c, problem, {1, 2, 2}, 1, DType::f64);
  Doubled::hidden() = Tensor();
  return run;
}

}  // namespace

TEST_CASE("every rank of every mesh keeps and sends what the contract says") {
  for (const MeshShape& shape : kMeshes)
    for (const Case& c : all_cases())
      for (const std::int64_t channels : {3, 5}) {
        const Problem problem = c.problem(sizes_for(shape, channels));
        for (int rank = 0; rank < shape.ranks(); rank += 1 + shape.ranks() / 7) {
          const DryRun run = dry_run(c, problem, shape, rank, DType::f64);
          INFO(c.name << " " << format(shape) << " rank " << rank);
          for (const std::string& difference : run.differences) FAIL_CHECK(difference);
          CHECK_FALSE(run.contracts.empty());
        }
      }
}

TEST_CASE("large tiles go in groups, and the contract knows") {
  const Case& c = *find_case("triangle_multiplication_outgoing");
  const Problem problem = c.problem({1, 240, 64});
  for (const MeshShape& shape : {MeshShape{1, 2, 2}, MeshShape{1, 2, 3}}) {
    const DryRun run = dry_run(c, problem, shape, 1, DType::f32);
    for (const std::string& difference : run.differences) FAIL_CHECK(difference);
    std::int64_t skews = 0;
    for (const MessageCount& m : message_counts(run.contracts.front()))
      if (m.label == "skew a" && m.pass == Pass::forward) skews = m.count;
    CHECK(skews > 1);
  }
}

TEST_CASE("on a P x P grid the contract says 2P tiles forward and 4P backward") {
  const Case& c = *find_case("triangle_multiplication_incoming");
  for (const int p : {2, 3, 4, 8}) {
    const std::int64_t n = 2 * p, d = 5, tile = n * n * d * 8 / (p * p);
    std::int64_t most_forward = 0, most_backward = 0;
    for (int rank = 0; rank < p * p; ++rank) {
      const DryRun run = dry_run(c, c.problem({1, n, d}), {1, p, p}, rank, DType::f64);
      std::int64_t forward = 0, backward = 0;
      for (const MessageCount& m : message_counts(run.contracts.front()))
        (m.pass == Pass::forward ? forward : backward) += m.bytes;
      most_forward = std::max(most_forward, forward);
      most_backward = std::max(most_backward, backward);
    }
    CHECK(most_forward == 2 * p * tile);
    CHECK(most_backward == 4 * p * tile);
  }
}

TEST_CASE("an honest layer passes the watchers") {
  for (const std::string& difference : run_offender(Habit::none).differences)
    FAIL_CHECK(difference);
}

TEST_CASE("a tensor saved at full size") {
#ifdef TESSERA_ASSERTIONS
  require_error<BudgetError>([] { run_offender(Habit::saves_full_size); }, "doubled", "'x'");
#else
  const DryRun run = run_offender(Habit::saves_full_size);
  CHECK(mentions(run.differences, "'x' keeps 1536 bytes, the contract says 384"));
#endif
}

TEST_CASE("a tensor kept behind the tape's back") {
  const DryRun run = run_offender(Habit::saves_behind_the_tape);
  CHECK(mentions(run.differences, "stay alive after forward"));
}

TEST_CASE("a gather where the contract has a ring") {
  const DryRun run = run_offender(Habit::gathers);
  CHECK(mentions(run.differences, "all_gather on cp1 'ring x' sent 1 operations"));
  CHECK(mentions(run.differences, "shift on cp1 'ring x' sent nothing"));
}

TEST_CASE("a forgotten reduction") {
  const DryRun run = run_offender(Habit::forgets_reduction);
  CHECK(mentions(run.differences, "all_reduce on cp1 'sum' sent nothing"));
}
