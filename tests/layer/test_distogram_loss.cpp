// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// The distogram loss as a chain of composable operations and as one function: the same numbers.
// Both ways to write a loss are right; the fused one keeps less and sends less.
#include <algorithm>
#include <numeric>
#include <set>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "tessera/layers/losses/distogram.hpp"
#include "tessera/layers/substrate/elementwise.hpp"
#include "tessera/layers/substrate/outer.hpp"
#include "tessera/layers/substrate/redistribute.hpp"
#include "tessera/layers/substrate/reduce.hpp"
#include "tessera/layers/substrate/reshape.hpp"
#include "tessera/layers/substrate/softmax.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;
constexpr std::int64_t kBins = 5;
constexpr std::int64_t kConformers = 3;

// 1 for pairs of different tokens, times both masks: [B, T, T].
Var pair_weights(const Var& mask, const Var& token) {
  const Var same = outer_op(token, Outer::equal);
  const Var both = outer_op(mask, Outer::multiply);
  return where(same, multiply(0.0, both), both);
}

// P [B, T, T, K]: conformers added up, each pair normalised.
Var aggregated(const Var& target) {
  const Var sum = shardwise_sum(target, 3);
  const Var total = maximum(1.0, shardwise_sum(sum, 3, true));
  return divide(sum, repeat_interleave(total, kBins, 3));
}

// {global, batch} from logits [B, T, T, 1, K], target, mask and token numbers [B, T].
Vars composed(const Vars& in) {
  const Var log_p = squeeze(shardwise_log_softmax(in[0], -1), 3);
  const Var e = multiply(-1.0, shardwise_sum(multiply(aggregated(in[1]), log_p), 3));
  const Var w = pair_weights(in[2], in[3]);
  const Var count = add(1e-5, sharded_sum(w, {1, 2}));
  const Var batch = divide(sharded_sum(multiply(w, e), {1, 2}), count);
  const auto samples = static_cast<double>(in[0].value().size(0));
  return {multiply(1 / samples, sharded_sum(batch, {0})), batch};
}

Vars fused(const Vars& in) {
  const DistogramLoss loss = distogram_loss(in[0], in[1], in[2], true);
  return {loss.global, loss.batch};
}

struct Problem {
  std::vector<Operand> operands;
};

Problem problem_on(const DeviceMesh& mesh, Draw& draw) {
  const std::int64_t batch = 2 * mesh.size(kDp);
  const std::int64_t tokens = 4 * std::lcm(mesh.size(kCp0), mesh.size(kCp1));
  const Shape tile{batch, tokens, tokens};
  const auto of = [&](std::int64_t c, std::int64_t k) {
    return Shape{batch, tokens, tokens, c, k};
  };
  Tensor numbers = Tensor::empty({batch, tokens}, DType::i64);
  copy(arange(tokens, cpu_device).unsqueeze(0).expand({batch, tokens}), numbers);
  const Tensor mask = draw.booleans({batch, tokens}).to(DType::f64);
  return {{{draw.values(of(1, kBins), -3, 3), pair_placements()},
           {draw.booleans(of(kConformers, kBins)).to(DType::f64), pair_placements(), false},
           {mask, single_placements(), false},
           {numbers, single_placements(), false}}};
}

struct Outcome {
  std::vector<DTensor> results;  // outputs and the gradient of the logits
  std::int64_t saved = 0;
  std::int64_t sent = 0;
};

// Bytes that are kept for backward and would not live anyway, as operands do.
std::int64_t kept_beside(const Vars& operands, const Tape& tape) {
  std::set<const void*> known;
  for (const Var& x : operands) known.insert(x.value().local().storage_id());
  std::int64_t bytes = 0;
  for (const SavedRecord& s : tape.saved())
    if (known.insert(s.storage).second) bytes += s.bytes;
  return bytes;
}

Outcome run(const DeviceMesh& mesh, const Operation& operation, const Problem& problem) {
  Tape tape;
  Vars inputs;
  for (const Operand& o : problem.operands)
    inputs.push_back(tape.input("in", distribute(o.full, mesh, o.placements), o.differentiable));
  mesh.clear_records();
  const Vars outputs = operation(inputs);
  Outcome outcome;
  outcome.saved = kept_beside(inputs, tape);
  std::vector<Tape::Seed> seeds;
  for (const Var& y : outputs) {
    outcome.results.push_back(y.value());
    seeds.push_back({y, uniform(y.value().shape(), DType::f64, mesh, y.value().placements(),
                                {3, outcome.results.size()}, 0.5, 1)});
  }
  tape.backward(seeds);
  for (const CommRecord& r : mesh.records()) outcome.sent += r.bytes;
  outcome.results.push_back(inputs[0].grad());
  return outcome;
}

}  // namespace

TEST_CASE("composed and fused give the same loss, gradient and placements") {
  on_all_meshes(2, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem problem = problem_on(mesh, draw);
    const Outcome a = run(mesh, fused, problem);
    const Outcome b = run(mesh, composed, problem);
    REQUIRE(a.results.size() == b.results.size());
    for (std::size_t k = 0; k < a.results.size(); ++k) {
      CHECK(a.results[k].placements() == b.results[k].placements());
      CHECK(a.results[k].shape() == b.results[k].shape());
      const Difference d = max_difference(a.results[k].local(), b.results[k].local());
      CHECK(d.max_abs <= 1e-12 * max_abs(full_tensor(b.results[k])));
      CHECK(max_abs(full_tensor(b.results[k])) > 0);
    }
    CHECK(3 * a.saved < b.saved);
    CHECK(a.sent <= b.sent);
  });
}

TEST_CASE("both forms equal themselves on one rank") {
  on_all_meshes(2, [](const DeviceMesh& mesh, Draw& draw) {
    const Problem problem = problem_on(mesh, draw);
    check_against_serial(mesh, fused, problem.operands, 1e-12);
    check_against_serial(mesh, composed, problem.operands, 1e-12);
  });
}

TEST_CASE("a distogram loss without any pair is zero and has a zero gradient") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  Draw draw(1);
  Problem problem = problem_on(mesh, draw);
  fill(problem.operands[2].full, 0);
  for (const DTensor& r : run(mesh, fused, problem).results) CHECK(max_abs(r.local()) == 0);
}

TEST_CASE("logits and targets may be transposed views") {
  on_all_meshes(1, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t batch = 2 * mesh.size(kDp);
    const std::int64_t tokens = 2 * std::lcm(mesh.size(kCp0), mesh.size(kCp1));
    const Operand mask{draw.values({batch, tokens}, 0.5, 1), single_placements(), false};
    const auto of = [&](std::int64_t c, std::int64_t k) {
      return Operand{draw.values({batch, tokens, tokens, c, k}, 0, 3), pair_placements()};
    };
    const auto loss = [](const Var& logits, const Var& target, const Var& weight) {
      const DistogramLoss l = distogram_loss(logits, target, weight, false);
      return Vars{l.global, l.batch};
    };
    Operand targets = of(kBins, kConformers);
    targets.differentiable = false;
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          return loss(local_transpose(in[0], 3, 4), local_transpose(in[1], 3, 4), in[2]);
        },
        {of(kBins, 2), targets, mask}, 1e-12);
    targets = of(kConformers, kBins);
    targets.differentiable = false;
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          return loss(global_transpose(in[0], 1, 2), global_transpose(in[1], 1, 2), in[2]);
        },
        {of(2, kBins), targets, mask}, 1e-12);
  });
}

TEST_CASE("the distogram loss refuses dtypes and gradients that it does not have") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  Tape tape;
  const auto make = [&](const Shape& shape, const Placements& placements, DType dtype,
                        bool requires_grad) {
    return tape.input("in", zeros(shape, dtype, mesh, placements), requires_grad);
  };
  const Shape bins{2, 12, 12, 3}, weights{2, 12, 12, 3, 5};
  const Var logits = make({2, 12, 12, 2, 5}, pair_placements(), DType::f64, true);
  const Var mask = make({2, 12}, single_placements(), DType::f64, false);
  const auto target = [&](const Shape& shape, DType dtype, bool requires_grad) {
    return make(shape, pair_placements(), dtype, requires_grad);
  };
  distogram_loss(logits, target(bins, DType::i64, false), mask, false);
  require_error<TypeError>(
      [&] { distogram_loss(logits, target(bins, DType::f64, false), mask, false); },
      "distogram_loss", "'target'", "i64");
  require_error<TypeError>(
      [&] {
        distogram_loss(target({2, 12, 12, 2, 5}, DType::i64, false),
                       target(bins, DType::i64, false), mask, false);
      },
      "distogram_loss", "'logits'", "f64");
  require_error<GradientError>(
      [&] { distogram_loss(logits, target(weights, DType::f64, true), mask, false); },
      "distogram_loss", "'target'", "Var::constant");
  require_error<GradientError>(
      [&] {
        distogram_loss(logits, target(bins, DType::i64, false),
                       make({2, 12}, single_placements(), DType::f64, true), false);
      },
      "distogram_loss", "'mask'", "Var::constant");
}

TEST_CASE("the distogram loss says what does not fit") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const auto make = [&](const Shape& shape, const Placements& placements) {
    return Var::constant(zeros(shape, DType::f64, mesh, placements));
  };
  const Var logits = make({2, 12, 12, 2, 5}, pair_placements());
  const Var target = make({2, 12, 12, 3, 5}, pair_placements());
  const Var mask = make({2, 12}, single_placements());
  distogram_loss(logits, target, mask, false);
  require_error<ShapeError>([&] { distogram_loss(logits, target, mask, true); }, "distogram_loss",
                            "'logits'", "[B, T, T, 1, K]");
  require_error<ShapeError>(
      [&] {
        distogram_loss(logits, make({2, 12, 12, 3, 4}, pair_placements()), mask, false);
      },
      "distogram_loss", "'target'", "K=5");
  require_error<PlacementError>(
      [&] {
        distogram_loss(logits, target, make({2, 12}, {Shard{0}, Replicate{}, Shard{1}}), false);
      },
      "distogram_loss", "'mask'", "mesh_transpose(x, (S0,S1,R))");
  require_error<PlacementError>(
      [&] {
        distogram_loss(make({2, 12, 12, 2, 5}, single_placements()), target, mask, false);
      },
      "distogram_loss", "'logits'", "redistribute(x, (S0,S1,S2))");
}
