// SPDX-License-Identifier: MIT
// The local operations: all that a device must be able to do. Each dispatches on device and dtype;
// operands of one call are on one device (DeviceError), shapes must match as stated (ShapeError),
// outputs are written in place and may alias an input only where that is said. Arithmetic of bf16
// operands is done in f32; layer norm and gates take operands of several floating dtypes and work
// in the widest. Called inside run_lanes() an operation stays on its thread, otherwise it
// uses all threads of the rank; results do not depend on that.
#pragma once

#include "tessera/runtime/fold.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// dst = src, elementwise over equal shapes, any strides on both sides, any pair of dtypes (one of
// the two devices may be another one if both sides are contiguous and of one dtype).
void copy(const Tensor& src, const Tensor& dst);
void fill(const Tensor& dst, double value);

// out = alpha*a + beta*b; out may be a or b. Equal shapes, any strides, floating dtypes.
void add(double alpha, const Tensor& a, double beta, const Tensor& b, const Tensor& out);
// out = a*b; out may be a or b.
void multiply(const Tensor& a, const Tensor& b, const Tensor& out);
// dst *= alpha
void scale(double alpha, const Tensor& dst);
// out = max(a, b); out may be a or b. (reductions of mesh/)
void maximum(const Tensor& a, const Tensor& b, const Tensor& out);

// Elementwise over equal shapes, any strides (stride 0 in inputs: Tensor::expand), any dtypes; out
// may be an input. If all operands that are read are integers or booleans the arithmetic is in i64,
// else in f64 if any operand is f64, else in f32. The result is converted to out's
// dtype as copy does: comparisons give 0 or 1, a boolean is `!= 0`, integers truncate. Operations
// that lead out of the integers (cos, sin, log, exp, sigmoid, sqrt, divide) compute integers in
// f32, but in f64 if out is an integer too: of two integers, divide is the true quotient and its
// whole part in an integer. NaN propagates but for sign and step, which give 0.
enum class Unary {
  cos,
  sin,
  relu,
  round,  // ties to even
  log,
  exp,
  abs,
  sign,  // of 0: 0
  sigmoid,
  sqrt,
  negate,
  logical_not,
  step  // 1 where a > 0, else 0
};
void unary(Unary op, const Tensor& a, const Tensor& out);
enum class Binary {
  add,
  subtract,
  multiply,
  divide,
  maximum,
  minimum,
  power,  // of integers with a negative exponent: the whole part
  equal,
  less,
  less_equal,
  logical_and,
  bit_and  // integers and booleans (TypeError)
};
void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out);
// A number as an operand: beside a floating tensor of dtype at_least_f32(tensor), beside an integer
// one i64 if it is whole, else f32.
void binary(Binary op, double a, const Tensor& b, const Tensor& out);
void binary(Binary op, const Tensor& a, double b, const Tensor& out);
// out = cond != 0 ? a : b. A floating cond is brought to bool first and does not count for the
// arithmetic.
void select(const Tensor& cond, const Tensor& a, const Tensor& b, const Tensor& out);

// Reduction along dims (negative ones count from the end): out has x's shape with size 1 there. Any
// strides, any dtypes; argmax: one dim, out in i64. Sums are formed in f64, those of integers in
// i64. argmax is the lowest index of the maximum. A NaN is the maximum, the minimum and the argmax.
// A sum of no elements is 0; the others refuse (RangeError).
void fold(Fold op, const Tensor& x, const std::vector<int>& dims, const Tensor& out);

// out[k, :] = src[index[k], :], zero where index[k] < 0. src [R, F], index [K] i64, out [K, F];
// unit stride in the last dim of src and out, which have one dtype. An index >= R is the caller's
// mistake: RangeError on a CPU, where values can be seen; NaN or a number of all bits on a GPU.
void gather_rows(const Tensor& src, const Tensor& index, const Tensor& out);
// out[index[k], :] += src[k, :] where index[k] >= 0, in ascending k. src [K, F], out [R, F] as
// above, but src of any floating dtype and out in f64 or f32. An index >= R is the caller's
// mistake: RangeError on a CPU; on a GPU its row is left out.
void scatter_add_rows(const Tensor& src, const Tensor& index, const Tensor& out);
// The values 0, 1, ... n-1 as i64 [n].
Tensor arange(std::int64_t n, Device device);

// c = alpha * a b + beta * c. Two or three dims: [m,k] [k,n] [m,n], or each with one leading batch
// dim. A transposed operand is a transposed view: of the last two dims of a and of b either one may
// have unit stride; those of c: the last. beta = 0 does not read c. a and b have one floating
// dtype, c has it or, for bf16, f32. Sums are formed in at least f32.
void gemm(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& c);
// Multiplications and additions of all products of this process so far, 2 m n k each.
std::int64_t product_flops();

// Layer norm over the channels of x [rows, channels], eps added to the biased variance. One of the
// two dims of x has unit stride (channels-first tiles are given as a transposed view), likewise y.
// mean, rstd: [rows] in at_least_f32(x), written. weight, bias: [channels].
// y = (x - mean) * rstd * weight + bias.
void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& y, const Tensor& mean, const Tensor& rstd);
// The same with given statistics (recomputation).
void layer_norm_apply(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                      const Tensor& rstd, const Tensor& y);
// With xh = (x - mean)*rstd and g = dy*weight:
// dx = rstd * (g - mean_c(g) - xh * mean_c(g*xh));  dweight += sum_rows dy*xh;  dbias += sum_rows
// dy. dweight, dbias: [channels], in at_least_f32(x), accumulated into. dx may be dy.
void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                         const Tensor& dweight, const Tensor& dbias);

// Gates. All operands [rows, positions] views with unit stride in the last dim (any row stride),
// s = sigmoid. mask: [positions] or undefined (ones); cast to the accumulation type.
// h = u * s(w) * mask
void gated_product(const Tensor& u, const Tensor& w, const Tensor& mask, const Tensor& h);
// From h itself: du = dh * s(w) * mask;  dw = dh * h * (1 - s(w)). du may be dh; dw may be w.
void gated_product_backward(const Tensor& h, const Tensor& w, const Tensor& mask, const Tensor& dh,
                            const Tensor& du, const Tensor& dw);
// dx = dy * s(g);  dg = dy * x * s(g) * (1 - s(g)): the gradients of y = x * s(g).
void sigmoid_gate_backward(const Tensor& x, const Tensor& g, const Tensor& dy, const Tensor& dx,
                           const Tensor& dg);
// y = silu(u) * w, silu(u) = u * s(u). y may be u or w.
void silu_product(const Tensor& u, const Tensor& w, const Tensor& y);
// du = dy*w*s(u)*(1 + u*(1 - s(u)));  dw = dy*silu(u);  y = silu(u)*w again. Aliases allowed: du
// with u, dw with w, y with dy.
void silu_product_backward(const Tensor& u, const Tensor& w, const Tensor& dy, const Tensor& du,
                           const Tensor& dw, const Tensor& y);

// Attention, a tile of logits at a time (layers/math/attention.hpp). Tiles [G, J, K]: G rows of J
// queries and K keys; all but mask and bias in one dtype, f32 or f64. The mask and the bias have G
// rows, or one for all; any floating dtypes; unit stride in the last dim, any others.
struct LogitTerms {
  Tensor mask;  // or undefined (ones)
  Tensor bias;  // or undefined (none)
  double infinity;
  bool mask_first;  // (logit + infinity (mask - 1)) + bias, else (logit + bias) + the other
};
// Adds the terms to the logits, raises `maximum` [G, J] to theirs, and replaces them by
// exp(logit - maximum), whose sums are added to `sum` [G, J] after what is there, like `weighted`
// [G, J, c], has been scaled to the new maximum. `first`: nothing is there; sum and maximum are
// written, `weighted` is left alone.
void softmax_tile(const Tensor& logits, const LogitTerms& terms, bool first, const Tensor& maximum,
                  const Tensor& sum, const Tensor& weighted);
// With p = exp((logit + terms - maximum) - log_sum): logits = p and dweights = p (dweights - d),
// which is also added to dbias ([G or 1, J, K], or undefined). maximum, log_sum, d: [G, J].
void softmax_tile_backward(const Tensor& logits, const LogitTerms& terms, const Tensor& maximum,
                           const Tensor& log_sum, const Tensor& d, const Tensor& dweights,
                           const Tensor& dbias);

// out[c] += sum over rows of x[rows, c]; out in at_least_f32(x). Unit stride in the last dim.
void sum_rows(const Tensor& x, const Tensor& out);

// Scalars of a whole tensor, any strides, floating; NaN propagates. For checks and reports.
double max_abs(const Tensor& x);
double sum_of_squares(const Tensor& x);
bool all_finite(const Tensor& x);
struct Difference {
  double max_abs = 0;        // max |a - b|
  double max_reference = 0;  // max |b|
};
Difference max_difference(const Tensor& a, const Tensor& b);

}  // namespace tessera
