// SPDX-License-Identifier: MIT
#include "tessera/layers/math/online_softmax.hpp"

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera::math {
namespace {

bool is_empty(const SoftmaxState& s) {
  return !s.mean.defined() && !s.log_sum.defined() && !s.maximum.defined();
}

void check_state(const SoftmaxState& s, const char* tensor, const Shape& mean) {
  const bool whole = s.mean.defined() && s.log_sum.defined() && s.maximum.defined();
  Shape numbers = mean;
  if (!numbers.empty()) numbers.back() = 1;
  if (whole && s.mean.shape() == mean && s.log_sum.shape() == numbers &&
      s.maximum.shape() == numbers)
    return;
  throw ShapeError({.problem = whole ? "the tensors of the state do not fit" : "part of a state",
                    .operation = "online softmax",
                    .tensor = tensor,
                    .found = whole ? "mean " + format_shape(s.mean.shape()) + ", log_sum " +
                                         format_shape(s.log_sum.shape()) + ", maximum " +
                                         format_shape(s.maximum.shape())
                                   : "",
                    .expected = "mean " + format_shape(mean) + ", log_sum and maximum " +
                                format_shape(numbers)});
}

Tensor workspace_like(const Tensor& t) {
  const PurposeScope purpose(Purpose::workspace);
  return Tensor::empty(t.shape(), t.dtype(), t.device());
}

Tensor accumulator(const Tensor& t) {
  const Tensor copy_of = Tensor::empty(t.shape(), at_least_f32(t.dtype()), t.device());
  copy(t, copy_of);
  return copy_of;
}

// into = log(exp(a) + exp(b)); a and b are overwritten.
void log_add_exp(const Tensor& a, const Tensor& b, const Tensor& into) {
  binary(Binary::maximum, a, b, into);
  for (const Tensor* t : {&a, &b}) {
    binary(Binary::subtract, *t, into, *t);
    unary(Unary::exp, *t, *t);
  }
  binary(Binary::add, a, b, a);
  unary(Unary::log, a, a);
  binary(Binary::add, into, a, into);
}

}  // namespace

SoftmaxState softmax_block(const Tensor& logits, const Tensor& values) {
  const DType acc = at_least_f32(logits.dtype());
  const auto make = [&](std::int64_t last) {
    Shape shape = logits.shape();
    shape.back() = last;
    return Tensor::empty(shape, acc, logits.device());
  };
  const SoftmaxState block{make(values.size(-1)), make(1), make(1)};
  fold(Fold::maximum, logits, {-1}, block.maximum);
  const PurposeScope purpose(Purpose::workspace);
  const Tensor weights = make(logits.size(-1));
  binary(Binary::subtract, logits, block.maximum.expand(weights.shape()), weights);
  unary(Unary::exp, weights, weights);
  fold(Fold::sum, weights, {-1}, block.log_sum);
  gemm(1, weights, values.to(acc), 0, block.mean);
  binary(Binary::divide, block.mean, block.log_sum.expand(block.mean.shape()), block.mean);
  unary(Unary::log, block.log_sum, block.log_sum);
  return block;
}

void update(SoftmaxState& state, const SoftmaxState& block) {
  check_state(block, "block", block.mean.defined() ? block.mean.shape() : Shape{});
  if (is_empty(state)) {
    state = {accumulator(block.mean), accumulator(block.log_sum), accumulator(block.maximum)};
    return;
  }
  check_state(state, "state", block.mean.shape());
  const Tensor gap = workspace_like(state.log_sum);  // of log_sum, old - new
  const Tensor weight = workspace_like(gap), top = workspace_like(gap);
  binary(Binary::subtract, state.log_sum, block.log_sum, gap);
  binary(Binary::maximum, state.maximum, block.maximum, top);

  // The share of the new keys: sigmoid(new - old). Maxima first, so that large ones cancel.
  binary(Binary::subtract, block.maximum, state.maximum, weight);
  binary(Binary::subtract, weight, gap, weight);
  unary(Unary::sigmoid, weight, weight);
  const Tensor step = workspace_like(state.mean);
  binary(Binary::subtract, state.mean, block.mean, step);
  binary(Binary::multiply, weight.expand(step.shape()), step, step);
  binary(Binary::subtract, state.mean, step, state.mean);

  // log_sum = that of the block + log(exp(old - top + gap) + exp(new - top)).
  const Tensor above = workspace_like(gap);
  binary(Binary::subtract, state.maximum, top, weight);
  binary(Binary::add, weight, gap, weight);
  binary(Binary::subtract, block.maximum, top, above);
  log_add_exp(weight, above, gap);
  binary(Binary::add, block.log_sum, gap, state.log_sum);
  copy(top, state.maximum);
}

}  // namespace tessera::math
