// SPDX-License-Identifier: MIT
// tessera bench layer: rates of layers as ratios to a large matrix product in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "harness/case.hpp"
#include "harness/problem.hpp"
#include "harness/trace.hpp"
#include "program.hpp"
#include "tessera/autodiff/gradients.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/random.hpp"

namespace tessera::tools {
namespace {

using namespace harness;

struct Options {
  std::vector<std::string> cases{"triangle_multiplication_outgoing"};
  std::string mesh, dtype = "f32", device = "cpu", json, trace;
  Sizes sizes{1, 256, 128};
  std::int64_t product = 2048;
  int repeat = 5;
  std::uint64_t seed = 1;
};

struct Timing {
  std::string name;
  double flops = 0;     // forward; backward counts twice that
  double forward = 0;   // seconds, median
  double training = 0;  // forward + backward
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

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

// The yardstick: n x n x n, on every rank at once, flop/s per rank.
class Yardstick {
 public:
  Yardstick(const DeviceMesh& mesh, std::int64_t n, DType dtype, std::uint64_t seed)
      : mesh_(mesh), n_(n) {
    for (Tensor* t : {&a_, &b_, &c_}) *t = Tensor::empty({n, n}, dtype, mesh.device());
    fill_uniform(a_, {seed, stream_id("a")}, whole({n, n}), -1, 1);
    fill_uniform(b_, {seed, stream_id("b")}, whole({n, n}), -1, 1);
  }
  double rate() const {
    const double seconds = seconds_of(mesh_, [&] { gemm(1, a_, b_, 0, c_); });
    return 2.0 * static_cast<double>(n_) * static_cast<double>(n_) * static_cast<double>(n_) /
           seconds;
  }

 private:
  DeviceMesh mesh_;
  std::int64_t n_;
  Tensor a_, b_, c_;
};

struct Measured {
  Timing timing;
  std::vector<double> rates;
};

// Forward alone, forward with backward and the yardstick take turns, so that a change of the
// machine's speed meets all three.
Measured measure(const Case& c, const Options& o, const DeviceMesh& mesh, DType dtype) {
  const Problem problem = c.problem(o.sizes);
  const Setup setup = random_setup(c, problem, mesh, dtype, o.seed);
  const Yardstick yardstick(mesh, o.product, at_least_f32(dtype), o.seed);
  std::vector<Var> parameters = setup.instance.module->parameters();
  const auto forward = [&] {
    std::vector<Var> constants;
    for (const DTensor& x : setup.inputs) constants.push_back(Var::constant(x));
    const NoGrad no_grad;
    return setup.instance.forward(constants);
  };
  std::vector<DTensor> upstream;
  for (const Var& y : forward())
    upstream.push_back(is_floating(y.value().dtype()) ? setup.upstream(y.value(), upstream.size())
                                                      : DTensor());
  const auto training = [&](bool traced) {
    const trace::Recording recording(traced);
    const Scope scope(c.name);
    Tape tape;
    const std::vector<Var> outputs = setup.instance.forward(inputs_on(tape, setup));
    std::vector<Tape::Seed> start;
    for (std::size_t k = 0; k < outputs.size(); ++k)
      if (outputs[k].requires_grad()) start.push_back({outputs[k], upstream[k]});
    tape.backward(start);
    reduce_gradients(mesh, parameters);
    setup.instance.module->zero_grad();
  };
  Measured m{{c.name, problem.forward_flops, 0, 0}, {}};
  std::vector<double> forwards, trainings;
  forward();
  training(false);
  yardstick.rate();
  for (int k = 0; k < o.repeat; ++k) {
    m.rates.push_back(yardstick.rate());
    forwards.push_back(seconds_of(mesh, forward));
    trainings.push_back(seconds_of(mesh, [&] { training(false); }));
  }
  if (!o.trace.empty()) {  // not timed: recording has a price
    barrier(mesh);
    training(true);
  }
  m.timing.forward = median(forwards);
  m.timing.training = median(trainings);
  return m;
}

int run_bench(const Session& session, const Options& o) {
  const std::vector<Case> cases = select_cases(o.cases);
  const DType dtype = *parse_dtype(o.dtype);
  const DeviceMesh mesh = make_mesh(session, o.mesh, parse_device(o.device));
  print(session,
        fmt::format("tessera {} bench layer: mesh {}, {}, B={} N={} C={}, {}, {} thread(s) per "
                    "rank, median of {}\n",
                    version(), mesh.describe(), name_of(dtype), o.sizes.batch, o.sizes.tokens,
                    o.sizes.channels, instruction_set(), thread_count(), o.repeat));
  print(session, fmt::format("{:<34} {:>9} {:>10} {:>9} {:>7} {:>10} {:>9} {:>7}\n", "case",
                             "GF/s gemm", "fwd s", "GF/s", "ratio", "fwd+bwd s", "GF/s", "ratio"));
  const Timelines timelines(mesh);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Case& c : cases) {
    const Measured m = measure(c, o, mesh, dtype);
    const double gemm_rate = median(m.rates);
    const double ranks = mesh.ranks();
    const double forward_rate = m.timing.flops / ranks / m.timing.forward;
    const double training_rate = 3 * m.timing.flops / ranks / m.timing.training;
    print(session,
          fmt::format("{:<34} {:>9.1f} {:>10.4f} {:>9.1f} {:>7.2f} {:>10.4f} {:>9.1f} {:>7.2f}\n",
                      c.name, gemm_rate * 1e-9, m.timing.forward, forward_rate * 1e-9,
                      forward_rate / gemm_rate, m.timing.training, training_rate * 1e-9,
                      training_rate / gemm_rate));
    rows.push_back({{"name", c.name},
                    {"forward_flops", m.timing.flops},
                    {"gemm_rate", gemm_rate},
                    {"forward_seconds", m.timing.forward},
                    {"forward_rate", forward_rate},
                    {"forward_ratio", forward_rate / gemm_rate},
                    {"training_seconds", m.timing.training},
                    {"training_rate", training_rate},
                    {"training_ratio", training_rate / gemm_rate}});
  }
  print(session, fmt::format("Rates are per rank. Counted are the multiplications and additions of "
                             "the layer's matrix products,\n"
                             "forward once, backward twice that; what is computed again to save "
                             "memory is not counted.\n"
                             "gemm: {0} x {0} x {0} in the same run.\n",
                             o.product));
  if (!o.trace.empty()) {
    const TraceFile file = timelines.collect(session.command);
    print(session, file.summary);
    write_file(mesh, o.trace, file.json, "--trace");
  }
  if (!o.json.empty()) {
    const nlohmann::ordered_json report{{"version", 1},
                                        {"command", session.command},
                                        {"ranks", mesh.ranks()},
                                        {"dtype", name_of(dtype)},
                                        {"instruction_set", instruction_set()},
                                        {"threads", thread_count()},
                                        {"product", o.product},
                                        {"cases", rows}};
    write_file(mesh, o.json, report.dump(1) + "\n");
  }
  return 0;
}

}  // namespace

Run add_bench(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  app.require_subcommand(1);
  CLI::App& layer = *app.add_subcommand("layer", "one or more layers, forward and backward");
  layer.add_option("--case", o->cases, "case or glob; may be repeated")->capture_default_str();
  layer.add_option("--mesh", o->mesh, "CP0xCP1 or DPxCP0xCP1 (default: squarest for the ranks)");
  layer.add_option("--dtype", o->dtype, "activations")
      ->check(CLI::IsMember({"f64", "f32", "bf16"}))
      ->capture_default_str();
  layer.add_option("--device", o->device, "cpu or cuda")->capture_default_str();
  layer.add_option("--tokens", o->sizes.tokens, "tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  layer.add_option("--channels", o->sizes.channels, "channels")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  layer.add_option("--batch", o->sizes.batch, "samples")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  layer.add_option("--msa", o->sizes.msa, "MSA rows (default: twice the tokens)")
      ->check(CLI::PositiveNumber);
  layer.add_option("--product", o->product, "side of the matrix product it is held against")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  layer.add_option("--repeat", o->repeat, "timed runs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  layer.add_option("--seed", o->seed, "of the inputs")->capture_default_str();
  layer.add_option("--trace", o->trace, "write the timeline of one run of each case, for Perfetto");
  layer.add_option("--json", o->json, "write the results to a file");
  return [o](const Session& session) { return run_bench(session, *o); };
}

}  // namespace tessera::tools
