// SPDX-License-Identifier: MIT
#include "tessera/layers/math/triangle_multiplication.hpp"

#include <array>

#include "tessera/layers/math/transition.hpp"

namespace tessera::math {
namespace {

// First and second D rows of [2D, length].
Tensor half(const Tensor& h, int which) {
  const std::int64_t channels = h.size(0) / 2;
  return h.narrow(0, which * channels, channels);
}

}  // namespace

TriangleFactors triangle_project(const Tensor& x, const Tensor& mask, const TriangleWeights& w) {
  const trace::Span span(trace::Kind::block, "triangle_project");
  const Tile tile(x);
  const std::int64_t d = tile.channels;
  const Shape matrices{tile.batch * d, x.size(1), x.size(2)};
  TriangleFactors out{Tensor::empty(matrices, tile.dtype, tile.device),
                      Tensor::empty(matrices, tile.dtype, tile.device), tile.statistics()};
  const Tensor p_in = as_workspace(w.p_in, tile.dtype);
  const Tensor g_in = as_workspace(w.g_in, tile.dtype);
  const std::int64_t rows = tile.chunk(5 * d);

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    const Tensor xh_all = tile.workspace(rows, d, tile.dtype);
    const Tensor u_all = tile.workspace(2 * d, rows, tile.acc);
    const Tensor v_all = tile.workspace(2 * d, rows, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor xh = xh_all.narrow(0, 0, c.length);
      const Tensor u = u_all.narrow(1, 0, c.length);
      const Tensor v = v_all.narrow(1, 0, c.length);
      const Statistics s = part_of(out.statistics, c);
      layer_norm(rows_of(x, c), w.norm_in_weight, w.norm_in_bias, kLayerNormEps, xh, s.mean,
                 s.rstd);
      gemm(1, p_in, xh.transpose(0, 1), 0, u);
      gemm(1, g_in, xh.transpose(0, 1), 0, v);
      gated_product(half(u, 0), half(v, 0), mask_of(mask, c), columns_of(out.a, tile, c));
      gated_product(half(u, 1), half(v, 1), mask_of(mask, c), columns_of(out.b, tile, c));
    });
  });
  return out;
}

TriangleOutput triangle_output(const Tensor& x, const Statistics& x_statistics, const Tensor& o,
                               const TriangleWeights& w) {
  const trace::Span span(trace::Kind::block, "triangle_output");
  const Tile tile(x);
  const std::int64_t d = tile.channels;
  TriangleOutput out{Tensor::empty(x.shape(), tile.dtype, tile.device), tile.statistics()};
  const Tensor p_out = as_workspace(w.p_out, tile.dtype);
  const Tensor g_out = as_workspace(w.g_out, tile.dtype);
  const std::int64_t rows = tile.chunk(4 * d);

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    const Tensor xh_all = tile.workspace(rows, d, tile.dtype);
    const Tensor oh_all = tile.workspace(d, rows, tile.dtype);
    const Tensor r_all = tile.workspace(rows, d, tile.acc);
    const Tensor g_all = tile.workspace(rows, d, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor xh = xh_all.narrow(0, 0, c.length);
      const Tensor oh = oh_all.narrow(1, 0, c.length);
      const Tensor r = r_all.narrow(0, 0, c.length);
      const Tensor g = g_all.narrow(0, 0, c.length);
      const Statistics xs = part_of(x_statistics, c);
      const Statistics os = part_of(out.statistics, c);
      layer_norm_apply(rows_of(x, c), w.norm_in_weight, w.norm_in_bias, xs.mean, xs.rstd, xh);
      layer_norm(columns_of(o, tile, c).transpose(0, 1), w.norm_out_weight, w.norm_out_bias,
                 kLayerNormEps, oh.transpose(0, 1), os.mean, os.rstd);
      gemm(1, oh.transpose(0, 1), p_out.transpose(0, 1), 0, r);
      gemm(1, xh, g_out.transpose(0, 1), 0, g);
      gated_product(r, g, Tensor(), rows_of(out.y, c));
    });
  });
  return out;
}

TriangleOutputGradients triangle_output_backward(const Tensor& dy, const Tensor& x,
                                                 const Statistics& x_statistics, const Tensor& o,
                                                 const Statistics& o_statistics,
                                                 const TriangleWeights& w) {
  const trace::Span span(trace::Kind::block, "triangle_output_backward");
  const Tile tile(x);
  const std::int64_t d = tile.channels;
  TriangleOutputGradients out;
  out.o = Tensor::empty(o.shape(), tile.acc, tile.device);
  out.xh = Tensor::empty(x.shape(), tile.acc, tile.device);
  const Tensor p_low = as_workspace(w.p_out, tile.dtype);
  const Tensor g_low = as_workspace(w.g_out, tile.dtype);
  const Tensor p_out = as_workspace(p_low, tile.acc);
  const Tensor g_out = as_workspace(g_low, tile.acc);
  const std::int64_t rows = tile.chunk(6 * d);
  enum Sum : std::size_t { kNormWeight, kNormBias, kProjection, kGate };
  const LaneSums sums(tile.device, tile.acc, {{d}, {d}, {d, d}, {d, d}});

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    const Tensor xh_all = tile.workspace(rows, d, tile.dtype);
    const Tensor oh_all = tile.workspace(d, rows, tile.dtype);
    const Tensor r_all = tile.workspace(rows, d, tile.acc);
    const Tensor g_all = tile.workspace(rows, d, tile.acc);
    const Tensor doh_all = tile.workspace(d, rows, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor xh = xh_all.narrow(0, 0, c.length);
      const Tensor oh = oh_all.narrow(1, 0, c.length);
      const Tensor r = r_all.narrow(0, 0, c.length);
      const Tensor g = g_all.narrow(0, 0, c.length);
      const Tensor doh = doh_all.narrow(1, 0, c.length);
      const Statistics xs = part_of(x_statistics, c);
      const Statistics os = part_of(o_statistics, c);
      const Tensor o_rows = columns_of(o, tile, c).transpose(0, 1);
      layer_norm_apply(rows_of(x, c), w.norm_in_weight, w.norm_in_bias, xs.mean, xs.rstd, xh);
      layer_norm_apply(o_rows, w.norm_out_weight, w.norm_out_bias, os.mean, os.rstd,
                       oh.transpose(0, 1));
      gemm(1, oh.transpose(0, 1), p_low.transpose(0, 1), 0, r);
      gemm(1, xh, g_low.transpose(0, 1), 0, g);
      sigmoid_gate_backward(r, g, rows_of(dy, c).to(tile.acc), r, g);  // r, g become gradients
      gemm(1, r.transpose(0, 1), as_workspace(oh, tile.acc).transpose(0, 1), 1,
           sums.at(lane, kProjection));
      gemm(1, g.transpose(0, 1), as_workspace(xh, tile.acc), 1, sums.at(lane, kGate));
      gemm(1, g, g_out, 0, rows_of(out.xh, c));
      gemm(1, p_out.transpose(0, 1), r.transpose(0, 1), 0, doh);
      layer_norm_backward(doh.transpose(0, 1), o_rows, w.norm_out_weight, os.mean, os.rstd,
                          columns_of(out.o, tile, c).transpose(0, 1), sums.at(lane, kNormWeight),
                          sums.at(lane, kNormBias));
    });
  });
  out.norm_out_weight = sums.total(kNormWeight);
  out.norm_out_bias = sums.total(kNormBias);
  out.p_out = sums.total(kProjection);
  out.g_out = sums.total(kGate);
  return out;
}

TriangleProjectGradients triangle_project_backward(const Tensor& da, const Tensor& db,
                                                   const Tensor& dxh, const Tensor& x,
                                                   const Tensor& mask,
                                                   const TriangleFactors& factors,
                                                   const TriangleWeights& w) {
  const trace::Span span(trace::Kind::block, "triangle_project_backward");
  const Tile tile(x);
  const std::int64_t d = tile.channels;
  TriangleProjectGradients out;
  // With x in acc the gradient takes the place of dxh.
  out.x = tile.dtype == tile.acc ? dxh : Tensor::empty(x.shape(), tile.dtype, tile.device);
  const Tensor p_in = as_workspace(as_workspace(w.p_in, tile.dtype), tile.acc);
  const Tensor g_low = as_workspace(w.g_in, tile.dtype);
  const Tensor g_in = as_workspace(g_low, tile.acc);
  const std::int64_t rows = tile.chunk(6 * d);
  enum Sum : std::size_t { kNormWeight, kNormBias, kProjection, kGate };
  const LaneSums sums(tile.device, tile.acc, {{d}, {d}, {2 * d, d}, {2 * d, d}});

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    const Tensor xh_all = tile.workspace(rows, d, tile.dtype);
    const Tensor u_all = tile.workspace(2 * d, rows, tile.acc);
    const Tensor v_all = tile.workspace(2 * d, rows, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor xh = xh_all.narrow(0, 0, c.length);
      const Tensor du = u_all.narrow(1, 0, c.length);
      const Tensor dv = v_all.narrow(1, 0, c.length);
      const Statistics s = part_of(factors.statistics, c);
      layer_norm_apply(rows_of(x, c), w.norm_in_weight, w.norm_in_bias, s.mean, s.rstd, xh);
      gemm(1, g_low, xh.transpose(0, 1), 0, dv);  // the gate again; its gradient replaces it
      const std::array<const Tensor*, 2> h{&factors.a, &factors.b}, dh{&da, &db};
      for (int k = 0; k < 2; ++k) {
        const auto at = static_cast<std::size_t>(k);
        gated_product_backward(columns_of(*h[at], tile, c), half(dv, k), mask_of(mask, c),
                               columns_of(*dh[at], tile, c), half(du, k), half(dv, k));
      }
      const Tensor xh_acc = as_workspace(xh, tile.acc);
      gemm(1, du, xh_acc, 1, sums.at(lane, kProjection));
      gemm(1, dv, xh_acc, 1, sums.at(lane, kGate));
      const Tensor dxh_rows = rows_of(dxh, c);
      gemm(1, du.transpose(0, 1), p_in, 1, dxh_rows);
      gemm(1, dv.transpose(0, 1), g_in, 1, dxh_rows);
      layer_norm_backward(dxh_rows, rows_of(x, c), w.norm_in_weight, s.mean, s.rstd,
                          rows_of(out.x, c), sums.at(lane, kNormWeight), sums.at(lane, kNormBias));
    });
  });
  out.norm_in_weight = sums.total(kNormWeight);
  out.norm_in_bias = sums.total(kNormBias);
  out.p_in = sums.total(kProjection);
  out.g_in = sums.total(kGate);
  return out;
}

}  // namespace tessera::math
