// SPDX-License-Identifier: MIT
// Timing of layers: a case with random inputs that can be run over and over, and the matrix product
// that its rate is held against.
#pragma once

#include <chrono>
#include <vector>

#include "tessera/harness/problem.hpp"
#include "tessera/mesh/collectives.hpp"

namespace tessera::harness {

// What one run costs: multiplications and additions of the matrix products of all ranks, those that
// are done again in backward included.
struct Flops {
  double forward = 0;
  double training = 0;
};

class Workload {
 public:
  Workload(const Case& c, const Sizes& sizes, const DeviceMesh& mesh, DType dtype,
           std::uint64_t seed);

  void forward() const;                      // nothing is recorded
  void training(bool traced = false) const;  // forward, backward, reduction of the gradients

  // What one training run needs, exactly, of the rank that needs most of each. Collective.
  struct Usage {
    std::int64_t peak_bytes = 0;   // beside parameters and inputs
    std::int64_t saved_bytes = 0;  // between forward and backward
    std::int64_t messages = 0;
    std::int64_t sent_bytes = 0;
  };
  Usage usage() const;
  Flops flops() const;  // collective

 private:
  std::int64_t run(bool traced) const;  // bytes saved
  std::vector<double> over_ranks(ReduceOp op, const std::vector<double>& values) const;

  std::string name_;
  DeviceMesh mesh_;
  Setup setup_;
  std::vector<DTensor> upstream_;
};

// n x n x n, on every rank at once, flop/s per rank.
class Yardstick {
 public:
  Yardstick(const DeviceMesh& mesh, std::int64_t n, DType dtype, std::uint64_t seed);
  double rate() const;

 private:
  DeviceMesh mesh_;
  std::int64_t n_;
  Tensor a_, b_, c_;
};

double median(std::vector<double> values);

// Seconds of one call, between two barriers.
template <class Work>
double seconds_of(const DeviceMesh& mesh, const Work& work) {
  barrier(mesh);
  const auto begin = std::chrono::steady_clock::now();
  work();
  synchronize(mesh.device());
  barrier(mesh);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace tessera::harness
