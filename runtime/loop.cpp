// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/loop.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/parallel.hpp"

namespace tessera {
namespace {

constexpr std::int64_t kGrain = 32768;  // elements worth a thread of their own

// Integers that meet an operation without an integer form are computed in f32 like any other
// operand, but in f64 if an integer comes out, so that it is right beyond 2^24.
DType arithmetic_of(Elementwise op, const Tensor& out, const std::vector<const Tensor*>& in) {
  bool integers = true;
  bool wide = out.dtype() == DType::f64;
  for (const Tensor* t : in) {
    integers &= !is_floating(t->dtype());
    wide |= t->dtype() == DType::f64;
  }
  if (integers && has_integer_form(op)) return DType::i64;
  return wide || (integers && !is_floating(out.dtype())) ? DType::f64 : DType::f32;
}

}  // namespace

std::vector<LoopDim> loop_dims(const Tensor& out, const std::vector<const Tensor*>& in) {
  std::vector<LoopDim> dims;
  for (std::size_t d = 0; d < out.shape().size(); ++d) {
    if (out.shape()[d] == 1) continue;
    LoopDim dim{out.shape()[d], {out.strides()[d]}};
    for (std::size_t i = 0; i < in.size(); ++i) dim.strides[i + 1] = in[i]->strides()[d];
    dims.push_back(dim);
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const LoopDim& a, const LoopDim& b) { return a.strides > b.strides; });
  std::vector<LoopDim> merged;
  for (const LoopDim& dim : dims) {
    const auto continues = [&](const LoopDim& outer) {
      for (std::size_t i = 0; i < dim.strides.size(); ++i)
        if (outer.strides[i] != dim.strides[i] * dim.size) return false;
      return true;
    };
    if (!merged.empty() && continues(merged.back()))
      merged.back() = {merged.back().size * dim.size, dim.strides};
    else
      merged.push_back(dim);
  }
  if (merged.empty()) merged.push_back({1, {1, 1, 1, 1}});
  return merged;
}

ElementwiseArgs loop_args(const char* operation, Elementwise op, const std::vector<LoopDim>& dims,
                          const Tensor& out, const std::vector<const Tensor*>& in) {
  if (dims.size() > kMaxDims)
    throw UnsupportedError({.problem = "too many dims that cannot be merged",
                            .operation = operation,
                            .found = format_shape(out.shape()),
                            .expected = fmt::format("at most {}", kMaxDims)});
  ElementwiseArgs args{};
  args.op = op;
  args.ndim = static_cast<int>(dims.size());
  args.out.data = out.data();
  args.out.dtype = out.dtype();
  args.arithmetic = arithmetic_of(op, out, in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    args.in[i].data = in[i]->data();
    args.in[i].dtype = in[i]->dtype();
  }
  for (std::size_t d = 0; d < dims.size(); ++d) {
    args.sizes[d] = dims[d].size;
    args.out.strides[d] = dims[d].strides[0];
    for (std::size_t i = 0; i < 3; ++i) args.in[i].strides[d] = dims[d].strides[i + 1];
  }
  return args;
}

void run_elementwise(const char* operation, Elementwise op, Coefficients coefficients,
                     const Tensor& out, const std::vector<const Tensor*>& in) {
  out.bump_version();
  if (out.numel() == 0) return;
  ElementwiseArgs args = loop_args(operation, op, loop_dims(out, in), out, in);
  args.alpha = coefficients.alpha;
  args.beta = coefficients.beta;
  const KernelTable& table = kernel_table(out.device());
  run_lanes(out.device(), out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end, int) {
    table.elementwise(args, {begin, end});
  });
}

}  // namespace tessera
