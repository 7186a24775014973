// SPDX-License-Identifier: MIT
#include "tessera/autodiff/finite.hpp"

#include <fmt/format.h>

#include <cmath>

#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera {
namespace {

bool& watch() {
  static bool on = flag_from_environment("TESSERA_CHECK_FINITE");
  return on;
}

// Global index of the first value of the own block that is not finite, and the value.
std::string first_offender(const DTensor& x) {
  const std::vector<double> values = to_values(x.local());
  const GlobalBlock block = global_block(x.shape(), x.mesh(), x.placements());
  for (std::size_t k = 0; k < values.size(); ++k) {
    if (std::isfinite(values[k])) continue;
    Shape index(x.shape().size());
    auto rest = static_cast<std::int64_t>(k);
    for (std::size_t d = index.size(); d-- > 0;) {
      index[d] = rest % x.local().shape()[d] + block.offset[d];
      rest /= x.local().shape()[d];
    }
    return fmt::format("{} at global index {}", values[k], format_shape(index));
  }
  return {};
}

}  // namespace

bool finite_watch() {
  return watch();
}
void set_finite_watch(bool on) {
  watch() = on;
}

void check_finite(const DTensor& x, const char* function, const std::string& tensor) {
  if (!x.defined() || !is_floating(x.dtype())) return;
  collective_try(x.mesh(), [&] {
    if (all_finite(x.local())) return;
    throw NonFiniteError({.problem = "a value is not finite",
                          .operation = function,
                          .tensor = tensor,
                          .found = first_offender(x)});
  });
}

}  // namespace tessera
