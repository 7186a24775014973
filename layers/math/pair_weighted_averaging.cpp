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

// The heads of all groups beside each other, [H, length], between the groups and `heads`.
void for_each_group(const std::vector<Tensor>& groups, const Tile& tile, const Chunk& c,
                    const Tensor& heads,
                    const std::function<void(const Tensor& group, const Tensor& part)>& body) {
  std::int64_t begin = 0;
  for (const Tensor& group : groups) {
    const Tensor columns = columns_of(group, tile, c);
    body(columns, heads.narrow(0, begin, columns.size(0)));
    begin += columns.size(0);
  }
}

}  // namespace

Statistics averaging_logits(const Tensor& z, const Tensor& mask, const AveragingPairWeights& w,
                            double infinity, const std::vector<Tensor>& groups) {
  const trace::Span span(trace::Kind::block, "averaging_logits");
  const Tile tile(z);
  const std::int64_t heads = w.proj_z.size(0);
  const Statistics statistics = tile.statistics();
  const Tensor proj_z = as_workspace(w.proj_z, tile.dtype);
  const std::int64_t rows = tile.chunk(tile.channels + heads + 1);

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    const Tensor zh_all = tile.workspace(rows, tile.channels, tile.dtype);
    const Tensor a_all = tile.workspace(heads, rows, tile.acc);
    const Tensor penalty_all = tile.workspace(1, rows, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor zh = zh_all.narrow(0, 0, c.length);
      const Tensor a = a_all.narrow(1, 0, c.length);
      const Tensor penalty = penalty_all.narrow(1, 0, c.length);
      const Statistics s = part_of(statistics, c);
      layer_norm(rows_of(z, c), w.norm_weight, w.norm_bias, kLayerNormEps, zh, s.mean, s.rstd);
      gemm(1, proj_z, zh.transpose(0, 1), 0, a);
      binary(Binary::subtract, mask_of(mask, c).unsqueeze(0), 1, penalty);
      scale(infinity, penalty);
      for_each_group(groups, tile, c, a, [&](const Tensor& group, const Tensor& part) {
        binary(Binary::add, part, penalty.expand(part.shape()), group);
      });
    });
  });
  return statistics;
}

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

AveragingLogitsGradients averaging_logits_backward(const std::vector<Tensor>& groups,
                                                   const Tensor& z, const Statistics& statistics,
                                                   const AveragingPairWeights& w) {
  const trace::Span span(trace::Kind::block, "averaging_logits_backward");
  const Tile tile(z);
  const std::int64_t heads = w.proj_z.size(0);
  AveragingLogitsGradients out;
  out.z = Tensor::empty(z.shape(), tile.dtype, tile.device);
  const Tensor proj_z = as_workspace(as_workspace(w.proj_z, tile.dtype), tile.acc);
  const std::int64_t rows = tile.chunk(3 * tile.channels + heads);
  enum Sum : std::size_t { kNormWeight, kNormBias, kProjection };
  const LaneSums sums(tile.device, tile.acc, {{tile.channels}, {tile.channels}, w.proj_z.shape()});

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    const Tensor zh_all = tile.workspace(rows, tile.channels, tile.dtype);
    const Tensor dzh_all = tile.workspace(rows, tile.channels, tile.acc);
    const Tensor da_all = tile.workspace(heads, rows, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor zh = zh_all.narrow(0, 0, c.length);
      const Tensor dzh = dzh_all.narrow(0, 0, c.length);
      const Tensor da = da_all.narrow(1, 0, c.length);
      const Statistics s = part_of(statistics, c);
      for_each_group(groups, tile, c, da,
                     [](const Tensor& group, const Tensor& part) { copy(group, part); });
      layer_norm_apply(rows_of(z, c), w.norm_weight, w.norm_bias, s.mean, s.rstd, zh);
      gemm(1, da, as_workspace(zh, tile.acc), 1, sums.at(lane, kProjection));
      gemm(1, da.transpose(0, 1), proj_z, 0, dzh);
      layer_norm_backward(dzh, rows_of(z, c), w.norm_weight, s.mean, s.rstd, rows_of(out.z, c),
                          sums.at(lane, kNormWeight), sums.at(lane, kNormBias));
    });
  });
  out.norm_weight = sums.total(kNormWeight);
  out.norm_bias = sums.total(kNormBias);
  out.proj_z = sums.total(kProjection);
  return out;
}

}  // namespace tessera::math
