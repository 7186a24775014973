// SPDX-License-Identifier: MIT
#include "tessera/harness/layer_case.hpp"

namespace tessera::harness {

const char* name_of(Class c) {
  if (c == Class::pair) return "pair";
  return c == Class::msa ? "msa" : "single";
}

Placements placements_of(Class c) {
  return c == Class::single ? single_placements() : pair_placements();
}

Shape shape_of(Class c, const Sizes& s, std::int64_t channels) {
  Shape shape{s.batch, s.tokens};
  if (c == Class::pair) shape.push_back(s.tokens);
  if (c == Class::msa) shape = {s.batch, s.msa_rows(), s.tokens};
  if (channels > 0) shape.push_back(channels);
  return shape;
}

std::int64_t positions(Class c, const Sizes& s) {
  return numel(shape_of(c, s, 0));
}

InputSpec activation(const char* name, Class c, const Sizes& s, std::int64_t channels) {
  return {.name = name, .shape = shape_of(c, s, channels), .placements = placements_of(c)};
}

InputSpec mask_input(const char* name, Class c, const Sizes& s) {
  return {.name = name,
          .shape = shape_of(c, s, 0),
          .placements = placements_of(c),
          .kind = InputKind::mask,
          .differentiable = false};
}

std::int64_t single_channels(const Sizes& s) {
  return 3 * s.channels;
}

std::int64_t heads_of_single(const Sizes& s) {
  return single_channels(s) % 16 == 0 ? 16 : 3;
}

std::int64_t msa_channels(const Sizes& s) {
  return s.channels >= 16 ? s.channels / 2 : s.channels + 3;
}

}  // namespace tessera::harness
