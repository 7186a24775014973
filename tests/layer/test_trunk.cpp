// SPDX-License-Identifier: MIT
// ranks: 4
// Stacks of layers: the blocks of a trunk one after the other, used again with the same parameters.
#include <cstdlib>
#include <string>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/mpi.hpp"
#include "tessera/autodiff/gradients.hpp"
#include "tessera/harness/cases/pair_stack.hpp"
#include "tessera/harness/layer_case.hpp"
#include "tessera/harness/parity.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/layers/substrate/elementwise.hpp"
#include "tessera/layers/substrate/outer.hpp"
#include "tessera/layers/trunk/msa.hpp"
#include "tessera/runtime/hash.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

using Vars = std::vector<Var>;
using nlohmann::json;

const MeshShape kSquare{1, 2, 2};

// A mesh that looks at everything while it lives.
class Watched {
 public:
  Watched() {
    for (const char* name : kNames) setenv(name, "1", 1);
    set_finite_watch(true);
    mesh = DeviceMesh::create(test_world(), kSquare);
  }
  ~Watched() {
    for (const char* name : kNames) unsetenv(name);
    set_finite_watch(false);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  DeviceMesh mesh;

 private:
  static constexpr std::array kNames{"TESSERA_CHECK_REPLICAS", "TESSERA_LOCKSTEP"};
};

// Two MSA layers and two Pairformer layers, several times.
class Trunk : public Module {
 public:
  Trunk(const Build& build, const PairformerOptions& pairformer, const MsaModuleOptions& msa)
      : Module(build), msa_(build, msa), pairformer_(build, pairformer, 2) {
    add_child("msa", msa_);
    add_child("pairformer", pairformer_);
  }
  SingleAndPair forward(SingleAndPair x, const Var& emb, const MsaInputs& features, int cycles,
                        const RunMode& mode) const {
    const Scope scope(name());
    const Var pair_mask = outer_op(features.token_pad_mask, Outer::multiply);
    for (int k = 0; k < cycles; ++k) {
      const RunMode cycle = mode.part("cycle " + std::to_string(k));
      x.z = add(x.z, msa_.forward(x.z, emb, features, cycle.part("msa")));
      x = pairformer_.forward(std::move(x), features.token_pad_mask, pair_mask,
                              cycle.part("pairformer"));
    }
    return x;
  }

 private:
  MsaModule msa_;
  PairformerModule pairformer_;
};

std::vector<InputSpec> trunk_inputs(const Sizes& s) {
  InputSpec msa = activation("msa", Class::msa, s, 0);
  msa.kind = InputKind::index;
  msa.low = 0;
  msa.high = 33;
  msa.differentiable = false;
  std::vector<InputSpec> all{activation("s", Class::single, s, single_channels(s)),
                             activation("z", Class::pair, s, s.channels),
                             activation("emb", Class::single, s, single_channels(s)), msa};
  for (const char* name : {"has_deletion", "deletion_value", "msa_paired", "msa_mask"})
    all.push_back(mask_input(name, Class::msa, s));
  all.push_back(mask_input("token_pad_mask", Class::single, s));
  return all;
}

std::vector<std::string> zero_gradients() {
  std::vector<std::string> all;
  for (const char* layer : {"layers.0.", "layers.1."}) {
    all.push_back(std::string("msa.") + layer + "pair_weighted_averaging.norm_z.bias");
    all.push_back(std::string("pairformer.") + layer + "attention.proj_z.0.bias");
  }
  return all;
}

Case trunk(int cycles, bool again) {
  return case_of<Trunk>(
      {.name = "trunk",
       .description = "MSA and Pairformer layers, used several times",
       .outputs = {"s", "z"},
       .zero_gradients = zero_gradients(),
       .inputs = trunk_inputs,
       .hyperparameters =
           [](const Sizes& s) {
             json h = pair_stack_hyperparameters(s);
             h["dropout"] = 0.25;
             h["token_s"] = single_channels(s);
             h["msa_s"] = msa_channels(s);
             return h;
           },
       .build =
           [](const Build& build, const json& h) {
             const PairStackOptions pairs = pair_stack_options(h, "dropout");
             return std::make_unique<Trunk>(
                 build,
                 PairformerOptions{.token_s = h.at("token_s"), .num_heads = 3, .pairs = pairs},
                 MsaModuleOptions{.token_s = h.at("token_s"),
                                  .blocks = 2,
                                  .layer = {.msa_s = h.at("msa_s"),
                                            .average_infinity = pairs.infinity,
                                            .pairs = pairs}});
           },
       .forward =
           [=](const Trunk& m, const Vars& in) {
             const SingleAndPair out =
                 m.forward({in[0], in[1]}, in[2], {in[3], in[4], in[5], in[6], in[7], in[8]},
                           cycles, training_mode(again));
             return Vars{out.s, out.z};
           }});
}

// What a case computes, bit by bit, and its peak.
struct Bits {
  std::vector<std::uint64_t> all;
  std::int64_t saved = 0, peak = 0;
};
Bits bits_of(const Case& c, const Sizes& sizes, const DeviceMesh& mesh, DType dtype) {
  const Setup setup = random_setup(c, c.problem(sizes), mesh, dtype, 3);
  memory_ledger::reset_peak();
  const std::int64_t before = memory_ledger::total().live;
  Bits bits;
  Tape tape;
  const Vars inputs = inputs_on(tape, setup);
  {
    const Vars outputs = setup.instance.forward(inputs);
    for (const Var& y : outputs) bits.all.push_back(hash_of(y.value().local()));
    bits.saved = tape.saved_bytes();
    tape.backward(seeds(setup, outputs));
  }
  bits.peak = memory_ledger::total().peak - before;
  Vars parameters = setup.instance.module->parameters();
  reduce_gradients(mesh, parameters);
  for (const Var& p : parameters) bits.all.push_back(hash_of(p.grad().local()));
  for (std::size_t k = 0; k < inputs.size(); ++k)
    if (setup.specs[k].differentiable) bits.all.push_back(hash_of(inputs[k].grad().local()));
  return bits;
}

}  // namespace

TEST_CASE("a trunk of four blocks, used twice, with every watcher on") {
  const Watched watched;
  for (const bool again : {false, true}) {
    const CaseResult r = run_parity(trunk(2, again), {2, 8, 7}, watched.mesh, {});
    CAPTURE(again, r.worst().tensor, r.worst().max_rel);
    for (const std::string& failure : r.failures()) UNSCOPED_INFO(failure);
    CHECK(r.pass());
    CHECK(r.saved_bytes == r.saved_budget);
  }
}

TEST_CASE("checkpoints change no bit and leave one block and the inputs of blocks") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), kSquare);
  for (const DType dtype : {DType::f64, DType::bf16}) {
    const Bits plain = bits_of(trunk(2, false), {2, 8, 7}, mesh, dtype);
    const Bits again = bits_of(trunk(2, true), {2, 8, 7}, mesh, dtype);
    CHECK(plain.all == again.all);
    CHECK(4 * again.saved < plain.saved);
  }
  const Sizes sizes{1, 48, 16};
  const auto peak = [&](int cycles, bool again) {
    return bits_of(trunk(cycles, again), sizes, mesh, DType::f32).peak;
  };
  // One cycle more keeps four pairs of z and of s or m, and the results of the additions between.
  const std::int64_t pair = 48 * 48 * 16 * 4 / 4, msa = 2 * 48 * 48 * 8 * 4 / 4;
  CHECK(peak(3, true) - peak(2, true) <= 5 * pair + 3 * msa);
  CHECK(peak(3, false) - peak(2, false) >= 100 * pair);
}

TEST_CASE("ranks that draw other decisions are found") {
  const Watched watched;
  const Case c = *find_case("pairformer_noseq_layer");
  const Setup setup = random_setup(c, c.problem({2, 8, 7}), watched.mesh, DType::f64, 3);
  Tape tape;
  const Vars in = inputs_on(tape, setup);
  const auto& layer = dynamic_cast<const PairformerNoSeqLayer&>(*setup.instance.module);
  const RunMode mode{.training = true, .stream = {static_cast<std::uint64_t>(test_rank()), 1}};
  require_error<ReplicaError>([&] { layer.forward(in[0], in[1], mode); }, "dropout", "samples");
}
