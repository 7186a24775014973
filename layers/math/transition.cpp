// SPDX-License-Identifier: MIT
#include "tessera/layers/math/transition.hpp"

#include "tessera/layers/math/chunks.hpp"

namespace tessera::math {
namespace {

TransitionWeights cast(const TransitionWeights& w, DType dtype) {
  const PurposeScope purpose(Purpose::workspace);
  return {w.norm_weight, w.norm_bias, w.fc1.to(dtype), w.fc2.to(dtype), w.fc3.to(dtype)};
}

// Workspace of one lane for chunks of at most `rows` positions.
struct Workspace {
  Tensor xh, u, w, dh, dxh;
  Workspace(std::int64_t rows, std::int64_t dim, std::int64_t hidden, DType operand, DType acc,
            Device device, bool backward) {
    xh = Tensor::empty({rows, dim}, operand, device);
    u = Tensor::empty({rows, hidden}, acc, device);
    w = Tensor::empty({rows, hidden}, acc, device);
    if (!backward) return;
    dh = Tensor::empty({rows, hidden}, acc, device);
    dxh = Tensor::empty({rows, dim}, acc, device);
  }
};

std::int64_t rows_per_chunk(const Tensor& x, std::int64_t dim, std::int64_t hidden) {
  const auto acc = static_cast<std::int64_t>(size_of(at_least_f32(x.dtype())));
  return std::min(x.size(0), chunk_rows(x.device(), (2 * dim + 2 * hidden) * acc));
}

}  // namespace

Tensor transition_forward(const Tensor& x, const TransitionWeights& weights, const Tensor& mean,
                          const Tensor& rstd) {
  const trace::Span span(trace::Kind::block, "transition_forward");
  const DType dtype = x.dtype();
  const DType acc = at_least_f32(dtype);
  const std::int64_t dim = weights.fc1.size(1);
  const std::int64_t hidden = weights.fc1.size(0);
  const TransitionWeights w = cast(weights, dtype);
  const Tensor y = Tensor::empty({x.size(0), w.fc3.size(0)}, dtype, x.device());
  const std::int64_t rows = rows_per_chunk(x, dim, hidden);

  run_lanes(x.device(), x.size(0), rows, [&](std::int64_t begin, std::int64_t end, int) {
    const PurposeScope purpose(Purpose::workspace);
    const Workspace ws(rows, dim, hidden, dtype, acc, x.device(), false);
    for_each_chunk(begin, end, x.size(0), rows, [&](const Chunk& c) {
      const Tensor xh = ws.xh.narrow(0, 0, c.length);
      const Tensor u = ws.u.narrow(0, 0, c.length);
      const Tensor v = ws.w.narrow(0, 0, c.length);
      layer_norm(x.narrow(0, c.flat, c.length), w.norm_weight, w.norm_bias, kLayerNormEps, xh,
                 mean.narrow(0, c.flat, c.length), rstd.narrow(0, c.flat, c.length));
      gemm(1, xh, w.fc1.transpose(0, 1), 0, u);
      gemm(1, xh, w.fc2.transpose(0, 1), 0, v);
      silu_product(u, v, u);
      gemm(1, u.to(dtype), w.fc3.transpose(0, 1), 0, y.narrow(0, c.flat, c.length));
    });
  });
  return y;
}

TransitionGradients transition_backward(const Tensor& dy, const Tensor& x,
                                        const TransitionWeights& weights, const Tensor& mean,
                                        const Tensor& rstd) {
  const trace::Span span(trace::Kind::block, "transition_backward");
  const DType dtype = x.dtype();
  const DType acc = at_least_f32(dtype);
  const std::int64_t dim = weights.fc1.size(1);
  const std::int64_t hidden = weights.fc1.size(0);
  // The products of the forward pass are repeated as they were, in the dtype of x; those of the
  // backward pass are formed in acc with the same rounded weights.
  const TransitionWeights low = cast(weights, dtype);
  const TransitionWeights w = cast(low, acc);
  const Tensor dx = Tensor::empty(x.shape(), dtype, x.device());
  const std::int64_t rows = rows_per_chunk(x, 2 * dim, 2 * hidden);
  enum Sum : std::size_t { kNormWeight, kNormBias, kFc1, kFc2, kFc3 };
  const LaneSums sums(x.device(), acc, {{dim}, {dim}, w.fc1.shape(), w.fc2.shape(), w.fc3.shape()});

  run_lanes(x.device(), x.size(0), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    const PurposeScope purpose(Purpose::workspace);
    const Workspace ws(rows, dim, hidden, dtype, acc, x.device(), true);
    for_each_chunk(begin, end, x.size(0), rows, [&](const Chunk& c) {
      const auto part = [&](const Tensor& t) { return t.narrow(0, c.flat, c.length); };
      const auto head = [&](const Tensor& t) { return t.narrow(0, 0, c.length); };
      const Tensor xh = head(ws.xh), u = head(ws.u), v = head(ws.w), dh = head(ws.dh);
      const Tensor dxh = head(ws.dxh);
      const Tensor g = part(dy).to(acc);
      layer_norm_apply(part(x), w.norm_weight, w.norm_bias, part(mean), part(rstd), xh);
      gemm(1, xh, low.fc1.transpose(0, 1), 0, u);
      gemm(1, xh, low.fc2.transpose(0, 1), 0, v);
      gemm(1, g, w.fc3, 0, dh);
      silu_product_backward(u, v, dh, u, v, dh);  // u, v become their gradients, dh the product h
      gemm(1, g.transpose(0, 1), dh, 1, sums.at(lane, kFc3));
      const Tensor xh_acc = xh.to(acc);
      gemm(1, u.transpose(0, 1), xh_acc, 1, sums.at(lane, kFc1));
      gemm(1, v.transpose(0, 1), xh_acc, 1, sums.at(lane, kFc2));
      gemm(1, u, w.fc1, 0, dxh);
      gemm(1, v, w.fc2, 1, dxh);
      layer_norm_backward(dxh, part(x), w.norm_weight, part(mean), part(rstd), part(dx),
                          sums.at(lane, kNormWeight), sums.at(lane, kNormBias));
    });
  });
  return {dx,
          {sums.total(kNormWeight), sums.total(kNormBias), sums.total(kFc1), sums.total(kFc2),
           sums.total(kFc3)}};
}

}  // namespace tessera::math
