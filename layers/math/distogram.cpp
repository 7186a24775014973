// SPDX-License-Identifier: MIT
#include "tessera/layers/math/distogram.hpp"

#include <algorithm>

#include "tessera/layers/math/chunks.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera::math {
namespace {

constexpr std::int64_t kChunkElements = 1 << 17;  // of the largest temporary

// Some rows of one sample.
struct Rows {
  Tensor logits;   // [r, m, 1, D, K] minus its maximum over k
  Tensor weights;  // w [r, m, 1, 1, 1]
  Tensor target;   // [r, m, C, 1, K]
  Tensor mass;     // sum over k of the target, [r, m, C, 1, 1]
  Tensor sum_exp;  // [r, m, 1, D, 1]
};

Tensor temporary(const Shape& shape, const Tensor& like) {
  return Tensor::empty(shape, at_least_f32(like.dtype()), like.device());
}

Shape with_size(Shape shape, std::size_t dim, std::int64_t size) {
  shape[dim] = size;
  return shape;
}

Tensor folded(Fold op, const Tensor& x, int dim) {
  const Tensor y = temporary(with_size(x.shape(), static_cast<std::size_t>(dim), 1), x);
  fold(op, x, {dim}, y);
  return y;
}

// op(a, b), both spread over `shape`.
Tensor spread(Binary op, const Tensor& a, const Tensor& b, const Shape& shape) {
  const Tensor y = temporary(shape, a);
  binary(op, a.expand(shape), b.expand(shape), y);
  return y;
}

// w of rows [begin, begin + r): zero where the global row is the global column.
Tensor pair_weights(const DistogramTile& tile, const Chunk& chunk) {
  const std::int64_t m = tile.column_mask.size(1);
  const Tensor row = tile.row_mask.select(0, chunk.batch).narrow(0, chunk.begin, chunk.length);
  const Tensor w = spread(Binary::multiply, row.unsqueeze(1),
                          tile.column_mask.select(0, chunk.batch).unsqueeze(0), {chunk.length, m});
  const std::int64_t first = tile.rows.begin + chunk.begin;
  const Interval both = intersect({first, first + chunk.length}, tile.columns);
  if (!both.empty())
    fill(w.as_strided({both.size()}, {m + 1},
                      (both.begin - first) * m + both.begin - tile.columns.begin),
         0);
  return w.view({chunk.length, m, 1, 1, 1});
}

// The targets [r, m, C, K] of the rows as weights of bins.
Tensor dense_target(const DistogramTile& tile, const Chunk& chunk) {
  const Tensor rows = tile.target.select(0, chunk.batch).narrow(0, chunk.begin, chunk.length);
  const std::int64_t bins = tile.logits.size(-1);
  if (tile.target.ndim() == tile.logits.ndim()) return rows;
  const Shape shape{rows.size(0), rows.size(1), rows.size(2), bins};
  const Tensor dense = temporary(shape, tile.logits);
  binary(Binary::equal, rows.unsqueeze(3).expand(shape),
         arange(bins, rows.device()).view({1, 1, 1, bins}).expand(shape), dense);
  return dense;
}

// Conformers added up; each pair's weights of bins sum to one, or to zero where there are none.
Tensor aggregated(const Tensor& target) {
  const Tensor sum = folded(Fold::sum, target, 2);
  const Tensor total = folded(Fold::sum, sum, 3);
  binary(Binary::maximum, total, 1.0, total);
  return spread(Binary::divide, sum, total, sum.shape());
}

Rows prepare(const DistogramTile& tile, const Chunk& chunk) {
  Rows r;
  const Tensor x = tile.logits.select(0, chunk.batch)
                       .narrow(0, chunk.begin, chunk.length)
                       .unsqueeze(2);  // [r, m, 1, D, K]
  r.logits = spread(Binary::subtract, x, folded(Fold::maximum, x, 4), x.shape());
  const Tensor exponentials = temporary(x.shape(), x);
  unary(Unary::exp, r.logits, exponentials);
  r.sum_exp = folded(Fold::sum, exponentials, 4);
  const Tensor dense = dense_target(tile, chunk);
  r.target = (tile.aggregate ? aggregated(dense) : dense).unsqueeze(3);
  r.mass = folded(Fold::sum, r.target, 4);
  r.weights = pair_weights(tile, chunk);
  return r;
}

Shape pairs_of(const Rows& r) {
  Shape shape = r.logits.shape();
  shape[2] = r.target.size(2);
  return shape;  // [r, m, C, D, K]
}

std::int64_t rows_per_chunk(const DistogramTile& tile) {
  const std::int64_t conformers = tile.aggregate ? 1 : tile.target.size(3);
  const std::int64_t per_row = tile.logits.numel() / (tile.logits.size(0) * tile.logits.size(1));
  return std::max<std::int64_t>(1, kChunkElements / (per_row * conformers));
}

// Calls body(rows, chunk) for all rows of all samples.
template <class Body>
void for_each_rows(const DistogramTile& tile, const Body& body) {
  const PurposeScope purpose(Purpose::workspace);
  const std::int64_t n = tile.logits.size(1);
  for_each_chunk(0, tile.logits.size(0) * n, n, rows_per_chunk(tile),
                 [&](const Chunk& chunk) { body(prepare(tile, chunk), chunk); });
}

}  // namespace

Tensor distogram_sums(const DistogramTile& tile) {
  const std::int64_t batch = tile.logits.size(0);
  const std::int64_t distograms = tile.logits.size(3);
  const std::int64_t conformers = tile.aggregate ? 1 : tile.target.size(3);
  const std::int64_t terms = conformers * distograms;
  const Tensor sums = Tensor::zeros({batch, terms + 1}, DType::f64, tile.logits.device());
  for_each_rows(tile, [&](const Rows& r, const Chunk& chunk) {
    const Shape pairs = pairs_of(r);
    // e = mass * log(sum_exp) - sum_k target * logits
    const Tensor log_sum = temporary(r.sum_exp.shape(), r.sum_exp);
    unary(Unary::log, r.sum_exp, log_sum);
    const Tensor products = spread(Binary::multiply, r.target, r.logits, pairs);
    Tensor e = folded(Fold::sum, products, 4);
    add(-1, e, 1, spread(Binary::multiply, r.mass, log_sum, e.shape()), e);
    multiply(e, r.weights.expand(e.shape()), e);
    const Tensor part = Tensor::empty({terms + 1}, DType::f64, e.device());
    fold(Fold::sum, e, {0, 1}, part.narrow(0, 0, terms).view({1, 1, conformers, distograms, 1}));
    fold(Fold::sum, r.weights, {0, 1}, part.narrow(0, terms, 1).view({1, 1, 1, 1, 1}));
    const Tensor sum = sums.select(0, chunk.batch);
    add(1, sum, 1, part, sum);
  });
  return sums;
}

Tensor distogram_gradient(const DistogramTile& tile, const Tensor& weights) {
  const Tensor gradient =
      Tensor::empty(tile.logits.shape(), tile.logits.dtype(), tile.logits.device());
  const std::int64_t conformers = weights.size(1);
  const std::int64_t distograms = weights.size(2);
  for_each_rows(tile, [&](const Rows& r, const Chunk& chunk) {
    const Tensor scale_of = weights.select(0, chunk.batch)
                                .contiguous()
                                .view({1, 1, conformers, distograms, 1})
                                .to(r.logits.dtype());
    const Shape pairs = pairs_of(r);
    const Tensor wanted = folded(Fold::sum, spread(Binary::multiply, r.target, scale_of, pairs), 2);
    Tensor mass =
        folded(Fold::sum, spread(Binary::multiply, r.mass, scale_of, with_size(pairs, 4, 1)), 2);
    binary(Binary::divide, mass, r.sum_exp, mass);
    unary(Unary::exp, r.logits, r.logits);
    multiply(r.logits, mass.expand(r.logits.shape()), r.logits);
    add(1, r.logits, -1, wanted, r.logits);
    const Tensor out = gradient.select(0, chunk.batch).narrow(0, chunk.begin, chunk.length);
    binary(Binary::multiply, r.logits.squeeze(2), r.weights.squeeze(2).expand(out.shape()), out);
  });
  return gradient;
}

}  // namespace tessera::math
