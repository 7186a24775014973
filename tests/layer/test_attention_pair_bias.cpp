// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Attention with pair bias: the formula under arbitrary masks, samples and windows; gradients of
// shared operands; what is kept and sent; refusals; mistakes that parity must find.
#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/harness/parity.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/layers/trunk/attention_pair_bias.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/mesh/traffic.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

using Index = std::vector<std::int64_t>;
using MaskAt = std::function<double(const Index&)>;
using Values = std::vector<double>;

constexpr const char* kGlobal = "attention_pair_bias_pair_mask";  // three samples, other keys
constexpr const char* kWindows = "attention_pair_bias_window";    // the same in windows

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// The case with other masks and infinity; z is the bias itself if `bias_given`.
Case with(const char* name, const MaskAt& mask, const MaskAt& pair_mask, double infinity,
          bool bias_given) {
  Case c = *find_case(name);
  c.problem = [=, problem = c.problem](const Sizes& sizes) {
    Problem p = problem(sizes);
    nlohmann::json& h = *p.hyperparameters;
    h["inf"] = infinity;
    if (bias_given) {
      h["compute_pair_bias"] = false;
      p.inputs[1].shape.back() = h.at("num_heads");
    }
    for (InputSpec& input : p.inputs) {
      if (input.name == "mask" && mask) input.at = mask;
      if (input.name == "pair_mask" && pair_mask) input.at = pair_mask;
    }
    return p;
  };
  if (bias_given) c.zero_gradients.clear();
  return c;
}

// --- the formula in plain loops ----------------------------------------------------------------

struct DenseAttention {
  std::int64_t channels, heads;
  double infinity;
  Values q, q_bias, k, v, g, o;  // weights

  DenseAttention(const Module& module, const nlohmann::json& h)
      : channels(h.at("c_s")), heads(h.at("num_heads")), infinity(h.at("inf")) {
    for (const NamedParameter& p : module.named_parameters())
      for (const auto& [name, to] :
           std::vector<std::pair<std::string, Values*>>{{"proj_q.weight", &q},
                                                        {"proj_q.bias", &q_bias},
                                                        {"proj_k.weight", &k},
                                                        {"proj_v.weight", &v},
                                                        {"proj_g.weight", &g},
                                                        {"proj_o.weight", &o}})
        if (p.name == name) *to = to_values(p.var.value().local());
  }

  // weight x, of one position.
  Values project(const Values& weight, const double* x) const {
    Values y(at(channels), 0);
    for (std::int64_t i = 0; i < channels; ++i)
      for (std::int64_t c = 0; c < channels; ++c) y[at(i)] += weight[at(i * channels + c)] * x[c];
    return y;
  }

  // y of one query with its keys: bias(key, head), mask(key).
  Values query(const double* s, const std::vector<const double*>& keys,
               const std::function<double(std::int64_t, std::int64_t)>& bias,
               const std::function<double(std::int64_t)>& mask) const {
    Values own = project(q, s), gate = project(g, s), mixed(at(channels), 0);
    std::vector<Values> key, value;
    for (const double* x : keys) {
      key.push_back(project(k, x));
      value.push_back(project(v, x));
    }
    const std::int64_t width = channels / heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      Values logits;
      for (std::size_t n = 0; n < keys.size(); ++n) {
        double a = 0;
        for (std::int64_t c = h * width; c < (h + 1) * width; ++c)
          a += (own[at(c)] + q_bias[at(c)]) * key[n][at(c)];
        const auto number = static_cast<std::int64_t>(n);
        logits.push_back(a / std::sqrt(static_cast<double>(width)) + bias(number, h) +
                         infinity * (mask(number) - 1));
      }
      const double most = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (double& a : logits) sum += a = std::exp(a - most);
      for (std::size_t n = 0; n < keys.size(); ++n)
        for (std::int64_t c = h * width; c < (h + 1) * width; ++c)
          mixed[at(c)] += logits[n] / sum * value[n][at(c)];
    }
    for (std::int64_t c = 0; c < channels; ++c) mixed[at(c)] /= 1 + std::exp(-gate[at(c)]);
    return project(o, mixed.data());
  }
};

// Output of the layer on a mesh, and what the formula says; inputs s, z, mask, k_in, perhaps
// pair_mask. Rows of samples are either the tokens or one window after the other.
struct Evaluated {
  Tensor found;
  Values expected;
};
Evaluated compare(const Case& c, const Sizes& sizes, const DeviceMesh& mesh) {
  const Problem problem = c.problem(sizes);
  const Setup setup = random_setup(c, problem, mesh, DType::f64, 3);
  Tape tape;
  Evaluated result{full_tensor(setup.instance.forward(inputs_on(tape, setup)).front().value()), {}};
  std::vector<Values> in;
  for (const DTensor& x : setup.inputs) in.push_back(to_values(full_tensor(x)));
  const DenseAttention formula(*setup.instance.module, *problem.hyperparameters);
  const Shape& s = problem.inputs[0].shape;
  const Shape& x = problem.inputs[3].shape;
  const std::int64_t windows = s.size() == 4 ? s[1] : 1;
  const std::int64_t queries = s[s.size() - 2], keys = x[x.size() - 2];
  const std::int64_t samples = s[0] / problem.inputs[1].shape[0];
  const bool mask_per_sample = problem.inputs[2].shape[0] == s[0];
  for (std::int64_t row = 0; row < s[0] * windows; ++row) {
    const std::int64_t tile = row / windows / samples * windows + row % windows;
    std::vector<const double*> own_keys;
    for (std::int64_t n = 0; n < keys; ++n)
      own_keys.push_back(&in[3][at((row * keys + n) * formula.channels)]);
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t pairs = (tile * queries + i) * keys;
      const Values y = formula.query(
          &in[0][at((row * queries + i) * formula.channels)], own_keys,
          [&](std::int64_t n, std::int64_t h) {
            return in[1][at((pairs + n) * formula.heads + h)];
          },
          [&](std::int64_t n) {
            const double mask = in[2][at((mask_per_sample ? row : tile) * keys + n)];
            return in.size() > 4 ? mask * in[4][at(pairs + n)] : mask;
          });
      result.expected.insert(result.expected.end(), y.begin(), y.end());
    }
  }
  return result;
}

Sizes sizes_for(const MeshShape& shape) {
  const std::int64_t step = std::lcm(shape.cp0, shape.cp1);
  return {2 * shape.dp, step * ((10 + step - 1) / step), 5};
}

template <class Body>
void on_meshes(const Body& body) {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    CAPTURE(format(shape));
    body(DeviceMesh::create(test_world(), shape), sizes_for(shape));
  }
}

// Masks by index; the last dim is the key.
double fraction(const Index& i) {
  return static_cast<double>(std::accumulate(i.begin(), i.end(), std::int64_t{3}) * 7 % 5) / 4;
}
double none(const Index&) {
  return 0;
}
double all(const Index&) {
  return 1;
}
// Keys of the first half are masked: on meshes with columns, whole tiles of logits.
double second_half(const Index& i) {
  return i.back() >= 6 ? 1 : 0;
}
// Of pairs: query 2 has no key, query 3 only the last ones.
double some_queries(const Index& i) {
  if (i[1] == 2) return 0;
  return i[1] != 3 || i.back() >= 8 ? 1 : 0;
}

// Logits next to 1e6 are rounded to 1.2e-10; their softmax is that of the rounded logits.
constexpr double kMaskedRows = 1e-9;

}  // namespace

TEST_CASE("with masks of keys and of pairs that are any numbers it is the formula") {
  on_meshes([](const DeviceMesh& mesh, const Sizes& sizes) {
    const auto holds = [&](const MaskAt& mask, const MaskAt& pairs, double inf, double tolerance) {
      const Evaluated c = compare(with(kGlobal, mask, pairs, inf, true), sizes, mesh);
      check_close(c.found, c.expected, tolerance);
    };
    holds(fraction, fraction, 3, 1e-13);
    holds(second_half, all, 1e6, 1e-13);
    holds(all, some_queries, 1e6, kMaskedRows);
    holds(none, all, 1e6, kMaskedRows);
    holds(none, all, 1e18, 1e-13);  // equal weights
  });
}

TEST_CASE("a window is the formula with its own pairs, for every sample of a problem") {
  on_meshes([](const DeviceMesh& mesh, const Sizes& sizes) {
    const Evaluated fractions = compare(with(kWindows, fraction, {}, 3, true), sizes, mesh);
    check_close(fractions.found, fractions.expected, 1e-13);
    const Evaluated masked = compare(with(kWindows, none, {}, 1e6, true), sizes, mesh);
    check_close(masked.found, masked.expected, kMaskedRows);
  });
}

TEST_CASE("masks of keys may be of any dtype, in windows too") {
  for (const char* name : {kGlobal, kWindows}) {
    const Case c = with(name, second_half, all, 3, false);
    const Setup setup = random_setup(c, c.problem({2, 12, 5}),
                                     DeviceMesh::create(Communicator::self(), {}), DType::f64, 3);
    const auto result = [&](DType dtype) {
      Tape tape;
      std::vector<Var> in = inputs_on(tape, setup);
      in[2] = Var::constant(setup.inputs[2].to(dtype));
      const Var y = setup.instance.forward(in).front();
      tape.backward(y, y.value());
      return std::pair(y.value().local(), in[3].grad().local());
    };
    const auto [y, gradient] = result(DType::f64);
    for (const DType dtype : {DType::f32, DType::i64, DType::boolean}) {
      const auto [found, found_gradient] = result(dtype);
      CHECK(bitwise_equal(found, y));
      CHECK(bitwise_equal(found_gradient, gradient));
    }
  }
}

TEST_CASE("gradients under adversarial masks equal those of one rank") {
  struct Masks {
    MaskAt keys, pairs;
  };
  on_meshes([](const DeviceMesh& mesh, const Sizes& sizes) {
    for (const Masks& m : {Masks{second_half, all}, Masks{all, some_queries}, Masks{none, all},
                           Masks{fraction, fraction}}) {
      const CaseResult r = run_parity(with(kGlobal, m.keys, m.pairs, 1e6, false), sizes, mesh,
                                      {.tolerance = kMaskedRows});
      INFO((r.failures().empty() ? "" : r.failures().front()));
      CHECK(r.pass());
    }
  });
}

namespace {

// A layer on one rank with values everywhere, and operands of so many samples of two problems.
struct Example {
  DeviceMesh mesh = DeviceMesh::create(Communicator::self(), {});
  AttentionPairBias layer{{mesh, DType::f64}, {.c_s = 6, .num_heads = 2, .c_z = 3}};
  Tape tape;
  Var s, k_in, z, mask;  // two samples after the other of each problem

  explicit Example(std::int64_t samples) {
    for (const NamedParameter& p : layer.named_parameters())
      copy(random_tensor(p.var.value().shape(), DType::f64, p.name), p.var.value().local());
    s = operand("s", {2 * samples, 4, 6}, single_placements());
    k_in = operand("k_in", {2 * samples, 4, 6}, single_placements());
    z = operand("z", {2, 4, 4, 3}, pair_placements());
    mask = Var::constant(
        distribute(Tensor::full({2 * samples, 4}, 1, DType::f64), mesh, single_placements()));
  }
  Var operand(const char* name, const Shape& shape, const Placements& placements) {
    return tape.input(name, distribute(random_tensor(shape, DType::f64, name), mesh, placements),
                      true);
  }
  void run(const Tensor& upstream) {
    const Var y = layer.forward({.s = s, .z = z, .mask = mask, .k_in = k_in});
    tape.backward(y, y.value().with_local(upstream));
  }
};

// Sample `k` of each of the two problems, whose samples follow each other.
Tensor sample_of(const Tensor& t, std::int64_t k) {
  const std::int64_t samples = t.size(0) / 2;
  Shape shape{2, samples};
  shape.insert(shape.end(), t.shape().begin() + 1, t.shape().end());
  return t.contiguous().view(shape).select(1, k).contiguous();
}

}  // namespace

TEST_CASE("the gradient of z is the sum over the samples that share it") {
  constexpr std::int64_t samples = 3;
  Example together(samples);
  const Tensor upstream = random_tensor({2 * samples, 4, 6}, DType::f64, "upstream");
  together.run(upstream);
  const Tensor sum = Tensor::zeros({2, 4, 4, 3}, DType::f64);
  for (std::int64_t k = 0; k < samples; ++k) {
    Example alone(1);
    const auto alone_of = [&](const Var& x) {
      return distribute(sample_of(x.value().local(), k), alone.mesh, single_placements());
    };
    alone.s = alone.tape.input("s", alone_of(together.s), true);
    alone.k_in = alone.tape.input("k_in", alone_of(together.k_in), true);
    alone.run(sample_of(upstream, k));
    add(1, sum, 1, alone.z.grad().local(), sum);
    check_close(sample_of(together.s.grad().local(), k), to_values(alone.s.grad().local()), 1e-13);
  }
  check_close(together.z.grad().local(), to_values(sum), 1e-13);
}

TEST_CASE("gradients of keys go to k_in, and to s only if that is k_in") {
  const Tensor upstream = random_tensor({2, 4, 6}, DType::f64, "upstream");
  Example without_queries(1);
  for (const NamedParameter& p : without_queries.layer.named_parameters())
    if (p.name == "proj_q.weight" || p.name == "proj_g.weight") fill(p.var.value().local(), 0);
  without_queries.run(upstream);
  CHECK(max_abs(without_queries.s.grad().local()) == 0);
  CHECK(max_abs(without_queries.k_in.grad().local()) > 0);

  Example apart(1), shared(1);
  apart.k_in = apart.tape.input("k_in", apart.s.value(), true);
  apart.run(upstream);
  shared.k_in = shared.s;
  shared.run(upstream);
  const Tensor sum = apart.s.grad().local().clone();
  add(1, sum, 1, apart.k_in.grad().local(), sum);
  check_close(shared.s.grad().local(), to_values(sum), 1e-14);
}

TEST_CASE("version 1 takes its keys from the normalised s, or what to_keys makes of it") {
  const Example e(1);
  AttentionPairBias v1{{e.mesh, DType::f64},
                       {.c_s = 6, .num_heads = 2, .c_z = 3, .version = PairBiasVersion::v1}};
  for (const NamedParameter& p : v1.named_parameters())
    copy(random_tensor(p.var.value().shape(), DType::f64, p.name), p.var.value().local());
  const Var plain = v1.forward({.s = e.s, .z = e.z, .mask = e.mask});
  std::vector<Shape> seen;
  const Var same = v1.forward({.s = e.s, .z = e.z, .mask = e.mask, .to_keys = [&](const Var& x) {
                                 seen.push_back(x.value().shape());
                                 return x;
                               }});
  CHECK(bitwise_equal(plain.value().local(), same.value().local()));
  CHECK(seen == std::vector<Shape>{{2, 4, 6}, {2, 4, 1}});
  const Var no_keys =
      v1.forward({.s = e.s, .z = e.z, .mask = e.mask, .to_keys = [](const Var& x) {
                    const Tensor& t = x.value().local();
                    return Var::constant(x.value().with_local(Tensor::zeros(t.shape(), t.dtype())));
                  }});
  CHECK(max_abs(no_keys.value().local()) == 0);  // values that are zero
}

// --- what is kept and sent ---------------------------------------------------------------------

namespace {

const CommTotal& total_of(const std::vector<CommTotal>& totals, const char* op,
                          const std::string& axis) {
  static const CommTotal nothing;
  const auto found = std::find_if(totals.begin(), totals.end(),
                                  [&](const CommTotal& t) { return t.op == op && t.axis == axis; });
  return found == totals.end() ? nothing : *found;
}

}  // namespace

TEST_CASE("on a square grid keys and their gradients are one exchange each, and rows are merged") {
  if (test_ranks() != 4) return;
  const std::int64_t tokens = 12, samples = 3, p = 2;
  const Sizes sizes{1, tokens, 5};
  const std::int64_t channels = 15, heads = 3, rows = samples * tokens / p;  // of the case
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 2, 2});
  const CaseResult r = run_parity(*find_case(kGlobal), sizes, mesh, {});
  const CommTotal &keys = total_of(r.forward, "relayout", "cp0+cp1"),
                  &back = total_of(r.backward, "relayout", "cp0+cp1");
  CHECK(keys.count == 1);
  CHECK(keys.messages == 1);
  CHECK(keys.bytes == rows * (2 * channels + 1) * 8);
  CHECK(back.count == 1);
  CHECK(back.messages == 1);
  CHECK(back.bytes == rows * 2 * channels * 8);
  const auto reduced = [](std::int64_t elements) {
    return all_reduce_traffic(elements, DType::f64, 2, 0).bytes;
  };
  CHECK(total_of(r.forward, "all_reduce", "cp1").count == 2);
  CHECK(total_of(r.forward, "all_reduce", "cp1").bytes ==
        reduced(rows * heads) + reduced(rows * (channels + heads)));
  CHECK(total_of(r.backward, "all_reduce", "cp1").count == 1);
  CHECK(total_of(r.backward, "all_reduce", "cp1").bytes == reduced(rows * 3 * channels));
}

TEST_CASE("one row of ranks moves no key, a column passes each key once to every other rank") {
  const int p = test_ranks();
  const std::int64_t tokens = 12, samples = 3, channels = 15;
  const Sizes sizes{1, tokens, 5};
  const auto run = [&](const MeshShape& shape) {
    return run_parity(*find_case(kGlobal), sizes, DeviceMesh::create(test_world(), shape), {});
  };
  CHECK(total_of(run({1, 1, p}).forward, "relayout", "cp0+cp1").bytes == 0);
  const CaseResult column = run({1, p, 1});
  const CommTotal& keys = total_of(column.forward, "relayout", "cp0+cp1");
  CHECK(keys.messages == p - 1);
  CHECK(keys.bytes == (p - 1) * samples * tokens / p * (2 * channels + 1) * 8);
  CHECK(total_of(column.forward, "all_reduce", "cp1").bytes == 0);
}

TEST_CASE("kept are three times the channels of s, the keys of a column, and what belongs to z") {
  const std::int64_t tokens = 12, samples = 3, channels = 15, heads = 3, c_z = 5;
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    if (shape.dp > 1) continue;
    CAPTURE(format(shape));
    const CaseResult r = run_parity(*find_case(kGlobal), {1, tokens, c_z},
                                    DeviceMesh::create(test_world(), shape), {});
    const std::int64_t single = samples * tokens / shape.cp0;
    const std::int64_t pair = tokens * tokens / (shape.cp0 * shape.cp1);
    const std::int64_t keys = shape.cp1 >= shape.cp0
                                  ? samples * tokens / shape.cp1 * (2 * channels + 1)
                                  : single;  // their mask
    CHECK(r.saved_bytes ==
          8 * (single * (3 * channels + 2 * heads) + keys + pair * (c_z + 2 + heads + 1)));
  }
}

TEST_CASE(
    "the peak of a medium problem on 2 x 2, beside parameters, is at most 0.3 of the serial") {
  if (test_ranks() != 4) return;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 2, 2});
  const Sizes sizes{1, 256, 128};
  const Case& c = *find_case("attention_pair_bias_v2_m1");
  std::int64_t serial = 0;
  if (test_rank() == 0) {
    const DeviceMesh one = DeviceMesh::create(Communicator::self(), {});
    serial = run_parity(c, sizes, one, {.dtype = DType::f32}).peak_bytes;
  }
  serial = ControlScalar::broadcast(mesh, serial).value();
  const CaseResult r = run_parity(c, sizes, mesh, {.dtype = DType::f32});
  // Every rank has all parameters and their gradients.
  const std::int64_t c_s = 384, whole = 2 * 4 * (5 * c_s * c_s + c_s + 16 * 128 + 2 * 128);
  CAPTURE(r.peak_bytes, serial, whole);
  CHECK(static_cast<double>(r.peak_bytes - whole) <= 0.3 * static_cast<double>(serial - whole));
  CHECK(r.pass());
}

// --- mistakes and refusals ---------------------------------------------------------------------

TEST_CASE("parity finds gradients that are summed over replicas, or not summed at all") {
  if (test_ranks() != 6) return;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 3, 2});
  for (const char* name : {kGlobal, kWindows})
    for (const Mutation mistake :
         {Mutation::reduce_over_replicate_axis, Mutation::skip_parameter_reduction}) {
      set_mutation(mistake);
      const bool passes = run_parity(*find_case(name), {1, 12, 5}, mesh, {}).pass();
      set_mutation(Mutation::none);
      CAPTURE(name, static_cast<int>(mistake));
      CHECK_FALSE(passes);
    }
}

TEST_CASE("operands of the other version and sizes that do not fit are refused") {
  const Example e(2);
  const Build build{e.mesh, DType::f64};
  const AttentionPairBias v1(
      build,
      {.c_s = 6, .num_heads = 2, .c_z = 3, .version = PairBiasVersion::v1, .initial_norm = false});
  const auto same = [](const Var& x) { return x; };
  require_error<TypeError>([&] { v1.forward({.s = e.s, .z = e.z, .mask = e.mask, .k_in = e.s}); },
                           "AttentionPairBias", "k_in", "to_keys");
  require_error<TypeError>([&] { e.layer.forward({.s = e.s, .z = e.z, .mask = e.mask}); }, "k_in",
                           "pass k_in = s");
  require_error<TypeError>(
      [&] { e.layer.forward({.s = e.s, .z = e.z, .mask = e.mask, .k_in = e.s, .to_keys = same}); },
      "to_keys", "version 2");
  const Var pairs =
      Var::constant(distribute(Tensor::full({2, 4, 4}, 1, DType::f64), e.mesh, pair_placements()));
  require_error<TypeError>(
      [&] {
        e.layer.forward_windows(
            {.s = e.s, .z = e.z, .mask = e.mask, .k_in = e.s, .pair_mask = pairs});
      },
      "pair_mask", "windows");
  require_error<ShapeError>([&] { AttentionPairBias(build, {.c_s = 6, .num_heads = 4, .c_z = 3}); },
                            "6 channels", "4 heads");
  const Var narrow = Var::constant(e.k_in.value().to(DType::f32));
  require_error<TypeError>(
      [&] { e.layer.forward({.s = e.s, .z = e.z, .mask = e.mask, .k_in = narrow}); }, "k_in", "f64",
      "dtype of s");
  Example odd(1);
  odd.s = odd.k_in = odd.operand("s", {3, 4, 6}, single_placements());
  require_error<ShapeError>([&] { odd.run(Tensor()); }, "3 samples", "2 problems");
  require_error<ShapeError>(
      [&] { e.layer.forward({.s = e.z, .z = e.z, .mask = e.mask, .k_in = e.z}); }, "'s'",
      "expected 3 dims");
  const Var pair_like = Var::constant(
      distribute(Tensor::zeros({4, 4, 6}, DType::f64), e.mesh, single_t_placements()));
  require_error<PlacementError>(
      [&] { e.layer.forward({.s = pair_like, .z = e.z, .mask = e.mask, .k_in = pair_like}); },
      "'s'", "(S0,S1,R)");
}
