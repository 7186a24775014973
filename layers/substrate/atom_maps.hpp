// SPDX-License-Identifier: MIT
// Atoms and tokens where every token's atoms are on the token's shard: singles [B, N, ...] of both
// are placed (S0,S1,R), and no map sends anything but the one of pairs, once, when it is made. Maps
// are integers, made once and used by any number of calls, and get no gradients.
#pragma once

#include <cstdint>

#include "tessera/layers/substrate/gather.hpp"

namespace tessera {

// The token of each atom, tok_id [B, A] of global tokens, (S0,S1,R); atoms that a mask (bool, as
// tok_id) excludes or that have -1 are padding. RangeError on all ranks if a token is on another
// shard.
GatherPlan atom_map(const Var& tok_id, std::int64_t tokens, const Var& mask = {});
// The representative atom of each token, rep [B, T] of global atoms: likewise.
GatherPlan representative_map(const Var& rep, std::int64_t atoms, const Var& mask = {});

// s [B M, T, ...] -> [B M, A, ...]: the value of the atom's token, zero for padding. M >= 1 copies
// of each sample, row b*M+m. Saved: the map.
Var token_to_atom(const Var& s, const GatherPlan& map);
// a [B M, A, ...] -> [B M, T, ...]: the mean over the token's atoms, zero if it has none. Saved:
// the map and the counts.
Var atom_to_token(const Var& a, const GatherPlan& map);
// a [B M, A, ...] -> [B M, T, ...]: the value of the representative. Saved: the map.
Var rep_atom_to_token(const Var& a, const GatherPlan& map);

// The map of both dims of a pair.
struct PairAtomMap {
  GatherPlan rows;  // atom_map()
  GatherPlan cols;  // of the atoms of the own columns, (S0,R,S1)
};
// Collective, any CP grid. Messages: the ids as column operands, and an all-gather of two integers
// of each rank.
PairAtomMap pair_atom_map(const Var& tok_id, std::int64_t tokens, const Var& mask = {});
// z [B, T, T, C] -> [B, A, A, C], (S0,S1,S2): the value of both atoms' tokens, zero for padding.
// Messages: columns of tokens that another column of the grid holds; none where the atoms of a grid
// column are those of its tokens, as on every square grid. Saved: the maps.
Var pair_token_to_atom(const Var& z, const PairAtomMap& map);

// Block-diagonal one-hot maps [B, N, n], (S0,S1,R), where n counts the targets of one shard of cp0:
// the global target of each row, [B, N] i64, -1 for rows of zeros. RangeError on all ranks if a row
// sums to anything but 0 and 1.
Var one_hot_indices(const Var& map);
// The whole matrix [N, n cp0] in f32, of a map with B = 1 (ShapeError), for tests and reports.
Tensor reconstruct_global(const DTensor& map);

}  // namespace tessera
