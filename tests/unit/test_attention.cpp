// SPDX-License-Identifier: MIT
// ranks: 1
// Attention in blocks against a plain evaluation in double.
#include <algorithm>
#include <optional>

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

// Sums of so many rounded products and exponentials; 1e-12 in f64.
double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : 2e-5;
}

AttentionOperands operands_of(const Sizes& s, DType dtype, bool mask_first = false) {
  AttentionOperands o;
  o.q = random_tensor({s.rows, s.queries, s.heads, s.channels}, dtype, "q");
  o.k = random_tensor({s.rows, s.keys, s.heads, s.channels}, dtype, "k");
  o.v = random_tensor({s.rows, s.keys, s.heads, s.channels}, dtype, "v");
  o.bias = random_tensor({s.biases, s.heads, s.queries, s.keys}, dtype, "bias");
  o.scale = 2.5;
  o.infinity = 1e9;
  o.mask_first = mask_first;
  return o;
}

struct Dense {
  std::vector<double> out, maximum, log_sum, dq, dk, dv, dbias;
};

// Flat positions of row-major tensors.
struct Index {
  Sizes s;
  std::size_t q(std::int64_t r, std::int64_t j, std::int64_t h, std::int64_t c) const {
    return static_cast<std::size_t>(((r * s.queries + j) * s.heads + h) * s.channels + c);
  }
  std::size_t k(std::int64_t r, std::int64_t j, std::int64_t h, std::int64_t c) const {
    return static_cast<std::size_t>(((r * s.keys + j) * s.heads + h) * s.channels + c);
  }
  std::size_t bias(std::int64_t r, std::int64_t h, std::int64_t j, std::int64_t k) const {
    const std::int64_t b = r / (s.rows / s.biases);
    return static_cast<std::size_t>(((b * s.heads + h) * s.queries + j) * s.keys + k);
  }
  std::size_t mask(std::int64_t r, std::int64_t j, std::int64_t k) const {
    return static_cast<std::size_t>((r * s.queries + j) * s.keys + k);
  }
};

// All keys of one row, head and query at once.
Dense dense(const AttentionOperands& o, const Sizes& s, const Tensor& dout_tensor) {
  const Index at{s};
  const std::vector<double> q = to_values(o.q), k = to_values(o.k), v = to_values(o.v);
  const std::vector<double> dout = to_values(dout_tensor);
  const std::vector<double> bias = o.bias.defined() ? to_values(o.bias) : std::vector<double>{};
  const std::vector<double> mask = o.mask.defined() ? to_values(o.mask) : std::vector<double>{};
  Dense r{std::vector<double>(q.size()),
          {},
          {},
          std::vector<double>(q.size()),
          std::vector<double>(k.size()),
          std::vector<double>(k.size()),
          std::vector<double>(bias.size())};
  for (std::int64_t row = 0; row < s.rows; ++row)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t j = 0; j < s.queries; ++j) {
        std::vector<double> p;
        for (std::int64_t key = 0; key < s.keys; ++key) {
          double a = 0;
          for (std::int64_t c = 0; c < s.channels; ++c)
            a += o.scale * q[at.q(row, j, h, c)] * k[at.k(row, key, h, c)];
          const double b = bias.empty() ? 0 : bias[at.bias(row, h, j, key)];
          const double m = mask.empty() ? 0 : o.infinity * (mask[at.mask(row, j, key)] - 1);
          p.push_back(o.mask_first ? (a + m) + b : (a + b) + m);
        }
        const double top = *std::max_element(p.begin(), p.end());
        double sum = 0, d = 0;
        for (double& a : p) sum += a = std::exp(a - top);
        r.maximum.push_back(top);
        r.log_sum.push_back(std::log(sum));
        for (std::int64_t key = 0; key < s.keys; ++key)
          for (std::int64_t c = 0; c < s.channels; ++c)
            r.out[at.q(row, j, h, c)] +=
                p[static_cast<std::size_t>(key)] / sum * v[at.k(row, key, h, c)];
        for (std::int64_t c = 0; c < s.channels; ++c)
          d += dout[at.q(row, j, h, c)] * r.out[at.q(row, j, h, c)];
        for (std::int64_t key = 0; key < s.keys; ++key) {
          const double weight = p[static_cast<std::size_t>(key)] / sum;
          double dp = 0;
          for (std::int64_t c = 0; c < s.channels; ++c) {
            dp += dout[at.q(row, j, h, c)] * v[at.k(row, key, h, c)];
            r.dv[at.k(row, key, h, c)] += weight * dout[at.q(row, j, h, c)];
          }
          const double da = weight * (dp - d);
          if (!bias.empty()) r.dbias[at.bias(row, h, j, key)] += da;
          for (std::int64_t c = 0; c < s.channels; ++c) {
            r.dq[at.q(row, j, h, c)] += o.scale * da * k[at.k(row, key, h, c)];
            r.dk[at.k(row, key, h, c)] += o.scale * da * q[at.q(row, j, h, c)];
          }
        }
      }
  return r;
}

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

AttentionState in_blocks(const AttentionOperands& o, const Blocks& blocks) {
  const AttentionState state = math::make_state(o.q);
  for (std::size_t b = 0; b < blocks.size(); ++b)
    math::attention_block(keys_of(o, blocks[b].first, blocks[b].second), b == 0, state, {});
  math::finish(state);
  return state;
}

AttentionGradients gradients_in_blocks(const AttentionOperands& o, const AttentionState& state,
                                       const Tensor& dout, const Tensor& d, const Blocks& blocks) {
  const DType acc = at_least_f32(o.q.dtype());
  const AttentionGradients g{Tensor::zeros(o.q.shape(), acc), Tensor::zeros(o.k.shape(), acc),
                             Tensor::zeros(o.k.shape(), acc),
                             o.bias.defined() ? Tensor::zeros(o.bias.shape(), acc) : Tensor()};
  for (const auto& [begin, length] : blocks)
    math::attention_block_backward(
        keys_of(o, begin, length), state.maximum, state.sum, dout, d,
        {g.dq, g.dk.narrow(1, begin, length), g.dv.narrow(1, begin, length),
         g.dbias.defined() ? g.dbias.narrow(3, begin, length) : Tensor()},
        {});
  return g;
}

const std::vector<Blocks> kSplits{
    {{0, 9}}, {{0, 3}, {3, 3}, {6, 3}}, {{6, 3}, {0, 6}}, {{4, 5}, {0, 1}, {1, 3}}};

void check_all(const AttentionOperands& o, const Sizes& s, const Blocks& blocks, double bound) {
  const Tensor dout = random_tensor(o.q.shape(), o.q.dtype(), "dout");
  const Dense expected = dense(o, s, dout);
  const AttentionState state = in_blocks(o, blocks);
  check_close(state.weighted, expected.out, bound);
  check_close(state.maximum, expected.maximum, bound);
  check_close(state.sum, expected.log_sum, bound);
  const AttentionGradients g =
      gradients_in_blocks(o, state, dout, math::row_dots(dout, state.weighted), blocks);
  check_close(g.dq, expected.dq, 10 * bound);
  check_close(g.dk, expected.dk, 10 * bound);
  check_close(g.dv, expected.dv, 10 * bound);
  if (o.bias.defined()) check_close(g.dbias, expected.dbias, 10 * bound);
}

}  // namespace

TEST_CASE("blocks in any order and cut are all keys at once") {
  for (const DType dtype : floating_dtypes)
    for (const Blocks& blocks : kSplits) {
      INFO(name_of(dtype) << " " << blocks.size() << " blocks");
      check_all(operands_of(kSmall, dtype), kSmall, blocks, tolerance(dtype));
    }
}
