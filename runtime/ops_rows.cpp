// SPDX-License-Identifier: MIT
// Layer norm, gates and sums over rows.
#include <algorithm>
#include <initializer_list>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/mixed.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/stream.hpp"

namespace tessera {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements worth a thread of their own

std::int64_t grain_for(std::int64_t elements_per_item) {
  return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(elements_per_item, 1));
}

// A matrix [rows, channels] with unit stride in one of its dims.
Rows rows_of(const char* operation, check::Operand x) {
  const Tensor& t = x.tensor;
  Rows rows{t.data(), t.strides()[0], t.strides()[1]};
  if (t.shape()[1] == 1) rows.channel_stride = 1;
  if (t.shape()[0] == 1 && rows.channel_stride != 1) rows.row_stride = 1;
  if (rows.row_stride != 1 && rows.channel_stride != 1)
    check::bad_strides(operation, x, "unit stride in one dim");
  return rows;
}

// A small vector as the kernels read it: contiguous, in the accumulation type of `dtype`.
Tensor as_accumulator(const Tensor& vector, DType dtype) {
  PurposeScope workspace(Purpose::workspace);
  return vector.to(at_least_f32(dtype)).contiguous();
}

void check_accumulators(const char* operation, check::Operands vectors, std::int64_t size,
                        DType dtype) {
  for (const check::Operand& vector : vectors) {
    check::shape(operation, vector, {size});
    check::dtype(operation, vector, at_least_f32(dtype));
    check::unit_stride(operation, vector);
  }
}

LayerNormArgs layer_norm_args(const char* operation, const Tensor& x, const Tensor& weight,
                              const Tensor& bias, const Tensor& y, const Tensor& mean,
                              const Tensor& rstd) {
  check::same_device(
      operation,
      {{"x", x}, {"weight", weight}, {"bias", bias}, {"y", y}, {"mean", mean}, {"rstd", rstd}});
  check::floating(operation, {{"x", x}, {"weight", weight}, {"bias", bias}});
  check::dims(operation, {"x", x}, 2);
  check::shape(operation, {"y", y}, x.shape());
  check::dtype(operation, {"y", y}, x.dtype());
  check::shape(operation, {"weight", weight}, {x.size(1)});
  check::shape(operation, {"bias", bias}, {x.size(1)});
  check_accumulators(operation, {{"mean", mean}, {"rstd", rstd}}, x.size(0), x.dtype());
  LayerNormArgs args{};
  args.dtype = x.dtype();
  args.channels = x.size(1);
  args.x = rows_of(operation, {"x", x});
  args.y = rows_of(operation, {"y", y});
  args.mean = mean.data();
  args.rstd = rstd.data();
  return args;
}

void run_layer_norm(LayerNormArgs args, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor own_weight = as_accumulator(weight, x.dtype());
  const Tensor own_bias = as_accumulator(bias, x.dtype());
  args.weight = own_weight.data();
  args.bias = own_bias.data();
  const KernelTable& table = kernel_table(x.device());
  run_lanes(x.device(), x.numel() == 0 ? 0 : x.size(0), grain_for(args.channels),
            [&](std::int64_t begin, std::int64_t end, int) {
              table.layer_norm(args, {begin, end});
            });
}

// Sums over rows: body(range, partial sums) for fixed blocks of rows, each with sums of its own
// [sums.size(), channels], which are then added to `sums` in the order of the blocks; so the number
// of threads does not matter. On a GPU one block, whose kernel sees to that.
void sum_over_rows(Device device, std::int64_t rows, std::initializer_list<Tensor> sums,
                   const std::function<void(Range, const std::vector<void*>&)>& body) {
  constexpr std::int64_t most_blocks = 64;
  std::int64_t block = std::max<std::int64_t>(1024, (rows + most_blocks - 1) / most_blocks);
  if (is_gpu(device)) block = rows;
  if (rows <= block) {
    std::vector<void*> direct;
    for (const Tensor& sum : sums) direct.push_back(sum.data());
    return body({0, rows}, direct);
  }
  const std::int64_t blocks = (rows + block - 1) / block;
  const Tensor& first = *sums.begin();
  const Tensor partial = scratch({blocks, static_cast<std::int64_t>(sums.size()), first.size(0)},
                                 first.dtype(), device);
  fill(partial, 0);
  run_lanes(device, blocks, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t b = begin; b < end; ++b) {
      std::vector<void*> own;
      for (std::int64_t s = 0; s < partial.size(1); ++s)
        own.push_back(partial.select(0, b).select(0, s).data());
      body({b * block, std::min((b + 1) * block, rows)}, own);
    }
  });
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::int64_t s = 0;
    for (const Tensor& sum : sums) add(1, sum, 1, partial.select(0, b).select(0, s++), sum);
  }
}

// All of one dtype.
void layer_norm_gradients(const Tensor& dy, const Tensor& x, const Tensor& weight,
                          const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                          const Tensor& dweight, const Tensor& dbias) {
  constexpr const char* operation = "layer_norm_backward";
  check::same_device(operation, {{"dy", dy},
                                 {"x", x},
                                 {"weight", weight},
                                 {"mean", mean},
                                 {"rstd", rstd},
                                 {"dx", dx},
                                 {"dweight", dweight},
                                 {"dbias", dbias}});
  check::floating(operation, {{"weight", weight}});
  check::same_dtype(operation, {{"dy", dy}, {"x", x}, {"dx", dx}});
  check::dims(operation, {"dy", dy}, 2);
  check::same_shape(operation, {{"dy", dy}, {"x", x}, {"dx", dx}});
  check::shape(operation, {"weight", weight}, {x.size(1)});
  check_accumulators(operation, {{"mean", mean}, {"rstd", rstd}}, x.size(0), x.dtype());
  check_accumulators(operation, {{"dweight", dweight}, {"dbias", dbias}}, x.size(1), x.dtype());
  const Tensor own_weight = as_accumulator(weight, x.dtype());
  LayerNormBackwardArgs args{};
  args.dtype = x.dtype();
  args.channels = x.size(1);
  args.dy = rows_of(operation, {"dy", dy});
  args.x = rows_of(operation, {"x", x});
  args.dx = rows_of(operation, {"dx", dx});
  args.weight = own_weight.data();
  args.mean = mean.data();
  args.rstd = rstd.data();
  for (const Tensor& out : {dweight, dbias}) out.bump_version();
  if (x.numel() == 0) return;
  const KernelTable& table = kernel_table(x.device());
  sum_over_rows(x.device(), x.size(0), {dweight, dbias},
                [&](Range rows, const std::vector<void*>& sums) {
                  LayerNormBackwardArgs own = args;
                  own.dweight = sums[0];
                  own.dbias = sums[1];
                  table.layer_norm_backward(own, rows);
                });
}

void run_gate(const char* operation, Gate op, check::Operands in, check::Operands out,
              const Tensor& mask) {
  const Tensor& first = in.begin()->tensor;
  Mixed mixed{first};
  for (const check::Operands& list : {in, out})
    for (const check::Operand& operand : list) {
      check::same_device(operation, {*in.begin(), operand});
      check::floating(operation, {operand});
      check::dims(operation, operand, 2);
      check::same_shape(operation, {*in.begin(), operand});
      check::unit_stride(operation, operand);
      mixed.include(operand.tensor);
    }
  std::vector<Tensor> operands;  // in, then out, of one dtype
  for (const check::Operand& operand : in) operands.push_back(mixed.in(operand.tensor));
  for (const check::Operand& operand : out) operands.push_back(mixed.out(operand.tensor));

  GateArgs args{};
  args.op = op;
  args.dtype = mixed.dtype();
  args.rows = first.size(0);
  args.positions = first.size(1);
  for (std::size_t k = 0; k < operands.size(); ++k) {
    GateOperand& slot = k < in.size() ? args.in[k] : args.out[k - in.size()];
    slot = {operands[k].data(), operands[k].strides()[0]};
  }
  Tensor own_mask;
  if (mask.defined()) {
    check::same_device(operation, {*in.begin(), {"mask", mask}});
    check::shape(operation, {"mask", mask}, {args.positions});
    own_mask = as_accumulator(mask, args.dtype);
    args.mask = own_mask.data();
  }
  for (const check::Operand& operand : out) operand.tensor.bump_version();
  if (first.numel() == 0) return;

  if (!mask.defined() && std::all_of(operands.begin(), operands.end(),
                                     [](const Tensor& t) { return t.is_contiguous(); })) {
    args.positions *= args.rows;
    args.rows = 1;
  }
  const std::int64_t per_row = (args.positions + kGateBlock - 1) / kGateBlock;
  const KernelTable& table = kernel_table(first.device());
  run_lanes(first.device(), args.rows * per_row, grain_for(std::min(args.positions, kGateBlock)),
            [&](std::int64_t begin, std::int64_t end, int) {
              table.gate(args, {begin, end});
            });
  mixed.finish();
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  check::floating("layer_norm", {{"x", x}, {"y", y}});
  Mixed mixed{x, y};
  const Tensor wide_x = mixed.in(x), wide_y = mixed.out(y);
  LayerNormArgs args = layer_norm_args("layer_norm", wide_x, weight, bias, wide_y, mean, rstd);
  args.eps = eps;
  for (const Tensor& out : {y, mean, rstd}) out.bump_version();
  run_layer_norm(args, wide_x, weight, bias);
  mixed.finish();
}

void layer_norm_apply(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                      const Tensor& rstd, const Tensor& y) {
  check::floating("layer_norm_apply", {{"x", x}, {"y", y}});
  Mixed mixed{x, y};
  const Tensor wide_x = mixed.in(x), wide_y = mixed.out(y);
  LayerNormArgs args =
      layer_norm_args("layer_norm_apply", wide_x, weight, bias, wide_y, mean, rstd);
  args.given_statistics = true;
  y.bump_version();
  run_layer_norm(args, wide_x, weight, bias);
  mixed.finish();
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                         const Tensor& dweight, const Tensor& dbias) {
  check::floating("layer_norm_backward", {{"dy", dy}, {"x", x}, {"dx", dx}});
  Mixed mixed{dy, x, dx};
  layer_norm_gradients(mixed.in(dy), mixed.in(x), weight, mean, rstd, mixed.out(dx), dweight,
                       dbias);
  dx.bump_version();
  mixed.finish();
}

void gated_product(const Tensor& u, const Tensor& w, const Tensor& mask, const Tensor& h) {
  run_gate("gated_product", Gate::gated_product, {{"u", u}, {"w", w}}, {{"h", h}}, mask);
}

void gated_product_backward(const Tensor& h, const Tensor& w, const Tensor& mask, const Tensor& dh,
                            const Tensor& du, const Tensor& dw) {
  run_gate("gated_product_backward", Gate::gated_product_backward, {{"h", h}, {"w", w}, {"dh", dh}},
           {{"du", du}, {"dw", dw}}, mask);
}

void sigmoid_gate_backward(const Tensor& x, const Tensor& g, const Tensor& dy, const Tensor& dx,
                           const Tensor& dg) {
  run_gate("sigmoid_gate_backward", Gate::sigmoid_gate_backward, {{"x", x}, {"g", g}, {"dy", dy}},
           {{"dx", dx}, {"dg", dg}}, {});
}

void silu_product(const Tensor& u, const Tensor& w, const Tensor& y) {
  run_gate("silu_product", Gate::silu_product, {{"u", u}, {"w", w}}, {{"y", y}}, {});
}

void silu_product_backward(const Tensor& u, const Tensor& w, const Tensor& dy, const Tensor& du,
                           const Tensor& dw, const Tensor& y) {
  run_gate("silu_product_backward", Gate::silu_product_backward, {{"u", u}, {"w", w}, {"dy", dy}},
           {{"du", du}, {"dw", dw}, {"y", y}}, {});
}

void sum_rows(const Tensor& x, const Tensor& out) {
  check::same_device("sum_rows", {{"x", x}, {"out", out}});
  check::floating("sum_rows", {{"x", x}});
  check::dims("sum_rows", {"x", x}, 2);
  check::unit_stride("sum_rows", {"x", x});
  check_accumulators("sum_rows", {{"out", out}}, x.size(1), x.dtype());
  out.bump_version();
  if (x.numel() == 0) return;
  SumRowsArgs args{x.dtype(), x.size(1), {x.data(), x.strides()[0], 1}, nullptr};
  const KernelTable& table = kernel_table(x.device());
  sum_over_rows(x.device(), x.size(0), {out}, [&](Range rows, const std::vector<void*>& sums) {
    SumRowsArgs own = args;
    own.sums = sums[0];
    table.sum_rows(own, rows);
  });
}

}  // namespace tessera
