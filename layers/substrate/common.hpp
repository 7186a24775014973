// SPDX-License-Identifier: MIT
// Small helpers that several layers share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/autodiff/tape.hpp"
#include "tessera/mesh/dtensor.hpp"
#include "tessera/runtime/fold.hpp"
#include "tessera/runtime/stream.hpp"

namespace tessera {

// Terms of contracts.
inline Formula sym(const char* name) {
  return Formula::symbol(name);
}
inline ContractTensor parameter_operand(const char* name, std::vector<Formula> shape) {
  return {name, std::move(shape), {PlacementRule::Kind::replicated}};
}

// A tensor as a matrix [positions, features]; copies only if it is not contiguous.
inline Tensor rows_of(const Tensor& t) {
  return t.contiguous().view({t.numel() / t.size(-1), t.size(-1)});
}

// Whole numbers as i64 [n].
inline Tensor index_tensor(const std::vector<std::int64_t>& values, Device device) {
  const PurposeScope purpose(Purpose::workspace);
  const Tensor host = staging({static_cast<std::int64_t>(values.size())}, DType::i64, device);
  std::copy(values.begin(), values.end(), host.host_data<std::int64_t>());
  return host.to(device);
}

// A replicated DTensor with this local value (gradients of parameters).
inline DTensor like_parameter(const Tensor& local, const DeviceMesh& mesh) {
  return DTensor::from_local(local, mesh,
                             Placements(static_cast<std::size_t>(mesh.ndim()), Replicate{}),
                             local.shape(), row_major_strides(local.shape()));
}

// A row-major block as that of a tensor placed as x, whose dims lie in memory in the order of x's:
// the block itself, or a copy.
DTensor carried(const DTensor& x, const Shape& shape, const Tensor& block);

// x folded along dims that are not sharded; they keep size 1, and the dims their order in memory.
DTensor folded(Fold op, const DTensor& x, const std::vector<int>& dims, DType dtype);

// TypeError for integers and booleans.
void require_floating(const Var& x, const char* operation, const char* tensor);
// TypeError for anything but i64 and i32.
void require_index(const Var& x, const char* operation, const char* tensor);
// GradientError if x requires one: for masks, indices and operations that have none.
void refuse_gradient(const Var& x, const char* operation, const char* tensor);

// Gradients that pass where a mask is set, or where it is not, and are 0 elsewhere; -g.
DTensor where_set(const Tensor& mask, const DTensor& g);
DTensor where_not_set(const Tensor& mask, const DTensor& g);
DTensor negated(const DTensor& g);

}  // namespace tessera
