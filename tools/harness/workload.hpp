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

// The bytes that one run cannot but move, on all ranks: inputs, parameters and outputs once in
// forward; in training also their gradients once and what is saved twice, written and read.
struct Traffic {
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
  Flops flops() const;      // collective
  Traffic traffic() const;  // collective

 private:
  std::int64_t run(bool traced) const;  // bytes saved
  std::vector<double> over_ranks(ReduceOp op, const std::vector<double>& values) const;

  std::string name_;
  DeviceMesh mesh_;
  Setup setup_;
  std::vector<DTensor> upstream_;
};

// What the device can do, measured on every rank at once.
class Yardstick {
 public:
  // Products of n x n x n, and copies of `copied` bytes.
  Yardstick(const DeviceMesh& mesh, std::int64_t n, std::int64_t copied, DType dtype,
            std::uint64_t seed);
  double product_rate() const;  // flop/s per rank
  double copy_rate() const;     // bytes read and written per second and rank

 private:
  DeviceMesh mesh_;
  std::int64_t n_;
  Tensor a_, b_, c_;
  Tensor from_, to_;
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
