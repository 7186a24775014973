// SPDX-License-Identifier: MIT
// ranks: 1
#include <string>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/autodiff/checkpoint.hpp"
#include "tessera/autodiff/gradcheck.hpp"
#include "tessera/layers/substrate/elementwise.hpp"
#include "tessera/layers/substrate/linear.hpp"
#include "tessera/layers/trunk/transition.hpp"
#include "tessera/runtime/hash.hpp"
#include "tessera/runtime/random.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

DTensor draw(const DeviceMesh& mesh, const char* name, const Shape& shape) {
  return uniform(shape, DType::f64, mesh, single_placements(), {7, stream_id(name)}, -1, 1);
}

// A few blocks x += transition(x), each checkpointed or not.
class Stack : public Module {
 public:
  Stack(const Build& build, int blocks, std::int64_t channels) : Module(build) {
    for (int k = 0; k < blocks; ++k) {
      blocks_.push_back(std::make_unique<Transition>(build, channels, 4 * channels));
      add_child("layers." + std::to_string(k), *blocks_.back());
    }
    for (const NamedParameter& p : named_parameters())
      fill_uniform(p.var.value().local(), {3, stream_id(p.name)}, whole(p.var.value().shape()), -1,
                   1);
  }
  Var forward(Var x, bool again) const {
    for (const auto& block : blocks_) {
      const auto body = [&block](const Vars& in) {
        return Vars{add(in[0], block->forward(in[0]))};
      };
      x = again ? checkpoint({{"x", x}}, body)[0] : body({x})[0];
    }
    return x;
  }

 private:
  std::vector<std::unique_ptr<Transition>> blocks_;
};

struct Result {
  std::uint64_t output = 0;
  std::vector<std::uint64_t> gradients;
  std::int64_t saved = 0, peak = 0;  // bytes
  bool operator==(const Result& other) const {
    return output == other.output && gradients == other.gradients;
  }
};

Result run(Stack& stack, const Shape& shape, bool again) {
  stack.zero_grad();
  Tape tape;
  const Var x = tape.input("x", draw(stack.mesh(), "x", shape), true);
  const DTensor upstream = draw(stack.mesh(), "g", shape);
  memory_ledger::reset_peak();
  const std::int64_t before = memory_ledger::total().live;
  Result result;
  {
    const Var y = stack.forward(x, again);
    result.output = hash_of(y.value().local());
    result.saved = tape.saved_bytes();
    tape.backward(y, upstream);
  }
  result.peak = memory_ledger::total().peak - before;
  result.gradients.push_back(hash_of(x.grad().local()));
  for (const Var& p : stack.parameters()) result.gradients.push_back(hash_of(p.grad().local()));
  return result;
}

// y = x, and counts its calls.
struct Counted {
  static constexpr const char* name = "counted";
  int* forwards;
  int* backwards;

  Contract contract(const std::vector<DTensor>&) const {
    return {.inputs = {{"x", any_shape()}},
            .outputs = {{"y", same_shape("x")}},
            .messages = {{Pass::forward, "shift", "cp0", "there", 1, 2, 3},
                         {Pass::backward, "shift", "cp0", "back", 1, 5, 7}},
            .saved = {saved_block("x")}};
  }
  std::vector<DTensor> forward(FunctionContext& ctx, const std::vector<DTensor>& in) const {
    ++*forwards;
    ctx.save("x", in[0]);
    return {in[0].with_local(in[0].local().clone())};
  }
  std::vector<DTensor> backward(FunctionContext&, const std::vector<DTensor>& g) const {
    ++*backwards;
    return {g[0]};
  }
};

struct Calls {
  int forwards = 0, backwards = 0;
  CheckpointBody body() {
    return [this](const Vars& in) { return apply_many(Counted{&forwards, &backwards}, in); };
  }
};

}  // namespace

TEST_CASE("a checkpointed stack: the same bits, and the memory of one block and the inputs") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const Shape shape{1, 64, 16};
  Stack stack({mesh, DType::f64}, 8, 16), one({mesh, DType::f64}, 1, 16);
  const Result plain = run(stack, shape, false), again = run(stack, shape, true);
  CHECK(plain == again);
  const std::int64_t tile = numel(shape) * 8;
  CHECK(again.saved == 8 * tile);
  CHECK(plain.saved > again.saved);
  // Of the stored inputs the first one is the caller's; gradients of parameters are in both.
  std::int64_t parameters = 0;
  for (const Var& p : one.parameters()) parameters += p.value().local().bytes();
  CHECK(again.peak <= run(one, shape, false).peak + 7 * (tile + parameters) + tile);
}

TEST_CASE("an input that is used outside as well: the same bits") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const auto gradient = [&](bool again) {
    Tape tape;
    const Var leaf = tape.input("x", draw(mesh, "x", {1, 20, 30}), true);
    const Var x = multiply(3, leaf);
    const Var before = exp(x);
    const CheckpointBody body = [](const Vars& in) {
      return Vars{add(exp(in[0]), multiply(in[0], cos(in[0])))};
    };
    const Var y = again ? checkpoint({{"x", x}}, body)[0] : body({x})[0];
    tape.backward(add(multiply(y, x), before), draw(mesh, "g", {1, 20, 30}));
    return hash_of(leaf.grad().local());
  };
  CHECK(gradient(true) == gradient(false));
}

TEST_CASE("without a tape, or under a NoGrad, the body is only called") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Calls calls;
  const DTensor x = draw(mesh, "x", {1, 2, 3});
  CHECK_FALSE(checkpoint({{"x", Var::constant(x)}}, calls.body())[0].requires_grad());
  Tape tape;
  const Var leaf = tape.input("x", x, true);
  {
    const NoGrad no_grad;
    CHECK_FALSE(checkpoint({{"x", leaf}}, calls.body())[0].requires_grad());
  }
  CHECK(calls.forwards == 2);
  CHECK(tape.size() == 0);
}

TEST_CASE("nothing is recorded for results that want no gradient") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Calls calls;
  Tape tape;
  const Var x = tape.input("x", draw(mesh, "x", {1, 2, 3}), false);
  CHECK_FALSE(checkpoint({{"x", x}}, calls.body())[0].requires_grad());
  CHECK(tape.size() == 0);
  CHECK(tape.saved().empty());
  std::vector<MessageCount> messages;
  for (const BoundContract& b : tape.contracts())
    for (const MessageCount& m : message_counts(b)) messages.push_back(m);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].label == "there");
}

TEST_CASE("the contract: inputs are kept, forward messages go out again in backward") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Calls calls;
  Tape tape;
  const Var x = tape.input("x", draw(mesh, "x", {1, 2, 3}), true);
  const Var y = checkpoint({{"x", x}}, [&](const Vars& in) {
    return checkpoint({{"inner", in[0]}}, calls.body());
  })[0];
  std::int64_t there = 0, again = 0, back = 0;
  for (const BoundContract& b : tape.contracts())
    for (const MessageCount& m : message_counts(b))
      (m.label == "back" ? back : m.pass == Pass::forward ? there : again) += m.bytes;
  CHECK(there == 3);
  CHECK(again == 2 * 3);  // one for each level
  CHECK(back == 7);
  REQUIRE(tape.saved().size() == 1);
  CHECK(tape.saved()[0].tensor == "x");
  tape.backward(y, draw(mesh, "g", {1, 2, 3}));
  CHECK(calls.forwards == 3);
  CHECK(calls.backwards == 1);
}

TEST_CASE("several results of which some get no gradient; inputs that want none") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const DTensor value = draw(mesh, "x", {1, 2, 3});
  const auto gradient = [&](bool again, int used) {
    Tape tape;
    const Var leaf = tape.input("x", value, true);
    const Var x = multiply(2, leaf);
    const Var mask = tape.input("mask", draw(mesh, "mask", {1, 2, 3}), false);
    const CheckpointBody body = [](const Vars& in) {
      return Vars{multiply(in[0], in[1]), exp(in[0]), multiply(3, in[1])};
    };
    const Vars y = again ? checkpoint({{"x", x}, {"mask", mask}}, body) : body({x, mask});
    CHECK_FALSE(y[2].requires_grad());
    std::vector<Tape::Seed> seeds;
    for (int k = 0; k < used; ++k)
      seeds.push_back({y[static_cast<std::size_t>(k)], draw(mesh, "g", {1, 2, 3})});
    tape.backward(seeds);
    CHECK_FALSE(mask.has_grad());
    return hash_of(leaf.grad().local());
  };
  for (const int used : {1, 2}) CHECK(gradient(true, used) == gradient(false, used));
}

TEST_CASE("an input that no result with a gradient depends on has a gradient of zero") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var leaf = tape.input("x", draw(mesh, "x", {1, 2, 3}), true);
  const Var x = multiply(2, leaf);
  const Var z = tape.input("z", draw(mesh, "z", {1, 2, 3}), true);
  const Vars y = checkpoint({{"x", x}, {"z", z}}, [](const Vars& in) {
    return Vars{exp(in[0]), exp(in[1])};
  });
  tape.backward(y[1], draw(mesh, "g", {1, 2, 3}));
  CHECK(to_values(leaf.grad().local()) == std::vector<double>(6, 0));
  CHECK(z.has_grad());
}

TEST_CASE("parameters used by several checkpoints, and gradients against differences") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Linear w({mesh, DType::f64}, 3, 3);
  w.initialize(1);
  std::vector<Var> leaves = w.parameters();
  leaves.push_back(Var::parameter("x", draw(mesh, "x", {1, 2, 3})));
  const auto function = [&](Tape& tape) {
    Var x = tape.adopt(leaves.back());
    for (int k = 0; k < 3; ++k)
      x = checkpoint({{"x", x}}, [&](const Vars& in) { return Vars{exp(w.forward(in[0]))}; })[0];
    return Vars{x};
  };
  CHECK(gradcheck(function, leaves).max_error < 1e-7);
}

TEST_CASE("scopes are those of the first run, errors of the second name the layer") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", draw(mesh, "x", {1, 2, 3}), true);
  std::vector<std::string> scopes;
  Vars y;
  {
    const Scope scope("outer");
    y = checkpoint({{"x", x}}, [&](const Vars& in) {
      const Scope layer("layer");
      scopes.push_back(current_scope());
      const Var longer = Var::constant(draw(mesh, "y", {1, 2, 4}));
      return Vars{scopes.size() == 1 ? exp(in[0]) : multiply(in[0], longer)};
    });
  }
  require_error<ShapeError>(
      [&] {
        tape.backward(y[0], draw(mesh, "g", {1, 2, 3}));
      },
      "multiply", "outer.layer");
  CHECK(scopes == std::vector<std::string>{"outer.layer", "outer.layer"});
  CHECK_FALSE(in_backward());
}

TEST_CASE("an input that is undefined is named") {
  Tape tape;
  const Var x = tape.input("x", draw(DeviceMesh::serial(), "x", {1, 2, 3}), true);
  require_error<TypeError>(
      [&] {
        checkpoint({{"x", x}, {"mask", Var()}}, [](const Vars& in) { return Vars{exp(in[0])}; });
      },
      "checkpoint", "'mask'", "undefined");
}

TEST_CASE("a body may not hand on its inputs, nor write to what was kept") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", draw(mesh, "x", {1, 2, 3}), true);
  require_error<GradientError>(
      [&] {
        checkpoint({{"x", x}}, [](const Vars& in) { return in; });
      },
      "checkpoint", "leaf 'x'");
  const Var y = checkpoint({{"x", x}}, [](const Vars& in) { return Vars{exp(in[0])}; })[0];
  fill_uniform(x.value().local(), {1, 1}, whole({1, 2, 3}), 0, 1);
  require_error<GradientError>(
      [&] {
        tape.backward(y, draw(mesh, "g", {1, 2, 3}));
      },
      "checkpoint", "written to");
}
