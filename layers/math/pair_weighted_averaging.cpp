// SPDX-License-Identifier: MIT
#include "tessera/layers/math/pair_weighted_averaging.hpp"

#include "tessera/layers/math/transition.hpp"

namespace tessera::math {
namespace {

// mh of a chunk, from known statistics.
void normalized(const Tensor& m, const Statistics& statistics, const AveragingMsaWeights& w,
                const Chunk& c, const Tensor& mh) {
  const Statistics s = part_of(statistics, c);
  layer_norm_apply(rows_of(m, c), w.norm_weight, w.norm_bias, s.mean, s.rstd, mh);
}

}  // namespace

Tensor averaging_values(const Tensor& m, const AveragingMsaWeights& w, bool first,
                        const Statistics& statistics) {
  const trace::Span span(trace::Kind::block, "averaging_values");
  const Tile tile(m);
  const std::int64_t channels = w.proj_m.size(0);
  const Tensor v =
      Tensor::empty({tile.batch * channels, m.size(1), m.size(2)}, tile.dtype, tile.device);
  const Tensor proj_m = as_workspace(w.proj_m, tile.dtype);
  const std::int64_t rows = tile.chunk(tile.channels + channels);

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    const Tensor mh_all = tile.workspace(rows, tile.channels, tile.dtype);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor mh = mh_all.narrow(0, 0, c.length);
      const Statistics s = part_of(statistics, c);
      if (first)
        layer_norm(rows_of(m, c), w.norm_weight, w.norm_bias, kLayerNormEps, mh, s.mean, s.rstd);
      else
        normalized(m, statistics, w, c, mh);
      gemm(1, proj_m, mh.transpose(0, 1), 0, columns_of(v, tile, c));
    });
  });
  return v;
}

void averaging_output(const Tensor& o, const Tensor& m, const Statistics& statistics,
                      const AveragingMsaWeights& w, bool first, const Tensor& y) {
  const trace::Span span(trace::Kind::block, "averaging_output");
  const Tile tile(m);
  const std::int64_t channels = w.proj_g.size(0);
  const Tensor proj_g = as_workspace(w.proj_g, tile.dtype);
  const Tensor proj_o = as_workspace(w.proj_o, tile.dtype);
  const std::int64_t rows = tile.chunk(2 * tile.channels + 3 * channels);

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    const Tensor mh_all = tile.workspace(rows, tile.channels, tile.dtype);
    const Tensor g_all = tile.workspace(channels, rows, tile.acc);
    const Tensor h_all =
        tile.dtype == tile.acc ? g_all : tile.workspace(channels, rows, tile.dtype);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor mh = mh_all.narrow(0, 0, c.length);
      const Tensor g = g_all.narrow(1, 0, c.length);
      const Tensor h = h_all.narrow(1, 0, c.length);
      normalized(m, statistics, w, c, mh);
      gemm(1, proj_g, mh.transpose(0, 1), 0, g);
      gated_product(columns_of(o, tile, c), g, Tensor(), h);
      gemm(1, h.transpose(0, 1), proj_o.transpose(0, 1), first ? 0 : 1, rows_of(y, c));
    });
  });
}

AveragingOutputGradients averaging_output_backward(const Tensor& dy, const Tensor& o,
                                                   const Tensor& m, const Statistics& statistics,
                                                   const AveragingMsaWeights& w, bool first,
                                                   const Tensor& dmh) {
  const trace::Span span(trace::Kind::block, "averaging_output_backward");
  const Tile tile(m);
  const std::int64_t channels = w.proj_g.size(0);
  AveragingOutputGradients out;
  out.o = Tensor::empty(o.shape(), tile.dtype, tile.device);
  const Tensor g_low = as_workspace(w.proj_g, tile.dtype);
  const Tensor proj_g = as_workspace(g_low, tile.acc);
  const Tensor proj_o = as_workspace(as_workspace(w.proj_o, tile.dtype), tile.acc);
  const std::int64_t rows = tile.chunk(2 * tile.channels + 4 * channels);
  enum Sum : std::size_t { kGate, kOutput };
  const LaneSums sums(tile.device, tile.acc, {w.proj_g.shape(), w.proj_o.shape()});

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    const Tensor mh_all = tile.workspace(rows, tile.channels, tile.dtype);
    const Tensor g_all = tile.workspace(channels, rows, tile.acc);
    const Tensor h_all = tile.workspace(channels, rows, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor mh = mh_all.narrow(0, 0, c.length);
      const Tensor g = g_all.narrow(1, 0, c.length);
      const Tensor h = h_all.narrow(1, 0, c.length);
      const Tensor o_columns = columns_of(o, tile, c);
      const Tensor dy_rows = as_workspace(rows_of(dy, c), tile.acc);
      normalized(m, statistics, w, c, mh);
      gemm(1, g_low, mh.transpose(0, 1), 0, g);
      gated_product(o_columns, g, Tensor(), h);
      gemm(1, dy_rows.transpose(0, 1), h.transpose(0, 1), 1, sums.at(lane, kOutput));
      gemm(1, proj_o.transpose(0, 1), dy_rows.transpose(0, 1), 0, h);  // now the product's gradient
      sigmoid_gate_backward(o_columns, g, h, columns_of(out.o, tile, c), g);  // g: its gradient
      gemm(1, g, as_workspace(mh, tile.acc), 1, sums.at(lane, kGate));
      gemm(1, g.transpose(0, 1), proj_g, first ? 0 : 1, rows_of(dmh, c));
    });
  });
  out.proj_g = sums.total(kGate);
  out.proj_o = sums.total(kOutput);
  return out;
}

Tensor averaging_values_backward(const Tensor& dv, const Tensor& m, const Statistics& statistics,
                                 const AveragingMsaWeights& w, const Tensor& dmh) {
  const trace::Span span(trace::Kind::block, "averaging_values_backward");
  const Tile tile(m);
  const Tensor proj_m = as_workspace(as_workspace(w.proj_m, tile.dtype), tile.acc);
  const std::int64_t rows = tile.chunk(3 * tile.channels + w.proj_m.size(0));
  const LaneSums sums(tile.device, tile.acc, {proj_m.shape()});

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    const Tensor mh_all = tile.workspace(rows, tile.channels, tile.dtype);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor mh = mh_all.narrow(0, 0, c.length);
      const Tensor dv_columns = columns_of(dv, tile, c);
      normalized(m, statistics, w, c, mh);
      gemm(1, dv_columns, as_workspace(mh, tile.acc), 1, sums.at(lane, 0));
      gemm(1, dv_columns.transpose(0, 1), proj_m, 1, rows_of(dmh, c));
    });
  });
  return sums.total(0);
}

NormGradients averaging_norm_backward(const Tensor& dmh, const Tensor& m,
                                      const Statistics& statistics, const Tensor& weight) {
  const trace::Span span(trace::Kind::block, "averaging_norm_backward");
  const Tile tile(m);
  NormGradients out;
  // With m in acc the gradient takes the place of dmh.
  out.x = tile.dtype == tile.acc ? dmh : Tensor::empty(m.shape(), tile.dtype, tile.device);
  const std::int64_t rows = tile.chunk(3 * tile.channels);
  const LaneSums sums(tile.device, tile.acc, {{tile.channels}, {tile.channels}});
  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Statistics s = part_of(statistics, c);
      layer_norm_backward(rows_of(dmh, c), rows_of(m, c), weight, s.mean, s.rstd, rows_of(out.x, c),
                          sums.at(lane, 0), sums.at(lane, 1));
    });
  });
  out.weight = sums.total(0);
  out.bias = sums.total(1);
  return out;
}

}  // namespace tessera::math
