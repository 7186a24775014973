// SPDX-License-Identifier: MIT
// Elementwise operations and the scalars of a tensor.
#include "tessera/runtime/ops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/cuda/device.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/parallel.hpp"

namespace tessera {
namespace {

constexpr std::int64_t kGrain = 32768;           // elements worth a thread of their own
constexpr std::int64_t kReductionBlock = 65536;  // elements per partial result, on a CPU

struct LoopDim {
  std::int64_t size;
  std::array<std::int64_t, 3> strides;  // out, in[0], in[1]; 0 where an operand is absent
};

// The dims of the operands, from the outermost to the innermost in memory as `out` sees it, with
// neighbours merged where all operands allow it.
std::vector<LoopDim> loop_dims(const Tensor& out, const std::vector<const Tensor*>& in) {
  std::vector<LoopDim> dims;
  for (std::size_t d = 0; d < out.shape().size(); ++d) {
    if (out.shape()[d] == 1) continue;
    LoopDim dim{out.shape()[d], {out.strides()[d], 0, 0}};
    for (std::size_t i = 0; i < in.size(); ++i) dim.strides[i + 1] = in[i]->strides()[d];
    dims.push_back(dim);
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const LoopDim& a, const LoopDim& b) { return a.strides > b.strides; });
  std::vector<LoopDim> merged;
  for (const LoopDim& dim : dims) {
    const auto continues = [&](const LoopDim& outer) {
      for (std::size_t i = 0; i < 3; ++i)
        if (outer.strides[i] != dim.strides[i] * dim.size) return false;
      return true;
    };
    if (!merged.empty() && continues(merged.back()))
      merged.back() = {merged.back().size * dim.size, dim.strides};
    else
      merged.push_back(dim);
  }
  if (merged.empty()) merged.push_back({1, {1, 1, 1}});
  return merged;
}

ElementwiseArgs make_args(const char* operation, Elementwise op, const std::vector<LoopDim>& dims,
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
  args.out.dtype = args.in[0].dtype = args.in[1].dtype = out.dtype();
  for (std::size_t i = 0; i < in.size(); ++i) {
    args.in[i].data = in[i]->data();
    args.in[i].dtype = in[i]->dtype();
  }
  for (std::size_t d = 0; d < dims.size(); ++d) {
    args.sizes[d] = dims[d].size;
    args.out.strides[d] = dims[d].strides[0];
    args.in[0].strides[d] = dims[d].strides[1];
    args.in[1].strides[d] = dims[d].strides[2];
  }
  return args;
}

void run_elementwise(const char* operation, Elementwise op, double alpha, double beta,
                     const Tensor& out, const std::vector<const Tensor*>& in) {
  out.bump_version();
  if (out.numel() == 0) return;
  ElementwiseArgs args = make_args(operation, op, loop_dims(out, in), out, in);
  args.alpha = alpha;
  args.beta = beta;
  const KernelTable& table = kernel_table(out.device());
  run_lanes(out.device(), out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end, int) {
    table.elementwise(args, {begin, end});
  });
}

// Brings the dim along which src has unit stride next to the innermost one, if they differ.
bool arrange_transpose(std::vector<LoopDim>& dims) {
  const LoopDim& last = dims.back();
  if (dims.size() < 2 || last.strides[0] != 1 || last.strides[1] == 1) return false;
  const auto unit = std::find_if(dims.begin(), dims.end() - 1,
                                 [](const LoopDim& dim) { return dim.strides[1] == 1; });
  if (unit == dims.end() - 1) return false;
  std::rotate(unit, unit + 1, dims.end() - 1);
  return true;
}

void copy_on_device(const Tensor& src, const Tensor& dst) {
  std::vector<LoopDim> dims = loop_dims(dst, {&src});
  if (src.dtype() != dst.dtype() || !arrange_transpose(dims))
    return run_elementwise("copy", Elementwise::copy, 0, 0, dst, {&src});
  dst.bump_version();
  const ElementwiseArgs args = make_args("copy", Elementwise::copy, dims, dst, {&src});
  const std::int64_t width = dims.back().size;
  const std::int64_t height = (dims.end() - 2)->size;
  const std::int64_t blocks = (height + kTransposeBlock - 1) / kTransposeBlock;
  const KernelTable& table = kernel_table(dst.device());
  run_lanes(dst.device(), dst.numel() / (width * height) * blocks,
            kGrain / (width * kTransposeBlock), [&](std::int64_t begin, std::int64_t end, int) {
              table.transpose(args, {begin, end});
            });
}

void copy_between_devices(const Tensor& src, const Tensor& dst) {
  check::dtype("copy", {"dst", dst}, src.dtype());
  for (const auto& [name, tensor] : {check::Operand{"src", src}, check::Operand{"dst", dst}})
    if (!tensor.is_contiguous())
      check::bad_strides("copy", {name, tensor}, "contiguous operands between two devices");
  dst.bump_version();
  if (dst.device().kind == DeviceKind::meta) return;
  if (src.device().kind == DeviceKind::meta)
    throw DeviceError({.problem = "a tensor on the meta device has no values",
                       .operation = "copy",
                       .tensor = "src"});
  const auto index = [](Device device) {
    return device.kind == DeviceKind::cpu ? -1 : device.index;
  };
  cuda::copy(src.data(), index(src.device()), dst.data(), index(dst.device()), src.bytes());
}

Reduced reduce(const char* operation, Reduction op, const Tensor& a, const Tensor* b,
               void (*join)(Reduced&, const Reduced&)) {
  Reduced total{{0, 0}};
  if (a.numel() == 0) return total;
  std::vector<const Tensor*> in{&a};
  if (b != nullptr) in.push_back(b);
  const ReduceArgs args{op, make_args(operation, Elementwise::copy, loop_dims(a, in), a, in)};
  const KernelTable& table = kernel_table(a.device());
  const std::int64_t count = a.numel();
  const std::int64_t block = a.device().kind == DeviceKind::cuda ? count : kReductionBlock;
  // Partial results of fixed blocks, joined in order: the number of threads does not matter.
  std::vector<Reduced> partial(static_cast<std::size_t>((count + block - 1) / block));
  run_lanes(a.device(), count, block, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t at = begin; at < end; at += block)
      partial[static_cast<std::size_t>(at / block)] =
          table.reduce(args, {at, std::min(at + block, end)});
  });
  for (const Reduced& part : partial) join(total, part);
  return total;
}

void join_sum(Reduced& total, const Reduced& part) {
  total.values[0] += part.values[0];
}
void join_max(Reduced& total, const Reduced& part) {
  for (int i = 0; i < 2; ++i) {
    const double value = part.values[i];
    if (value > total.values[i] || value != value) total.values[i] = value;
  }
}

}  // namespace

void copy(const Tensor& src, const Tensor& dst) {
  if (!src.defined() || !dst.defined())
    throw TypeError({.problem = "operand is undefined",
                     .operation = "copy",
                     .tensor = src.defined() ? "dst" : "src"});
  check::shape("copy", {"dst", dst}, src.shape());
  if (src.device() != dst.device()) return copy_between_devices(src, dst);
  if (dst.numel() == 0) return;
  copy_on_device(src, dst);
}

void fill(const Tensor& dst, double value) {
  check::same_device("fill", {{"dst", dst}});
  run_elementwise("fill", Elementwise::fill, value, 0, dst, {});
}

void add(double alpha, const Tensor& a, double beta, const Tensor& b, const Tensor& out) {
  check::same_device("add", {{"a", a}, {"b", b}, {"out", out}});
  check::floating("add", {{"a", a}, {"b", b}, {"out", out}});
  check::same_shape("add", {{"a", a}, {"b", b}, {"out", out}});
  run_elementwise("add", Elementwise::add, alpha, beta, out, {&a, &b});
}

void multiply(const Tensor& a, const Tensor& b, const Tensor& out) {
  check::same_device("multiply", {{"a", a}, {"b", b}, {"out", out}});
  check::floating("multiply", {{"a", a}, {"b", b}, {"out", out}});
  check::same_shape("multiply", {{"a", a}, {"b", b}, {"out", out}});
  run_elementwise("multiply", Elementwise::multiply, 0, 0, out, {&a, &b});
}

void scale(double alpha, const Tensor& dst) {
  check::same_device("scale", {{"dst", dst}});
  check::floating("scale", {{"dst", dst}});
  run_elementwise("scale", Elementwise::scale, alpha, 0, dst, {&dst});
}

void maximum(const Tensor& a, const Tensor& b, const Tensor& out) {
  check::same_device("maximum", {{"a", a}, {"b", b}, {"out", out}});
  check::floating("maximum", {{"a", a}, {"b", b}, {"out", out}});
  check::same_shape("maximum", {{"a", a}, {"b", b}, {"out", out}});
  run_elementwise("maximum", Elementwise::maximum, 0, 0, out, {&a, &b});
}

double max_abs(const Tensor& x) {
  check::same_device("max_abs", {{"x", x}});
  check::floating("max_abs", {{"x", x}});
  return reduce("max_abs", Reduction::max_abs, x, nullptr, join_max).values[0];
}

double sum_of_squares(const Tensor& x) {
  check::same_device("sum_of_squares", {{"x", x}});
  check::floating("sum_of_squares", {{"x", x}});
  return reduce("sum_of_squares", Reduction::sum_of_squares, x, nullptr, join_sum).values[0];
}

bool all_finite(const Tensor& x) {
  check::same_device("all_finite", {{"x", x}});
  check::floating("all_finite", {{"x", x}});
  return reduce("all_finite", Reduction::not_finite, x, nullptr, join_max).values[0] == 0;
}

Difference max_difference(const Tensor& a, const Tensor& b) {
  check::same_device("max_difference", {{"a", a}, {"b", b}});
  check::floating("max_difference", {{"a", a}, {"b", b}});
  check::same_shape("max_difference", {{"a", a}, {"b", b}});
  const Reduced r = reduce("max_difference", Reduction::max_difference, a, &b, join_max);
  return {r.values[0], r.values[1]};
}

}  // namespace tessera
