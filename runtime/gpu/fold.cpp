// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/fold.hpp"

#include "tessera/runtime/gpu/loop.hpp"
#include "tessera/runtime/gpu/reduce.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {
namespace {

template <class A, class S>
struct FoldElement {
  using State = S;
  FoldArgs args;
  TESSERA_DEVICE void add(State& own, std::int64_t element, std::int64_t i) const {
    const std::int64_t at =
        offsets_of(args.kept, element).in[0] + offsets_of(args.reduced, i).in[0];
    own.add(read<A>(args.kept.in[0], at), i);
  }
  TESSERA_DEVICE void finish(std::int64_t element, const State& state) const {
    write(args.kept.out, offsets_of(args.kept, element).out, state.result());
  }
};

}  // namespace

void fold(const FoldArgs& args, Range elements) {
  const Width width = args.by_column ? Width::lane : width_for(args.count);
  with_arithmetic(args.kept.arithmetic, [&](auto type) {
    using A = typename decltype(type)::type;
    if constexpr (!is_same<A, float>)
      with_fold<A>(args.op, [&](auto state) {
        reduce_rows("fold", elements, args.count, width,
                    FoldElement<A, typename decltype(state)::type>{args});
      });
  });
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE
