// SPDX-License-Identifier: MIT
// ranks: 1
// Attention in blocks against a plain evaluation of all keys at once in double.
#include <algorithm>
#include <functional>
#include <thread>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/math/attention.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;
using math::AttentionGradients;
using math::AttentionOperands;
using math::AttentionState;

namespace {

struct Sizes {
  std::int64_t rows, queries, keys, heads, channels, biases;
};
constexpr Sizes kSmall{4, 5, 9, 3, 2, 2};

AttentionOperands operands_of(const Sizes& s, DType dtype) {
  AttentionOperands o;
  o.q = random_tensor({s.rows, s.queries, s.heads, s.channels}, dtype, "q");
  o.k = random_tensor({s.rows, s.keys, s.heads, s.channels}, dtype, "k");
  o.v = random_tensor({s.rows, s.keys, s.heads, s.channels}, dtype, "v");
  o.bias = random_tensor({s.biases, s.heads, s.queries, s.keys}, dtype, "bias");
  o.scale = 2.5;
  o.infinity = 1e9;
  return o;
}

// Of each key the same for all queries, as rows of key masks are expanded.
Tensor key_mask(const Sizes& s, DType dtype, const std::function<bool(std::int64_t)>& keep) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < s.rows * s.keys; ++i) values.push_back(keep(i) ? 1 : 0);
  return Tensor::from_values({s.rows, 1, s.keys}, values, dtype)
      .expand({s.rows, s.queries, s.keys});
}

// All keys of all queries at once.
class Dense {
 public:
  std::vector<double> out, maximum, log_sum, dq, dk, dv, dbias;

  Dense(const AttentionOperands& o, const Tensor& dout)
      : o_(o),
        q_(to_values(o.q)),
        k_(to_values(o.k)),
        v_(to_values(o.v)),
        dout_(to_values(dout)),
        queries_(o.q.size(1)),
        keys_(o.k.size(1)),
        heads_(o.q.size(2)),
        channels_(o.q.size(3)) {
    if (o.bias.defined()) bias_ = to_values(o.bias);
    if (o.mask.defined()) mask_ = to_values(o.mask);
    out.resize(q_.size());
    dq.resize(q_.size());
    dk.resize(k_.size());
    dv.resize(k_.size());
    dbias.resize(bias_.size());
    for (std::int64_t row = 0; row < o.q.size(0); ++row)
      for (std::int64_t head = 0; head < heads_; ++head)
        for (std::int64_t j = 0; j < queries_; ++j) query(row, head, j);
  }

 private:
  std::size_t in_q(std::int64_t row, std::int64_t j, std::int64_t head) const {
    return static_cast<std::size_t>(((row * queries_ + j) * heads_ + head) * channels_);
  }
  std::size_t in_k(std::int64_t row, std::int64_t key, std::int64_t head) const {
    return static_cast<std::size_t>(((row * keys_ + key) * heads_ + head) * channels_);
  }
  std::size_t in_bias(std::int64_t row, std::int64_t head, std::int64_t j) const {
    const std::int64_t b = row / (o_.q.size(0) / o_.bias.size(0));
    return static_cast<std::size_t>(((b * heads_ + head) * queries_ + j) * keys_);
  }
  double dot(const std::vector<double>& a, std::size_t i, const std::vector<double>& b,
             std::size_t j) const {
    double sum = 0;
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels_); ++c)
      sum += a[i + c] * b[j + c];
    return sum;
  }
  void add(double factor, const std::vector<double>& a, std::size_t i, std::vector<double>& to,
           std::size_t j) const {
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels_); ++c)
      to[j + c] += factor * a[i + c];
  }

  double logit(std::int64_t row, std::int64_t head, std::int64_t j, std::int64_t key) const {
    const double product = o_.scale * dot(q_, in_q(row, j, head), k_, in_k(row, key, head));
    const auto at = static_cast<std::size_t>(key);
    const double b = bias_.empty() ? 0 : bias_[in_bias(row, head, j) + at];
    const auto first = static_cast<std::size_t>((row * queries_ + j) * keys_);
    const double m = mask_.empty() ? 0 : o_.infinity * (mask_[first + at] - 1);
    return o_.mask_first ? (product + m) + b : (product + b) + m;
  }

  void query(std::int64_t row, std::int64_t head, std::int64_t j) {
    const std::size_t at = in_q(row, j, head);
    std::vector<double> p;
    for (std::int64_t key = 0; key < keys_; ++key) p.push_back(logit(row, head, j, key));
    const double top = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& a : p) sum += a = std::exp(a - top);
    maximum.push_back(top);
    log_sum.push_back(std::log(sum));
    for (std::size_t key = 0; key < p.size(); ++key) {
      p[key] /= sum;
      add(p[key], v_, in_k(row, static_cast<std::int64_t>(key), head), out, at);
    }
    const double d = dot(dout_, at, out, at);
    for (std::size_t key = 0; key < p.size(); ++key) {
      const std::size_t k_at = in_k(row, static_cast<std::int64_t>(key), head);
      const double da = p[key] * (dot(dout_, at, v_, k_at) - d);
      add(p[key], dout_, at, dv, k_at);
      add(o_.scale * da, k_, k_at, dq, at);
      add(o_.scale * da, q_, at, dk, k_at);
      if (!bias_.empty()) dbias[in_bias(row, head, j) + key] += da;
    }
  }

  const AttentionOperands& o_;
  std::vector<double> q_, k_, v_, dout_, bias_, mask_;
  std::int64_t queries_, keys_, heads_, channels_;
};

// Keys [begin, begin + length) of the operands.
AttentionOperands keys_of(const AttentionOperands& o, std::int64_t begin, std::int64_t length) {
  AttentionOperands part = o;
  part.k = o.k.narrow(1, begin, length);
  part.v = o.v.narrow(1, begin, length);
  if (o.mask.defined()) part.mask = o.mask.narrow(2, begin, length);
  if (o.bias.defined()) part.bias = o.bias.narrow(3, begin, length);
  return part;
}

using Blocks = std::vector<std::pair<std::int64_t, std::int64_t>>;  // begin and length

Blocks at_once(const AttentionOperands& o) {
  return {{0, o.k.size(1)}};
}

AttentionState attend(const AttentionOperands& o, const Blocks& blocks) {
  const AttentionState state = math::make_state(o.q);
  for (std::size_t b = 0; b < blocks.size(); ++b)
    math::attention_block(keys_of(o, blocks[b].first, blocks[b].second), b == 0, state, {});
  math::finish(state);
  return state;
}

AttentionGradients attend_backward(const AttentionOperands& o, const AttentionState& state,
                                   const Tensor& dout, const Tensor& d, const Blocks& blocks) {
  const auto zeros = [&](const Tensor& like) {
    return like.defined() ? Tensor::zeros(like.shape(), at_least_f32(o.q.dtype())) : Tensor();
  };
  const AttentionGradients g{zeros(o.q), zeros(o.k), zeros(o.k), zeros(o.bias)};
  for (const auto& [begin, length] : blocks)
    math::attention_block_backward(
        keys_of(o, begin, length), state.maximum, state.sum, dout, d,
        {g.dq, g.dk.narrow(1, begin, length), g.dv.narrow(1, begin, length),
         g.dbias.defined() ? g.dbias.narrow(3, begin, length) : Tensor()},
        {});
  return g;
}
AttentionGradients attend_backward(const AttentionOperands& o, const AttentionState& state,
                                   const Tensor& dout, const Blocks& blocks) {
  return attend_backward(o, state, dout, math::row_dots(dout, state.weighted), blocks);
}

Tensor dout_of(const AttentionOperands& o) {
  return random_tensor(o.q.shape(), o.q.dtype(), "dout");
}

// Of sums of some ten products, weights of magnitude 1 and logits of magnitude 10.
double bound_of(DType dtype) {
  return dtype == DType::f64 ? 1e-14 : 100 * rounding_of(DType::f32);
}

void check_gradients(const AttentionGradients& g, const Dense& expected, double bound) {
  check_close(g.dq, expected.dq, bound);
  check_close(g.dk, expected.dk, bound);
  check_close(g.dv, expected.dv, bound);
  if (g.dbias.defined()) check_close(g.dbias, expected.dbias, bound);
}

void check_all(const AttentionOperands& o, const Blocks& blocks, double bound) {
  const Tensor dout = dout_of(o);
  const Dense expected(o, dout);
  const AttentionState state = attend(o, blocks);
  CHECK(state.weighted.dtype() == at_least_f32(o.q.dtype()));
  check_close(state.weighted, expected.out, bound);
  check_close(state.maximum, expected.maximum, bound);
  check_close(state.sum, expected.log_sum, bound);
  check_gradients(attend_backward(o, state, dout, blocks), expected, bound);
}

// With scale 0 logits are sums of bias and mask alone. Checks them against those sums, rounded as
// the dtype rounds them, given to the plain evaluation as biases.
void check_masked(const AttentionOperands& o, const Blocks& blocks) {
  const std::vector<double> bias = to_values(o.bias), mask = to_values(o.mask);
  const std::size_t keys = static_cast<std::size_t>(o.k.size(1));
  const std::size_t queries = static_cast<std::size_t>(o.q.size(1));
  const std::size_t heads = static_cast<std::size_t>(o.q.size(2));
  std::vector<double> logits;
  for (std::size_t i = 0; i < bias.size(); ++i) {
    const std::size_t row = i / keys / queries / heads, query = i / keys % queries;
    const double sum = bias[i] + o.infinity * (mask[(row * queries + query) * keys + i % keys] - 1);
    logits.push_back(o.q.dtype() == DType::f64 ? sum : static_cast<float>(sum));
  }
  AttentionOperands plain = o;
  plain.mask = Tensor();
  plain.bias = Tensor::from_values(o.bias.shape(), logits, DType::f64);
  const Tensor dout = dout_of(o);
  const Dense expected(plain, dout);
  const AttentionState state = attend(o, blocks);
  const double bound = bound_of(o.q.dtype());
  check_close(state.weighted, expected.out, bound);
  check_close(state.maximum, expected.maximum, 0);
  check_close(state.sum, expected.log_sum, bound);
  check_gradients(attend_backward(o, state, dout, blocks), expected, bound);
}

const std::vector<Blocks> kSplits{
    {{0, 9}}, {{0, 3}, {3, 3}, {6, 3}}, {{6, 3}, {0, 6}}, {{4, 5}, {0, 1}, {1, 3}}};

double worst_difference(const Tensor& found, const std::vector<double>& expected) {
  const std::vector<double> values = to_values(found);
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    worst = std::max(worst, std::abs(values[i] - expected[i]));
  return worst;
}

}  // namespace

TEST_CASE("blocks in any order and of any cut are all keys at once") {
  for (const DType dtype : floating_dtypes)
    for (const bool mask_first : {false, true})
      for (const Blocks& blocks : kSplits) {
        INFO(name_of(dtype) << " " << blocks.size() << " blocks");
        AttentionOperands o = operands_of(kSmall, dtype);
        o.mask_first = mask_first;
        check_all(o, blocks, bound_of(dtype));
        o.mask = key_mask(kSmall, dtype, [](std::int64_t i) { return i % 3 != 0; });
        check_all(o, blocks, bound_of(dtype));
      }
}

TEST_CASE("a bias of each row, of some rows, of all, or none") {
  for (const std::int64_t biases : {4, 2, 1}) {
    Sizes s = kSmall;
    s.biases = biases;
    check_all(operands_of(s, DType::f64), kSplits[1], bound_of(DType::f64));
  }
  AttentionOperands none = operands_of(kSmall, DType::f64);
  none.bias = Tensor();
  check_all(none, kSplits[1], bound_of(DType::f64));
}

TEST_CASE("masks and biases of other dtypes than the operands'") {
  AttentionOperands o = operands_of(kSmall, DType::bf16);
  o.mask = key_mask(kSmall, DType::f32, [](std::int64_t i) { return i % 4 != 1; });
  o.bias = random_tensor(o.bias.shape(), DType::f32, "bias");
  check_all(o, kSplits[1], bound_of(DType::bf16));
  o.mask = random_tensor({4, 5, 9}, DType::f32, "one for each query and key");
  o.infinity = 3;
  check_all(o, kSplits[2], bound_of(DType::bf16));
}

TEST_CASE("more keys and queries than a tile holds") {
  for (const DType dtype : {DType::f64, DType::bf16}) {
    // Sums of 2500 weights.
    check_all(operands_of({1, 70, 2500, 1, 2, 1}, dtype), {{0, 2500}}, 20 * bound_of(dtype));
    check_all(operands_of({37, 3, 600, 2, 2, 1}, dtype), {{0, 600}}, 40 * bound_of(dtype));
  }
}

TEST_CASE("rows whose keys are all masked are rows like any other") {
  // Without products logits are exact in either evaluation, so that nothing but the softmax counts.
  for (const DType dtype : {DType::f64, DType::f32})
    for (const double infinity : {1e6, 1e9, 1e18})
      for (const Blocks& blocks : kSplits) {
        INFO(name_of(dtype) << " " << infinity);
        AttentionOperands o = operands_of({4, 5, 9, 3, 2, 4}, dtype);
        o.scale = 0;
        o.infinity = infinity;
        o.mask = key_mask(kSmall, dtype, [](std::int64_t i) { return i >= 2 * 9 && i % 9 > 3; });
        check_masked(o, blocks);
      }
}

TEST_CASE("the order of addition is the caller's") {
  // Next to 1e9 f32 has steps of 64: 30 + 30 counts as one of them, 30 twice does not.
  AttentionOperands o = operands_of({1, 1, 1, 1, 1, 1}, DType::f32);
  for (const Tensor* t : {&o.q, &o.k}) fill(*t, 1);
  o.scale = 30;
  fill(o.bias, 30);
  o.mask = Tensor::zeros({1, 1, 1}, DType::f32);
  o.mask_first = true;
  CHECK(attend(o, {{0, 1}}).maximum.item({0, 0, 0}) == -1e9);
  o.mask_first = false;
  CHECK(attend(o, {{0, 1}}).maximum.item({0, 0, 0}) == -1e9 + 64);
}

namespace {

// 63 keys in 21 blocks, four queries; logits are the biases.
constexpr std::int64_t kQueries = 4, kBlock = 3, kBlocks = 21, kKeys = kBlock * kBlocks;

// What is added to the logits of a block for a query.
using Pattern = std::function<double(std::int64_t query, std::int64_t block)>;
struct Named {
  const char* name;
  Pattern added;
};
const std::vector<Named> kPatterns{
    {"plain", [](auto, auto) { return 0.0; }},
    {"leading blocks masked", [](auto, auto block) { return block < 5 ? -1e9 : 0.0; }},
    {"trailing blocks masked", [](auto, auto block) { return block > 15 ? -1e9 : 0.0; }},
    {"all masked", [](auto, auto) { return -1e9; }},
    {"large blocks", [](auto, auto block) { return block == 3 || block == 11 ? 1e9 : 0.0; }},
    {"large first", [](auto, auto block) { return block == 0 ? 1e9 : 0.0; }},
    {"mixed",
     [](auto query, auto block) {
       const auto kind = (query + block * block) % 4;
       return kind == 0 ? -1e9 : kind == 1 ? 1e9 : kind == 2 ? -30.0 : 0.0;
     }},
    {"queries of their own",
     [](auto query, auto block) { return block % 4 == query ? 0.0 : -1e9; }}};

AttentionOperands with_pattern(const Pattern& added, DType dtype) {
  AttentionOperands o = operands_of({1, kQueries, kKeys, 1, 5, 1}, dtype);
  const std::vector<double> noise = to_values(o.bias);
  std::vector<double> logits;
  for (std::int64_t query = 0; query < kQueries; ++query)
    for (std::int64_t key = 0; key < kKeys; ++key)
      logits.push_back(8 * noise[static_cast<std::size_t>(query * kKeys + key)] +
                       added(query, key / kBlock));
  o.bias = Tensor::from_values(o.bias.shape(), logits, dtype);
  o.scale = 0;
  return o;
}

Blocks many_blocks() {
  Blocks blocks;
  for (std::int64_t b = 0; b < kBlocks; ++b) blocks.emplace_back(b * kBlock, kBlock);
  return blocks;
}

// A sum of 63 products, and up to 21 roundings of weights.
double pattern_bound(DType dtype) {
  return 2 * kKeys * rounding_of(dtype);
}

}  // namespace

TEST_CASE("maxima that rise, fall and stay through 21 blocks") {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const Named& pattern : kPatterns) {
      INFO(pattern.name << " " << name_of(dtype));
      const AttentionOperands o = with_pattern(pattern.added, dtype);
      const Tensor dout = dout_of(o);
      const Dense expected(o, dout);
      const AttentionState state = attend(o, many_blocks());
      check_close(state.weighted, expected.out, pattern_bound(dtype));
      check_close(state.sum, expected.log_sum, pattern_bound(dtype));
      check_close(state.maximum, expected.maximum, 0);
      check_gradients(attend_backward(o, state, dout, many_blocks()), expected,
                      10 * pattern_bound(dtype));
    }
}

TEST_CASE("one number for maximum and the rest loses the rest next to 1e9") {
  const AttentionOperands o = with_pattern(kPatterns[3].added, DType::f32);
  const Tensor dout = dout_of(o);
  const Dense expected(o, dout);
  AttentionState state = attend(o, many_blocks());
  binary(Binary::add, state.maximum, state.sum, state.maximum);  // the mistake
  fill(state.sum, 0);
  const AttentionGradients g = attend_backward(o, state, dout, many_blocks());
  CHECK(worst_difference(g.dv, expected.dv) > 1e4 * pattern_bound(DType::f32));
}

TEST_CASE("gradients need the product of output and cotangent") {
  const AttentionOperands o = operands_of(kSmall, DType::f64);
  const Tensor dout = dout_of(o);
  const Dense expected(o, dout);
  const AttentionState state = attend(o, at_once(o));
  const Tensor d = math::row_dots(dout, state.weighted);
  scale(1.001, d);  // the mistake
  const AttentionGradients g = attend_backward(o, state, dout, d, at_once(o));
  CHECK(worst_difference(g.dq, expected.dq) > 1e-6);
  CHECK(worst_difference(g.dbias, expected.dbias) > 1e-6);
}

TEST_CASE("gradients are those of differences") {
  const AttentionOperands o = operands_of(kSmall, DType::f64);
  const Tensor dout = dout_of(o);
  const AttentionState state = attend(o, kSplits[3]);
  const AttentionGradients g = attend_backward(o, state, dout, kSplits[3]);
  const auto sum_of_products = [](const Tensor& a, const Tensor& b) {
    const std::vector<double> x = to_values(a), y = to_values(b);
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
    return sum;
  };
  const std::vector<std::pair<Tensor AttentionOperands::*, Tensor>> all{
      {&AttentionOperands::q, g.dq},
      {&AttentionOperands::k, g.dk},
      {&AttentionOperands::v, g.dv},
      {&AttentionOperands::bias, g.dbias}};
  for (const auto& [member, gradient] : all) {
    const Tensor direction = random_tensor(gradient.shape(), DType::f64, "direction");
    constexpr double step = 1e-5;
    double difference = 0;
    for (const double sign : {1.0, -1.0}) {
      AttentionOperands moved = o;
      moved.*member = (o.*member).clone();
      add(1, moved.*member, sign * step, direction, moved.*member);
      difference += sign * sum_of_products(attend(moved, {{0, 9}}).weighted, dout) / (2 * step);
    }
    CHECK(std::abs(difference - sum_of_products(gradient, direction)) < 1e-7);
  }
}

TEST_CASE("the number of threads changes no output, and gradients by rounding only") {
  // Rows that share one bias; many rows of one head; one row.
  for (const Sizes& s : {Sizes{7, 5, 9, 1, 2, 1}, Sizes{8, 5, 9, 1, 2, 8}, Sizes{1, 5, 9, 4, 2, 1},
                         Sizes{6, 5, 9, 2, 2, 2}}) {
    const AttentionOperands o = operands_of(s, DType::f64);
    const Tensor dout = dout_of(o);
    set_thread_count(1);
    const AttentionState one = attend(o, kSplits[1]);
    set_thread_count(3);
    const AttentionState three = attend(o, kSplits[1]);
    CHECK(bitwise_equal(one.weighted, three.weighted));
    CHECK(bitwise_equal(one.sum, three.sum));
    check_all(o, kSplits[1], bound_of(DType::f64));
    set_thread_count(1);
  }
}

TEST_CASE("progress is reported by the calling thread") {
  const AttentionOperands o = operands_of({8, 5, 9, 4, 2, 1}, DType::f64);
  const Tensor dout = dout_of(o);
  const AttentionState state = attend(o, at_once(o));
  for (const int threads : {1, 3}) {
    set_thread_count(threads);
    int calls = 0;
    bool elsewhere = false;
    const auto progress = [&, caller = std::this_thread::get_id()] {
      ++calls;
      elsewhere = elsewhere || std::this_thread::get_id() != caller;
    };
    math::attention_block(o, true, math::make_state(o.q), progress);
    CHECK(calls > 0);
    calls = 0;
    const auto zeros = [](const Tensor& t) { return Tensor::zeros(t.shape(), DType::f64); };
    math::attention_block_backward(o, state.maximum, state.sum, dout,
                                   math::row_dots(dout, state.weighted),
                                   {zeros(o.q), zeros(o.k), zeros(o.k), zeros(o.bias)}, progress);
    CHECK(calls > 0);
    CHECK_FALSE(elsewhere);
    set_thread_count(1);
  }
}

TEST_CASE("operands and gradients may be views") {
  AttentionOperands o = operands_of(kSmall, DType::f64);
  const auto with_room = [](const Tensor& t) {  // every second position, head and channel pair
    const Tensor room =
        Tensor::full({t.size(0), 2 * t.size(1), t.size(2), 3, t.size(3)}, 77, t.dtype());
    const Tensor view = room.narrow(1, 1, t.size(1)).select(3, 1);
    copy(t, view);
    return view;
  };
  const Tensor dout = dout_of(o);
  const Dense expected(o, dout);
  for (Tensor* t : {&o.q, &o.k, &o.v, &o.bias}) *t = with_room(*t);
  const AttentionState state = attend(o, kSplits[1]);
  check_close(state.weighted, expected.out, bound_of(DType::f64));
  const auto zeros = [&](const Tensor& like) {
    return with_room(Tensor::zeros(like.shape(), DType::f64));
  };
  const AttentionGradients g{zeros(o.q), zeros(o.k), zeros(o.k), zeros(o.bias)};
  const Tensor own_dout = with_room(dout);
  math::attention_block_backward(o, state.maximum, state.sum, own_dout,
                                 math::row_dots(own_dout, state.weighted), g, {});
  check_gradients(g, expected, bound_of(DType::f64));
}

TEST_CASE("dots of rows") {
  for (const DType dtype : floating_dtypes) {
    const Tensor a = random_tensor({3, 70, 2, 5}, dtype, "a");
    const Tensor b = random_tensor({3, 70, 2, 5}, dtype, "b");
    std::vector<double> expected;
    for (std::int64_t row = 0; row < 3; ++row)
      for (std::int64_t head = 0; head < 2; ++head)
        for (std::int64_t j = 0; j < 70; ++j) {
          double sum = 0;
          for (std::int64_t c = 0; c < 5; ++c)
            sum += a.item({row, j, head, c}) * b.item({row, j, head, c});
          expected.push_back(sum);
        }
    const Tensor dots = math::row_dots(a, b);
    CHECK(dots.dtype() == at_least_f32(dtype));
    check_close(dots, expected, 10 * rounding_of(at_least_f32(dtype)));
  }
}

TEST_CASE("operands that do not fit") {
  const AttentionOperands good = operands_of(kSmall, DType::f64);
  const AttentionState state = math::make_state(good.q);
  const auto refused = [&](Tensor AttentionOperands::*member, const Shape& shape, auto... words) {
    AttentionOperands o = good;
    o.*member = Tensor::zeros(shape, DType::f64);
    require_error<ShapeError>([&] { math::attention_block(o, true, state, {}); }, "attention",
                              words...);
  };
  refused(&AttentionOperands::v, {4, 8, 3, 2}, "'v'", "[4, 8, 3, 2]", "[4, 9, 3, 2]");
  refused(&AttentionOperands::bias, {3, 3, 5, 9}, "'bias'", "3 for 4 rows", "divisor");
  refused(&AttentionOperands::bias, {2, 3, 5, 8}, "'bias'", "[2, 3, 5, 8]", "[2, 3, 5, 9]");
  refused(&AttentionOperands::mask, {4, 1, 9}, "'mask'", "[4, 1, 9]", "[4, 5, 9]");
  AttentionState other = state;
  other.sum = Tensor::zeros({4, 5, 3}, DType::f64);
  require_error<ShapeError>([&] { math::attention_block(good, true, other, {}); }, "'sum'",
                            "[4, 5, 3]", "[4, 3, 5]");
}

TEST_CASE("tiles of logits that do not fit") {
  const auto f64 = [](const Shape& shape) { return Tensor::zeros(shape, DType::f64); };
  const Tensor logits = f64({2, 3, 4}), numbers = f64({2, 3}), weighted = f64({2, 3, 5});
  require_error<TypeError>(
      [&] {
        softmax_tile(Tensor::zeros({2, 3, 4}, DType::bf16), {}, true, numbers, numbers, weighted);
      },
      "softmax_tile", "'logits'", "bf16");
  require_error<ShapeError>(
      [&] {
        softmax_tile(logits, {}, true, f64({3, 2}), numbers, weighted);
      },
      "'maximum'", "[3, 2]", "[2, 3]");
  require_error<ShapeError>(
      [&] {
        softmax_tile(logits, {f64({1, 3, 5}), {}, 1, true}, true, numbers, numbers, weighted);
      },
      "'mask'", "[1, 3, 5]", "[1, 3, 4]");
  require_error<TypeError>(
      [&] {
        softmax_tile_backward(logits, {}, numbers, numbers, numbers, f64({2, 3, 4}),
                              Tensor::zeros({1, 3, 4}, DType::f32));
      },
      "softmax_tile_backward", "'dbias'", "f32");
}
