// SPDX-License-Identifier: MIT
#include "tessera/layers/math/attention_pair_bias.hpp"

#include "tessera/layers/math/tile.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera::math {
namespace {

// x W^T in x's dtype; sums stay in acc if `acc`.
Tensor project(const Tensor& x, const Tensor& weight, bool acc) {
  const DType dtype = acc ? at_least_f32(x.dtype()) : x.dtype();
  const Tensor y = Tensor::empty({x.size(0), weight.size(0)}, dtype, x.device());
  gemm(1, x, as_workspace(weight, x.dtype()).transpose(0, 1), 0, y);
  return y;
}

// The weight as the products of forward saw it, in acc.
Tensor rounded(const Tensor& weight, DType dtype) {
  return as_workspace(as_workspace(weight, dtype), at_least_f32(dtype));
}

Tensor weight_gradient(const Tensor& dy, const Tensor& x) {
  const Tensor dw = Tensor::empty({dy.size(1), x.size(1)}, dy.dtype(), dy.device());
  gemm(1, dy.transpose(0, 1), x, 0, dw);
  return dw;
}

}  // namespace

Tensor project_queries(const Tensor& s, const HeadWeights& w) {
  const Tensor q = Tensor::empty(s.shape(), s.dtype(), s.device());
  copy(w.q_bias.unsqueeze(0).expand(q.shape()), q);
  gemm(1, s, as_workspace(w.q, s.dtype()).transpose(0, 1), 1, q);
  return q;
}

void project_keys(const Tensor& x, const HeadWeights& w, const Tensor& keys) {
  const std::int64_t channels = w.k.size(0);
  gemm(1, x, as_workspace(w.k, x.dtype()).transpose(0, 1), 0, keys.narrow(1, 0, channels));
  gemm(1, x, as_workspace(w.v, x.dtype()).transpose(0, 1), 0, keys.narrow(1, channels, channels));
}

Tensor gated_output(const Tensor& s, const Tensor& o, const HeadWeights& w) {
  const trace::Span span(trace::Kind::block, "gated_output");
  const Tensor gate = project(s, w.g, true);
  const Tensor h = Tensor::empty(s.shape(), s.dtype(), s.device());
  gated_product(o, gate, Tensor(), h);
  return project(h, w.o, false);
}

GatedOutputGradients gated_output_backward(const Tensor& dy, const Tensor& s, const Tensor& o,
                                           const HeadWeights& w) {
  const trace::Span span(trace::Kind::block, "gated_output_backward");
  const DType acc = at_least_f32(s.dtype());
  const Tensor gate = project(s, w.g, true);
  const Tensor h = Tensor::empty(s.shape(), s.dtype(), s.device());
  gated_product(o, gate, Tensor(), h);
  const Tensor g = dy.to(acc);
  GatedOutputGradients out;
  out.projection = weight_gradient(g, h.to(acc));
  const Tensor dh = Tensor::empty(s.shape(), acc, s.device());
  gemm(1, g, rounded(w.o, s.dtype()), 0, dh);
  out.o = Tensor::empty(s.shape(), acc, s.device());
  out.gate = gate;
  sigmoid_gate_backward(o, gate, dh, out.o, out.gate);
  return out;
}

ProjectionGradients projections_backward(const Tensor& dq, const Tensor& dkeys, const Tensor& dgate,
                                         const Tensor& s, const Tensor& x, const HeadWeights& w) {
  const trace::Span span(trace::Kind::block, "projections_backward");
  const std::int64_t channels = s.size(1);
  const DType dtype = s.dtype(), acc = dq.dtype();
  const Tensor dk = dkeys.narrow(1, 0, channels), dv = dkeys.narrow(1, channels, channels);
  const Tensor ds = Tensor::empty(s.shape(), acc, s.device());
  gemm(1, dq, rounded(w.q, dtype), 0, ds);
  gemm(1, dgate, rounded(w.g, dtype), 1, ds);
  const Tensor dx = Tensor::empty(x.shape(), acc, x.device());
  gemm(1, dk, rounded(w.k, dtype), 0, dx);
  gemm(1, dv, rounded(w.v, dtype), 1, dx);
  const Tensor s_acc = s.to(acc), x_acc = x.to(acc);
  const Tensor q_bias = Tensor::zeros({channels}, acc, s.device());
  sum_rows(dq, q_bias);
  return {.s = ds.to(dtype),
          .x = dx.to(dtype),
          .q = weight_gradient(dq, s_acc),
          .q_bias = q_bias,
          .k = weight_gradient(dk, x_acc),
          .v = weight_gradient(dv, x_acc),
          .g = weight_gradient(dgate, s_acc)};
}

}  // namespace tessera::math
