// SPDX-License-Identifier: MIT
// faulty FAULT RANK GOLDEN: trains a layer for a step on 2x2 ranks, of which RANK does what FAULT
// says; "none" is the same run without fault. For the tests of this folder.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "failure.hpp"
#include "tessera/autodiff/gradients.hpp"
#include "tessera/harness/case.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/layers/schedule/panel_ring.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/safetensors.hpp"

namespace {

using namespace tessera;
using namespace tessera::harness;

struct Job {
  DeviceMesh mesh;
  bool guilty = false;
  std::filesystem::path golden = {};
};

std::string fault_name;

// The tests count from here.
void announce() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::fprintf(
      stderr, "fault %s at %lld\n", fault_name.c_str(),
      static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(now).count()));
}

void sleep_for_ever() {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

struct Training {
  Setup setup;

  explicit Training(const DeviceMesh& mesh) {
    const Case c = select_cases({"triangle_multiplication_outgoing"}).front();
    setup =
        random_setup(c, c.problem({.batch = 1, .tokens = 12, .channels = 8}), mesh, DType::f32, 1);
  }
  void step(const DeviceMesh& mesh) const {
    const Scope scope("trunk");
    std::vector<Var> parameters = setup.instance.module->parameters();
    Tape tape;
    tape.backward(seeds(setup, setup.instance.forward(inputs_on(tape, setup))));
    reduce_gradients(mesh, parameters);
  }
};

void train(const Job& job) {
  Training(job.mesh).step(job.mesh);
}

// In the second step of a ring.
void train_with(const Job& job, void (*in_ring_step)()) {
  static void (*act)() = nullptr;
  act = in_ring_step;
  if (job.guilty)
    set_step_hook([](const CommRecord& step) {
      static int steps = 0;
      if (step.op == "shift" && ++steps == 2) {
        announce();
        act();
      }
    });
  train(job);
}

void kill_in_ring(const Job& job) {
  train_with(job, [] { std::raise(SIGKILL); });
}
void sleep_in_ring(const Job& job) {
  train_with(job, sleep_for_ever);
}
void terminate_in_ring(const Job& job) {
  train_with(job, [] {
    kill(getpid(), SIGTERM);
    sleep_for_ever();
  });
}

void throw_in_block(const Job& job) {
  const Scope scope("trunk.engine");
  const Tensor tile = Tensor::full({2, 6, 6}, 1, DType::f32);
  contract_panels(job.mesh, {tile, Contracted::cols, "x"}, {tile, Contracted::rows, "y"}, 2,
                  [&](const PanelStep& s) {
                    if (!job.guilty || s.step != 1) return;
                    announce();
                    throw std::runtime_error("the block of step 1 is singular");
                  });
}

void run_out_of_memory(const Job& job) {
  const Training training(job.mesh);
  if (job.guilty) {
    announce();
    memory_ledger::set_limit(memory_ledger::total().live + 1024);
  }
  training.step(job.mesh);
}

// What all ranks do after a step of training, each with its own idea of it.
void reduce(const DeviceMesh& mesh, int axis, DType dtype, std::int64_t count) {
  all_reduce(mesh, axis, ReduceOp::sum, Tensor::zeros({count}, dtype), "logits");
}
void end_with_reductions(const Job& job, int axis, DType dtype, std::int64_t count) {
  train(job);
  if (job.guilty) announce();
  const Scope scope("head");
  reduce(job.mesh, axis, dtype, count);
}
void other_count(const Job& job) {
  end_with_reductions(job, kCp1, DType::f32, job.guilty ? 5 : 4);
}
void other_dtype(const Job& job) {
  end_with_reductions(job, kCp1, job.guilty ? DType::f64 : DType::f32, 4);
}
void other_axis(const Job& job) {
  end_with_reductions(job, job.guilty ? kCp0 : kCp1, DType::f32, 4);
}
void other_order(const Job& job) {
  train(job);
  if (job.guilty) announce();
  const Scope scope("head");
  for (const bool barrier_first : {!job.guilty, job.guilty})
    if (barrier_first)
      barrier(job.mesh);
    else
      reduce(job.mesh, kCp1, DType::f32, 4);
}

void return_early(const Job& job) {
  const Training training(job.mesh);
  if (job.guilty) return announce();
  training.step(job.mesh);
}

void flip_bit(const Job& job) {
  const Training training(job.mesh);
  if (job.guilty) {
    announce();
    const Tensor weight =
        training.setup.instance.module->named_parameters().at(2).var.value().local();
    static_cast<unsigned char*>(weight.data())[17] ^= 1;
  }
  training.step(job.mesh);
}

void read_truncated_golden(const Job& job) {
  collective_try(job.mesh, [&] {
    if (!job.guilty) {
      SafetensorsFile::open(job.golden.string());
      return;
    }
    announce();
    const auto damaged = std::filesystem::temp_directory_path() /
                         ("tessera-truncated-" + std::to_string(getpid()) + ".safetensors");
    std::filesystem::copy_file(job.golden, damaged);
    std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) / 2);
    struct Remove {
      std::filesystem::path path;
      ~Remove() { std::filesystem::remove(path); }
    } const remove{damaged};
    SafetensorsFile::open(damaged.string());
  });
}

// The end of a job whose abort hangs.
void hang_while_ending(const Job& job) {
  if (job.guilty) {
    announce();
    Environment::end_within(std::chrono::seconds(2), static_cast<int>(ExitCode::timeout));
    sleep_for_ever();
  }
  barrier(job.mesh);
}

const std::map<std::string, void (*)(const Job&)> faults{
    {"none", train},
    {"kill", kill_in_ring},
    {"sleep", sleep_in_ring},
    {"terminate", terminate_in_ring},
    {"throw", throw_in_block},
    {"memory", run_out_of_memory},
    {"count", other_count},
    {"dtype", other_dtype},
    {"axis", other_axis},
    {"order", other_order},
    {"early", return_early},
    {"flip", flip_bit},
    {"golden", read_truncated_golden},
    {"hang", hang_while_ending},
};

int run(int argc, char** argv) {
  Environment environment(argc, argv);
  const Communicator world = environment.world();
  try {
    const DeviceMesh mesh = DeviceMesh::create(world, {1, 2, 2});
    // A rank that is none of them: the run without fault.
    faults.at(fault_name)({mesh, std::to_string(mesh.rank()) == argv[2], argv[3]});
  } catch (const std::exception& e) {
    const int code = tools::agree_on_failure(world, e);
    Environment::end_within(std::chrono::seconds(5), code);
    return code;
  }
  tools::stop_reporting();
  if (world.rank() == 0) std::printf("%s: all is well\n", fault_name.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 || !faults.contains(argv[1])) return static_cast<int>(ExitCode::usage);
  fault_name = argv[1];
  tools::report_on_termination();
  return run(argc, argv);
}
