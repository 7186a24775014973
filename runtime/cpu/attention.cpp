// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/attention.hpp"

#include "tessera/runtime/cpu/run.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {
namespace {

// A term's values in A, a block of keys at a time: in place if they are that, else through a
// buffer, which holds zeros for an absent one.
template <class A>
struct TermRun {
  const A* values;
  Term<A> added;
  A operator[](std::int64_t k) const { return added(values[k]); }
};
template <class A>
class TermRuns {
 public:
  explicit TermRuns(const SoftmaxArgs::Term& term) : values_(term.values), added_(term) {
    if (values_.data == nullptr) added_ = Term<A>({{}, 0, 0});
  }
  TermRun<A> run(std::int64_t group, std::int64_t query, std::int64_t key, std::int64_t length) {
    if (values_.data == nullptr) return {buffer_, added_};
    if (values_.dtype == dtype_of<A>) return {at<A>(values_, group, query) + key, added_};
    const std::int64_t offset = group * values_.strides[0] + query * values_.strides[1] + key;
    return {load_run<A>(values_, offset, 1, length, buffer_), added_};
  }

 private:
  const Strided& values_;
  Term<A> added_;
  A buffer_[kBlock] = {};
};
// Both, in the order of addition: next to 1e9 it matters.
template <class A>
struct Terms {
  TermRuns<A> first, second;
  explicit Terms(const SoftmaxArgs& args) : first(args.terms[0]), second(args.terms[1]) {}
};

template <class A>
A add_terms(A* logits, TermRun<A> first, TermRun<A> second, std::int64_t length, A top) {
#pragma omp simd reduction(max : top)
  for (std::int64_t k = 0; k < length; ++k) {
    const A logit = (logits[k] + first[k]) + second[k];
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
    const A weight = exp_of_negative(logits[k] - maximum);
    logits[k] = weight;
    sum += weight;
  }
  return sum;
}

template <class A>
void softmax_row(const SoftmaxArgs& args, Terms<A>& terms, std::int64_t g, std::int64_t j) {
  A* const logits = at<A>(args.logits, g, j);
  A& maximum = *at<A>(args.maximum, g, j);
  A& sum = *at<A>(args.sum, g, j);
  A top = args.first ? -static_cast<A>(__builtin_huge_val()) : maximum;
  for (std::int64_t k = 0; k < args.keys; k += kBlock) {
    const std::int64_t length = smaller(kBlock, args.keys - k);
    top = add_terms(logits + k, terms.first.run(g, j, k, length), terms.second.run(g, j, k, length),
                    length, top);
  }
  const A added = exponentiate(logits, top, args.keys);
  if (args.first) {
    sum = added;
  } else {
    const A rescale = exp_of_negative(maximum - top);
    sum = rescale * sum + added;
    A* const weighted = at<A>(args.weighted, g, j);
#pragma omp simd
    for (std::int64_t c = 0; c < args.channels; ++c) weighted[c] *= rescale;
  }
  maximum = top;
}

template <class A>
struct RowState {
  A maximum, log_sum, d;
};

template <class A>
void replace_by_gradients(A* logits, A* dweights, A* dbias, TermRun<A> first, TermRun<A> second,
                          RowState<A> row, std::int64_t length) {
#pragma omp simd
  for (std::int64_t k = 0; k < length; ++k) {
    const A p = weight((logits[k] + first[k]) + second[k], row.maximum, row.log_sum);
    const A da = logit_gradient(p, dweights[k], row.d);
    logits[k] = p;
    dweights[k] = da;
    dbias[k] += da;
  }
}

template <class A>
void gradient_row(const SoftmaxArgs& args, Terms<A>& terms, A* unwanted, std::int64_t g,
                  std::int64_t j) {
  const RowState<A> row{*at<A>(args.maximum, g, j), *at<A>(args.sum, g, j), *at<A>(args.d, g, j)};
  for (std::int64_t k = 0; k < args.keys; k += kBlock) {
    const std::int64_t length = smaller(kBlock, args.keys - k);
    A* const dbias = args.dbias.data == nullptr ? unwanted : at<A>(args.dbias, g, j) + k;
    replace_by_gradients(at<A>(args.logits, g, j) + k, at<A>(args.dweights, g, j) + k, dbias,
                         terms.first.run(g, j, k, length), terms.second.run(g, j, k, length), row,
                         length);
  }
}

template <class A>
void softmax_rows(const SoftmaxArgs& args, Range rows) {
  Terms<A> terms(args);
  for (std::int64_t row = rows.begin; row < rows.end; ++row)
    softmax_row<A>(args, terms, row / args.queries, row % args.queries);
}

template <class A>
void gradient_rows(const SoftmaxArgs& args, Range queries) {
  Terms<A> terms(args);
  A unwanted[kBlock] = {};
  for (std::int64_t j = queries.begin; j < queries.end; ++j)
    for (std::int64_t g = 0; g < args.groups; ++g) gradient_row<A>(args, terms, unwanted, g, j);
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
