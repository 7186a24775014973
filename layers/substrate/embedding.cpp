// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/embedding.hpp"

#include <fmt/format.h>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/indices.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

Tensor flat_indices(const Tensor& idx) {
  return idx.to(DType::i64).contiguous().view({idx.numel()});
}

Shape with_last(Shape shape, std::int64_t size) {
  shape.push_back(size);
  return shape;
}

struct EmbeddingFunction {
  static constexpr const char* name = "embedding";
  std::optional<std::int64_t> padding;

  Contract contract(const Tensors&) const {
    return {.inputs = {{"idx", any_shape(), {PlacementRule::Kind::any}},
                       parameter_operand("weight", {sym("V"), sym("D")})},
            .outputs = {{"y", {sym("shape of idx, and D")}, {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {saved_block("idx")}};
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& idx = in[0];
    const Tensor& weight = in[1].local();
    check_range(name, idx, weight.size(0));
    const std::int64_t d = weight.size(1);
    const Tensor y =
        Tensor::empty(with_last(idx.local().shape(), d), weight.dtype(), weight.device());
    gather_rows(weight, flat_indices(idx.local()), rows_of(y));
    ctx.save("idx", idx);
    ctx.save("weight", in[1], BudgetClass::parameter);
    return {carried(unsqueezed(idx, idx.ndim()), with_last(idx.shape(), d), y)};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const DTensor& g = gradients[0];
    const Tensor& weight = ctx.saved("weight");
    const Tensor dw = Tensor::zeros(weight.shape(), at_least_f32(g.dtype()), weight.device());
    scatter_add_rows(rows_of(g.local()), flat_indices(ctx.saved("idx")), dw);
    if (padding) fill(dw.narrow(0, *padding, 1), 0);
    return {DTensor(), parameter_gradient(dw, like_parameter(weight, g.mesh()), g.placements())};
  }
};

struct OneHot {
  static constexpr const char* name = "shardwise_one_hot";
  std::int64_t classes;

  Contract contract(const Tensors&) const {
    return {
        .inputs = {{"idx", any_shape(), {PlacementRule::Kind::any}}},
        .outputs = {{"y", {sym("shape of idx, and classes")}, {PlacementRule::Kind::like_first}}},
        .messages = {},
        .saved = {}};
  }

  Tensors forward(FunctionContext&, const Tensors& in) const {
    const DTensor& idx = in[0];
    check_range(name, idx, classes);
    const DTensor y =
        empty(with_last(idx.shape(), classes), DType::i64, idx.mesh(), idx.placements());
    const Shape& local = y.local().shape();
    Shape last(local.size(), 1);
    last.back() = classes;
    const Tensor numbers = arange(classes, idx.mesh().device()).view(last);
    binary(Binary::equal, idx.local().unsqueeze(idx.ndim()).expand(local), numbers.expand(local),
           y.local());
    return {y};
  }
};

}  // namespace

Embedding::Embedding(const Build& build, std::int64_t count, std::int64_t channels,
                     std::optional<std::int64_t> padding)
    : Module(build),
      weight_(add_parameter("weight", {count, channels}, Init::normal)),
      padding_(padding) {
  if (padding && (*padding < 0 || *padding >= count))
    throw RangeError({.problem = "the padding row is no row of the table",
                      .operation = "Embedding",
                      .tensor = "weight",
                      .found = fmt::format("{}", *padding),
                      .expected = fmt::format("0..{}", count - 1)});
}

Var Embedding::forward(const Var& idx) const {
  const Scope scope(name());
  require_index(idx, EmbeddingFunction::name, "idx");
  return apply_many(EmbeddingFunction{padding_}, {idx, weight_}).front();
}

Var shardwise_one_hot(const Var& idx, std::int64_t classes) {
  require_index(idx, OneHot::name, "idx");
  if (classes < 1)
    throw RangeError({.problem = "the number of classes must be given and positive",
                      .operation = OneHot::name,
                      .tensor = "idx",
                      .found = fmt::format("{} classes", classes)});
  return apply_many(OneHot{classes}, {idx}).front();
}

}  // namespace tessera
