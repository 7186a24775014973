// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/reshape.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

// Contract of a function of one operand that keeps and sends nothing.
Contract view_contract(PlacementRule operand, const char* result_shape, const char* placed) {
  return {.inputs = {{"x", any_shape(), std::move(operand)}},
          .outputs = {{"y", {sym(result_shape)}, {.text = placed}}},
          .messages = {},
          .saved = {}};
}

struct Unsqueeze {
  static constexpr const char* name = "unsqueeze";
  int dim;

  Contract contract(const Tensors&) const {
    return view_contract({PlacementRule::Kind::any}, "shape of x with 1 at dim",
                         "S(d >= dim) become S(d+1)");
  }
  Tensors forward(FunctionContext&, const Tensors& in) const { return {unsqueezed(in[0], dim)}; }
  Tensors backward(FunctionContext&, const Tensors& g) const { return {squeezed(g[0], dim)}; }
};

struct Squeeze {
  static constexpr const char* name = "squeeze";
  int dim;

  Contract contract(const Tensors&) const {
    return view_contract({PlacementRule::Kind::whole, {}, {dim}, "any S/R, dim whole"},
                         "shape of x without dim", "S(d > dim) become S(d-1)");
  }
  Tensors forward(FunctionContext&, const Tensors& in) const { return {squeezed(in[0], dim)}; }
  Tensors backward(FunctionContext&, const Tensors& g) const { return {unsqueezed(g[0], dim)}; }
};

// The pieces of x along a dim, of these sizes.
Tensors split(const DTensor& x, int dim, const std::vector<std::int64_t>& sizes) {
  Tensors pieces;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    pieces.push_back(narrowed(x, dim, begin, size));
    begin += size;
  }
  return pieces;
}

// The parts one after the other along a dim; undefined ones are zero. `like`: a defined part.
DTensor joined(const Tensors& parts, int dim, const std::vector<std::int64_t>& sizes,
               const DTensor& like, DType dtype) {
  Shape shape = like.shape();
  shape[static_cast<std::size_t>(dim)] = 0;
  for (const std::int64_t size : sizes) shape[static_cast<std::size_t>(dim)] += size;
  const DTensor y = empty_carried(like, shape, like.placements(), dtype);
  const Tensors places = split(y, dim, sizes);
  for (std::size_t k = 0; k < parts.size(); ++k)
    if (parts[k].defined())
      copy(parts[k].local(), places[k].local());
    else
      fill(places[k].local(), 0);
  return y;
}

PlacementRule whole_dim(int dim) {
  return {PlacementRule::Kind::whole, {}, {dim}, "any S/R, dim whole"};
}

struct Cat {
  static constexpr const char* name = "cat";
  int dim;
  std::vector<std::int64_t> sizes;

  Contract contract(const Tensors& parts) const {
    Contract c;
    for (std::size_t k = 0; k < parts.size(); ++k)
      c.inputs.push_back(
          {fmt::format("part {}", k), any_shape(),
           k == 0 ? whole_dim(dim) : PlacementRule{PlacementRule::Kind::like_first}});
    c.outputs = {{"y",
                  {sym("shape of the parts, their sizes added along dim")},
                  {PlacementRule::Kind::like_first}}};
    return c;
  }
  Tensors forward(FunctionContext&, const Tensors& parts) const {
    DType dtype = parts[0].dtype();
    for (const DTensor& part : parts) dtype = promote(dtype, part.dtype());
    return {joined(parts, dim, sizes, parts[0], dtype)};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const { return split(g[0], dim, sizes); }
};

struct Chunk {
  static constexpr const char* name = "chunk";
  int dim;
  std::vector<std::int64_t> sizes;

  Contract contract(const Tensors&) const {
    Contract c{
        .inputs = {{"x", any_shape(), whole_dim(dim)}}, .outputs = {}, .messages = {}, .saved = {}};
    c.outputs.push_back({"pieces",
                         {sym("shape of x, ceil(size/n) or the rest along dim")},
                         {PlacementRule::Kind::like_first}});
    return c;
  }
  Tensors forward(FunctionContext&, const Tensors& in) const { return split(in[0], dim, sizes); }
  Tensors backward(FunctionContext&, const Tensors& g) const {
    const DTensor& some =
        *std::find_if(g.begin(), g.end(), [](const DTensor& p) { return p.defined(); });
    return {joined(g, dim, sizes, some, some.dtype())};
  }
};

struct RepeatInterleave {
  static constexpr const char* name = "repeat_interleave";
  int dim;
  std::int64_t r;

  Contract contract(const Tensors&) const {
    return view_contract({PlacementRule::Kind::any}, "shape of x, r times along dim", "like x");
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    const DTensor& x = in[0];
    const DTensor y = empty_carried(x, resized(x, x.size(dim) * r), x.placements(), x.dtype());
    const Tensor copies = with_copies(y.local());
    copy(x.local().unsqueeze(dim + 1).expand(copies.shape()), copies);
    return {y};
  }
  Tensors backward(FunctionContext&, const Tensors& gradients) const {
    const DTensor& g = gradients[0];
    const DTensor dx = empty_carried(g, resized(g, g.size(dim) / r), g.placements(), g.dtype());
    fold(Fold::sum, with_copies(g.local()), {dim + 1}, dx.local().unsqueeze(dim + 1));
    return {dx};
  }

 private:
  Shape resized(const DTensor& x, std::int64_t size) const {
    Shape shape = x.shape();
    shape[static_cast<std::size_t>(dim)] = size;
    return shape;
  }
  // The dim as (element, copy).
  Tensor with_copies(const Tensor& t) const { return unflattened(t, dim, {t.size(dim) / r, r}); }
};

std::vector<int> dims_between(int start, int end) {
  std::vector<int> dims;
  for (int d = start; d <= end; ++d) dims.push_back(d);
  return dims;
}

// The sharded form is the same, with another rule for what may be sharded.
template <bool sharded>
struct Flatten {
  static constexpr const char* name = sharded ? "flatten_sharded" : "flatten";
  int start, end;
  Shape sizes;  // of the dims

  Contract contract(const Tensors&) const {
    const PlacementRule rule = sharded
                                   ? PlacementRule{PlacementRule::Kind::sharded,
                                                   {},
                                                   {start},
                                                   "any S/R, start sharded, the other dims whole"}
                                   : PlacementRule{PlacementRule::Kind::whole,
                                                   {},
                                                   dims_between(start, end),
                                                   "any S/R, dims start..end whole"};
    return view_contract(rule, "shape of x, dims start..end as one", "later shards move down");
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {flattened(in[0], start, end)};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const {
    return {unflattened(g[0], start, sizes)};
  }
};

template <bool sharded>
struct Unflatten {
  static constexpr const char* name = sharded ? "unflatten_sharded" : "unflatten";
  int dim;
  Shape sizes;

  Contract contract(const Tensors&) const {
    const PlacementRule rule =
        sharded ? PlacementRule{PlacementRule::Kind::sharded, {}, {dim}, "any S/R, dim sharded"}
                : whole_dim(dim);
    return view_contract(rule, "shape of x, dim as several", "later shards move up");
  }
  Tensors forward(FunctionContext&, const Tensors& in) const {
    return {unflattened(in[0], dim, sizes)};
  }
  Tensors backward(FunctionContext&, const Tensors& g) const {
    return {flattened(g[0], dim, dim + static_cast<int>(sizes.size()) - 1)};
  }
};

template <bool sharded>
Var apply_flatten(const Var& x, int start, int end) {
  constexpr const char* name = Flatten<sharded>::name;
  const int first = normalize_dim(start, x.value().ndim(), name);
  const int last = normalize_dim(end, x.value().ndim(), name);
  if (first > last)
    throw RangeError({.problem = "the first dim comes after the last",
                      .operation = name,
                      .tensor = "x",
                      .found = fmt::format("dims {} to {}", first, last),
                      .expected = "start <= end"});
  for (int d = first + 1; sharded && d <= last; ++d)
    if (is_sharded(x.value(), d))
      throw PlacementError(
          {.problem = fmt::format("dim {} must not be sharded", d),
           .operation = name,
           .tensor = "x",
           .found = x.value().describe(),
           .expected = fmt::format("of dims {} to {} only dim {} sharded", first, last, first),
           .hint = "redistribute() first"});
  const Shape& shape = x.value().shape();
  return apply_many(
             Flatten<sharded>{first, last, {shape.begin() + first, shape.begin() + last + 1}}, {x})
      .front();
}

template <bool sharded>
Var apply_unflatten(const Var& x, int dim, const Shape& sizes) {
  constexpr const char* name = Unflatten<sharded>::name;
  const int d = normalize_dim(dim, x.value().ndim(), name);
  const bool positive = std::all_of(sizes.begin(), sizes.end(), [](auto n) { return n > 0; });
  if (sizes.empty() || !positive || numel(sizes) != x.value().size(d))
    throw ShapeError(
        {.problem = "the sizes are not those of the dim taken apart",
         .operation = name,
         .tensor = "x",
         .found = fmt::format("{} for dim {} of {}", format_shape(sizes), d, x.value().describe()),
         .expected = fmt::format("positive sizes with the product {}", x.value().size(d))});
  if (sharded && sizes.size() < 2)
    throw ShapeError({.problem = "a sharded dim is taken apart into two dims or more",
                      .operation = name,
                      .tensor = "x",
                      .found = format_shape(sizes)});
  const int axis = sharding_axis(x.value(), d);
  if (sharded && axis >= 0 && sizes.front() % x.value().mesh().size(axis) != 0)
    throw UnevenError(
        {.problem = "the mesh axis does not divide the first size",
         .operation = name,
         .tensor = "x",
         .found = fmt::format("{} on {}", format_shape(sizes), x.value().mesh().describe()),
         .expected = fmt::format("a first size divisible by {}", x.value().mesh().size(axis))});
  return apply_many(Unflatten<sharded>{d, sizes}, {x}).front();
}

}  // namespace

Var repeat_interleave(const Var& x, std::int64_t r, int dim) {
  const int d = normalize_dim(dim, x.value().ndim(), RepeatInterleave::name);
  if (r < 1)
    throw RangeError({.problem = "the number of copies must be positive",
                      .operation = RepeatInterleave::name,
                      .tensor = "x",
                      .found = fmt::format("{}", r)});
  return apply_many(RepeatInterleave{d, r}, {x}).front();
}

Var flatten(const Var& x, int start, int end) {
  return apply_flatten<false>(x, start, end);
}
Var flatten_sharded(const Var& x, int start, int end) {
  return apply_flatten<true>(x, start, end);
}
Var unflatten(const Var& x, int dim, const Shape& sizes) {
  return apply_unflatten<false>(x, dim, sizes);
}
Var unflatten_sharded(const Var& x, int dim, const Shape& sizes) {
  return apply_unflatten<true>(x, dim, sizes);
}

Var unsqueeze(const Var& x, int dim) {
  return apply_many(Unsqueeze{normalize_dim(dim, x.value().ndim() + 1, "unsqueeze")}, {x}).front();
}

Var squeeze(const Var& x, int dim) {
  const int d = normalize_dim(dim, x.value().ndim(), "squeeze");
  if (x.value().size(d) != 1)
    throw ShapeError({.problem = fmt::format("dim {} has not size 1", d),
                      .operation = "squeeze",
                      .tensor = "x",
                      .found = x.value().describe()});
  return apply_many(Squeeze{d}, {x}).front();
}

Var cat(const std::vector<Var>& parts, int dim) {
  if (parts.empty())
    throw ShapeError(
        {.problem = "no parts", .operation = "cat", .expected = "at least one tensor"});
  const DTensor& first = parts.front().value();
  Cat cat{normalize_dim(dim, first.ndim(), "cat"), {}};
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const DTensor& part = parts[k].value();
    Shape expected = first.shape();
    if (part.ndim() == first.ndim())
      expected[static_cast<std::size_t>(cat.dim)] = part.size(cat.dim);
    expect(part, "cat", fmt::format("part {}", k).c_str(),
           {.shape = expected, .allow_partial = true});
    cat.sizes.push_back(part.size(cat.dim));
  }
  return apply_many(cat, parts).front();
}

std::vector<Var> chunk(const Var& x, std::int64_t n, int dim) {
  const int d = normalize_dim(dim, x.value().ndim(), "chunk");
  if (n < 1)
    throw RangeError({.problem = "the number of pieces must be positive",
                      .operation = "chunk",
                      .found = fmt::format("{}", n)});
  const std::int64_t size = x.value().size(d);
  const std::int64_t piece = (size + n - 1) / n;
  Chunk chunk{d, {}};
  for (std::int64_t begin = 0; begin < size; begin += piece)
    chunk.sizes.push_back(std::min(piece, size - begin));
  return apply_many(chunk, {x});
}

}  // namespace tessera
