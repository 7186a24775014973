// SPDX-License-Identifier: MIT
// tessera bench layer: rates of layers as ratios to a large matrix product in the same run.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "subcommands.hpp"
#include "tessera/harness/trace.hpp"
#include "tessera/harness/workload.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/tf32.hpp"

namespace tessera::tools {
namespace {

using namespace harness;

struct Options {
  std::vector<std::string> cases{"triangle_multiplication_outgoing"};
  std::string mesh, dtype = "f32", json, trace;
  DeviceOptions device;
  Sizes sizes{1, 256, 128};
  std::int64_t product = 2048;
  std::int64_t copied = std::int64_t{64} << 20;
  int repeat = 5;
  bool tf32 = false;
  std::uint64_t seed = 1;
};

struct Timing {
  double forward = 0;    // seconds, median
  double training = 0;   // forward, backward, reduction of the gradients
  double gemm_rate = 0;  // flop/s per rank, median
  double copy_rate = 0;  // bytes/s per rank, median
};

// Forward alone, training and the yardsticks take turns, so that a change of the machine's speed
// meets all of them.
Timing measure(const Workload& workload, const Yardstick& yardstick, const DeviceMesh& mesh,
               int repeat) {
  std::vector<double> products, copies, forwards, trainings;
  yardstick.product_rate();
  yardstick.copy_rate();
  for (int k = 0; k < repeat; ++k) {
    products.push_back(yardstick.product_rate());
    copies.push_back(yardstick.copy_rate());
    forwards.push_back(seconds_of(mesh, [&] { workload.forward(); }));
    trainings.push_back(seconds_of(mesh, [&] { workload.training(); }));
  }
  return {median(forwards), median(trainings), median(products), median(copies)};
}

// Rates per rank of one pass, and what they are of the yardsticks'.
struct Rates {
  double seconds, gflop, rate, to_product, to_copy;
};

Rates rates_of(double flops, double bytes, double seconds, double ranks, const Timing& t) {
  const double rate = flops / ranks / seconds;
  return {seconds, flops * 1e-9, rate, rate / t.gemm_rate, bytes / ranks / seconds / t.copy_rate};
}

std::string columns(const Rates& r) {
  return fmt::format(" {:>9.2f} {:>9.4f} {:>8.1f} {:>6.2f} {:>6.2f}", r.gflop, r.seconds,
                     r.rate * 1e-9, r.to_product, r.to_copy);
}

void append(nlohmann::ordered_json& row, const std::string& pass, const Rates& r, double bytes) {
  row[pass + "_flops"] = r.gflop * 1e9;
  row[pass + "_bytes"] = bytes;
  row[pass + "_seconds"] = r.seconds;
  row[pass + "_rate"] = r.rate;
  row[pass + "_ratio"] = r.to_product;
  row[pass + "_copy_ratio"] = r.to_copy;
}

// One line of the table, also as JSON.
nlohmann::ordered_json print_rates(const Session& session, const std::string& name,
                                   const Flops& flops, const Traffic& traffic, const Timing& t) {
  const double ranks = session.world.size();
  const Rates forward = rates_of(flops.forward, traffic.forward, t.forward, ranks, t);
  const Rates training = rates_of(flops.training, traffic.training, t.training, ranks, t);
  print(session, fmt::format("{:<34} {:>9.1f} {:>9.1f}{}{}\n", name, t.gemm_rate * 1e-9,
                             t.copy_rate * 1e-9, columns(forward), columns(training)));
  nlohmann::ordered_json row{
      {"name", name}, {"gemm_rate", t.gemm_rate}, {"copy_rate", t.copy_rate}};
  append(row, "forward", forward, traffic.forward);
  append(row, "training", training, traffic.training);
  return row;
}

int bench_layer(const Session& session, const Options& o) {
  const std::vector<Case> cases = select_cases(o.cases);
  const DType dtype = *parse_dtype(o.dtype);
  const DeviceMesh mesh = make_mesh(session, o.mesh, o.device);
  use_tf32(o.tf32, mesh);
  print(session,
        fmt::format("tessera {} bench layer: {}, {}{} on {}, B={} N={} C={}, {}, {} thread(s) "
                    "per rank, median of {}\n",
                    version(), mesh.describe(), name_of(dtype), tf32() ? " (TF32)" : "",
                    name_of(mesh.device()), o.sizes.batch, o.sizes.tokens, o.sizes.channels,
                    instruction_set(), thread_count(), o.repeat));
  print(session,
        fmt::format("{:<34} {:>9} {:>9} {:>9} {:>9} {:>8} {:>6} {:>6} {:>9} {:>9} {:>8} {:>6} "
                    "{:>6}\n",
                    "case", "gemm GF/s", "copy GB/s", "fwd GF", "s", "GF/s", "ratio", "copy",
                    "train GF", "s", "GF/s", "ratio", "copy"));
  // CPUs multiply bf16 as f32.
  const DType product = is_gpu(mesh.device()) ? dtype : at_least_f32(dtype);
  const Yardstick yardstick(mesh, o.product, o.copied, product, o.seed);
  const Timelines timelines(mesh);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Case& c : cases) {
    const Workload workload(c, o.sizes, mesh, dtype, o.seed);
    const Flops flops = workload.flops();
    const Traffic traffic = workload.traffic();
    const Timing timing = measure(workload, yardstick, mesh, o.repeat);
    rows.push_back(print_rates(session, c.name, flops, traffic, timing));
    if (o.trace.empty()) continue;
    barrier(mesh);
    workload.training(true);  // not timed: recording has a price
  }
  print(session,
        fmt::format("train: forward, backward and the reduction of parameter gradients. GF: the "
                    "multiplications and additions of\nall matrix products on all ranks, counted "
                    "as they are done, those done again in backward to save memory included.\n"
                    "GF/s: per rank. ratio: to gemm, {0} x {0} x {0} in {1} in the same run.\n"
                    "copy: the bytes that must be moved at least (inputs, parameters, outputs; in "
                    "training their gradients and twice\nwhat is saved) per second, to the rate "
                    "of a copy of {2} MiB in the same run, read and written.\n",
                    o.product, name_of(product), o.copied >> 20));
  if (name_of(mesh.device()).starts_with("imitation"))
    print(session, "The device is an imitation, loops on the host: no number here is a GPU's.\n");
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
                                        {"tf32", tf32()},
                                        {"device", name_of(mesh.device())},
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
  add_device_options(layer, o->device);
  layer.add_flag("--tf32", o->tf32, "let a GPU cut f32 operands of products to TF32");
  layer.add_option("--tokens", o->sizes.tokens, "tokens")
      ->check(whole_number())
      ->capture_default_str();
  layer.add_option("--channels", o->sizes.channels, "channels")
      ->check(whole_number())
      ->capture_default_str();
  layer.add_option("--batch", o->sizes.batch, "samples")
      ->check(whole_number())
      ->capture_default_str();
  layer.add_option("--msa", o->sizes.msa, "MSA rows (default: twice the tokens)")
      ->check(whole_number());
  layer.add_option("--product", o->product, "side of the matrix product it is held against")
      ->check(whole_number())
      ->capture_default_str();
  layer.add_option("--copied", o->copied, "bytes of the copy that it is held against")
      ->check(CLI::Range(std::int64_t{1} << 20, std::int64_t{1} << 40))
      ->capture_default_str();
  layer.add_option("--repeat", o->repeat, "timed runs")
      ->check(whole_number())
      ->capture_default_str();
  add_group_option(layer);
  layer.add_option("--seed", o->seed, "of the inputs")->capture_default_str();
  layer.add_option("--trace", o->trace, "write the timeline of one run of each case, for Perfetto");
  layer.add_option("--json", o->json, "write the results to a file");
  const Run scaling = add_scaling(app);
  return [o, scaling, &layer](const Session& session) {
    return layer.parsed() ? bench_layer(session, *o) : scaling(session);
  };
}

}  // namespace tessera::tools
