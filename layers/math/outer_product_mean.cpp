// SPDX-License-Identifier: MIT
#include "tessera/layers/math/outer_product_mean.hpp"

#include <algorithm>
#include <array>

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

// The pairs of a panel in blocks: some rows i and some columns j whose pairs lie one after the
// other, that is whole rows or a part of one.
struct Pairs {
  std::int64_t batch, rows, columns, hidden;
  std::int64_t block_rows, block_columns;

  // In several rounds, each with a part of the columns, no block has whole rows.
  Pairs(const Tensor& a, const Tensor& sums, std::size_t bytes_per_product, int rounds)
      : batch(sums.size(0)),
        rows(sums.size(1)),
        columns(sums.size(2)),
        hidden(a.size(2) / sums.size(1)) {
    const std::int64_t pairs =
        chunk_rows(a.device(), hidden * hidden * static_cast<std::int64_t>(bytes_per_product));
    block_columns = std::min(columns, pairs);
    block_rows = rounds > 1 ? 1 : std::clamp<std::int64_t>(pairs / columns, 1, rows);
  }
  std::int64_t products() const { return block_rows * block_columns * hidden * hidden; }
};

// One block: rows are of one sample.
struct Block {
  Chunk rows, columns;
  std::int64_t hidden;

  Tensor a_of(const Tensor& a) const { return part(a, rows); }
  Tensor b_of(const Tensor& b) const { return part(b, columns); }
  std::int64_t pairs() const { return rows.length * columns.length; }
  // [pairs, out] of t [B, I, J, out].
  Tensor pairs_of(const Tensor& t) const {
    return t.view({t.numel() / t.size(3), t.size(3)})
        .narrow(0, rows.flat * t.size(2) + columns.begin, pairs());
  }
  // [i, c, j, d], as products come out of a matrix product, and [i, j, c, d], as they go into one.
  Tensor by_token(const Tensor& memory) const {
    return front(memory, {rows.length, hidden, columns.length, hidden});
  }
  Tensor by_pair(const Tensor& memory) const {
    return front(memory, {rows.length, columns.length, hidden, hidden});
  }
  Shape token_matrix() const { return {rows.length * hidden, columns.length * hidden}; }
  Shape pair_matrix() const { return {pairs(), hidden * hidden}; }

 private:
  Tensor part(const Tensor& panel, const Chunk& tokens) const {
    return panel.select(0, rows.batch).narrow(1, tokens.begin * hidden, tokens.length * hidden);
  }
  Tensor front(const Tensor& memory, const Shape& shape) const {
    return memory.narrow(0, 0, numel(shape)).view(shape);
  }
};

// Blocks of the rows [begin, end), counted over all samples, and of some columns.
template <class Body>
void for_each_block(const Pairs& p, std::int64_t begin, std::int64_t end, Interval columns,
                    const Body& body) {
  for_each_chunk(begin, end, p.rows, p.block_rows, [&](const Chunk& rows) {
    for_each_chunk(columns.begin, columns.end, p.columns, p.block_columns, [&](const Chunk& some) {
      body(Block{rows, some, p.hidden});
    });
  });
}

// All products of channels at the pairs of a block, [i, c, j, d].
void form_products(const Block& block, const Tensor& a, const Tensor& b, const Tensor& products) {
  gemm(1, block.a_of(a).transpose(0, 1), block.b_of(b), 0, products.view(block.token_matrix()));
}

Tensor swapped(const Tensor& products) {
  return products.permute({0, 2, 1, 3});
}

Tensor memory_of(std::int64_t elements, DType dtype, Device device) {
  const PurposeScope purpose(Purpose::workspace);
  return Tensor::empty({elements}, dtype, device);
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

OuterPanel outer_panel(const Tensor& panel, std::int64_t hidden) {
  const PurposeScope purpose(Purpose::workspace);
  const std::int64_t width = hidden + 1;
  const Shape tokens{panel.size(0), panel.size(1), panel.size(2) / width};
  const auto channels = [&](std::int64_t first, std::int64_t count) {
    return panel.as_strided({tokens[0], tokens[1], tokens[2], count},
                            {panel.strides()[0], panel.strides()[1], width, 1}, first);
  };
  return {channels(0, hidden).clone().view({tokens[0], tokens[1], tokens[2] * hidden}),
          channels(hidden, 1).clone().view(tokens)};
}

void outer_block(const Tensor& a, const Tensor& b, const Tensor& proj_o, bool first,
                 const Tensor& sums, const std::function<void()>& progress) {
  const trace::Span span(trace::Kind::block, "outer_block");
  // Products stay in acc: rounded panel by panel they would depend on the mesh.
  const DType acc = sums.dtype();
  const Device device = a.device();
  const Pairs p(a, sums, 2 * size_of(acc), 1);

  run_lanes(device, p.batch * p.rows, p.block_rows,
            [&](std::int64_t begin, std::int64_t end, int lane) {
              const Tensor memory = memory_of(p.products(), acc, device);
              const Tensor operand = memory_of(p.products(), acc, device);
              for_each_block(p, begin, end, {0, p.columns}, [&](const Block& block) {
                const Tensor products = block.by_token(memory);
                const Tensor u = block.by_pair(operand);
                form_products(block, a, b, products);
                copy(swapped(products), u);
                gemm(1, u.view(block.pair_matrix()), proj_o.transpose(0, 1), first ? 0 : 1,
                     block.pairs_of(sums));
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

OuterMeanGradients outer_mean_backward(const Tensor& dy, const Tensor& num) {
  const trace::Span span(trace::Kind::block, "outer_mean_backward");
  const Tile tile(dy);
  const std::int64_t out = tile.channels;
  const Tensor dsums = Tensor::empty(dy.shape(), tile.acc, tile.device);
  const std::int64_t rows = tile.chunk(2 * out);
  const LaneSums bias(tile.device, tile.acc, {{out}});
  run_lanes(tile.device, tile.all(), rows, [&](std::int64_t begin, std::int64_t end, int lane) {
    for_each_chunk(begin, end, tile.positions, rows, [&](const Chunk& c) {
      sum_rows(rows_of(dy, c), bias.at(lane, 0));
      binary(Binary::divide, rows_of(dy, c), mask_column(num, c, out), rows_of(dsums, c));
    });
  });
  return {dsums, bias.total(0)};
}

void outer_block_backward(const Tensor& a, const Tensor& b, const Tensor& proj_o,
                          const Tensor& dsums, const OuterBlockGradients& gradients,
                          const std::function<void()>& progress) {
  const trace::Span span(trace::Kind::block, "outer_block_backward");
  const DType acc = dsums.dtype();
  const Device device = a.device();
  const int lanes = lane_count(device);
  const Pairs p(a, dsums, 2 * size_of(acc), lanes);
  const LaneSums proj_o_sums(device, acc, {proj_o.shape()});
  // Lanes own rows, and with them gradients of a. Those of b are everybody's: in each round a lane
  // has other columns than the others.
  for (int round = 0; round < lanes; ++round)
    run_lanes(device, p.batch * p.rows, p.block_rows,
              [&](std::int64_t begin, std::int64_t end, int lane) {
                const Tensor memory = memory_of(p.products(), acc, device);
                const Tensor operand = memory_of(p.products(), acc, device);
                const Interval columns = shard_of(p.columns, lanes, (lane + round) % lanes);
                for_each_block(p, begin, end, columns, [&](const Block& block) {
                  const Tensor products = block.by_token(memory);
                  const Tensor u = block.by_pair(operand);
                  const Tensor g = block.pairs_of(dsums);
                  form_products(block, a, b, products);
                  copy(swapped(products), u);
                  const Tensor u_matrix = u.view(block.pair_matrix());
                  gemm(1, g.transpose(0, 1), u_matrix, 1, proj_o_sums.at(lane, 0));
                  gemm(1, g, proj_o, 0, u_matrix);  // now the gradient of the products
                  copy(swapped(u), products);
                  const Tensor dproducts = products.view(block.token_matrix());
                  gemm(1, block.b_of(b), dproducts.transpose(0, 1), 1, block.a_of(gradients.a));
                  gemm(1, block.a_of(a), dproducts, 1, block.b_of(gradients.b));
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
