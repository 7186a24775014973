// SPDX-License-Identifier: MIT
#include "tessera/runtime/cpu/variant.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

#define TESSERA_QUOTE_(text) #text
#define TESSERA_QUOTE(text) TESSERA_QUOTE_(text)

const KernelTable table = table_named(TESSERA_QUOTE(TESSERA_KERNELS_NAMESPACE));

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE
