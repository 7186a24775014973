// SPDX-License-Identifier: MIT
#include "tessera/layers/math/triangle_attention.hpp"

#include "tessera/layers/math/transition.hpp"

namespace tessera::math {
namespace {

// Positions that can be walked without a jump: one row of a transposed tile, else all.
std::int64_t run_length(const Tensor& x) {
  return x.is_contiguous() ? x.numel() / x.size(3) : x.size(2);
}

// Those of a chunk, [length, C]; `c` is within one run.
Tensor rows_in(const Tensor& x, const Chunk& c) {
  if (x.is_contiguous()) return rows_of(x, c);
  const Tensor row = x.select(0, c.batch / x.size(1)).select(0, c.batch % x.size(1));
  return row.narrow(0, c.begin, c.length);
}

// [H, length] of t.
Tensor heads_of(const Tensor& t, std::int64_t positions, const Chunk& c) {
  return t.view({t.numel() / positions, positions}).narrow(1, c.flat, c.length);
}

// A weight as it was used forward, in acc.
Tensor used_weight(const Tensor& weight, const Tile& tile) {
  return as_workspace(as_workspace(weight, tile.dtype), tile.acc);
}

}  // namespace

NormalizedTile triangle_attention_normalize(const Tensor& x, const TriangleAttentionWeights& w,
                                            const Statistics& known) {
  const trace::Span span(trace::Kind::block, "triangle_attention_normalize");
  const Tile tile(x);
  const bool again = known.mean.defined();
  const Tensor weight = as_workspace(w.bias, tile.dtype);
  NormalizedTile out{
      Tensor::empty(x.shape(), tile.dtype, tile.device),
      Tensor::empty({weight.size(0) * tile.batch, x.size(1), x.size(2)}, tile.dtype, tile.device),
      again ? known : tile.statistics()};
  const std::int64_t rows = tile.chunk(2 * tile.channels);
  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    for_each_chunk(begin, end, run_length(x), rows, [&](const Chunk& c) {
      const Statistics s = part_of(out.statistics, c);
      const Tensor xh = rows_of(out.xh, c);
      if (again)
        layer_norm_apply(rows_in(x, c), w.norm_weight, w.norm_bias, s.mean, s.rstd, xh);
      else
        layer_norm(rows_in(x, c), w.norm_weight, w.norm_bias, kLayerNormEps, xh, s.mean, s.rstd);
      gemm(1, weight, xh.transpose(0, 1), 0, heads_of(out.t, tile.all(), c));
    });
  });
  return out;
}

Tensor stack_keys(const Tensor& k, const Tensor& v, std::int64_t heads) {
  const std::int64_t width = k.size(0) / heads, channels = k.size(1);
  const PurposeScope purpose(Purpose::workspace);
  const Tensor stacked = Tensor::empty({heads, 2, width, channels}, k.dtype(), k.device());
  copy(k.contiguous().view({heads, width, channels}), stacked.select(1, 0));
  copy(v.contiguous().view({heads, width, channels}), stacked.select(1, 1));
  return stacked;
}

KeyWeights unstack_keys(const Tensor& stacked) {
  const auto part = [&](std::int64_t which) {
    return stacked.select(1, which).clone().view(
        {stacked.size(0) * stacked.size(2), stacked.size(3)});
  };
  return {part(0), part(1)};
}

void triangle_attention_output(const Tensor& xh, const Tensor& o, const TriangleAttentionWeights& w,
                               const Tensor& y) {
  const trace::Span span(trace::Kind::block, "triangle_attention_output");
  const Tile tile(xh);
  const std::int64_t width = o.size(3);
  const Tensor o_weight = as_workspace(w.o, tile.dtype);
  const Tensor g_weight = as_workspace(w.g, tile.dtype);
  const std::int64_t rows = tile.chunk(2 * (tile.channels + width));
  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    const Tensor g_all = tile.workspace(rows, width, tile.acc);
    const Tensor gated_all = tile.workspace(rows, width, tile.dtype);
    for_each_chunk(begin, end, run_length(y), rows, [&](const Chunk& c) {
      const Tensor g = g_all.narrow(0, 0, c.length);
      const Tensor gated = gated_all.narrow(0, 0, c.length);
      gemm(1, rows_of(xh, c), g_weight.transpose(0, 1), 0, g);
      gated_product(rows_of(o, c), g, Tensor(), gated);
      gemm(1, gated, o_weight.transpose(0, 1), 0, rows_in(y, c));
    });
  });
}

TriangleAttentionOutputGradients triangle_attention_output_backward(
    const Tensor& dy, const Tensor& xh, const Tensor& o, const TriangleAttentionWeights& w) {
  const trace::Span span(trace::Kind::block, "triangle_attention_output_backward");
  const Tile tile(xh);
  const std::int64_t width = o.size(3);
  TriangleAttentionOutputGradients out;
  out.o = Tensor::empty(o.shape(), tile.acc, tile.device);
  out.xh = Tensor::empty(xh.shape(), tile.acc, tile.device);
  const Tensor g_low = as_workspace(w.g, tile.dtype);
  const Tensor g_weight = as_workspace(g_low, tile.acc);
  const Tensor o_weight = used_weight(w.o, tile);
  const std::int64_t rows = tile.chunk(3 * (tile.channels + width));
  enum Sum : std::size_t { kOutput, kGate };
  const LaneSums sums(tile.device, tile.acc, {{tile.channels, width}, {width, tile.channels}});
  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    const Tensor g_all = tile.workspace(rows, width, tile.acc);
    const Tensor gated_all = tile.workspace(rows, width, tile.acc);
    for_each_chunk(begin, end, run_length(dy), rows, [&](const Chunk& c) {
      const Tensor g = g_all.narrow(0, 0, c.length);
      const Tensor gated = gated_all.narrow(0, 0, c.length);
      const Tensor dy_rows = as_workspace(rows_in(dy, c), tile.acc);
      const Tensor d_o = rows_of(out.o, c);
      gemm(1, rows_of(xh, c), g_low.transpose(0, 1), 0, g);
      gated_product(rows_of(o, c), g, Tensor(), gated);
      gemm(1, dy_rows, o_weight, 0, d_o);  // of the gated output
      sigmoid_gate_backward(rows_of(o, c), g, d_o, d_o, g);
      gemm(1, dy_rows.transpose(0, 1), gated, 1, sums.at(lane, kOutput));
      gemm(1, g.transpose(0, 1), as_workspace(rows_of(xh, c), tile.acc), 1, sums.at(lane, kGate));
      gemm(1, g, g_weight, 0, rows_of(out.xh, c));
    });
  });
  out.o_weight = sums.total(kOutput);
  out.g_weight = sums.total(kGate);
  return out;
}

void projection_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& dx,
                         const Tensor& dw) {
  const trace::Span span(trace::Kind::block, "projection_backward");
  const Device device = x.device();
  const DType acc = dy.dtype();
  const Tensor used = as_workspace(as_workspace(weight, x.dtype()), acc);
  const std::int64_t rows =
      chunk_rows(device, (2 * x.size(1) + dy.size(1)) * static_cast<std::int64_t>(size_of(acc)));
  const LaneSums sums(device, acc, {dw.shape()});
  run_lanes(device, x.size(0), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    for_each_chunk(begin, end, x.size(0), rows, [&](const Chunk& c) {
      const Tensor d = dy.narrow(0, c.flat, c.length);
      gemm(1, d.transpose(0, 1), as_workspace(x.narrow(0, c.flat, c.length), acc), 1,
           sums.at(lane, 0));
      gemm(1, d, used, 1, dx.narrow(0, c.flat, c.length));
    });
  });
  add(1, dw, 1, sums.total(0), dw);
}

TriangleAttentionInputGradients triangle_attention_input_backward(
    const Tensor& dxh, const Tensor& dxh_keys, const Tensor& dt, const NormalizedTile& tile_of_x,
    const Tensor& x, const TriangleAttentionWeights& w, const Tensor& dx) {
  const trace::Span span(trace::Kind::block, "triangle_attention_input_backward");
  const Tile tile(x);
  const std::int64_t d = tile.channels;
  const Tensor weight = used_weight(w.bias, tile);
  const std::int64_t rows = tile.chunk(4 * d);
  enum Sum : std::size_t { kNormWeight, kNormBias, kBias };
  const LaneSums sums(tile.device, tile.acc, {{d}, {d}, {weight.size(0), d}});
  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    for_each_chunk(begin, end, run_length(x), rows, [&](const Chunk& c) {
      const Tensor g = rows_of(dxh, c);
      const Tensor dt_rows = as_workspace(heads_of(dt, tile.all(), c), tile.acc);
      const Tensor xh = as_workspace(rows_of(tile_of_x.xh, c), tile.acc);
      const Statistics s = part_of(tile_of_x.statistics, c);
      add(1, g, 1, as_workspace(rows_of(dxh_keys, c), tile.acc), g);
      gemm(1, dt_rows, xh, 1, sums.at(lane, kBias));
      gemm(1, dt_rows.transpose(0, 1), weight, 1, g);
      layer_norm_backward(g, rows_in(x, c), w.norm_weight, s.mean, s.rstd, rows_in(dx, c),
                          sums.at(lane, kNormWeight), sums.at(lane, kNormBias));
    });
  });
  return {sums.total(kNormWeight), sums.total(kNormBias), sums.total(kBias)};
}

}  // namespace tessera::math
