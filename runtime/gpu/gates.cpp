// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/gates.hpp"

#include "tessera/runtime/gpu/launch.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {
namespace {

template <class Body, class T>
struct GateElement {
  GateArgs args;
  TESSERA_DEVICE void operator()(std::int64_t element) const {
    const std::int64_t row = args.rows > 1 ? element / args.positions : 0;  // divisions are slow
    const std::int64_t p = element - row * args.positions;
    Acc<T> x[3] = {};
    Acc<T> y[3];
    for (int i = 0; i < Body::inputs; ++i) x[i] = load(*at(args.in[i], row, p));
    Body::apply(x, args.mask == nullptr ? Acc<T>(1) : static_cast<const Acc<T>*>(args.mask)[p], y);
    for (int o = 0; o < Body::outputs; ++o) store(*at(args.out[o], row, p), y[o]);
  }
  TESSERA_DEVICE static T* at(const GateOperand& x, std::int64_t row, std::int64_t p) {
    return static_cast<T*>(x.data) + row * x.row_stride + p;
  }
};

}  // namespace

// A device is given all blocks at once: its items are elements.
void gate(const GateArgs& args, Range) {
  with_gate(args.op, [&](auto body) {
    with_floating(args.dtype, [&](auto type) {
      for_each("gate", {0, args.rows * args.positions},
               GateElement<typename decltype(body)::type, typename decltype(type)::type>{args});
    });
  });
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE
