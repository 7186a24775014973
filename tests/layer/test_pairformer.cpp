// SPDX-License-Identifier: MIT
// ranks: 1
// Pairformer and MSA layers: memory on meshes of any size, dropout, refusals.
#include <cmath>
#include <set>
#include <string>
#include <tuple>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/errors.hpp"
#include "tessera/harness/contract_table.hpp"
#include "tessera/harness/layer_case.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/layers/trunk/msa.hpp"
#include "tessera/mesh/traffic.hpp"
#include "tessera/runtime/hash.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

using Vars = std::vector<Var>;

// Peaks of forward and backward, of the rank that needs most.
struct Peaks {
  std::int64_t activations = 0;  // inputs, results and what is kept
  std::int64_t all = 0;          // and gradients, messages, workspace; but no parameters
};
Peaks peaks_of(const char* name, const Sizes& sizes, const MeshShape& shape) {
  const Case& c = *find_case(name);
  Peaks worst;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const DeviceMesh mesh = DeviceMesh::dry_run(shape, rank);
    const Setup setup = random_setup(c, c.problem(sizes), mesh, DType::f32, 1);
    std::int64_t parameters = 0;
    for (const Var& p : setup.instance.module->parameters())
      parameters += p.value().local().bytes();
    memory_ledger::reset_peak();
    Tape tape;
    tape.backward(seeds(setup, setup.instance.forward(inputs_on(tape, setup))));
    const auto peak = [](Purpose purpose) { return memory_ledger::total(purpose).peak; };
    worst.activations =
        std::max(worst.activations, peak(Purpose::activation) + peak(Purpose::saved));
    worst.all = std::max(worst.all, memory_ledger::total().peak - parameters);
  }
  return worst;
}

Var ones(const DeviceMesh& mesh, const Shape& shape) {
  const DTensor x = zeros(shape, DType::f64, mesh, pair_placements());
  fill(x.local(), 1);
  return Var::constant(x);
}

std::uint64_t layer_bits(const RunMode& mode) {
  const Case& c = *find_case("pairformer_noseq_layer");
  const Setup setup = random_setup(c, c.problem({2, 6, 7}), DeviceMesh::serial(), DType::f64, 3);
  const auto& layer = dynamic_cast<const PairformerNoSeqLayer&>(*setup.instance.module);
  const NoGrad no_grad;
  const Var z = layer.forward(Var::constant(setup.inputs[0]), Var::constant(setup.inputs[1]), mode);
  return hash_of(z.value().local());
}

// Bytes and messages that a rank of a 2 x 2 grid sends in functions of this name.
MessageCount sent(const DryRun& run, const std::string& function, Pass pass) {
  MessageCount sum;
  for (const BoundContract& b : run.contracts)
    if (b.function == function)
      for (const MessageCount& m : message_counts(b)) {
        if (m.pass != pass) continue;
        sum.messages += m.messages;
        sum.bytes += m.bytes;
      }
  return sum;
}

// The operands of a problem, whole.
std::vector<Operand> operands_of(const Problem& problem) {
  Draw draw(5);
  std::vector<Operand> all;
  for (const InputSpec& spec : problem.inputs) {
    const bool mask = spec.kind == InputKind::mask;
    all.push_back({mask ? draw.booleans(spec.shape).to(DType::f64) : draw.values(spec.shape, -1, 1),
                   spec.placements, spec.differentiable});
  }
  return all;
}

}  // namespace

TEST_CASE("layers do not ask how operands and gradients of results lie in memory") {
  for (const char* name : {"pairformer_layer", "pairformer_module_checkpoint", "msa_layer"}) {
    CAPTURE(name);
    const Case& c = *find_case(name);
    const Problem problem = c.problem({2, 4, 3});
    std::vector<Setup> used;  // until the backward pass has ended
    const Operation operation = [&](const Vars& in) {
      used.push_back(random_setup(c, problem, in[0].value().mesh(), DType::f64, 1));
      return used.back().instance.forward(in);
    };
    check_any_layout(operation, operands_of(problem), 1e-9);
  }
}

TEST_CASE("a mask that wants a gradient is refused before anything is done") {
  for (const auto& [name, layer] : {std::pair{"triangle_multiplication_incoming", "triangle_mul"},
                                    std::pair{"triangle_attention_ending_node", "triangle_att"},
                                    std::pair{"outer_product_mean", "outer_product_mean"}}) {
    const Case& c = *find_case(name);
    const Setup setup = random_setup(c, c.problem({2, 4, 3}), DeviceMesh::serial(), DType::f64, 1);
    Tape tape;
    Vars in = inputs_on(tape, setup);
    in[1] = tape.input("mask", setup.inputs[1], true);
    require_error<GradientError>([&] { setup.instance.forward(in); }, layer, "'mask'",
                                 "no gradient leads");
    CHECK(tape.size() == 0);
  }
}

TEST_CASE("the memory of a layer of the model's size falls with the ranks") {
  for (const char* name : {"pairformer_layer", "msa_layer"})
    for (const auto& [side, tokens, share] : {std::tuple{2, 256, 0.27}, std::tuple{3, 258, 0.13}}) {
      const Sizes sizes{1, tokens, 128};
      const Peaks serial = peaks_of(name, sizes, {1, 1, 1});
      const Peaks grid = peaks_of(name, sizes, {1, side, side});
      CAPTURE(name, side, grid.activations, serial.activations, grid.all, serial.all);
      CHECK(static_cast<double>(grid.activations) <=
            share * static_cast<double>(serial.activations));
      CHECK(static_cast<double>(grid.all) <= share * static_cast<double>(serial.all));
    }
}

TEST_CASE("with a tile of the same size on every rank the memory does not grow with the ranks") {
  for (const char* name : {"pairformer_layer", "msa_module"}) {
    const auto peak = [&](int side) { return peaks_of(name, {1, 16 * side, 16}, {1, side, side}); };
    const Peaks small = peak(3), large = peak(8);  // two ranks have fewer messages on their way
    CAPTURE(name, small.activations, large.activations, small.all, large.all);
    CHECK(static_cast<double>(large.activations) <= 1.02 * static_cast<double>(small.activations));
    CHECK(static_cast<double>(large.all) <= 1.02 * static_cast<double>(small.all));
  }
}

TEST_CASE("the embedding of an MSA module moves once each way, and its gradient is summed once") {
  const Sizes sizes{2, 8, 7};
  const std::int64_t elements = 2 * 4 * msa_channels(sizes);
  const Case& c = *find_case("msa_module");
  const DryRun run =
      dry_run(c, c.problem(sizes), {1, 2, 2}, 1, DType::f64);  // not a mirror of itself
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    CHECK(sent(run, "mesh_transpose", pass).messages == 1);
    CHECK(sent(run, "mesh_transpose", pass).bytes == elements * 8);
  }
  CHECK(sent(run, "replicate_op", Pass::forward).messages == 0);
  const Traffic sum = all_reduce_traffic(elements, DType::f64, 2, 0);
  CHECK(sent(run, "replicate_op", Pass::backward).bytes == sum.bytes);
}

TEST_CASE("dropout: none outside of training, by stream, another one in every part") {
  const RunMode mode{.training = true, .stream = {1, 2}};
  CHECK(layer_bits(mode) == layer_bits(mode));
  CHECK(layer_bits({.training = true, .stream = {1, 3}}) != layer_bits(mode));
  CHECK(layer_bits({.training = true, .stream = {2, 2}}) != layer_bits(mode));
  CHECK(layer_bits({}) != layer_bits(mode));
  CHECK(layer_bits({.training = false, .stream = {1, 2}}) == layer_bits({}));

  std::set<std::uint64_t> streams{mode.stream.stream};
  for (const char* outer : {"layers.0", "layers.1"})
    for (const char* inner : {"tri_mul_out", "tri_mul_in"}) {
      streams.insert(mode.part(outer).part(inner).stream.stream);
      streams.insert(mode.part(inner).part(outer).stream.stream);
    }
  CHECK(streams.size() == 9);
  CHECK(mode.part("x").stream.seed == mode.stream.seed);
}

TEST_CASE("whole rows of an MSA are dropped, the others grow") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const Var one = ones(mesh, {2, 40, 3, 5});
  const RunMode mode{.training = true, .stream = {1, 2}};
  const Tensor y =
      add_dropped(one, one, 0.25, DropoutMask::rows, mode).value().local().view({80, 15});
  int dropped = 0;
  for (std::int64_t row = 0; row < 80; ++row) {
    const std::vector<double> values = to_values(y.select(0, row));
    const double expected = values[0] == 1 ? 1 : 1 + 1 / 0.75;
    dropped += values[0] == 1;
    for (const double value : values) CHECK(std::abs(value - expected) < 1e-15);
  }
  CHECK(dropped > 8);  // 20 expected, four standard deviations are 15
  CHECK(dropped < 36);
}

TEST_CASE("features of an MSA: classes in range, as many numbers as columns, no gradient") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const MsaFeatures features({mesh, DType::f64}, 4, 2, 3);
  const Shape shape{1, 2, 3};
  const auto classes = [&](double value) {
    const DTensor idx = zeros(shape, DType::i64, mesh, pair_placements());
    fill(idx.local(), value);
    return Var::constant(idx);
  };
  const Var number = ones(mesh, shape);
  const NoGrad no_grad;
  CHECK(features.forward(classes(3), {number, number}).value().shape() == Shape{1, 2, 3, 3});
  require_error<RangeError>(
      [&] {
        features.forward(classes(4), {number, number});
      },
      "msa_features");
  require_error<ShapeError>([&] { features.forward(classes(0), {number}); }, "msa_features",
                            "columns");
  require_error<TypeError>(
      [&] {
        features.forward(number, {number, number});
      },
      "msa_features", "msa");
  Tape tape;
  const Var wanted = tape.input("x", number.value(), true);
  require_error<GradientError>(
      [&] {
        features.forward(classes(0), {number, wanted});
      },
      "msa_features", "number 1");
}
