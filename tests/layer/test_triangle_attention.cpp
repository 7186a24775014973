// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Triangle attention where it is special: masks, what travels, what is kept, and what it needs.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <set>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/harness/parity.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/testing.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

constexpr const char* kStarting = "triangle_attention_starting_node";
constexpr const char* kEnding = "triangle_attention_ending_node";
constexpr const char* kNodes[]{kStarting, kEnding};

constexpr std::int64_t kTokens = 12, kHeads = 3, kWidth = 15;  // width of all heads
constexpr Sizes kSizes{2, kTokens, 7};

// The mask of a key in a row of the attention.
using Mask = std::function<double(std::int64_t row, std::int64_t key)>;

Case with_mask(const char* name, double infinity, const Mask& mask) {
  Case c = *find_case(name);
  const bool starting = std::string(name) == kStarting;
  c.problem = [=, problem = c.problem](const Sizes& sizes) {
    Problem p = problem(sizes);
    (*p.hyperparameters)["inf"] = infinity;
    p.inputs.at(1).at = [=](const std::vector<std::int64_t>& index) {
      return starting ? mask(index[1], index[2]) : mask(index[2], index[1]);
    };
    return p;
  };
  return c;
}

// Holds on every mesh of so many ranks, to `tolerance` (0: that of all layers).
void check_masked(double infinity, const Mask& mask, double tolerance = 0) {
  for (const char* name : kNodes)
    for (const MeshShape& shape : test_meshes(test_ranks())) {
      if (kTokens % (shape.cp0 * shape.cp1) != 0 || 2 % shape.dp != 0) continue;
      const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
      const CaseResult r =
          run_parity(with_mask(name, infinity, mask), kSizes, mesh, {.tolerance = tolerance});
      CAPTURE(name, format(shape), infinity, r.worst().tensor, r.worst().max_rel);
      CHECK(r.pass());
    }
}

double interior(std::int64_t row, std::int64_t key) {
  return (5 * row + 3 * key) % 4 == 0 ? 0 : 1;
}
double row_without_keys(std::int64_t row, std::int64_t key) {
  return row == 1 || row == kTokens - 1 ? 0 : interior(row, key);
}

// Bytes sent by the busiest rank, without the reduction of parameter gradients.
struct Sent {
  std::int64_t messages = 0, bytes = 0;
};
Sent sent(const std::vector<CommTotal>& totals) {
  Sent all;
  for (const CommTotal& t : totals) {
    if (t.op == "all_reduce") continue;
    all.messages += t.messages;
    all.bytes += t.bytes;
  }
  return all;
}

// Tensors that differ from the serial layer on 2 x 3 ranks after a planted mistake.
std::set<std::string> wrong_after(const char* name, Mutation mistake) {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 2, 3});
  set_mutation(mistake);
  const CaseResult r = run_parity(*find_case(name), {1, 12, 5}, mesh, {});
  set_mutation(Mutation::none);
  std::set<std::string> wrong;
  for (const Comparison& t : r.tensors)
    if (!(t.max_rel <= r.tolerance)) wrong.insert(t.tensor);
  return wrong;
}

}  // namespace

TEST_CASE("all ones, and rows that have a key left, are exact beside a mask of 1e9") {
  check_masked(1e9, [](std::int64_t, std::int64_t) { return 1.0; });
  check_masked(1e9, interior);
}

TEST_CASE("rows without any key attend to all keys") {
  // At 1e9 two numbers of 64 bits are 1.2e-7 apart, and products of other shapes may round a logit
  // to the other one; at 1e18 they are 128 apart and all keys count alike.
  check_masked(1e9, row_without_keys, 1e-6);
  check_masked(1e18, row_without_keys);
  check_masked(60, row_without_keys);
}

TEST_CASE("a block of keys without any key, first or later on the way around") {
  for (std::int64_t block = 0; block < 6; ++block)
    check_masked(1e9, [=](std::int64_t, std::int64_t key) { return key / 2 == block ? 0.0 : 1.0; });
}

TEST_CASE("only one block of keys is left: whatever comes before it must leave no trace") {
  for (std::int64_t block = 0; block < 6; block += 2)
    check_masked(1e9, [=](std::int64_t, std::int64_t key) { return key / 2 == block ? 1.0 : 0.0; });
}

TEST_CASE("masks are numbers") {
  check_masked(8, [](std::int64_t row, std::int64_t key) {
    return static_cast<double>((row + 2 * key) % 5) / 4;
  });
}

TEST_CASE("one token per rank and axis, on ranks other than the first too") {
  for (const Communicator& ranks : {test_world(), test_subworld()}) {
    if (ranks.size() == 0) continue;
    const MeshShape shape = squarest(ranks.size());
    const std::int64_t tokens = std::max<std::int64_t>(2, std::lcm(shape.cp0, shape.cp1));
    for (const char* name : kNodes) {
      const CaseResult r =
          run_parity(*find_case(name), {1, tokens, 2}, DeviceMesh::create(ranks, shape), {});
      CAPTURE(name, format(shape), r.worst().tensor, r.worst().max_rel);
      CHECK(r.pass());
    }
  }
}

TEST_CASE("heads go around in groups, also of unlike sizes") {
  if (test_ranks() != 4) return;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 2, 2});
  const std::int64_t tile = 2 * 48 * 48 * 8;      // bytes of one channel
  for (const std::int64_t channels : {60, 64}) {  // three heads, four heads
    REQUIRE(tile * channels / (1 << 20) == 2);    // groups
    for (const char* name : kNodes) {
      const CaseResult r = run_parity(*find_case(name), {2, 96, channels}, mesh, {});
      CAPTURE(name, channels, r.worst().tensor, r.worst().max_rel);
      CHECK(r.pass());
      for (const CommTotal& t : r.forward)
        if (t.op == "shift") CHECK(t.messages == 2);
    }
  }
}

TEST_CASE("saved are x, o and the mask, and in acc statistics and the state of each head") {
  const DeviceMesh one = DeviceMesh::create(Communicator::self(), {});
  const std::int64_t positions = 2 * kTokens * kTokens;
  for (const char* name : kNodes) {
    const CaseResult f64 = run_parity(*find_case(name), kSizes, one, {});
    CHECK(f64.saved_bytes == positions * 8 * (7 + kWidth + 1 + 2 + 2 * kHeads));
    const CaseResult bf16 = run_parity(*find_case(name), kSizes, one, {.dtype = DType::bf16});
    CHECK(bf16.saved_bytes == positions * (2 * (7 + kWidth + 1) + 4 * (2 + 2 * kHeads)));
  }
}

TEST_CASE("messages on a P x P grid") {
  if (test_ranks() != 4) return;
  const std::int64_t p = 2, tile = 2 * kTokens * kTokens / (p * p) * 8;
  const std::int64_t c = kSizes.channels, start = c + 1 + kHeads;
  const std::int64_t ring = (p - 1) * (2 * kWidth + 1 + kHeads);
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 2, 2});
  for (const char* name : kNodes) {
    CAPTURE(name);
    const CaseResult r = run_parity(*find_case(name), kSizes, mesh, {});
    const Sent forward = sent(r.forward), backward = sent(r.backward);
    CHECK(forward.messages == 3 + (p - 1) * 2);
    CHECK(forward.bytes == tile * (start + ring));
    // The start is repeated; then sums travel all the way, and home.
    CHECK(backward.messages == 3 + (p - 1) * 2 + p * 2 + 2);
    CHECK(backward.bytes == tile * (start + ring + p * (2 * kWidth + kHeads) + c + kHeads));
  }
}

TEST_CASE("on a line one node moves keys, the other one biases only") {
  if (test_ranks() == 1) return;
  const std::int64_t p = test_ranks(), tile = 2 * kTokens * kTokens / p * 8;
  const std::int64_t swap = tile / p * (p - 1) * kHeads;
  for (const char* name : kNodes)
    for (const bool along_cp1 : {true, false}) {
      CAPTURE(name, along_cp1);
      const int ranks = test_ranks();
      const MeshShape shape = along_cp1 ? MeshShape{1, 1, ranks} : MeshShape{1, ranks, 1};
      const CaseResult r =
          run_parity(*find_case(name), kSizes, DeviceMesh::create(test_world(), shape), {});
      const bool keys_move = (std::string(name) == kStarting) == along_cp1;
      const std::int64_t panels = keys_move ? 2 * kWidth + 1 : kHeads;
      const std::int64_t sums = keys_move ? 2 * kWidth : kHeads;
      const std::int64_t ring = swap + (p - 1) * tile * panels;
      CHECK(sent(r.forward).bytes == ring);
      CHECK(sent(r.backward).bytes == ring + p * tile * sums + swap);
    }
}

TEST_CASE("planted mistakes are found, where they must be") {
  if (test_ranks() != 6) return;
  for (const char* name : kNodes) {
    CAPTURE(name);
    CHECK(wrong_after(name, Mutation::none).empty());
    CHECK(wrong_after(name, Mutation::reverse_ring).contains("y"));
    // Gradients that end one rank away belong to other keys and other biases; nothing else changes,
    // and neither does their sum over all positions, layer_norm.bias.
    CHECK(wrong_after(name, Mutation::drop_last_rotation) ==
          std::set<std::string>{"grad x", "grad layer_norm.weight", "grad linear.weight",
                                "grad mha.linear_k.weight", "grad mha.linear_v.weight"});
  }
}

TEST_CASE("the peak of a medium problem on 2 x 2 is at most 0.3 of the serial one") {
  if (test_ranks() != 4) return;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 2, 2});
  const Sizes sizes{1, 256, 128};
  std::int64_t serial = 0;
  if (test_rank() == 0) {
    const DeviceMesh one = DeviceMesh::create(Communicator::self(), {});
    serial = run_parity(*find_case(kEnding), sizes, one, {.dtype = DType::f32}).peak_bytes;
  }
  serial = ControlScalar::broadcast(mesh, serial).value();
  const CaseResult r = run_parity(*find_case(kEnding), sizes, mesh, {.dtype = DType::f32});
  CAPTURE(r.peak_bytes, serial);
  CHECK(static_cast<double>(r.peak_bytes) <= 0.3 * static_cast<double>(serial));
  CHECK(r.pass());
}
