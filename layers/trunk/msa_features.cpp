// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/msa_features.hpp"

#include <fmt/format.h>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/substrate/common.hpp"
#include "tessera/layers/substrate/indices.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

Tensor flat_indices(const Tensor& idx) {
  return idx.to(DType::i64).contiguous().view({idx.numel()});
}

// The numbers of every position beside each other: [positions, numbers].
Tensor columns(const std::vector<Tensor>& numbers, DType dtype) {
  const PurposeScope purpose(Purpose::workspace);
  const std::int64_t positions = numbers.front().numel();
  const Tensor all = Tensor::empty({positions, static_cast<std::int64_t>(numbers.size())}, dtype,
                                   numbers.front().device());
  for (std::size_t k = 0; k < numbers.size(); ++k)
    copy(numbers[k].contiguous().view({positions}), all.select(1, static_cast<std::int64_t>(k)));
  return all;
}

std::string number_name(std::size_t k) {
  return "number " + std::to_string(k);
}

// Operands: the indices, the numbers, the weight.
struct Project {
  static constexpr const char* name = "msa_features";
  std::int64_t classes;

  Contract contract(const Tensors& in) const {
    const std::vector<Formula> shape{sym("B"), sym("S"), sym("N")};
    const PlacementRule msa{PlacementRule::Kind::exactly, pair_placements()};
    const auto numbers = static_cast<std::int64_t>(in.size()) - 2;
    Contract c;
    for (std::size_t k = 0; k + 1 < in.size(); ++k) {
      const std::string operand = k == 0 ? "msa" : number_name(k - 1);
      c.inputs.push_back({operand, shape, msa});
      c.saved.push_back(saved_block(operand));
    }
    c.inputs.push_back(parameter_operand("weight", {sym("C"), classes + numbers}));
    c.outputs = {{"y", {sym("B"), sym("S"), sym("N"), sym("C")}, msa}};
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    check_range(name, in[0], classes);
    const DTensor& weight = in.back();
    const DType dtype = in[1].dtype();
    const Tensor table = weight.local().to(dtype).transpose(0, 1).contiguous();
    const std::int64_t numbers = table.size(0) - classes;
    Shape shape = in[0].shape();
    shape.push_back(table.size(1));
    const DTensor y = empty(shape, dtype, in[0].mesh(), in[0].placements());
    const Tensor rows = rows_of(y.local());
    std::vector<Tensor> values;
    for (std::size_t k = 1; k + 1 < in.size(); ++k) values.push_back(in[k].local());
    gather_rows(table.narrow(0, 0, classes), flat_indices(in[0].local()), rows);
    gemm(1, columns(values, dtype), table.narrow(0, classes, numbers), 1, rows);

    ctx.save("msa", in[0]);
    for (std::size_t k = 0; k < values.size(); ++k) ctx.save(number_name(k), in[k + 1]);
    ctx.save("weight", weight, BudgetClass::parameter);
    return {y};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const {
    const DTensor& g = gradients[0];
    const Tensor rows = rows_of(g.local());
    const Tensor& weight = ctx.saved("weight");
    const auto numbers = static_cast<std::size_t>(weight.size(1) - classes);
    std::vector<Tensor> values;
    for (std::size_t k = 0; k < numbers; ++k) values.push_back(ctx.saved(number_name(k)));

    const Tensor dtable =
        Tensor::zeros({weight.size(1), weight.size(0)}, at_least_f32(g.dtype()), weight.device());
    scatter_add_rows(rows, flat_indices(ctx.saved("msa")), dtable.narrow(0, 0, classes));
    gemm(1, columns(values, g.dtype()).transpose(0, 1), rows, 1,
         dtable.narrow(0, classes, weight.size(1) - classes));
    Tensors all(numbers + 2);
    all.back() = parameter_gradient(dtable.transpose(0, 1).contiguous(),
                                    like_parameter(weight, g.mesh()), g.placements());
    return all;
  }
};

}  // namespace

MsaFeatures::MsaFeatures(const Build& build, std::int64_t classes, std::int64_t numbers,
                         std::int64_t channels)
    : Module(build),
      classes_(classes),
      numbers_(numbers),
      weight_(add_parameter("weight", {channels, classes + numbers}, Init::fan_in)) {}

Var MsaFeatures::forward(const Var& msa, const std::vector<Var>& numbers) const {
  const Scope scope(name());
  if (std::ssize(numbers) != numbers_ || numbers.empty())
    throw ShapeError({.problem = "not as many numbers as the weight has columns for",
                      .operation = Project::name,
                      .found = fmt::format("{}", numbers.size()),
                      .expected = fmt::format("{}, at least one", numbers_)});
  require_index(msa, Project::name, "msa");
  std::vector<Var> operands{msa};
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    require_floating(numbers[k], Project::name, number_name(k).c_str());
    refuse_gradient(numbers[k], Project::name, number_name(k).c_str());
    operands.push_back(numbers[k]);
  }
  operands.push_back(weight_);
  return apply_many(Project{classes_}, operands).front();
}

}  // namespace tessera
