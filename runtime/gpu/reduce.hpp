// SPDX-License-Identifier: MIT
// Reductions of rows of any length, in an order that the sizes alone decide.
#pragma once

#include "tessera/runtime/gpu/launch.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {

// Parts of one length into which rows are cut that are too few to occupy a GPU.
struct Parts {
  std::int64_t count;
  std::int64_t length;  // of all but the last
};
Parts parts_of(std::int64_t rows, std::int64_t count, Width width);

template <class Terms>
struct ReduceRows {
  Terms terms;
  std::int64_t count;
  TESSERA_DEVICE void operator()(std::int64_t row, const Lanes& lanes) const {
    using State = typename Terms::State;
    const State state =
        lanes.reduce(State{}, count, [&](State& own, std::int64_t i) { terms.add(own, row, i); });
    lanes.once([&] { terms.finish(row, state); });
  }
};

// All first parts, then all second ones: neighbouring rows stay neighbours.
template <class Terms>
struct ReduceParts {
  using State = typename Terms::State;
  Terms terms;
  Range rows;
  std::int64_t count;
  Parts parts;
  State* states;
  TESSERA_DEVICE void operator()(std::int64_t at, const Lanes& lanes) const {
    const std::int64_t of_part = rows.end - rows.begin;
    const std::int64_t part = at / of_part;
    const std::int64_t row = rows.begin + (at - part * of_part);
    const std::int64_t first = part * parts.length;
    const std::int64_t rest = count - first;
    const State state =
        lanes.reduce(State{}, rest < parts.length ? rest : parts.length,
                     [&](State& own, std::int64_t i) { terms.add(own, row, first + i); });
    lanes.once([&] { states[at] = state; });
  }
};

template <class Terms>
struct JoinParts {
  using State = typename Terms::State;
  Terms terms;
  Range rows;
  const State* states;
  TESSERA_DEVICE void add(State& own, std::int64_t row, std::int64_t part) const {
    own.join(states[part * (rows.end - rows.begin) + row - rows.begin]);
  }
  TESSERA_DEVICE void finish(std::int64_t row, const State& state) const {
    terms.finish(row, state);
  }
};

// For each row: terms.add(state, row, i) for all i < count, then terms.finish(row, state). States
// are of Terms::State, which is made as the identity of its join(). At most 2 MiB of states are
// kept in between, or one per row.
template <class Terms>
void reduce_rows(const char* name, Range rows, std::int64_t count, Width width,
                 const Terms& terms) {
  const std::int64_t many = rows.end - rows.begin;
  const Parts parts = parts_of(many, count, width);
  if (parts.count <= 1) return for_each_row(name, rows, width, ReduceRows<Terms>{terms, count});
  const Scratch<typename Terms::State> states(many * parts.count);
  for_each_row(name, {0, many * parts.count}, width,
               ReduceParts<Terms>{terms, rows, count, parts, states.data()});
  const JoinParts<Terms> join{terms, rows, states.data()};
  for_each_row(name, rows, width_for(parts.count), ReduceRows<JoinParts<Terms>>{join, parts.count});
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE
