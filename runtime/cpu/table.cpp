// SPDX-License-Identifier: MIT
#include "tessera/runtime/cpu/variant.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

#define TESSERA_QUOTE_(text) #text
#define TESSERA_QUOTE(text) TESSERA_QUOTE_(text)

const KernelTable table{TESSERA_QUOTE(TESSERA_KERNELS_NAMESPACE),
                        elementwise,
                        transpose,
                        reduce,
                        gemm,
                        layer_norm,
                        layer_norm_backward,
                        gate,
                        sum_rows,
                        fold,
                        gather_rows,
                        scatter_add_rows,
                        softmax_tile,
                        softmax_tile_backward};

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE
