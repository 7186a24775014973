// SPDX-License-Identifier: MIT
#include <utility>

#include "tessera/runtime/gpu/launch.hpp"
#include "tessera/runtime/kernels/scalar.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {
namespace {

template <class U>
struct GatherRow {
  IndexedRowsArgs args;
  TESSERA_DEVICE void operator()(std::int64_t k, const Lanes& lanes) const {
    const std::int64_t row = args.index[k * args.index_stride];
    const bool chosen = row >= 0 && row < args.rows;
    const U* from = static_cast<const U*>(args.src) + (chosen ? row : 0) * args.src_stride;
    U* to = static_cast<U*>(args.out) + k * args.out_stride;
    const U instead = row < 0 ? U(0) : static_cast<U>(~U(0));  // all bits: NaN
    lanes.each(args.features, [&](std::int64_t f) { to[f] = chosen ? from[f] : instead; });
  }
};

// Who adds to which row, sorted by rows and in ascending k within one: so no two threads add to
// one element, and each sum has its fixed order.
struct Entry {
  std::int64_t row, k;
};

// Entries before the first with a row above `row`, or not below it.
TESSERA_DEVICE std::int64_t entries_before(const Entry* entries, std::int64_t count,
                                           std::int64_t row, bool above) {
  std::int64_t begin = 0;
  for (std::int64_t end = count; begin < end;) {
    const std::int64_t middle = (begin + end) / 2;
    const bool before = above ? entries[middle].row <= row : entries[middle].row < row;
    before ? begin = middle + 1 : end = middle;
  }
  return begin;
}

struct FirstEntries {
  IndexedRowsArgs args;
  Entry* entries;
  TESSERA_DEVICE void operator()(std::int64_t k) const {
    entries[k] = {args.index[k * args.index_stride], k};
  }
};

// Merges each two neighbouring sorted runs of `length`: an entry finds its place by counting those
// of the other run that go before it.
struct Merge {
  const Entry* from;
  Entry* to;
  std::int64_t count, length;
  TESSERA_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t run = i / length;
    const bool left = run % 2 == 0;
    const std::int64_t other = (left ? run + 1 : run - 1) * length;
    const std::int64_t rest = count - other;
    const std::int64_t others = rest < 0 ? 0 : rest < length ? rest : length;
    const std::int64_t first = left ? run * length : other;  // of the merged run
    const std::int64_t before =
        others == 0 ? 0 : entries_before(from + other, others, from[i].row, !left);
    to[first + (i - run * length) + before] = from[i];
  }
};

// The sorted entries; both arrays have room for all of them.
const Entry* sort_entries(const IndexedRowsArgs& args, Entry* entries, Entry* room) {
  for_each("scatter_add_rows", {0, args.count}, FirstEntries{args, entries});
  for (std::int64_t length = 1; length < args.count; length *= 2) {
    for_each("scatter_add_rows", {0, args.count}, Merge{entries, room, args.count, length});
    std::swap(entries, room);
  }
  return entries;
}

template <class From, class To>
struct AddToRow {
  IndexedRowsArgs args;
  const Entry* entries;
  TESSERA_DEVICE void operator()(std::int64_t row, const Lanes& lanes) const {
    const std::int64_t first = entries_before(entries, args.count, row, false);
    To* const to = static_cast<To*>(args.out) + row * args.out_stride;
    lanes.each(args.features, [&](std::int64_t f) {
      for (std::int64_t e = first; e < args.count && entries[e].row == row; ++e) {
        const From* from = static_cast<const From*>(args.src) + entries[e].k * args.src_stride;
        to[f] = static_cast<To>(to[f] + load(from[f]));
      }
    });
  }
};

}  // namespace

void gather_rows(const IndexedRowsArgs& args, Range rows) {
  with_bits(args.out_dtype, [&](auto type) {
    for_each_row("gather_rows", rows, width_for(args.features),
                 GatherRow<typename decltype(type)::type>{args});
  });
}

void scatter_add_rows(const IndexedRowsArgs& args, Range rows) {
  const Scratch<Entry> entries(args.count);
  const Scratch<Entry> room(args.count);
  const Entry* const sorted = sort_entries(args, entries.data(), room.data());
  with_floating(args.src_dtype, [&](auto src) {
    with_floating(args.out_dtype, [&](auto out) {
      using From = typename decltype(src)::type;
      using To = typename decltype(out)::type;
      if constexpr (!is_same<To, bf16>)
        for_each_row("scatter_add_rows", rows, width_for(args.features),
                     AddToRow<From, To>{args, sorted});
    });
  });
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE
