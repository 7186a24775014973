// SPDX-License-Identifier: MIT
// Rows chosen by an index.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/stream.hpp"

namespace tessera {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements worth a thread of their own

// On a CPU, where the values can be seen.
void check_index(const char* operation, const Tensor& index, std::int64_t rows) {
  if (index.device().kind != DeviceKind::cpu) return;
  const auto* values = index.host_data<std::int64_t>();
  for (std::int64_t k = 0; k < index.numel(); ++k) {
    const std::int64_t row = values[k * index.strides()[0]];
    if (row >= rows)
      throw RangeError({.problem = "index out of range",
                        .operation = operation,
                        .tensor = "index",
                        .found = fmt::format("index[{}] = {}", k, row),
                        .expected = fmt::format("below {}, or negative for none", rows)});
  }
}

// One of src and out has a row for each index, the other those that are chosen.
IndexedRowsArgs indexed_rows_args(const char* operation, const Tensor& index, check::Operand src,
                                  check::Operand out, bool choose_src) {
  check::same_device(operation, {src, {"index", index}, out});
  check::dtype(operation, {"index", index}, DType::i64);
  check::dims(operation, {"index", index}, 1);
  for (const check::Operand& operand : {src, out}) {
    check::dims(operation, operand, 2);
    check::unit_stride(operation, operand);
  }
  const check::Operand& given = choose_src ? out : src;
  check::shape(operation, given, {index.size(0), src.tensor.size(1)});
  const check::Operand& chosen = choose_src ? src : out;
  check::shape(operation, chosen, {chosen.tensor.size(0), src.tensor.size(1)});
  check_index(operation, index, chosen.tensor.size(0));
  IndexedRowsArgs args{};
  args.src_dtype = src.tensor.dtype();
  args.out_dtype = out.tensor.dtype();
  args.features = src.tensor.size(1);
  args.count = index.size(0);
  args.rows = chosen.tensor.size(0);
  args.index = static_cast<const std::int64_t*>(index.data());
  args.index_stride = index.strides()[0];
  args.src = src.tensor.data();
  args.src_stride = src.tensor.strides()[0];
  args.out = out.tensor.data();
  args.out_stride = out.tensor.strides()[0];
  return args;
}

}  // namespace

void gather_rows(const Tensor& src, const Tensor& index, const Tensor& out) {
  const IndexedRowsArgs args =
      indexed_rows_args("gather_rows", index, {"src", src}, {"out", out}, true);
  check::dtype("gather_rows", {"out", out}, src.dtype());
  out.bump_version();
  if (out.numel() == 0) return;
  const KernelTable& table = kernel_table(out.device());
  run_lanes(out.device(), args.count, std::max<std::int64_t>(1, kGrain / args.features),
            [&](std::int64_t begin, std::int64_t end, int) {
              table.gather_rows(args, {begin, end});
            });
}

void scatter_add_rows(const Tensor& src, const Tensor& index, const Tensor& out) {
  const IndexedRowsArgs args =
      indexed_rows_args("scatter_add_rows", index, {"src", src}, {"out", out}, false);
  check::floating("scatter_add_rows", {{"src", src}, {"out", out}});
  check::dtype("scatter_add_rows", {"out", out}, at_least_f32(out.dtype()));
  out.bump_version();
  if (src.numel() == 0 || out.numel() == 0) return;
  // Each thread reads all indices: it must have enough rows to make up for that.
  const std::int64_t per_row = std::max<std::int64_t>(1, src.numel() / out.size(0));
  const KernelTable& table = kernel_table(out.device());
  run_lanes(out.device(), out.size(0), std::max<std::int64_t>(1, kGrain / per_row),
            [&](std::int64_t begin, std::int64_t end, int) {
              table.scatter_add_rows(args, {begin, end});
            });
}

Tensor arange(std::int64_t n, Device device) {
  if (device.kind == DeviceKind::meta) return Tensor::empty({n}, DType::i64, device);
  const Tensor values = staging({n}, DType::i64, device);
  auto* first = values.host_data<std::int64_t>();
  std::iota(first, first + n, std::int64_t{0});
  return values.to(device);
}

}  // namespace tessera
