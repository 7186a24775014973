// SPDX-License-Identifier: MIT
// Copies and the scalars of a tensor.
#include "tessera/runtime/ops.hpp"

#include <algorithm>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/gpu/device.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/kernels/loop.hpp"
#include "tessera/runtime/parallel.hpp"

namespace tessera {
namespace {

constexpr std::int64_t kGrain = 32768;           // elements worth a thread of their own
constexpr std::int64_t kReductionBlock = 65536;  // elements per partial result, on a CPU

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
    return run_elementwise("copy", Elementwise::copy, {}, dst, {&src});
  dst.bump_version();
  const ElementwiseArgs args = loop_args("copy", Elementwise::copy, dims, dst, {&src});
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
  const Device from = src.device();
  const Device to = dst.device();
  if (is_gpu(from)) synchronize(from);
  gpu(is_gpu(to) ? to : from).copy(src.data(), dst.data(), src.bytes());
}

Reduced reduce(const char* operation, Reduction op, const Tensor& a, const Tensor* b,
               void (*join)(Reduced&, const Reduced&)) {
  Reduced total{{0, 0}};
  if (a.numel() == 0) return total;
  std::vector<const Tensor*> in{&a};
  if (b != nullptr) in.push_back(b);
  const ReduceArgs args{op, loop_args(operation, Elementwise::copy, loop_dims(a, in), a, in)};
  const KernelTable& table = kernel_table(a.device());
  const std::int64_t count = a.numel();
  const std::int64_t block = is_gpu(a.device()) ? count : kReductionBlock;
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
  run_elementwise("fill", Elementwise::fill, {value}, dst, {});
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
