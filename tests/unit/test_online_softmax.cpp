// SPDX-License-Identifier: MIT
// ranks: 1
// Softmax in blocks against all keys at once in double, with masks of magnitude 1e9.
#include <functional>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/math/online_softmax.hpp"

using namespace tessera;
using math::SoftmaxState;

namespace {

constexpr std::int64_t kRows = 4, kValues = 5, kBlock = 3, kBlocks = 21, kKeys = kBlock * kBlocks;

// What is added to the logits of a block in a row.
using Pattern = std::function<double(std::int64_t row, std::int64_t block)>;
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
     [](auto row, auto block) {
       const auto kind = (row + block * block) % 4;
       return kind == 0 ? -1e9 : kind == 1 ? 1e9 : kind == 2 ? -30.0 : 0.0;
     }},
    {"rows of their own", [](auto row, auto block) { return block % 4 == row ? 0.0 : -1e9; }}};

Tensor logits_of(const Pattern& added, DType dtype) {
  const std::vector<double> noise = to_values(random_tensor({kRows, kKeys}, DType::f64, "logits"));
  std::vector<double> logits;
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t key = 0; key < kKeys; ++key)
      logits.push_back(8 * noise[static_cast<std::size_t>(row * kKeys + key)] +
                       added(row, key / kBlock));
  return Tensor::from_values({kRows, kKeys}, logits, dtype);
}

struct Exact {
  std::vector<double> mean, log_sum, maximum;
};
// Of the logits and values as they are in their dtype.
Exact at_once(const Tensor& logits, const Tensor& values) {
  Exact exact;
  for (std::int64_t row = 0; row < kRows; ++row) {
    double top = logits.item({row, 0}), sum = 0;
    for (std::int64_t key = 0; key < kKeys; ++key) top = std::max(top, logits.item({row, key}));
    std::vector<double> mean(kValues, 0);
    for (std::int64_t key = 0; key < kKeys; ++key) {
      const double weight = std::exp(logits.item({row, key}) - top);
      sum += weight;
      for (std::int64_t d = 0; d < kValues; ++d)
        mean[static_cast<std::size_t>(d)] += weight * values.item({key, d});
    }
    for (const double m : mean) exact.mean.push_back(m / sum);
    exact.log_sum.push_back(std::log(sum));
    exact.maximum.push_back(top);
  }
  return exact;
}

SoftmaxState in_blocks(const Tensor& logits, const Tensor& values) {
  SoftmaxState state;
  for (std::int64_t b = 0; b < kBlocks; ++b)
    math::update(state, math::softmax_block(logits.narrow(1, b * kBlock, kBlock),
                                            values.narrow(0, b * kBlock, kBlock)));
  return state;
}

// The mistake: one number for maximum + log_sum.
SoftmaxState in_blocks_with_one_number(const Tensor& logits, const Tensor& values) {
  SoftmaxState state;
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    math::update(state, math::softmax_block(logits.narrow(1, b * kBlock, kBlock),
                                            values.narrow(0, b * kBlock, kBlock)));
    binary(Binary::add, state.maximum, state.log_sum, state.maximum);
    fill(state.log_sum, 0);
  }
  return state;
}

// A sum of 63 products, and up to 21 roundings of weights.
double tolerance(DType dtype) {
  return 2 * kKeys * rounding_of(dtype);
}

}  // namespace

TEST_CASE("21 blocks of 3 keys are 63 keys") {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const Named& pattern : kPatterns) {
      INFO(pattern.name << " " << name_of(dtype));
      const Tensor logits = logits_of(pattern.added, dtype);
      const Tensor values = random_tensor({kKeys, kValues}, dtype, "values");
      const Exact exact = at_once(logits, values);
      const SoftmaxState state = in_blocks(logits, values);
      CHECK(state.mean.dtype() == dtype);
      check_close(state.mean, exact.mean, tolerance(dtype));
      check_close(state.log_sum, exact.log_sum, tolerance(dtype));
      check_close(state.maximum, exact.maximum, 0);
    }
}

TEST_CASE("one number for maximum and rest loses the rest next to 1e9") {
  const Tensor values = random_tensor({kKeys, kValues}, DType::f32, "values");
  const Tensor logits = logits_of([](auto, auto) { return -1e9; }, DType::f32);
  const Exact exact = at_once(logits, values);
  const std::vector<double> found = to_values(in_blocks_with_one_number(logits, values).mean);
  double worst = 0;
  for (std::size_t k = 0; k < found.size(); ++k)
    worst = std::max(worst, std::abs(found[k] - exact.mean[k]));
  CHECK(worst > 1000 * tolerance(DType::f32));
}

TEST_CASE("blocks of bf16 are added up in f32, batches side by side") {
  const Tensor logits = logits_of(kPatterns[6].added, DType::bf16);
  const Tensor values = random_tensor({kKeys, kValues}, DType::bf16, "values");
  const Exact exact = at_once(logits, values);
  const auto batched = [](const Tensor& t) {
    const Tensor two = Tensor::empty({2, t.size(0), t.size(1)}, t.dtype());
    for (std::int64_t b = 0; b < 2; ++b) copy(t, two.select(0, b));
    return two;
  };
  SoftmaxState state;
  for (std::int64_t b = 0; b < kBlocks; ++b)
    math::update(state, math::softmax_block(batched(logits.narrow(1, b * kBlock, kBlock)),
                                            batched(values.narrow(0, b * kBlock, kBlock))));
  CHECK(state.mean.dtype() == DType::f32);
  for (std::int64_t b = 0; b < 2; ++b)
    check_close(state.mean.select(0, b), exact.mean, tolerance(DType::f32));
}

TEST_CASE("the first block is copied") {
  const Tensor logits = logits_of(kPatterns[0].added, DType::f64);
  const Tensor values = random_tensor({kKeys, kValues}, DType::f64, "values");
  const SoftmaxState block = math::softmax_block(logits, values);
  const std::vector<double> before = to_values(block.mean);
  SoftmaxState state;
  math::update(state, block);
  CHECK_FALSE(state.mean.shares_storage(block.mean));
  math::update(state,
               math::softmax_block(logits, random_tensor({kKeys, kValues}, DType::f64, "w")));
  CHECK(to_values(block.mean) == before);
}

TEST_CASE("states that do not fit") {
  const auto state = [](std::int64_t rows) {
    return SoftmaxState{Tensor::zeros({rows, 3}, DType::f64), Tensor::zeros({rows, 1}, DType::f64),
                        Tensor::zeros({rows, 1}, DType::f64)};
  };
  SoftmaxState four = state(4);
  require_error<ShapeError>([&] { math::update(four, state(5)); }, "online softmax", "'state'",
                            "[4, 3]", "[5, 3]");
  SoftmaxState part = state(4);
  part.maximum = Tensor();
  require_error<ShapeError>([&] { math::update(part, state(4)); }, "'state'", "part of a state");
  require_error<ShapeError>([&] { math::update(four, part); }, "'block'", "part of a state");
  SoftmaxState wide = state(4);
  wide.log_sum = Tensor::zeros({4, 3}, DType::f64);
  require_error<ShapeError>([&] { math::update(four, wide); }, "'block'", "log_sum [4, 3]");
}
