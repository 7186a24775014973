// SPDX-License-Identifier: MIT
// ranks: 1 4
// The watch for values that are not finite: one bad value on one rank is the same error on all,
// with function, tensor and global index.
#include <limits>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/autodiff/finite.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Watched {
  Watched() { set_finite_watch(true); }
  ~Watched() { set_finite_watch(false); }
};

// Writes into the element (1, 5, 2, 3) of a pair tensor, on the rank that has it.
void plant(const DTensor& x, double value) {
  const GlobalBlock block = global_block(x.shape(), x.mesh(), x.placements());
  const Shape index{1, 5, 2, 3};
  Tensor element = x.local();
  for (std::size_t d = 0; d < index.size(); ++d) {
    const std::int64_t own = index[d] - block.offset[d];
    if (own < 0 || own >= element.size(0)) return;
    element = element.select(0, own);
  }
  fill(element, value);
}

// One run of a case; a value is planted into x or the upstream gradient, a NaN into a parameter.
void run(const char* name, double in_x, double in_gradient, const std::string& parameter = "") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Case& c = *find_case(name);
  const Setup setup = random_setup(c, c.problem({2, 8, 6}), mesh, DType::f64, 1);
  if (in_x != 0) plant(setup.inputs.front(), in_x);
  for (const NamedParameter& p : setup.instance.module->named_parameters())
    if (p.name == parameter) fill(p.var.value().local().select(0, 3).select(0, 1), kNaN);
  Tape tape;
  const Var y = setup.instance.forward(inputs_on(tape, setup)).front();
  const DTensor upstream = setup.upstream(y.value(), 0);
  if (in_gradient != 0) plant(upstream, in_gradient);
  tape.backward(y, upstream);
}

}  // namespace

TEST_CASE("finite values pass, and a NaN passes when nobody watches") {
  run("transition", kNaN, 0);
  const Watched watched;
  run("transition", 0, 0);
  run("triangle_multiplication_outgoing", 0, 0);
}

TEST_CASE("a NaN in an operand") {
  const Watched watched;
  require_error<NonFiniteError>([] { run("transition", kNaN, 0); }, "transition", "'x'", "nan",
                                "[1, 5, 2, 3]");
}

TEST_CASE("a NaN in a parameter") {
  const Watched watched;
  require_error<NonFiniteError>([] { run("transition", 0, 0, "fc2.weight"); }, "transition",
                                "'fc2.weight'", "nan", "[3, 1]");
}

TEST_CASE("an infinite gradient") {
  const Watched watched;
  require_error<NonFiniteError>(
      [] { run("triangle_multiplication_incoming", 0, std::numeric_limits<double>::infinity()); },
      "triangle_multiplication", "gradient of output", "inf", "[1, 5, 2, 3]");
}
