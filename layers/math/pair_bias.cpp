// SPDX-License-Identifier: MIT
#include "tessera/layers/math/pair_bias.hpp"

#include "tessera/layers/math/transition.hpp"

namespace tessera::math {

PairBias pair_bias(const Tensor& z, const PairBiasWeights& w) {
  const trace::Span span(trace::Kind::block, "pair_bias");
  const Tile tile(z);
  const std::int64_t heads = w.projection.size(0);
  const PairBias out{
      Tensor::empty({tile.batch * heads, z.size(1), z.size(2)}, tile.acc, tile.device),
      tile.statistics()};
  const Tensor projection = as_workspace(w.projection, tile.dtype);
  const std::int64_t rows = tile.chunk(2 * tile.channels + heads);
  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    const Tensor zh_all = tile.workspace(rows, tile.channels, tile.dtype);
    const Tensor t_all = tile.workspace(rows, heads, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor zh = zh_all.narrow(0, 0, c.length), t = t_all.narrow(0, 0, c.length);
      const Statistics s = part_of(out.statistics, c);
      layer_norm(rows_of(z, c), w.norm_weight, w.norm_bias, kLayerNormEps, zh, s.mean, s.rstd);
      // A product with few columns is cheaper than one with few rows, even with the transpose.
      gemm(1, zh, projection.transpose(0, 1), 0, t);
      copy(t.transpose(0, 1), columns_of(out.bias, tile, c));
    });
  });
  return out;
}

PairBiasGradients pair_bias_backward(const Tensor& dbias, const Tensor& z,
                                     const Statistics& statistics, const PairBiasWeights& w) {
  const trace::Span span(trace::Kind::block, "pair_bias_backward");
  const Tile tile(z);
  const std::int64_t channels = tile.channels;
  const Tensor dz = Tensor::empty(z.shape(), tile.dtype, tile.device);
  const Tensor projection = as_workspace(as_workspace(w.projection, tile.dtype), tile.acc);
  const std::int64_t rows = tile.chunk(4 * channels + w.projection.size(0));
  enum Sum : std::size_t { kNormWeight, kNormBias, kProjection };
  const LaneSums sums(tile.device, tile.acc, {{channels}, {channels}, projection.shape()});
  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    const Tensor zh_all = tile.workspace(rows, channels, tile.dtype);
    const Tensor dzh_all = tile.workspace(rows, channels, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor zh = zh_all.narrow(0, 0, c.length);
      const Tensor dzh = dzh_all.narrow(0, 0, c.length);
      const Tensor db = columns_of(dbias, tile, c);
      const Statistics s = part_of(statistics, c);
      layer_norm_apply(rows_of(z, c), w.norm_weight, w.norm_bias, s.mean, s.rstd, zh);
      gemm(1, db, as_workspace(zh, tile.acc), 1, sums.at(lane, kProjection));
      gemm(1, db.transpose(0, 1), projection, 0, dzh);
      layer_norm_backward(dzh, rows_of(z, c), w.norm_weight, s.mean, s.rstd, rows_of(dz, c),
                          sums.at(lane, kNormWeight), sums.at(lane, kNormBias));
    });
  });
  return {dz, {sums.total(kNormWeight), sums.total(kNormBias), sums.total(kProjection)}};
}

}  // namespace tessera::math
