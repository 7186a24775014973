// SPDX-License-Identifier: MIT
// Column operands: blocks along one mesh axis become blocks along another one. A tensor with S(d)
// on axis `from` and R on axis `to` becomes R on `from` and S(d) on `to`; on the CP grid, the rank
// that held row block i then holds column block j. Every rank needs one block and, since the source
// is replicated, may take each part of it from any of several ranks: from itself where it has it,
// else from the one whose `to` coordinate is its own `from` coordinate, modulo the size. On a
// square grid that is one exchange with the mirror rank (j, i); any other grid works alike.
#pragma once

#include <string>
#include <vector>

#include "tessera/autodiff/contract.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/dtensor.hpp"

namespace tessera {

// One rank's part. Pure arithmetic.
struct ColumnPlan {
  struct Part {
    int peer;         // rank of the mesh
    Interval region;  // global indices along the dim
  };
  Interval source;             // own block before
  Interval target;             // own block after
  Interval kept;               // what is in both and stays
  std::vector<Part> sends;     // by peer
  std::vector<Part> receives;  // by peer
};
ColumnPlan plan_column(const DeviceMesh& mesh, std::int64_t size, int from, int to);

// Collective over the mesh. PlacementError unless x has S(d) on `from` and R on `to`. The order of
// dims in memory is kept. The way back is the same with the axes exchanged.
DTensor exchange_column(const DTensor& x, int from, int to, const std::string& label,
                        CallSite where = CallSite::current());
// Its line in the contract of a function with the operand `name`, and that of the way back of the
// result, which is an exchange in the other direction.
ContractMessage column_message(Pass pass, const DTensor& x, const std::string& name, int from,
                               int to, std::string label);
ContractMessage column_return_message(Pass pass, const DTensor& x, const std::string& name,
                                      int from, int to, std::string label);

// The adjoint of exchange_column(), for gradients of column blocks that ranks formed of different
// rows. Every rank brings summands of the column block along `dim` that it was given; each part
// goes back to where it came from and is added there. Returns a block of the size that the rank had
// before: the sum of these over axis `to` is the sum of all summands. Floating dtypes.
Tensor add_columns(const DeviceMesh& mesh, const Tensor& summands, int dim, std::int64_t size,
                   int from, int to, const std::string& label,
                   CallSite where = CallSite::current());
// Its line, of summands of dtype.
ContractMessage add_columns_message(Pass pass, const DTensor& x, const std::string& name, int from,
                                    int to, DType dtype, std::string label);

}  // namespace tessera
