// SPDX-License-Identifier: MIT
#include "tessera/layers/math/attention.hpp"

#include <algorithm>

#include "tessera/layers/math/chunks.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"

namespace tessera::math {
namespace {

Tensor workspace(const Shape& shape, DType dtype, Device device) {
  const PurposeScope purpose(Purpose::workspace);
  return Tensor::empty(shape, dtype, device);
}

void check_shape(const char* tensor, const Tensor& found, const Shape& expected) {
  if (found.shape() != expected)
    throw ShapeError({.problem = "an operand does not fit the others",
                      .operation = "attention",
                      .tensor = tensor,
                      .found = format_shape(found.shape()),
                      .expected = format_shape(expected)});
}

// Sizes of a block.
struct Sizes {
  std::int64_t rows, queries, keys, heads, channels;
  std::int64_t biases;  // Rb; without a bias: one for each row
  DType acc;
  Device device;

  explicit Sizes(const AttentionOperands& o)
      : rows(o.q.size(0)),
        queries(o.q.size(1)),
        keys(o.k.size(1)),
        heads(o.q.size(2)),
        channels(o.q.size(3)),
        biases(o.bias.defined() ? o.bias.size(0) : rows),
        acc(at_least_f32(o.q.dtype())),
        device(o.q.device()) {
    check_shape("k", o.k, {rows, keys, heads, channels});
    check_shape("v", o.v, {rows, keys, heads, channels});
    if (o.mask.defined()) check_shape("mask", o.mask, {rows, queries, keys});
    if (biases == 0 || rows % biases != 0)
      throw ShapeError({.problem = "the rows do not share the biases evenly",
                        .operation = "attention",
                        .tensor = "bias",
                        .found = std::to_string(biases) + " for " + std::to_string(rows) + " rows",
                        .expected = "a divisor of the number of rows"});
    if (o.bias.defined()) check_shape("bias", o.bias, {biases, heads, queries, keys});
  }
  std::int64_t sharing() const { return rows / biases; }
  Shape like_q() const { return {rows, queries, heads, channels}; }
  Shape like_k() const { return {rows, keys, heads, channels}; }
  Shape like_maximum() const { return {rows, heads, queries}; }
};

// What is in cache at a time: `rows` rows with `queries` queries and `keys` keys each, of one head.
struct Tile {
  std::int64_t rows, queries, keys;

  // `tiles` of them are in use together.
  Tile(const Sizes& s, std::int64_t tiles) {
    const std::int64_t bytes = tiles * static_cast<std::int64_t>(size_of(s.acc));
    constexpr std::int64_t enough_queries = 64;
    keys = std::min(s.keys, chunk_rows(s.device, enough_queries * bytes));
    const std::int64_t fit = chunk_rows(s.device, keys * bytes);
    queries = std::min(s.queries, fit);
    rows = std::clamp<std::int64_t>(fit / queries, 1, s.sharing() == 1 ? s.rows : s.sharing());
  }
  std::int64_t elements() const { return rows * queries * keys; }
};

// Rows [begin, end) and some heads: what a lane does in one go. Their biases are one, or one each.
// Several parts may share a bias: if `copy` is not 0, another one of them has that bias' gradient.
struct Part {
  std::int64_t begin, end, first_head, heads, copy;
};

// Work in units of some rows of one head, of which there are enough for all lanes, whether there
// are many rows (of a pair tile) or one (a sample's). Neighbouring units have the same rows.
class Units {
 public:
  explicit Units(const Sizes& s)
      : shared_(s.sharing() > 1),
        blocks_(shared_ ? s.biases : 1),
        per_block_(s.rows / blocks_),
        heads_(s.heads) {
    const std::int64_t lanes = lane_count(s.device);
    copies_ = std::min((lanes + blocks_ * heads_ - 1) / (blocks_ * heads_), per_block_);
  }
  std::int64_t count() const { return blocks_ * copies_ * heads_; }
  std::int64_t copies() const { return shared_ ? copies_ : 1; }

  template <class Body>
  void for_each_part(std::int64_t begin, std::int64_t end, const Body& body) const {
    while (begin < end) {
      const std::int64_t head = begin % heads_;
      const std::int64_t copy = begin / heads_ % copies_;
      const std::int64_t row = begin / heads_ / copies_ * per_block_;
      const std::int64_t heads = std::min(heads_ - head, end - begin);
      body(Part{row + copy * per_block_ / copies_, row + (copy + 1) * per_block_ / copies_, head,
                heads, shared_ ? copy : 0});
      begin += heads;
    }
  }

 private:
  bool shared_;
  std::int64_t blocks_, per_block_, heads_, copies_;
};

// Some rows of a head.
struct Group {
  std::int64_t first, count, head;

  Tensor positions(const Tensor& t) const {  // of [R, X, H, c]: [count, X, c]
    return t.narrow(0, first, count).select(2, head);
  }
  Tensor numbers(const Tensor& t) const {  // of [R, H, J]: [count, J]
    return t.narrow(0, first, count).select(1, head);
  }
  Tensor mask(const Tensor& t) const { return t.defined() ? t.narrow(0, first, count) : t; }
  Tensor bias(const Tensor& t, std::int64_t sharing) const {  // [count or 1, J, K]
    if (!t.defined()) return t;
    return t.narrow(0, first / sharing, sharing == 1 ? count : 1).select(1, head);
  }
};

// Operands as acc: themselves, or copies in a buffer.
class Widened {
 public:
  Widened(const Sizes& s, DType dtype, std::int64_t elements) : acc_(s.acc) {
    if (dtype != acc_) buffer_ = workspace({elements}, acc_, s.device);
  }
  Tensor operator()(const Tensor& t) const {
    if (t.dtype() == acc_) return t;
    const Tensor wide = buffer_.narrow(0, 0, t.numel()).view(t.shape());
    copy(t, wide);
    return wide;
  }

 private:
  DType acc_;
  Tensor buffer_;
};

// A piece of a group's logits.
struct Piece {
  std::int64_t query, queries, key, keys;

  Tensor of_queries(const Tensor& t) const { return t.narrow(1, query, queries); }
  Tensor of_keys(const Tensor& t) const { return t.narrow(1, key, keys); }
  Tensor of_both(const Tensor& t) const {
    return t.defined() ? t.narrow(1, query, queries).narrow(2, key, keys) : t;
  }
};

Tensor first_of(const Tensor& buffer, const Shape& shape) {
  return buffer.narrow(0, 0, numel(shape)).view(shape);
}

template <class Body>
void for_each_piece(const Sizes& s, const Tile& tile, const Body& body) {
  for (std::int64_t query = 0; query < s.queries; query += tile.queries)
    for (std::int64_t key = 0; key < s.keys; key += tile.keys)
      body(Piece{query, std::min(tile.queries, s.queries - query), key,
                 std::min(tile.keys, s.keys - key)});
}

// Heads innermost: those of a position are neighbours in memory.
template <class Body>
void for_each_group(const Part& part, const Tile& tile, const Body& body) {
  for (std::int64_t first = part.begin; first < part.end; first += tile.rows)
    for (std::int64_t head = part.first_head; head < part.first_head + part.heads; ++head)
      body(Group{first, std::min(tile.rows, part.end - first), head});
}

LogitTerms terms_of(const AttentionOperands& o, const Sizes& s, const Group& group,
                    const Piece& piece) {
  return {piece.of_both(group.mask(o.mask)), piece.of_both(group.bias(o.bias, s.sharing())),
          o.infinity, o.mask_first};
}

// The calling thread runs lane 0.
void report(int lane, const std::function<void()>& progress) {
  if (lane == 0 && progress) progress();
}

struct BackwardInputs {
  const Tensor &maximum, &log_sum, &dout, &d;
};

void check_backward(const Sizes& s, const BackwardInputs& in, const AttentionGradients& out) {
  check_shape("maximum", in.maximum, s.like_maximum());
  check_shape("log_sum", in.log_sum, s.like_maximum());
  check_shape("d", in.d, s.like_maximum());
  check_shape("dout", in.dout, s.like_q());
  check_shape("dq", out.dq, s.like_q());
  check_shape("dk", out.dk, s.like_k());
  check_shape("dv", out.dv, s.like_k());
  if (out.dbias.defined()) check_shape("dbias", out.dbias, {s.biases, s.heads, s.queries, s.keys});
}

// The backward pass of one lane, with its buffers.
class BackwardLane {
 public:
  BackwardLane(const AttentionOperands& o, const Sizes& s, const Tile& tile,
               const BackwardInputs& in)
      : o_(o),
        s_(s),
        tile_(tile),
        in_(in),
        p_(workspace({tile.elements()}, s.acc, s.device)),
        da_(workspace({tile.elements()}, s.acc, s.device)),
        wide_q_(s, o.q.dtype(), tile.rows * s.queries * s.channels),
        wide_dout_(s, in.dout.dtype(), tile.rows * s.queries * s.channels),
        wide_k_(s, o.k.dtype(), tile.rows * s.keys * s.channels),
        wide_v_(s, o.v.dtype(), tile.rows * s.keys * s.channels) {}

  template <class Done>
  void add_group(const Group& group, const AttentionGradients& gradients, const Done& done) const {
    const Tensor all_q = wide_q_(group.positions(o_.q)), all_k = wide_k_(group.positions(o_.k));
    const Tensor all_v = wide_v_(group.positions(o_.v));
    const Tensor all_dout = wide_dout_(group.positions(in_.dout));
    const Tensor dq = group.positions(gradients.dq), dk = group.positions(gradients.dk);
    const Tensor dv = group.positions(gradients.dv);
    const Tensor dbias = group.bias(gradients.dbias, s_.sharing());
    for_each_piece(s_, tile_, [&](const Piece& piece) {
      const Shape shape{group.count, piece.queries, piece.keys};
      const Tensor p = first_of(p_, shape), da = first_of(da_, shape);
      const Tensor q = piece.of_queries(all_q), dout = piece.of_queries(all_dout);
      const Tensor k = piece.of_keys(all_k), v = piece.of_keys(all_v);
      gemm(o_.scale, q, k.transpose(1, 2), 0, p);
      gemm(1, dout, v.transpose(1, 2), 0, da);
      softmax_tile_backward(p, terms_of(o_, s_, group, piece),
                            piece.of_queries(group.numbers(in_.maximum)),
                            piece.of_queries(group.numbers(in_.log_sum)),
                            piece.of_queries(group.numbers(in_.d)), da, piece.of_both(dbias));
      gemm(1, p.transpose(1, 2), dout, 1, piece.of_keys(dv));
      gemm(o_.scale, da, k, 1, piece.of_queries(dq));
      gemm(o_.scale, da.transpose(1, 2), q, 1, piece.of_keys(dk));
      done();
    });
  }

 private:
  const AttentionOperands& o_;
  const Sizes& s_;
  const Tile& tile_;
  const BackwardInputs& in_;
  Tensor p_, da_;
  Widened wide_q_, wide_dout_, wide_k_, wide_v_;
};

}  // namespace

AttentionState make_state(const Tensor& q) {
  const DType acc = at_least_f32(q.dtype());
  const Shape numbers{q.size(0), q.size(2), q.size(1)};
  return {Tensor::empty(numbers, acc, q.device()), Tensor::empty(numbers, acc, q.device()),
          Tensor::empty(q.shape(), acc, q.device())};
}

void attention_block(const AttentionOperands& o, bool first, const AttentionState& state,
                     const std::function<void()>& progress) {
  const trace::Span span(trace::Kind::block, "attention_block");
  const Sizes s(o);
  check_shape("maximum", state.maximum, s.like_maximum());
  check_shape("sum", state.sum, s.like_maximum());
  check_shape("weighted", state.weighted, s.like_q());
  const Tile tile(s, 1);
  const Units units(s);
  run_lanes(s.device, units.count(), 1, [&](std::int64_t begin, std::int64_t end, int lane) {
    const Tensor buffer = workspace({tile.elements()}, s.acc, s.device);
    const Widened wide_v(s, o.v.dtype(), tile.rows * s.keys * s.channels);
    units.for_each_part(begin, end, [&](const Part& part) {
      for_each_group(part, tile, [&](const Group& group) {
        const Tensor q = group.positions(o.q), k = group.positions(o.k);
        const Tensor v = wide_v(group.positions(o.v));
        const Tensor weighted = group.positions(state.weighted);
        for_each_piece(s, tile, [&](const Piece& piece) {
          const Tensor logits = first_of(buffer, {group.count, piece.queries, piece.keys});
          const Tensor piece_weighted = piece.of_queries(weighted);
          const bool overwrite = first && piece.key == 0;
          gemm(o.scale, piece.of_queries(q), piece.of_keys(k).transpose(1, 2), 0, logits);
          softmax_tile(logits, terms_of(o, s, group, piece), overwrite,
                       piece.of_queries(group.numbers(state.maximum)),
                       piece.of_queries(group.numbers(state.sum)), piece_weighted);
          gemm(1, logits, piece.of_keys(v), overwrite ? 0 : 1, piece_weighted);
          report(lane, progress);
        });
      });
    });
  });
}

void finish(const AttentionState& state) {
  const Tensor sum = state.sum.transpose(1, 2).unsqueeze(3);
  binary(Binary::divide, state.weighted, sum.expand(state.weighted.shape()), state.weighted);
  unary(Unary::log, state.sum, state.sum);
}

void attention_block_backward(const AttentionOperands& o, const Tensor& maximum,
                              const Tensor& log_sum, const Tensor& dout, const Tensor& d,
                              const AttentionGradients& gradients,
                              const std::function<void()>& progress) {
  const trace::Span span(trace::Kind::block, "attention_block_backward");
  const Sizes s(o);
  const BackwardInputs inputs{maximum, log_sum, dout, d};
  check_backward(s, inputs, gradients);
  const Tile tile(s, 2);
  const Units units(s);
  std::vector<Tensor> dbias{gradients.dbias};  // and those of copies
  for (std::int64_t copy = 1; copy < units.copies() && gradients.dbias.defined(); ++copy) {
    const PurposeScope purpose(Purpose::workspace);
    dbias.push_back(Tensor::zeros(gradients.dbias.shape(), s.acc, s.device));
  }
  run_lanes(s.device, units.count(), 1, [&](std::int64_t begin, std::int64_t end, int lane) {
    const BackwardLane own(o, s, tile, inputs);
    units.for_each_part(begin, end, [&](const Part& part) {
      AttentionGradients into = gradients;
      if (into.dbias.defined()) into.dbias = dbias[static_cast<std::size_t>(part.copy)];
      for_each_group(part, tile, [&](const Group& group) {
        own.add_group(group, into, [&] { report(lane, progress); });
      });
    });
  });
  for (std::size_t copy = 1; copy < dbias.size(); ++copy)
    add(1, dbias.front(), 1, dbias[copy], dbias.front());
}

Tensor row_dots(const Tensor& a, const Tensor& b) {
  const DType acc = at_least_f32(promote(a.dtype(), b.dtype()));
  const Tensor dots = Tensor::empty({a.size(0), a.size(2), a.size(1)}, acc, a.device());
  const std::int64_t per_row = a.size(1) * a.size(2) * a.size(3);
  const std::int64_t rows =
      chunk_rows(a.device(), per_row * static_cast<std::int64_t>(size_of(acc)) / 16) / 16;
  run_lanes(a.device(), a.size(0), 1, [&](std::int64_t begin, std::int64_t end, int) {
    const std::int64_t most = std::clamp<std::int64_t>(rows, 1, end - begin);
    const Tensor buffer = workspace({most, a.size(1), a.size(2), a.size(3)}, acc, a.device());
    for (std::int64_t first = begin; first < end; first += most) {
      const std::int64_t count = std::min(most, end - first);
      const Tensor product = buffer.narrow(0, 0, count);
      binary(Binary::multiply, a.narrow(0, first, count), b.narrow(0, first, count), product);
      fold(Fold::sum, product, {-1}, dots.narrow(0, first, count).transpose(1, 2).unsqueeze(3));
    }
  });
  return dots;
}

}  // namespace tessera::math
