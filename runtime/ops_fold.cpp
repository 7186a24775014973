// SPDX-License-Identifier: MIT
// Reductions along dims.
#include <algorithm>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/kernels/loop.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"

namespace tessera {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements of x worth a thread of their own

const char* name_of(Fold op) {
  if (op == Fold::sum) return "fold(sum)";
  if (op == Fold::maximum) return "fold(maximum)";
  return op == Fold::minimum ? "fold(minimum)" : "fold(argmax)";
}

// For each dim whether it is reduced.
std::vector<bool> reduced_dims(const char* operation, const Tensor& x,
                               const std::vector<int>& dims) {
  std::vector<bool> reduced(x.shape().size(), false);
  for (const int dim : dims) {
    const int d = normalize_dim(dim, x.ndim(), operation);
    if (reduced[static_cast<std::size_t>(d)])
      throw RangeError({.problem = "a dim is given twice",
                        .operation = operation,
                        .found = "dim " + std::to_string(d),
                        .expected = "each dim at most once"});
    reduced[static_cast<std::size_t>(d)] = true;
  }
  return reduced;
}

// The first element along the dims with reduced[d] == which.
Tensor first_along(const Tensor& x, const std::vector<bool>& reduced, bool which) {
  Tensor t = x;
  for (int d = 0; d < x.ndim(); ++d)
    if (reduced[static_cast<std::size_t>(d)] == which) t = t.narrow(d, 0, 1);
  return t;
}

FoldArgs fold_args(Fold op, const Tensor& x, const std::vector<bool>& reduced, const Tensor& out) {
  const char* operation = name_of(op);
  const Tensor kept_x = first_along(x, reduced, true);
  const Tensor reduced_x = first_along(x, reduced, false);
  FoldArgs args{};
  args.op = op;
  args.count = reduced_x.numel();
  args.kept = loop_args(operation, Elementwise::copy, loop_dims(out, {&kept_x}), out, {&kept_x});
  args.kept.arithmetic = is_floating(x.dtype()) ? DType::f64 : DType::i64;
  args.reduced = loop_args(operation, Elementwise::copy, loop_dims(reduced_x, {&reduced_x}),
                           reduced_x, {&reduced_x});
  // Runs along whichever dim is the denser in memory, unless they would be short.
  constexpr std::int64_t short_run = 32;
  const int k = args.kept.ndim - 1;
  const int r = args.reduced.ndim - 1;
  args.by_column =
      args.kept.sizes[k] >= short_run &&
      (args.count < short_run || args.kept.in[0].strides[k] < args.reduced.in[0].strides[r]);
  return args;
}

}  // namespace

void fold(Fold op, const Tensor& x, const std::vector<int>& dims, const Tensor& out) {
  const char* operation = name_of(op);
  check::same_device(operation, {{"x", x}, {"out", out}});
  const std::vector<bool> reduced = reduced_dims(operation, x, dims);
  Shape expected = x.shape();
  for (std::size_t d = 0; d < expected.size(); ++d)
    if (reduced[d]) expected[d] = 1;
  check::shape(operation, {"out", out}, expected);
  if (op == Fold::argmax) {
    check::dtype(operation, {"out", out}, DType::i64);
    if (dims.size() != 1)
      throw RangeError({.problem = "an index is that along one dim",
                        .operation = operation,
                        .found = std::to_string(dims.size()) + " dims",
                        .expected = "1 dim"});
  }
  if (x.numel() == 0 && out.numel() > 0) {
    if (op == Fold::sum) return fill(out, 0);
    throw RangeError({.problem = "no elements to choose from",
                      .operation = operation,
                      .tensor = "x",
                      .found = format_shape(x.shape()),
                      .expected = "reduced dims of at least 1"});
  }
  out.bump_version();
  if (out.numel() == 0) return;
  const FoldArgs args = fold_args(op, x, reduced, out);
  const KernelTable& table = kernel_table(x.device());
  run_lanes(x.device(), out.numel(), std::max<std::int64_t>(1, kGrain / args.count),
            [&](std::int64_t begin, std::int64_t end, int) {
              table.fold(args, {begin, end});
            });
}

}  // namespace tessera
