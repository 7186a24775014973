// SPDX-License-Identifier: MIT
#include "tessera/layers/math/outer_product_mean.hpp"

#include <algorithm>
#include <cmath>

#include "tessera/layers/math/transition.hpp"
#include "tessera/mesh/shard.hpp"

namespace tessera::math {
namespace {

// Both projections as one matrix [2h, c].
Tensor both_projections(const OuterWeights& w, DType dtype) {
  const PurposeScope purpose(Purpose::workspace);
  const std::int64_t h = w.proj_a.size(0);
  const Tensor both = Tensor::empty({2 * h, w.proj_a.size(1)}, dtype, w.proj_a.device());
  copy(w.proj_a, both.narrow(0, 0, h));
  copy(w.proj_b, both.narrow(0, h, h));
  return both;
}

// Channels of a chunk of tokens [length, width] of a factor [B, s, n*width].
Tensor tokens_of(const Tensor& factor, std::int64_t width, const Chunk& c) {
  return factor.view({factor.numel() / width, width}).narrow(0, c.flat, c.length);
}

Tensor mask_column(const Tensor& mask, const Chunk& c, std::int64_t width) {
  return mask_of(mask, c).unsqueeze(1).expand({c.length, width});
}

// The pairs (i, j) of a panel, and the blocks in which they are taken: as square as can be, which
// uses the operands of products best.
struct Pairs {
  DType acc;
  Device device;
  std::int64_t batch, rows, columns, hidden, out;
  std::int64_t block_rows, block_columns;

  // `sums` is [B, I, J, out] or of that shape.
  Pairs(const Tensor& a, const Tensor& sums)
      : acc(at_least_f32(a.dtype())),
        device(a.device()),
        batch(sums.size(0)),
        rows(sums.size(1)),
        columns(sums.size(2)),
        hidden(a.size(2) / sums.size(1)),
        out(sums.size(3)) {
    const std::int64_t most =
        chunk_rows(device, 2 * hidden * hidden * static_cast<std::int64_t>(size_of(acc)));
    const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(most)));
    const std::int64_t per_lane = std::max<std::int64_t>(1, batch * rows / lane_count(device));
    block_rows = std::min({rows, side, per_lane});
    block_columns = std::min(columns, most / block_rows);
  }
};

// What a lane needs for a block, in acc: products that were rounded panel by panel would depend on
// the mesh.
struct Workspace {
  Tensor by_token;   // products [i, c, j, d], as they come out of a matrix product
  Tensor by_pair;    // products [i, j, c, d], as they go into one
  Tensor projected;  // [i, j, out]

  explicit Workspace(const Pairs& p) {
    const PurposeScope purpose(Purpose::workspace);
    const std::int64_t pairs = p.block_rows * p.block_columns;
    by_token = Tensor::empty({pairs * p.hidden * p.hidden}, p.acc, p.device);
    by_pair = Tensor::empty({pairs * p.hidden * p.hidden}, p.acc, p.device);
    projected = Tensor::empty({pairs * p.out}, p.acc, p.device);
  }
};

// One block, in the memory of a workspace: rows of one sample and columns.
struct Block {
  Chunk rows, columns;
  std::int64_t hidden;
  Tensor by_token, by_pair, projected;

  Block(const Pairs& p, const Workspace& w, const Chunk& i, const Chunk& j)
      : rows(i), columns(j), hidden(p.hidden) {
    const auto front = [](const Tensor& memory, const Shape& shape) {
      return memory.narrow(0, 0, numel(shape)).view(shape);
    };
    by_token = front(w.by_token, {i.length, hidden, j.length, hidden});
    by_pair = front(w.by_pair, {i.length, j.length, hidden, hidden});
    projected = front(w.projected, {i.length, j.length, p.out});
  }

  // Of a panel [B, s, I*h] or [B, s, J*h].
  Tensor a_of(const Tensor& a) const { return tokens_of(a, rows); }
  Tensor b_of(const Tensor& b) const { return tokens_of(b, columns); }
  // Of [B, I, J, out].
  Tensor pairs_of(const Tensor& t) const {
    return t.select(0, rows.batch)
        .narrow(0, rows.begin, rows.length)
        .narrow(1, columns.begin, columns.length);
  }
  // The parts of the workspace as matrices.
  Tensor token_matrix() const {
    return by_token.view({rows.length * hidden, columns.length * hidden});
  }
  Tensor pair_matrix() const { return by_pair.view({pairs(), hidden * hidden}); }
  Tensor projected_matrix() const { return projected.view({pairs(), projected.size(2)}); }

  // Fills by_token and by_pair with the products of all channels.
  void form_products(const Tensor& a, const Tensor& b) const {
    gemm(1, a_of(a).transpose(0, 1), b_of(b), 0, token_matrix());
    copy(by_token.transpose(1, 2), by_pair);
  }

 private:
  std::int64_t pairs() const { return rows.length * columns.length; }
  Tensor tokens_of(const Tensor& panel, const Chunk& tokens) const {
    return panel.select(0, rows.batch).narrow(1, tokens.begin * hidden, tokens.length * hidden);
  }
};

// Blocks of the rows [begin, end), counted over all samples, and of some columns.
template <class Body>
void for_each_block(const Pairs& p, const Workspace& w, std::int64_t begin, std::int64_t end,
                    Interval columns, const Body& body) {
  for_each_chunk(begin, end, p.rows, p.block_rows, [&](const Chunk& i) {
    for_each_chunk(columns.begin, columns.end, p.columns, p.block_columns,
                   [&](const Chunk& j) { body(Block(p, w, i, j)); });
  });
}

}  // namespace

OuterFactors outer_factors(const Tensor& m, const Tensor& mask, const OuterWeights& w,
                           bool with_counts) {
  const trace::Span span(trace::Kind::block, "outer_factors");
  const Tile tile(m);
  const std::int64_t h = w.proj_a.size(0);
  const std::int64_t width = with_counts ? h + 1 : h;
  const Shape shape{tile.batch, m.size(1), m.size(2) * width};
  const OuterFactors out{Tensor::empty(shape, tile.dtype, tile.device),
                         Tensor::empty(shape, tile.dtype, tile.device), tile.statistics()};
  const Tensor both = both_projections(w, tile.dtype);
  const std::int64_t rows = tile.chunk(tile.channels + 2 * h);

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    const Tensor mh_all = tile.workspace(rows, tile.channels, tile.dtype);
    const Tensor u_all = tile.workspace(rows, 2 * h, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor mh = mh_all.narrow(0, 0, c.length);
      const Tensor u = u_all.narrow(0, 0, c.length);
      const Statistics s = part_of(out.statistics, c);
      layer_norm(rows_of(m, c), w.norm_weight, w.norm_bias, kLayerNormEps, mh, s.mean, s.rstd);
      gemm(1, mh, both.transpose(0, 1), 0, u);
      for (const bool is_a : {true, false}) {
        const Tensor to = tokens_of(is_a ? out.a : out.b, width, c);
        binary(Binary::multiply, u.narrow(1, is_a ? 0 : h, h), mask_column(mask, c, h),
               to.narrow(1, 0, h));
        if (with_counts) copy(mask_column(mask, c, 1), to.narrow(1, h, 1));
      }
    });
  });
  return out;
}

Tensor outer_panel(const Tensor& with_masks, std::int64_t hidden) {
  const std::int64_t width = hidden + 1, batch = with_masks.size(0);
  const std::int64_t tokens = with_masks.size(2) / width;
  const Tensor panel = Tensor::empty({with_masks.numel()}, with_masks.dtype(), with_masks.device());
  const OuterPanel parts = parts_of(panel, batch, tokens, hidden);
  const Shape& rows = with_masks.shape();
  const auto channels = [&](std::int64_t first, std::int64_t count) {
    return with_masks.as_strided({batch, rows[1], tokens, count},
                                 {with_masks.strides()[0], with_masks.strides()[1], width, 1},
                                 first);
  };
  copy(channels(0, hidden), parts.factor.view({batch, rows[1], tokens, hidden}));
  copy(channels(hidden, 1), parts.mask.unsqueeze(3));
  return panel;
}

OuterPanel parts_of(const Tensor& panel, std::int64_t batch, std::int64_t tokens,
                    std::int64_t hidden) {
  const std::int64_t rows = panel.numel() / (batch * tokens * (hidden + 1));
  const std::int64_t masks = batch * rows * tokens;
  return {panel.narrow(0, 0, masks * hidden).view({batch, rows, tokens * hidden}),
          panel.narrow(0, masks * hidden, masks).view({batch, rows, tokens})};
}

void outer_block(const Tensor& a, const Tensor& b, const Tensor& proj_o, bool first,
                 const Tensor& sums, const std::function<void()>& progress) {
  const trace::Span span(trace::Kind::block, "outer_block");
  const Pairs p(a, sums);
  run_lanes(p.device, p.batch * p.rows, p.block_rows,
            [&](std::int64_t begin, std::int64_t end, int lane) {
              const Workspace w(p);
              for_each_block(p, w, begin, end, {0, p.columns}, [&](const Block& block) {
                block.form_products(a, b);
                gemm(1, block.pair_matrix(), proj_o.transpose(0, 1), 0, block.projected_matrix());
                const Tensor part = block.pairs_of(sums);
                if (first)
                  copy(block.projected, part);
                else
                  add(1, part, 1, block.projected, part);
                if (lane == 0) progress();
              });
            });
}

Tensor outer_mean(const Tensor& sums, const Tensor& num, const Tensor& bias, DType dtype) {
  const trace::Span span(trace::Kind::block, "outer_mean");
  const Tile tile(sums);
  const std::int64_t out = tile.channels;
  const Tensor y = dtype == tile.acc ? sums : Tensor::empty(sums.shape(), dtype, tile.device);
  const std::int64_t rows = tile.chunk(out);
  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int) {
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor u = rows_of(sums, c);
      binary(Binary::divide, u, mask_column(num, c, out), u);
      binary(Binary::add, u, bias.unsqueeze(0).expand({c.length, out}), rows_of(y, c));
    });
  });
  return y;
}

void outer_block_backward(const Tensor& a, const Tensor& b, const Tensor& proj_o, const Tensor& dy,
                          const Tensor& num, const OuterBlockGradients& gradients,
                          const std::function<void()>& progress) {
  const trace::Span span(trace::Kind::block, "outer_block_backward");
  const Pairs p(a, dy);
  const Tensor counts = num.unsqueeze(3).expand(dy.shape());
  const LaneSums proj_o_sums(p.device, p.acc, {proj_o.shape()});
  // Lanes own rows, and with them gradients of a. Those of b are everybody's: in each round a lane
  // has other columns than the others.
  const int lanes = lane_count(p.device);
  for (int round = 0; round < lanes; ++round)
    run_lanes(p.device, p.batch * p.rows, p.block_rows,
              [&](std::int64_t begin, std::int64_t end, int lane) {
                const Workspace w(p);
                const Interval columns = shard_of(p.columns, lanes, (lane + round) % lanes);
                for_each_block(p, w, begin, end, columns, [&](const Block& block) {
                  block.form_products(a, b);
                  const Tensor g = block.projected_matrix(), u = block.pair_matrix();
                  binary(Binary::divide, block.pairs_of(dy), block.pairs_of(counts),
                         block.projected);
                  gemm(1, g.transpose(0, 1), u, 1, proj_o_sums.at(lane, 0));
                  gemm(1, g, proj_o, 0, u);  // now the gradient of the products
                  copy(block.by_pair.transpose(1, 2), block.by_token);
                  const Tensor du = block.token_matrix();
                  gemm(1, block.b_of(b), du.transpose(0, 1), 1, block.a_of(gradients.a));
                  gemm(1, block.a_of(a), du, 1, block.b_of(gradients.b));
                  if (lane == 0) progress();
                });
              });
  add(1, gradients.proj_o, 1, proj_o_sums.total(0), gradients.proj_o);
}

OuterFactorsGradients outer_factors_backward(const Tensor& da, const Tensor& db, const Tensor& m,
                                             const Tensor& mask, const Statistics& statistics,
                                             const OuterWeights& w) {
  const trace::Span span(trace::Kind::block, "outer_factors_backward");
  const Tile tile(m);
  const std::int64_t h = w.proj_a.size(0), c_in = tile.channels;
  OuterFactorsGradients out;
  out.m = Tensor::empty(m.shape(), tile.dtype, tile.device);
  const Tensor both = as_workspace(both_projections(w, tile.dtype), tile.acc);
  const std::int64_t rows = tile.chunk(3 * c_in + 2 * h);
  enum Sum : std::size_t { kNormWeight, kNormBias, kProjections };
  const LaneSums sums(tile.device, tile.acc, {{c_in}, {c_in}, {2 * h, c_in}});

  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    const Tensor mh_all = tile.workspace(rows, c_in, tile.acc);
    const Tensor dmh_all = tile.workspace(rows, c_in, tile.acc);
    const Tensor du_all = tile.workspace(rows, 2 * h, tile.acc);
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      const Tensor mh = mh_all.narrow(0, 0, c.length);
      const Tensor dmh = dmh_all.narrow(0, 0, c.length);
      const Tensor du = du_all.narrow(0, 0, c.length);
      const Statistics s = part_of(statistics, c);
      layer_norm_apply(rows_of(m, c), w.norm_weight, w.norm_bias, s.mean, s.rstd, mh);
      binary(Binary::multiply, tokens_of(da, h, c), mask_column(mask, c, h), du.narrow(1, 0, h));
      binary(Binary::multiply, tokens_of(db, h, c), mask_column(mask, c, h), du.narrow(1, h, h));
      gemm(1, du.transpose(0, 1), mh, 1, sums.at(lane, kProjections));
      gemm(1, du, both, 0, dmh);
      layer_norm_backward(dmh, rows_of(m, c), w.norm_weight, s.mean, s.rstd, rows_of(out.m, c),
                          sums.at(lane, kNormWeight), sums.at(lane, kNormBias));
    });
  });
  const Tensor projections = sums.total(kProjections);
  out.weights = {sums.total(kNormWeight), sums.total(kNormBias), projections.narrow(0, 0, h),
                 projections.narrow(0, h, h)};
  return out;
}

}  // namespace tessera::math
