// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/attention.hpp"

#include "tessera/runtime/cpu/run.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {
namespace {

template <class A>
A* at(const Strided& x, std::int64_t group, std::int64_t query) {
  return pointer<A>(x.data) + group * x.strides[0] + query * x.strides[1];
}

// Mask and bias in A: in place if they are that, else a block at a time through buffers, which
// hold ones and zeros for absent ones.
template <class A>
class TermRuns {
 public:
  explicit TermRuns(const SoftmaxArgs& args) : args_(args) {
    for (std::int64_t i = 0; i < kBlock; ++i) {
      mask_[i] = A(1);
      bias_[i] = A(0);
    }
  }
  const A* mask(std::int64_t group, std::int64_t query, std::int64_t key, std::int64_t length) {
    return run(args_.mask, group, query, key, length, mask_);
  }
  const A* bias(std::int64_t group, std::int64_t query, std::int64_t key, std::int64_t length) {
    return run(args_.bias, group, query, key, length, bias_);
  }
  Terms<A> terms() const { return {static_cast<A>(args_.infinity), args_.mask_first}; }

 private:
  static const A* run(const Strided& x, std::int64_t group, std::int64_t query, std::int64_t key,
                      std::int64_t length, A* buffer) {
    if (x.data == nullptr) return buffer;
    return load_run<A>(x, group * x.strides[0] + query * x.strides[1] + key, 1, length, buffer);
  }
  const SoftmaxArgs& args_;
  A mask_[kBlock];
  A bias_[kBlock];
};

template <class A>
A add_terms(A* logits, const A* mask, const A* bias, Terms<A> terms, std::int64_t length, A top) {
#pragma omp simd reduction(max : top)
  for (std::int64_t k = 0; k < length; ++k) {
    const A logit = terms.added(logits[k], mask[k], bias[k]);
    logits[k] = logit;
    top = logit > top ? logit : top;
  }
  return top;
}

template <class A>
A exponentiate(A* logits, A maximum, std::int64_t length) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t k = 0; k < length; ++k) {
    const A weight = exp(logits[k] - maximum);
    logits[k] = weight;
    sum += weight;
  }
  return sum;
}

template <class A>
void softmax_row(const SoftmaxArgs& args, TermRuns<A>& runs, std::int64_t g, std::int64_t j) {
  A* const logits = at<A>(args.logits, g, j);
  A& maximum = *at<A>(args.maximum, g, j);
  A& sum = *at<A>(args.sum, g, j);
  A top = args.first ? -static_cast<A>(__builtin_huge_val()) : maximum;
  for (std::int64_t k = 0; k < args.keys; k += kBlock) {
    const std::int64_t length = smaller(kBlock, args.keys - k);
    top = add_terms(logits + k, runs.mask(g, j, k, length), runs.bias(g, j, k, length),
                    runs.terms(), length, top);
  }
  const A added = exponentiate(logits, top, args.keys);
  if (args.first) {
    sum = added;
  } else {
    const A rescale = exp(maximum - top);
    sum = rescale * sum + added;
    A* const weighted = at<A>(args.weighted, g, j);
#pragma omp simd
    for (std::int64_t c = 0; c < args.channels; ++c) weighted[c] *= rescale;
  }
  maximum = top;
}

template <class A>
void gradient_row(const SoftmaxArgs& args, TermRuns<A>& runs, std::int64_t g, std::int64_t j) {
  const A maximum = *at<A>(args.maximum, g, j);
  const A log_sum = *at<A>(args.sum, g, j);
  const A d = *at<A>(args.d, g, j);
  const Terms<A> terms = runs.terms();
  A no_dbias[kBlock] = {};
  for (std::int64_t first = 0; first < args.keys; first += kBlock) {
    const std::int64_t length = smaller(kBlock, args.keys - first);
    A* const logits = at<A>(args.logits, g, j) + first;
    A* const dweights = at<A>(args.dweights, g, j) + first;
    A* const dbias = args.dbias.data == nullptr ? no_dbias : at<A>(args.dbias, g, j) + first;
    const A* const mask = runs.mask(g, j, first, length);
    const A* const bias = runs.bias(g, j, first, length);
#pragma GCC ivdep
    for (std::int64_t k = 0; k < length; ++k) {
      const A logit = terms.added(logits[k], mask[k], bias[k]);
      const WeightGradient<A> w = weight_gradient(logit, maximum, log_sum, dweights[k], d);
      logits[k] = w.weight;
      dweights[k] = w.logit;
      dbias[k] += w.logit;
    }
  }
}

template <class A>
void softmax_rows(const SoftmaxArgs& args, Range rows) {
  TermRuns<A> runs(args);
  for (std::int64_t row = rows.begin; row < rows.end; ++row)
    softmax_row<A>(args, runs, row / args.queries, row % args.queries);
}

template <class A>
void gradient_rows(const SoftmaxArgs& args, Range queries) {
  TermRuns<A> runs(args);
  for (std::int64_t j = queries.begin; j < queries.end; ++j)
    for (std::int64_t g = 0; g < args.groups; ++g) gradient_row<A>(args, runs, g, j);
}

}  // namespace

void softmax_tile(const SoftmaxArgs& args, Range rows) {
  args.dtype == DType::f64 ? softmax_rows<double>(args, rows) : softmax_rows<float>(args, rows);
}

void softmax_tile_backward(const SoftmaxArgs& args, Range queries) {
  args.dtype == DType::f64 ? gradient_rows<double>(args, queries)
                           : gradient_rows<float>(args, queries);
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE
