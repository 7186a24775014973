// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Pair-weighted averaging: arbitrary masks, the softmax's gradient, what is kept and sent, groups
// of heads, refusals.
#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/catch.hpp"
#include "support/files.hpp"
#include "support/mpi.hpp"
#include "support/values.hpp"
#include "tessera/autodiff/gradients.hpp"
#include "tessera/harness/parity.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/layers/trunk/pair_weighted_averaging.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

constexpr std::int64_t kBatch = 2;
// Of the case with three channels of pairs.
constexpr std::int64_t kMsa = 6, kPair = 3, kWidth = 4, kHeads = 3;
const Sizes kWide{1, 12, 20, 24};  // 10 channels of the MSA, 8 heads of 32
constexpr std::int64_t kWideMsa = 10, kWideHidden = 256, kWideHeads = 8;

const Case& layer_case() {
  return *find_case("pair_weighted_averaging");
}

// The mask of query q and key k, of n tokens.
using Mask = double (*)(std::int64_t b, std::int64_t q, std::int64_t k, std::int64_t n);

struct NamedMask {
  const char* name;
  Mask mask;
};
// Neither symmetric nor a product of masks of tokens; query 1 has no keys.
double patches(std::int64_t b, std::int64_t q, std::int64_t k, std::int64_t) {
  return q != 1 && (3 * q + 5 * k + q * k + b) % 3 != 0 ? 1 : 0;
}
const NamedMask kMasks[]{
    {"ones", [](auto, auto, auto, auto) { return 1.0; }},
    {"nothing", [](auto, auto, auto, auto) { return 0.0; }},
    {"patches", patches},
    {"the first block of keys is masked",
     [](auto, auto, std::int64_t k, std::int64_t n) { return k < n / 2 ? 0.0 : 1.0; }},
    {"one key each", [](auto, std::int64_t q, std::int64_t k, std::int64_t n) {
       return k == (q + n - 1) % n ? 1.0 : 0.0;
     }}};

// The case with a mask and an infinity of its own.
Case with_mask(Mask mask, double infinity) {
  Case k = layer_case();
  k.problem = [mask, infinity](const Sizes& s) {
    Problem problem = layer_case().problem(s);
    (*problem.hyperparameters)["inf"] = infinity;
    problem.inputs[2].at = [mask, n = s.tokens](const std::vector<std::int64_t>& i) {
      return mask(i[0], i[1], i[2], n);
    };
    return problem;
  };
  return k;
}

Sizes sizes_on(const MeshShape& shape) {
  const std::int64_t step = std::lcm(shape.cp0, shape.cp1);
  return {kBatch, std::max<std::int64_t>(4, 2 * step), kPair, 3 * step};
}

// The formula in plain loops, one sample after the other.
class Formulas {
 public:
  Formulas(const Setup& setup, double infinity)
      : m_(full_tensor(setup.inputs[0])),
        z_(full_tensor(setup.inputs[1])),
        mask_(full_tensor(setup.inputs[2])),
        setup_(setup),
        infinity_(infinity) {}

  std::vector<double> result() const {
    std::vector<double> y;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const std::vector<double> w = weights(b);
      for (std::int64_t s = 0; s < m_.shape[1]; ++s)
        for (std::int64_t q = 0; q < tokens(); ++q) append(y, output(b, s, q, w));
    }
    return y;
  }

 private:
  std::int64_t tokens() const { return m_.shape[2]; }

  Values parameter(const std::string& name) const {
    for (const NamedParameter& p : setup_.instance.module->named_parameters())
      if (p.name == name) return Values(p.var.value().local());
    FAIL("no parameter " << name);
    return m_;
  }
  // Rows of a weight times the normalised position.
  std::vector<double> projected(const Values& x, const char* norm, const char* projection,
                                std::int64_t b, std::int64_t i, std::int64_t j) const {
    const Values weight = parameter(std::string(norm) + ".weight"),
                 bias = parameter(std::string(norm) + ".bias"), w = parameter(projection);
    const std::int64_t channels = x.shape[3];
    double mean = 0, variance = 0;
    for (std::int64_t c = 0; c < channels; ++c)
      mean += x({b, i, j, c}) / static_cast<double>(channels);
    for (std::int64_t c = 0; c < channels; ++c)
      variance += std::pow(x({b, i, j, c}) - mean, 2) / static_cast<double>(channels);
    std::vector<double> result(static_cast<std::size_t>(w.shape[0]), 0);
    for (std::int64_t r = 0; r < w.shape[0]; ++r)
      for (std::int64_t c = 0; c < channels; ++c)
        result[static_cast<std::size_t>(r)] +=
            ((x({b, i, j, c}) - mean) / std::sqrt(variance + 1e-5) * weight({c}) + bias({c})) *
            w({r, c});
    return result;
  }
  // [q, k, h], softmax over the second token.
  std::vector<double> weights(std::int64_t b) const {
    std::vector<double> w;
    for (std::int64_t q = 0; q < tokens(); ++q) {
      std::vector<double> row;
      for (std::int64_t k = 0; k < tokens(); ++k)
        for (const double logit : projected(z_, "norm_z", "proj_z.weight", b, q, k))
          row.push_back(logit + infinity_ * (mask_({b, q, k}) - 1));
      for (std::size_t h = 0; h < kHeads; ++h) normalize(row, h);
      w.insert(w.end(), row.begin(), row.end());
    }
    return w;
  }
  static void normalize(std::vector<double>& row, std::size_t head) {
    double largest = row[head], sum = 0;
    for (std::size_t k = head; k < row.size(); k += kHeads) largest = std::max(largest, row[k]);
    for (std::size_t k = head; k < row.size(); k += kHeads) sum += std::exp(row[k] - largest);
    for (std::size_t k = head; k < row.size(); k += kHeads)
      row[k] = std::exp(row[k] - largest) / sum;
  }
  std::vector<double> output(std::int64_t b, std::int64_t s, std::int64_t q,
                             const std::vector<double>& w) const {
    std::vector<double> o(kHeads * kWidth, 0);
    for (std::int64_t k = 0; k < tokens(); ++k) {
      const std::vector<double> v = projected(m_, "norm_m", "proj_m.weight", b, s, k);
      for (std::size_t c = 0; c < o.size(); ++c)
        o[c] += w[static_cast<std::size_t>(q * tokens() + k) * kHeads + c / kWidth] * v[c];
    }
    const std::vector<double> g = projected(m_, "norm_m", "proj_g.weight", b, s, q);
    const Values proj_o = parameter("proj_o.weight");
    std::vector<double> y(kMsa, 0);
    for (std::size_t r = 0; r < y.size(); ++r)
      for (std::size_t c = 0; c < o.size(); ++c)
        y[r] += o[c] / (1 + std::exp(-g[c])) *
                proj_o({static_cast<std::int64_t>(r), static_cast<std::int64_t>(c)});
    return y;
  }
  static void append(std::vector<double>& all, const std::vector<double>& more) {
    all.insert(all.end(), more.begin(), more.end());
  }

  Values m_, z_, mask_;
  const Setup& setup_;
  double infinity_;
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t k = 0; k < a.size(); ++k) largest = std::max(largest, std::abs(a[k] - b[k]));
  return largest;
}

Setup setup_on(const DeviceMesh& mesh, const Case& c, const Sizes& sizes) {
  return random_setup(c, c.problem(sizes), mesh, DType::f64, 3);
}

struct Sent {
  std::int64_t messages = 0, bytes = 0;
};
// Tiles, or numbers per query: what is reduced over `axis`.
Sent sent(const std::vector<CommTotal>& totals, const char* axis = nullptr) {
  Sent sum;
  for (const CommTotal& t : totals) {
    if ((t.op == "all_reduce") != (axis != nullptr) || (axis != nullptr && t.axis != axis))
      continue;
    sum.messages += t.messages;
    sum.bytes += t.bytes;
  }
  return sum;
}

CaseResult wide_on(const MeshShape& shape) {
  return run_parity(layer_case(), kWide, DeviceMesh::create(test_world(), shape), {});
}
// Bytes of one rank's tiles of the wide case, in f64.
std::int64_t value_tile() {
  return kWide.msa * kWide.tokens * kWideHidden * 8 / test_ranks();
}
std::int64_t weight_tile() {
  return kWide.tokens * kWide.tokens * kWideHeads * 8 / test_ranks();
}

}  // namespace

TEST_CASE("averages over the keys of arbitrary masks, by the formula") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    if (kBatch % shape.dp != 0) continue;
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    for (const NamedMask& m : kMasks)
      for (const double infinity : {1e6, 1e18}) {
        const Setup setup = setup_on(mesh, with_mask(m.mask, infinity), sizes_on(shape));
        Tape tape;
        const Var y = setup.instance.forward(inputs_on(tape, setup)).front();
        CAPTURE(format(shape), m.name, infinity);
        // Next to 1e6 the logits of queries without keys are rounded to 1e-10, next to 1e18 to
        // nothing: then all keys weigh the same.
        CHECK(largest_difference(Values(full_tensor(y.value())).data,
                                 Formulas(setup, infinity).result()) <
              (infinity > 1e6 ? 1e-12 : 1e-9));
      }
  }
}

TEST_CASE("gradients under arbitrary masks are those of one rank") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    if (kBatch % shape.dp != 0) continue;
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    for (const NamedMask& m : kMasks) {
      // A single key has weight 1 whatever its logit: no gradient goes to z.
      if (std::string(m.name) == "one key each") continue;
      const CaseResult r = run_parity(with_mask(m.mask, 1e18), sizes_on(shape), mesh, {});
      CAPTURE(format(shape), m.name, r.worst().tensor, r.worst().max_rel);
      CHECK(r.pass());
    }
  }
}

TEST_CASE(
    "what is added to all logits of a query has no gradient: the softmax's sum goes off once") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    if (kBatch % shape.dp != 0) continue;
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    const Setup setup = setup_on(mesh, layer_case(), sizes_on(shape));
    Tape tape;
    tape.backward(seeds(setup, setup.instance.forward(inputs_on(tape, setup))));
    std::vector<Var> parameters = setup.instance.module->parameters();
    reduce_gradients(mesh, parameters);
    CAPTURE(format(shape));
    for (const NamedParameter& p : setup.instance.module->named_parameters()) {
      if (p.name == "norm_z.bias") CHECK(max_abs(p.var.grad().local()) < 1e-12);
      if (p.name == "norm_z.weight") CHECK(max_abs(p.var.grad().local()) > 1e-3);
    }
  }
}

TEST_CASE("m, z, the weights, o and the statistics are kept, nothing else") {
  const DeviceMesh one = DeviceMesh::create(Communicator::self(), {});
  const std::int64_t n = kWide.tokens, s = kWide.msa;
  CHECK(run_parity(layer_case(), kWide, one, {}).saved_bytes ==
        (s * n * (kWideMsa + kWideHidden + 2) + n * n * (kWide.channels + kWideHeads + 2)) * 8);
}

TEST_CASE(
    "on a P x P grid P tiles of v and w go forward; of do, w and dw with its way home backward") {
  if (test_ranks() != 4) return;
  const std::int64_t p = 2;
  const CaseResult r = wide_on({1, 2, 2});
  CHECK(sent(r.forward).messages == 2 * p);
  CHECK(sent(r.forward).bytes == p * (value_tile() + weight_tile()));
  CHECK(sent(r.backward).messages == 3 * p + 1);
  CHECK(sent(r.backward).bytes == p * (value_tile() + weight_tile()) + (p + 1) * weight_tile());
  // Maxima and sums; the sum of the gradient. A number per own query and head, to one partner.
  const std::int64_t numbers = kWide.tokens / p * kWideHeads * 8;
  CHECK(sent(r.forward, "cp1").bytes == 2 * numbers);
  CHECK(sent(r.backward, "cp1").bytes == numbers);
}

TEST_CASE("on a line only v and do move, or only w and dw; w is swapped") {
  const std::int64_t p = test_ranks(), v = value_tile(), w = weight_tile();
  const CaseResult row = wide_on({1, 1, test_ranks()}), column = wide_on({1, test_ranks(), 1});
  CHECK(sent(row.forward).bytes == (p - 1) * v + (p - 1) * w / p);
  CHECK(sent(row.backward).bytes == (p - 1) * v);
  CHECK(sent(column.forward).bytes == (p - 1) * w + (p - 1) * w / p);
  CHECK(sent(column.backward).bytes == (p - 1) * w + (p > 1 ? p * w : 0));
}

TEST_CASE("groups of heads, other ones on another number of ranks") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Sizes sizes{2, 48, 16, 48};  // 8 channels of the MSA: up to one group per head
  const CaseResult r = run_parity(layer_case(), sizes, mesh, {});
  CAPTURE(r.worst().tensor, r.worst().max_rel);
  CHECK(r.pass());
  // 2.25 MiB of v on each of four ranks, in two groups of four messages.
  if (test_ranks() == 4) CHECK(sent(r.forward).messages == 2 * 4);
}

TEST_CASE("without a tape o is not kept and y is the same") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Setup setup = setup_on(mesh, layer_case(), {2, 48, 16, 48});
  Tape tape;
  const std::vector<Var> inputs = inputs_on(tape, setup);
  const Tensor recorded = setup.instance.forward(inputs).front().value().local();
  const NoGrad no_grad;
  const std::int64_t before = memory_ledger::total().live;
  const Tensor y = setup.instance.forward(inputs).front().value().local();
  CHECK(memory_ledger::total().live - before == y.bytes());
  const Difference d = max_difference(y, recorded);
  CHECK(d.max_abs == 0);
  CHECK(d.max_reference > 0);
}

TEST_CASE("the peak on 2 x 2 is at most 0.3 of the serial one, and v is never whole") {
  if (test_ranks() != 4) return;
  const Sizes sizes{1, 128, 128, 256};
  const RunOptions f32{.dtype = DType::f32};
  const DeviceMesh one = DeviceMesh::create(Communicator::self(), {});
  const std::int64_t serial = run_parity(layer_case(), sizes, one, f32).peak_bytes;
  const CaseResult r =
      run_parity(layer_case(), sizes, DeviceMesh::create(test_world(), {1, 2, 2}), f32);
  CAPTURE(r.peak_bytes, serial);
  CHECK(r.pass());
  CHECK(static_cast<double>(r.peak_bytes) <= 0.3 * static_cast<double>(serial));
  // m, z, their gradients, y and its gradient, o; and not two more tiles like o.
  const std::int64_t m = sizes.msa * sizes.tokens * 64 * 4;
  const std::int64_t z = sizes.tokens * sizes.tokens * 128 * 4;
  CHECK(serial < 4 * m + 2 * z + 4 * m + 2 * 4 * m);
}

TEST_CASE("threads share the positions of a golden file") {
  const std::string path = golden_directory() / "pair_weighted_averaging.safetensors";
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const int before = thread_count();
  set_thread_count(3);
  CHECK(run_golden(layer_case(), SafetensorsFile::open(path), path, mesh, {}).pass());
  set_thread_count(before);
}

TEST_CASE(
    "rows and tokens that do not divide, unlike dtypes and a mask with a gradient are refused") {
  if (test_ranks() != 4) return;
  const auto forward = [](const MeshShape& shape, const Sizes& sizes) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    return [=] {
      const Setup setup = setup_on(mesh, layer_case(), sizes);
      Tape tape;
      setup.instance.forward(inputs_on(tape, setup));
    };
  };
  require_error<UnevenError>(forward({1, 4, 1}, {1, 4, 3, 6}), "m", "dim 1");
  require_error<UnevenError>(forward({1, 1, 4}, {1, 6, 3, 4}), "m", "dim 2");

  const Setup setup = setup_on(DeviceMesh::create(test_world(), {1, 2, 2}), layer_case(), kWide);
  Tape tape;
  std::vector<Var> inputs = inputs_on(tape, setup);
  inputs[2] = tape.input("mask", setup.inputs[2], true);
  require_error<GradientError>([&] { setup.instance.forward(inputs); }, "pair_weighted_averaging",
                               "mask");
  inputs[2] = tape.input("mask", setup.inputs[2], false);
  inputs[1] = tape.input("z", setup.inputs[1].to(DType::f32), true);
  require_error<TypeError>([&] { setup.instance.forward(inputs); }, "pair_weighted_averaging", "z",
                           "f32", "f64");
  inputs[1] = tape.input("z", setup.inputs[1], true);
  inputs[0] = Var();
  require_error<TypeError>([&] { setup.instance.forward(inputs); }, "pair_weighted_averaging",
                           "'m'", "undefined");
  inputs[0] = tape.input("m", setup.inputs[0], true);
  inputs[2] = tape.input("mask", setup.inputs[1], false);
  require_error<ShapeError>([&] { setup.instance.forward(inputs); }, "pair_weighted_averaging",
                            "mask");
}

TEST_CASE("mistakes in the schedule are found") {
  if (test_ranks() != 6) return;  // on rings of two a turn to the left is one to the right
  for (const MeshShape& shape : {MeshShape{1, 2, 3}, MeshShape{1, 3, 2}})
    for (const Mutation mistake :
         {Mutation::reverse_ring, Mutation::drop_skew, Mutation::drop_last_rotation}) {
      CAPTURE(format(shape), static_cast<int>(mistake));
      set_mutation(mistake);
      const CaseResult r = wide_on(shape);
      set_mutation(Mutation::none);
      CHECK_FALSE(r.pass());
    }
}
