// SPDX-License-Identifier: MIT
#include "tessera/layers/module.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/random.hpp"

namespace tessera {
namespace {

// Standard deviation of a standard normal cut at +-2, by which a truncated draw is rescaled.
constexpr double kTruncatedDeviation = 0.87962566103423978;

void fill_truncated_normal(const Tensor& t, RandomStream stream, double deviation) {
  // Element k takes the first of eight draws within +-2; the chance that none is, 1e-11, ends at 0.
  constexpr int tries = 8;
  const Tensor draws = Tensor::empty({t.numel(), tries}, DType::f64);
  fill_normal(draws, stream, whole(draws.shape()));
  const std::vector<double> values = to_values(draws);
  std::vector<double> result(static_cast<std::size_t>(t.numel()), 0);
  for (std::size_t k = 0; k < result.size(); ++k)
    for (std::size_t attempt = 0; attempt < tries; ++attempt) {
      const double draw = values[k * tries + attempt];
      if (std::abs(draw) > 2) continue;
      result[k] = draw * deviation / kTruncatedDeviation;
      break;
    }
  copy(Tensor::from_values(t.shape(), result, t.dtype()), t);
}

void initialize_value(const Tensor& t, Init init, RandomStream stream) {
  const auto fan_out = static_cast<double>(t.ndim() > 0 ? t.size(0) : 1);
  const auto fan_in = static_cast<double>(t.ndim() > 1 ? t.size(1) : t.numel());
  auto uniform_on = [&](double bound) { fill_uniform(t, stream, whole(t.shape()), -bound, bound); };
  switch (init) {
    case Init::lecun:
      return fill_truncated_normal(t, stream, 1 / std::sqrt(fan_in));
    case Init::glorot:
      return uniform_on(std::sqrt(6 / (fan_in + fan_out)));
    case Init::normal:
      fill_normal(t, stream, whole(t.shape()));
      return scale(1 / std::sqrt(fan_in), t);
    case Init::fan_in:
      return uniform_on(1 / std::sqrt(fan_in));
    case Init::zero:
      return fill(t, 0);
    case Init::one:
      return fill(t, 1);
  }
}

std::string list(const char* what, const std::vector<std::string>& names) {
  return names.empty() ? "" : fmt::format("{}: {}; ", what, fmt::join(names, ", "));
}

// Everything that keeps a state dict from fitting, or "".
std::string misfits(const std::vector<NamedParameter>& parameters, const StateDict& state) {
  std::vector<std::string> missing, wrong, whole, unexpected;
  std::set<std::string> known;
  for (const NamedParameter& p : parameters) {
    known.insert(p.name);
    const auto entry = state.find(p.name);
    if (entry == state.end())
      missing.push_back(p.name);
    else if (entry->second.shape() != p.var.value().shape())
      wrong.push_back(fmt::format("{} {} instead of {}", p.name,
                                  format_shape(entry->second.shape()),
                                  format_shape(p.var.value().shape())));
    else if (!is_floating(entry->second.dtype()))
      whole.push_back(fmt::format("{} of {}", p.name, name_of(entry->second.dtype())));
  }
  for (const auto& [name, tensor] : state)
    if (!known.contains(name)) unexpected.push_back(name);
  return list("missing", missing) + list("wrong shape", wrong) +
         list("no floating-point values", whole) + list("unexpected", unexpected);
}

}  // namespace

Var Module::add_parameter(const std::string& name, Shape shape, Init init) {
  const PurposeScope purpose(Purpose::parameter);
  Var var = Var::parameter(name, zeros(shape, build_.dtype, build_.mesh, replicated_placements()));
  parameters_.push_back({name, var, init});
  return var;
}

void Module::add_child(const std::string& name, Module& child) {
  child.name_ = name;
  children_.emplace_back(name, &child);
}

std::vector<NamedParameter> Module::named_parameters() const {
  std::vector<NamedParameter> all = parameters_;
  for (const auto& [name, child] : children_)
    for (NamedParameter p : child->named_parameters()) {
      p.name = name + "." + p.name;
      all.push_back(std::move(p));
    }
  return all;
}

std::vector<Var> Module::parameters() const {
  std::vector<Var> vars;
  for (const NamedParameter& p : named_parameters()) vars.push_back(p.var);
  return vars;
}

void Module::initialize(std::uint64_t seed) {
  for (NamedParameter& p : named_parameters())
    initialize_value(p.var.value().local(), p.init, {seed, stream_id(p.name)});
}

void Module::load_state(const StateDict& state) {
  const std::vector<NamedParameter> all = named_parameters();
  std::string problems = misfits(all, state);
  if (!problems.empty()) {
    problems.resize(problems.size() - 2);
    throw StateDictError({.problem = problems, .operation = "load_state"});
  }
  for (const NamedParameter& p : all) {
    const Tensor& value = p.var.value().local();
    copy(state.at(p.name).to(value.device()).to(value.dtype()), value);
  }
}

StateDict Module::state() const {
  StateDict state;
  for (const NamedParameter& p : named_parameters()) state[p.name] = p.var.value().local().clone();
  return state;
}

void Module::zero_grad() {
  for (Var var : parameters()) var.zero_grad();
}

}  // namespace tessera
