// SPDX-License-Identifier: MIT
// Layers by name, and runs of them.
#include <algorithm>
#include <optional>
#include <set>

#include "handles.hpp"
#include "tessera/autodiff/gradients.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/safetensors.hpp"

using namespace tessera;
using c::checked;
using c::guarded;
using c::guarded_give;
using c::required;

using nlohmann::ordered_json;

namespace tessera::c {
namespace {

// JSON that gives no key twice: only the last would count.
nlohmann::json parse(const harness::Case& kind, const char* hyperparameters) {
  using nlohmann::json;
  std::set<std::string> keys;
  const auto is_new = [&](int depth, json::parse_event_t event, json& key) {
    if (depth == 1 && event == json::parse_event_t::key && !keys.insert(key).second)
      throw UsageError({.problem = "hyperparameter " + key.dump() + " is given twice",
                        .operation = "hyperparameters",
                        .found = hyperparameters,
                        .layer = kind.name});
    return true;
  };
  try {
    return json::parse(hyperparameters, is_new);
  } catch (const json::exception& error) {
    throw UsageError({.problem = "the hyperparameters are not JSON: " + std::string(error.what()),
                      .operation = "hyperparameters",
                      .found = hyperparameters,
                      .expected = "JSON such as {\"dim\": 16}",
                      .layer = kind.name});
  }
}

StateDict read_state(const char* path, const std::string& prefix) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  StateDict state;
  for (const std::string& name : file.names())
    if (name.starts_with(prefix)) state.emplace(name.substr(prefix.size()), file.tensor(name));
  return state;
}

// An input has as many dims as in the random problems, unless the layer tells inputs apart by them.
void check_dims(const harness::Case& kind, int index, int ndim) {
  const harness::InputSpec input = kind.problem({}).inputs.at(static_cast<std::size_t>(index));
  const bool fits =
      kind.any_class ? ndim >= 1 && ndim <= kMostDims : ndim == std::ssize(input.shape);
  if (fits) return;
  throw RangeError({.problem = "the input has another number of dims",
                    .operation = kind.name,
                    .tensor = input.name,
                    .found = std::to_string(ndim),
                    .expected = kind.any_class ? "1 to " + std::to_string(kMostDims)
                                               : std::to_string(input.shape.size())});
}

const NamedParameter& parameter_of(const tessera_layer* handle, const char* name) {
  const Layer& layer = *checked(handle, "layer").layer;
  const std::string wanted = &required(name, "name");
  const auto found = std::find_if(layer.parameters.begin(), layer.parameters.end(),
                                  [&](const NamedParameter& p) { return p.name == wanted; });
  if (found == layer.parameters.end())
    throw StateDictError({.problem = "the layer has no such parameter",
                          .operation = layer.kind->name,
                          .tensor = wanted});
  return *found;
}

// The distributed tensors of a list of C, undefined for NULL if that is allowed.
std::vector<DTensor> list_of(const char* argument, std::size_t expected, int count,
                             const tessera_dtensor* const* handles, bool null_allowed) {
  if (count != static_cast<int>(expected))
    throw UsageError({.problem = "wrong number of tensors",
                      .tensor = argument,
                      .found = std::to_string(count),
                      .expected = std::to_string(expected)});
  std::vector<DTensor> all;
  for (int k = 0; k < count; ++k) {
    const tessera_dtensor* handle = (&required(handles, argument))[k];
    all.push_back(handle == nullptr && null_allowed ? DTensor()
                                                    : checked(handle, argument).dtensor);
  }
  return all;
}

}  // namespace

const harness::Case& case_of(const char* name) {
  const harness::Case* found = harness::find_case(&required(name, "name"));
  if (found == nullptr)
    throw UsageError({.problem = "there is no layer of this name",
                      .found = name,
                      .hint = "tessera_layer_list() gives all"});
  return *found;
}

}  // namespace tessera::c

extern "C" {

int tessera_layer_list(char** json) {
  return guarded(__func__, [&] {
    ordered_json list = ordered_json::array();
    for (const harness::Case& kind : harness::all_cases()) {
      ordered_json inputs = ordered_json::array();
      for (const harness::InputSpec& spec : kind.inputs) inputs.push_back(spec.name);
      list.push_back({{"name", kind.name},
                      {"description", kind.description},
                      {"inputs", std::move(inputs)},
                      {"outputs", kind.outputs}});
    }
    c::give_text(json, list.dump());
  });
}

int tessera_layer_create(const tessera_mesh* mesh, const char* name, const char* hyperparameters,
                         int dtype, tessera_layer** layer) {
  return guarded_give(__func__, layer, [&] {
    const DeviceMesh& on = checked(mesh, "mesh").mesh;
    const harness::Case& kind = c::case_of(name);
    const DType type = c::dtype_of(dtype);
    if (type != DType::f64 && type != DType::f32)
      throw TypeError({.problem = "parameters have another dtype",
                       .operation = kind.name,
                       .found = std::string(name_of(type)),
                       .expected = "f64 or f32"});
    harness::Instance instance = build_layer(
        kind, {on, type}, c::parse(kind, &required(hyperparameters, "hyperparameters")));
    std::vector<NamedParameter> parameters = instance.module->named_parameters();
    c::give(layer, std::make_shared<const c::Layer>(
                       c::Layer{&kind, on, std::move(instance), std::move(parameters)}));
  });
}

int tessera_layer_initialize(const tessera_layer* layer, uint64_t seed) {
  return guarded(__func__,
                 [&] { checked(layer, "layer").layer->instance.module->initialize(seed); });
}

int tessera_layer_load_file(const tessera_layer* layer, const char* path, const char* prefix) {
  return guarded(__func__, [&] {
    const c::Layer& l = *checked(layer, "layer").layer;
    required(path, "path");
    collective_try(l.mesh, [&] {
      l.instance.module->load_state(c::read_state(path, prefix == nullptr ? "" : prefix));
    });
  });
}

int tessera_layer_load(const tessera_layer* layer, int count, const char* const* names,
                       const tessera_tensor* const* tensors) {
  return guarded(__func__, [&] {
    const c::Layer& l = *checked(layer, "layer").layer;
    StateDict state;
    for (int k = 0; k < count; ++k) {
      const std::string name = &required((&required(names, "names"))[k], "names");
      const Tensor& value = checked((&required(tensors, "tensors"))[k], "tensors").tensor;
      if (!state.emplace(name, value).second)
        throw StateDictError({.problem = "given twice", .operation = "load", .tensor = name});
    }
    l.instance.module->load_state(state);
  });
}

int tessera_layer_parameter_count(const tessera_layer* layer, int* count) {
  return guarded(__func__, [&] {
    const c::Layer& l = *checked(layer, "layer").layer;
    required(count, "count") = static_cast<int>(l.parameters.size());
  });
}

int tessera_layer_parameter_name(const tessera_layer* layer, int index, const char** name) {
  return guarded(__func__, [&] {
    const c::Layer& l = *checked(layer, "layer").layer;
    required(name, "name") = c::entry(l.parameters, index, "parameters").name.c_str();
  });
}

int tessera_layer_parameter(const tessera_layer* layer, const char* name,
                            tessera_tensor** parameter) {
  return guarded_give(__func__, parameter, [&] {
    c::give_tensor(parameter, c::parameter_of(layer, name).var.value().local());
  });
}

int tessera_layer_gradient(const tessera_layer* layer, const char* name,
                           tessera_tensor** gradient) {
  return guarded_give(__func__, gradient, [&] {
    const NamedParameter& parameter = c::parameter_of(layer, name);
    if (!parameter.var.has_grad())
      throw GradientError({.problem = "no gradient has arrived",
                           .tensor = parameter.name,
                           .hint = "call tessera_run_backward() on a run that kept what it needs"});
    c::give_tensor(gradient, parameter.var.grad().local());
  });
}

int tessera_layer_zero_gradients(const tessera_layer* layer) {
  return guarded(__func__, [&] { checked(layer, "layer").layer->instance.module->zero_grad(); });
}

int tessera_layer_input_count(const tessera_layer* layer, int* count) {
  return guarded(__func__, [&] {
    const c::Layer& l = *checked(layer, "layer").layer;
    required(count, "count") = static_cast<int>(l.kind->inputs.size());
  });
}

int tessera_layer_input_name(const tessera_layer* layer, int index, const char** name) {
  return guarded(__func__, [&] {
    const c::Layer& l = *checked(layer, "layer").layer;
    required(name, "name") = c::entry(l.kind->inputs, index, "inputs").name.c_str();
  });
}

int tessera_layer_input_placements(const tessera_layer* layer, int index, int ndim, int* axes,
                                   int placements[3]) {
  return guarded(__func__, [&] {
    const c::Layer& l = *checked(layer, "layer").layer;
    const harness::InputSpec& spec = c::entry(l.kind->inputs, index, "inputs");
    c::check_dims(*l.kind, index, ndim);
    c::give_placements(harness::golden_placements(*l.kind, spec, ndim), axes, placements);
  });
}

int tessera_layer_output_count(const tessera_layer* layer, int* count) {
  return guarded(__func__, [&] {
    const c::Layer& l = *checked(layer, "layer").layer;
    required(count, "count") = static_cast<int>(l.kind->outputs.size());
  });
}

int tessera_layer_output_name(const tessera_layer* layer, int index, const char** name) {
  return guarded(__func__, [&] {
    const c::Layer& l = *checked(layer, "layer").layer;
    required(name, "name") = c::entry(l.kind->outputs, index, "outputs").c_str();
  });
}

int tessera_layer_destroy(tessera_layer* layer) {
  return c::destroy(__func__, layer, "layer");
}

int tessera_layer_forward(const tessera_layer* layer, int keep, int count,
                          const tessera_dtensor* const* inputs, tessera_run** run) {
  return guarded_give(__func__, run, [&] {
    if (keep != 0 && keep != 1) c::refuse("keep", std::to_string(keep) + " is neither 0 nor 1");
    auto pass = std::make_unique<c::Run>();
    pass->layer = checked(layer, "layer").layer;
    const c::Layer& l = *pass->layer;
    const std::vector<DTensor> values =
        c::list_of("inputs", l.kind->inputs.size(), count, inputs, false);
    for (std::size_t k = 0; k < values.size(); ++k) {
      const harness::InputSpec& spec = l.kind->inputs[k];
      pass->inputs.push_back(
          pass->tape.input(spec.name, values[k], keep != 0 && spec.differentiable));
    }
    const Scope scope(l.kind->name);
    const std::optional<NoGrad> inference = keep == 0 ? std::make_optional<NoGrad>() : std::nullopt;
    pass->outputs = l.instance.forward(pass->inputs);
    synchronize(l.mesh.device());
    c::give(run, std::move(pass));
  });
}

int tessera_run_output(const tessera_run* run, int index, tessera_dtensor** output) {
  return guarded_give(__func__, output, [&] {
    const c::Run& r = *checked(run, "run").run;
    c::give(output, c::entry(r.outputs, index, "outputs").value());
  });
}

int tessera_run_backward(tessera_run* run, int count, const tessera_dtensor* const* gradients) {
  return guarded(__func__, [&] {
    c::Run& r = *checked(run, "run").run;
    const std::vector<DTensor> given =
        c::list_of("gradients", r.outputs.size(), count, gradients, true);
    std::vector<Tape::Seed> seeds;
    for (std::size_t k = 0; k < given.size(); ++k)
      if (given[k].defined()) seeds.push_back({r.outputs[k], given[k]});
    if (seeds.empty()) c::refuse("gradients", "no output has a gradient");
    const Scope scope(r.layer->kind->name);
    r.tape.backward(std::move(seeds));
    std::vector<Var> parameters = r.layer->instance.module->parameters();
    reduce_gradients(r.layer->mesh, parameters);
    synchronize(r.layer->mesh.device());
  });
}

int tessera_run_input_gradient(const tessera_run* run, int index, tessera_dtensor** gradient) {
  return guarded_give(__func__, gradient, [&] {
    const c::Run& r = *checked(run, "run").run;
    c::give(gradient, c::entry(r.inputs, index, "inputs").grad());
  });
}

int tessera_run_destroy(tessera_run* run) {
  return c::destroy(__func__, run, "run");
}

}  // extern "C"
