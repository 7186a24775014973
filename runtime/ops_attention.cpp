// SPDX-License-Identifier: MIT
// The softmax of attention, on tiles of logits.
#include <algorithm>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"

namespace tessera {
namespace {

constexpr std::int64_t kGrain = 4096;  // logits worth a thread of their own

Strided strided(const Tensor& x, std::int64_t group_stride) {
  Strided s{x.data(), x.dtype(), {}};
  std::copy(x.strides().begin(), x.strides().end(), s.strides);
  s.strides[0] = group_stride;
  return s;
}
Strided strided(const Tensor& x) {
  return strided(x, x.strides()[0]);
}

// [G, J, K], or one group for all; undefined: absent.
Strided optional(const char* operation, check::Operand x, const Tensor& logits) {
  if (!x.tensor.defined()) return {};
  check::same_device(operation, {{"logits", logits}, x});
  check::floating(operation, {x});
  check::dims(operation, x, 3);
  const bool shared = x.tensor.size(0) == 1;
  check::shape(operation, x, {shared ? 1 : logits.size(0), logits.size(1), logits.size(2)});
  check::unit_stride(operation, x);
  return strided(x.tensor, shared ? 0 : x.tensor.strides()[0]);
}

void check_tile(const char* operation, check::Operand x, const Tensor& logits, const Shape& shape) {
  check::same_device(operation, {{"logits", logits}, x});
  check::dtype(operation, x, logits.dtype());
  check::shape(operation, x, shape);
}

SoftmaxArgs softmax_args(const char* operation, const Tensor& logits, const LogitTerms& terms,
                         const Tensor& maximum, const Tensor& sum) {
  check::same_device(operation, {{"logits", logits}});
  check::floating(operation, {{"logits", logits}});
  check::dtype(operation, {"logits", logits}, at_least_f32(logits.dtype()));
  check::dims(operation, {"logits", logits}, 3);
  check::unit_stride(operation, {"logits", logits});
  const Shape rows{logits.size(0), logits.size(1)};
  check_tile(operation, {"maximum", maximum}, logits, rows);
  check_tile(operation, {"sum", sum}, logits, rows);
  SoftmaxArgs args{};
  args.dtype = logits.dtype();
  args.groups = logits.size(0);
  args.queries = logits.size(1);
  args.keys = logits.size(2);
  args.logits = strided(logits);
  args.terms[terms.mask_first ? 0 : 1] = {optional(operation, {"mask", terms.mask}, logits),
                                          terms.infinity, 1};
  args.terms[terms.mask_first ? 1 : 0] = {optional(operation, {"bias", terms.bias}, logits), 1, 0};
  args.maximum = strided(maximum);
  args.sum = strided(sum);
  return args;
}

}  // namespace

void softmax_tile(const Tensor& logits, const LogitTerms& terms, bool first, const Tensor& maximum,
                  const Tensor& sum, const Tensor& weighted) {
  constexpr const char* operation = "softmax_tile";
  SoftmaxArgs args = softmax_args(operation, logits, terms, maximum, sum);
  check::dims(operation, {"weighted", weighted}, 3);
  args.channels = weighted.size(2);
  check_tile(operation, {"weighted", weighted}, logits, {args.groups, args.queries, args.channels});
  check::unit_stride(operation, {"weighted", weighted});
  args.weighted = strided(weighted);
  args.first = first;
  for (const Tensor* out : {&logits, &maximum, &sum, &weighted}) out->bump_version();
  if (logits.numel() == 0) return;
  const KernelTable& table = kernel_table(logits.device());
  run_lanes(logits.device(), args.groups * args.queries,
            std::max<std::int64_t>(1, kGrain / args.keys),
            [&](std::int64_t begin, std::int64_t end, int) {
              table.softmax_tile(args, {begin, end});
            });
}

void softmax_tile_backward(const Tensor& logits, const LogitTerms& terms, const Tensor& maximum,
                           const Tensor& log_sum, const Tensor& d, const Tensor& dweights,
                           const Tensor& dbias) {
  constexpr const char* operation = "softmax_tile_backward";
  SoftmaxArgs args = softmax_args(operation, logits, terms, maximum, log_sum);
  check_tile(operation, {"d", d}, logits, maximum.shape());
  check_tile(operation, {"dweights", dweights}, logits, logits.shape());
  check::unit_stride(operation, {"dweights", dweights});
  args.d = strided(d);
  args.dweights = strided(dweights);
  args.dbias = optional(operation, {"dbias", dbias}, logits);
  if (dbias.defined()) {
    check::dtype(operation, {"dbias", dbias}, logits.dtype());
    dbias.bump_version();
  }
  for (const Tensor* out : {&logits, &dweights}) out->bump_version();
  if (logits.numel() == 0) return;
  const KernelTable& table = kernel_table(logits.device());
  run_lanes(logits.device(), args.queries,
            std::max<std::int64_t>(1, kGrain / (args.groups * args.keys)),
            [&](std::int64_t begin, std::int64_t end, int) {
              table.softmax_tile_backward(args, {begin, end});
            });
}

}  // namespace tessera
