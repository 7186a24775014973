// SPDX-License-Identifier: MIT
// The softmax of attention: one kernel per tile.
#include "tessera/runtime/kernels/attention.hpp"

#include "tessera/runtime/gpu/loop.hpp"
#include "tessera/runtime/kernels/fold.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {
namespace {

// A logit with its terms, in the order of addition.
template <class A>
TESSERA_DEVICE A with_terms(const SoftmaxArgs& args, std::int64_t g, std::int64_t j,
                            std::int64_t k) {
  A logit = at<A>(args.logits, g, j)[k];
  for (const SoftmaxArgs::Term& term : args.terms) {
    const Strided& x = term.values;
    if (x.data != nullptr)
      logit += Term<A>(term)(read<A>(x, g * x.strides[0] + j * x.strides[1] + k));
  }
  return logit;
}

template <class A>
struct SoftmaxRow {
  SoftmaxArgs args;

  TESSERA_DEVICE void operator()(std::int64_t row, const Lanes& lanes) const {
    const std::int64_t g = row / args.queries;
    const std::int64_t j = row - g * args.queries;
    A* const logits = at<A>(args.logits, g, j);
    A& raised = *at<A>(args.maximum, g, j);
    A& sum = *at<A>(args.sum, g, j);
    const A before = args.first ? lowest<A>() : raised;
    const Highest<A> highest =
        lanes.reduce(Highest<A>{}, args.keys, [&](Highest<A>& own, std::int64_t k) {
          logits[k] = with_terms<A>(args, g, j, k);
          own.add(logits[k], k);
        });
    const A top = maximum(highest.value, before);
    const Sum<A> added = lanes.reduce(Sum<A>{}, args.keys, [&](Sum<A>& own, std::int64_t k) {
      logits[k] = exp_of_negative(logits[k] - top);
      own.add(logits[k], k);
    });
    const A rescale = args.first ? A(0) : exp_of_negative(before - top);
    if (!args.first) {
      A* const weighted = at<A>(args.weighted, g, j);
      lanes.each(args.channels, [&](std::int64_t c) { weighted[c] *= rescale; });
    }
    lanes.once([&] {
      sum = args.first ? added.value : rescale * sum + added.value;
      raised = top;
    });
  }
};

// Of a query and a key for all groups, which may share their element of dbias.
template <class A>
struct LogitGradients {
  SoftmaxArgs args;
  std::int64_t first_query;

  TESSERA_DEVICE void operator()(std::int64_t item) const {
    const std::int64_t query = item / args.keys;
    const std::int64_t j = first_query + query;
    const std::int64_t k = item - query * args.keys;
    for (std::int64_t g = 0; g < args.groups; ++g) {
      A& dweight = at<A>(args.dweights, g, j)[k];
      const A p =
          weight(with_terms<A>(args, g, j, k), *at<A>(args.maximum, g, j), *at<A>(args.sum, g, j));
      const A da = logit_gradient(p, dweight, *at<A>(args.d, g, j));
      at<A>(args.logits, g, j)[k] = p;
      dweight = da;
      if (args.dbias.data != nullptr) at<A>(args.dbias, g, j)[k] += da;
    }
  }
};

template <class A>
void gradients(const SoftmaxArgs& args, Range queries) {
  for_each("softmax_tile_backward", {0, (queries.end - queries.begin) * args.keys},
           LogitGradients<A>{args, queries.begin});
}

}  // namespace

void softmax_tile(const SoftmaxArgs& args, Range rows) {
  const Width width = width_for(args.keys);
  if (args.dtype == DType::f64)
    for_each_row("softmax_tile", rows, width, SoftmaxRow<double>{args});
  else
    for_each_row("softmax_tile", rows, width, SoftmaxRow<float>{args});
}

void softmax_tile_backward(const SoftmaxArgs& args, Range queries) {
  args.dtype == DType::f64 ? gradients<double>(args, queries) : gradients<float>(args, queries);
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE
