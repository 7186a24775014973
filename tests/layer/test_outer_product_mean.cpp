// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// The outer product mean: counts of arbitrary masks, what is kept and sent, refusals, lanes.
#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "support/values.hpp"
#include "tessera/harness/parity.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/layers/trunk/outer_product_mean.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

constexpr std::int64_t kIn = 7, kHidden = 3, kOut = 5, kBatch = 2;

const Case& layer_case() {
  return *find_case("outer_product_mean");
}

// A layer and inputs with a given mask, and the formula in plain loops.
struct Example {
  DeviceMesh mesh;
  std::int64_t rows, tokens;
  Setup setup;
  Tensor mask;

  Example(const DeviceMesh& on, DType dtype, std::int64_t s, std::int64_t n,
          const std::function<double(std::int64_t b, std::int64_t s, std::int64_t n)>& mask_at)
      : mesh(on), rows(s), tokens(n) {
    Problem problem = layer_case().problem({kBatch, n, kOut, s});
    problem.hyperparameters->update({{"c_in", kIn}, {"c_hidden", kHidden}});
    problem.inputs[0].shape.back() = kIn;
    setup = random_setup(layer_case(), problem, mesh, dtype, 3);
    std::vector<double> values;
    for (std::int64_t b = 0; b < kBatch; ++b)
      for (std::int64_t i = 0; i < s; ++i)
        for (std::int64_t j = 0; j < n; ++j) values.push_back(mask_at(b, i, j));
    mask = Tensor::from_values({kBatch, s, n}, values, dtype);
    setup.inputs[1] = distribute(mask, mesh, pair_placements());
  }

  Values parameter(const char* name) const {
    for (const NamedParameter& p : setup.instance.module->named_parameters())
      if (p.name == name) return Values(p.var.value().local());
    FAIL("no parameter " << name);
    return Values(mask);
  }
  Values result() const {
    Tape tape;
    return Values(full_tensor(setup.instance.forward(inputs_on(tape, setup)).front().value()));
  }
  // The masked factor of one projection, [b, s, n, h].
  std::vector<double> factor(const char* projection) const;
  // By the formula.
  std::vector<double> expected() const;
};

std::vector<double> Example::factor(const char* projection) const {
  const Values m(full_tensor(setup.inputs[0])), mu(mask),
      weight = parameter("norm.weight"), bias = parameter("norm.bias"), w = parameter(projection);
  std::vector<double> result;
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::int64_t s = 0; s < rows; ++s)
      for (std::int64_t n = 0; n < tokens; ++n) {
        double mean = 0, variance = 0;
        for (std::int64_t c = 0; c < kIn; ++c) mean += m({b, s, n, c}) / kIn;
        for (std::int64_t c = 0; c < kIn; ++c)
          variance += (m({b, s, n, c}) - mean) * (m({b, s, n, c}) - mean) / kIn;
        for (std::int64_t h = 0; h < kHidden; ++h) {
          double sum = 0;
          for (std::int64_t c = 0; c < kIn; ++c)
            sum +=
                ((m({b, s, n, c}) - mean) / std::sqrt(variance + 1e-5) * weight({c}) + bias({c})) *
                w({h, c});
          result.push_back(sum * mu({b, s, n}));
        }
      }
  return result;
}

std::vector<double> Example::expected() const {
  const std::vector<double> a = factor("proj_a.weight"), b = factor("proj_b.weight");
  const Values mu(mask), w = parameter("proj_o.weight"), bias = parameter("proj_o.bias");
  const auto at = [&](std::int64_t sample, std::int64_t s, std::int64_t n, std::int64_t h) {
    return static_cast<std::size_t>(((sample * rows + s) * tokens + n) * kHidden + h);
  };
  std::vector<double> result;
  for (std::int64_t k = 0; k < kBatch; ++k)
    for (std::int64_t i = 0; i < tokens; ++i)
      for (std::int64_t j = 0; j < tokens; ++j) {
        double count = 0;
        for (std::int64_t s = 0; s < rows; ++s) count += mu({k, s, i}) * mu({k, s, j});
        for (std::int64_t o = 0; o < kOut; ++o) {
          double sum = 0;
          for (std::int64_t c = 0; c < kHidden; ++c)
            for (std::int64_t d = 0; d < kHidden; ++d)
              for (std::int64_t s = 0; s < rows; ++s)
                sum += a[at(k, s, i, c)] * b[at(k, s, j, d)] * w({o, c * kHidden + d});
          result.push_back(sum / std::max(1.0, count) + bias({o}));
        }
      }
  return result;
}

double largest_difference(const Values& found, const std::vector<double>& expected) {
  REQUIRE(found.data.size() == expected.size());
  double largest = 0;
  for (std::size_t k = 0; k < expected.size(); ++k)
    largest = std::max(largest, std::abs(found.data[k] - expected[k]));
  return largest;
}

std::int64_t divisible(const MeshShape& shape) {
  return std::lcm(shape.cp0, shape.cp1);
}

struct Sent {
  std::int64_t messages = 0, bytes = 0;
};
Sent sent(const std::vector<CommTotal>& totals) {
  Sent sum;
  for (const CommTotal& t : totals) {
    if (t.op == "all_reduce") continue;  // parameter gradients
    sum.messages += t.messages;
    sum.bytes += t.bytes;
  }
  return sum;
}

constexpr std::int64_t kTokens = 12, kRows = 24, kChannels = 20, kHiddenOfCase = 5;

CaseResult on_mesh(const MeshShape& shape) {
  return run_parity(layer_case(), {1, kTokens, kChannels, kRows},
                    DeviceMesh::create(test_world(), shape), {});
}
// Bytes of one msa tile in f64.
std::int64_t tile(std::int64_t channels) {
  return kRows * kTokens * channels * 8 / test_ranks();
}

// Not a product of rows and tokens. Tokens 0 and 1 share no row, token 2 is in none.
double patchy(std::int64_t b, std::int64_t s, std::int64_t n) {
  if (n < 2) return s % 2 == n ? 1 : 0;
  return n > 2 && (7 * s + 5 * n + 3 * s * n + b) % 4 != 0 ? 1 : 0;
}

}  // namespace

TEST_CASE("each pair is divided by the rows that both tokens have, whatever the mask") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    if (kBatch % shape.dp != 0) continue;
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    const std::int64_t step = divisible(shape);
    const Example patches(mesh, DType::f64, 3 * step, 4 * step, patchy);
    const Example fractions(mesh, DType::f64, 3 * step, 2 * step, [](auto b, auto s, auto n) {
      return static_cast<double>((3 * s + 5 * n + b) % 4) / 2;
    });
    CAPTURE(format(shape));
    CHECK(largest_difference(patches.result(), patches.expected()) < 1e-13);
    CHECK(largest_difference(fractions.result(), fractions.expected()) < 1e-13);
  }
}

TEST_CASE("pairs without a common row get the bias, exactly") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t step = divisible(squarest(test_ranks()));
  const Example problem(mesh, DType::f64, 3 * step, 4 * step, patchy);
  const Values y = problem.result(), bias = problem.parameter("proj_o.bias");
  for (std::int64_t o = 0; o < kOut; ++o) {
    CHECK(y({0, 0, 1, o}) == bias({o}));
    CHECK(y({1, 1, 0, o}) == bias({o}));
    CHECK(y({0, 2, 3, o}) == bias({o}));
    CHECK(y({0, 0, 0, o}) != bias({o}));
  }
}

TEST_CASE("bf16 counts more than 256 rows") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t step = divisible(squarest(test_ranks()));
  const Example problem(mesh, DType::bf16, 600, step, [](auto, auto, auto) { return 1.0; });
  const std::vector<double> expected = problem.expected();
  double scale = 0;
  for (const double x : expected) scale = std::max(scale, std::abs(x));
  // A handful of roundings of 2^-8; a count that stops at 256 would more than double the means.
  CHECK(largest_difference(problem.result(), expected) < 0.02 * scale);
}

TEST_CASE("m, the mask and the counts are kept, nothing else") {
  const std::int64_t n = 12, s = 24, channels = 20, c_in = 10;
  const CaseResult r = run_parity(layer_case(), {1, n, channels, s},
                                  DeviceMesh::create(Communicator::self(), {}), {});
  CHECK(r.saved_bytes == (s * n * (c_in + 1) + n * n) * 8);
}

TEST_CASE("on a P x P grid 2P tiles of h+1 channels go forward, 4P+2 of h backward") {
  if (test_ranks() != 4) return;
  const std::int64_t p = 2;
  const CaseResult r = on_mesh({1, 2, 2});
  CHECK(sent(r.forward).messages == 2 * p);
  CHECK(sent(r.forward).bytes == 2 * p * tile(kHiddenOfCase + 1));
  CHECK(sent(r.backward).messages == 4 * p + 2);
  CHECK(sent(r.backward).bytes == (4 * p + 2) * tile(kHiddenOfCase));
}

TEST_CASE("on a line one factor stays and the other moves P-1 tiles; only a is swapped") {
  const std::int64_t p = test_ranks();
  const std::int64_t t = tile(kHiddenOfCase), t_mask = tile(kHiddenOfCase + 1);
  for (const MeshShape& shape : {MeshShape{1, 1, test_ranks()}, MeshShape{1, test_ranks(), 1}}) {
    CAPTURE(format(shape));
    const CaseResult r = on_mesh(shape);
    CHECK(sent(r.forward).bytes == (p - 1) * t_mask + (p - 1) * t_mask / p);
    // The replay, the sums of the factor that moves, and the swap back.
    const std::int64_t sums = p > 1 ? p * t : 0;
    CHECK(sent(r.backward).bytes == (p - 1) * t + (p - 1) * t / p + sums + (p - 1) * t / p);
  }
}

TEST_CASE("the products of channels are never whole") {
  if (test_ranks() != 1) return;
  const Sizes sizes{1, 96, 128, 32};  // 32 hidden channels, 64 of m
  const CaseResult r =
      run_parity(layer_case(), sizes, DeviceMesh::create(test_world(), {}), {.dtype = DType::f32});
  const std::int64_t pairs = sizes.tokens * sizes.tokens * 4;
  CHECK(r.pass());
  CHECK(r.peak_bytes < pairs * 1024 / 2);
  // z and its gradient; less than two tiles for all the rest.
  CHECK(r.peak_bytes < 4 * pairs * 128);
}

TEST_CASE("rows and tokens that do not divide by both axes are refused") {
  if (test_ranks() != 4) return;
  const auto forward = [](const MeshShape& shape, std::int64_t rows, std::int64_t tokens) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    return [=] { Example(mesh, DType::f64, rows, tokens, patchy).result(); };
  };
  require_error<UnevenError>(forward({1, 1, 4}, 6, 12), "outer_product_mean", "m", "dim 1",
                             "mesh axis 2");
  require_error<UnevenError>(forward({1, 4, 1}, 12, 6), "outer_product_mean", "m", "dim 2",
                             "mesh axis 1");
}

TEST_CASE("lanes do not change the gradients") {
  if (test_ranks() != 1) return;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {});
  const Setup setup =
      random_setup(layer_case(), layer_case().problem({2, 50, 64, 20}), mesh, DType::f64, 2);
  const auto gradients = [&](int threads) {
    const int before = thread_count();
    set_thread_count(threads);
    Tape tape;
    const std::vector<Var> inputs = inputs_on(tape, setup);
    tape.backward(seeds(setup, setup.instance.forward(inputs)));
    std::vector<Tensor> found{inputs[0].grad().local()};
    for (Var p : setup.instance.module->parameters()) {
      found.push_back(p.grad().local().clone());
      p.zero_grad();
    }
    set_thread_count(before);
    return found;
  };
  const std::vector<Tensor> one = gradients(1), three = gradients(3);
  for (std::size_t k = 0; k < one.size(); ++k) {
    const Difference d = max_difference(three[k], one[k]);
    CHECK(d.max_abs <= 1e-13 * d.max_reference);
    CHECK(d.max_reference > 0);
  }
}

TEST_CASE("mistakes in the schedule are found") {
  if (test_ranks() != 6) return;  // on rings of two a turn to the left is one to the right
  for (const MeshShape& shape : {MeshShape{1, 2, 3}, MeshShape{1, 3, 2}})
    for (const Mutation mistake :
         {Mutation::reverse_ring, Mutation::drop_skew, Mutation::drop_last_rotation}) {
      CAPTURE(format(shape), static_cast<int>(mistake));
      set_mutation(mistake);
      const CaseResult r = on_mesh(shape);
      set_mutation(Mutation::none);
      CHECK_FALSE(r.pass());
    }
}
