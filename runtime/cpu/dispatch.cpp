// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/dispatch.hpp"

#include <fmt/format.h>

#include <atomic>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/variables.hpp"

#ifdef TESSERA_X86
namespace tessera::kernels_v2 {
extern const KernelTable table;
}
namespace tessera::kernels_v3 {
extern const KernelTable table;
}
namespace tessera::kernels_v4 {
extern const KernelTable table;
}
#else
namespace tessera::kernels_baseline {
extern const KernelTable table;
}
#endif

namespace tessera {
namespace {

std::vector<CpuVariant> make_variants() {
#ifdef TESSERA_X86
  __builtin_cpu_init();
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return {{"x86-64-v2", "v2", v2, &kernels_v2::table},
          {"x86-64-v3", "v3", v3, &kernels_v3::table},
          {"x86-64-v4", "v4", v4, &kernels_v4::table}};
#else
  return {{"baseline", "baseline", true, &kernels_baseline::table}};
#endif
}

std::string names(bool supported_only) {
  std::string text;
  for (const CpuVariant& variant : cpu_variants())
    if (variant.supported || !supported_only)
      text += (text.empty() ? "" : ", ") + variant.short_name;
  return text;
}

const CpuVariant& find(const std::string& name) {
  for (const CpuVariant& variant : cpu_variants()) {
    if (variant.short_name != name) continue;
    if (variant.supported) return variant;
    throw UsageError({.problem = "the processor lacks the instruction set",
                      .operation = "TESSERA_ISA",
                      .found = name,
                      .expected = names(true)});
  }
  throw UsageError({.problem = "unknown instruction set",
                    .operation = "TESSERA_ISA",
                    .found = name,
                    .expected = names(false)});
}

const CpuVariant& best() {
  const CpuVariant* newest = nullptr;
  for (const CpuVariant& variant : cpu_variants())
    if (variant.supported) newest = &variant;
  if (newest == nullptr)
    throw DeviceError({.problem = "the processor is older than every instruction set built in",
                       .operation = "instruction_set",
                       .expected = names(false)});
  return *newest;
}

// Of the environment, until another one is forced.
std::atomic<const CpuVariant*>& in_use() {
  static std::atomic<const CpuVariant*> variant = [] {
    const std::string name = text_from_environment("TESSERA_ISA");
    return name.empty() ? &best() : &find(name);
  }();
  return variant;
}

}  // namespace

const std::vector<CpuVariant>& cpu_variants() {
  static const std::vector<CpuVariant> variants = make_variants();
  return variants;
}

const CpuVariant& cpu_variant() {
  return *in_use();
}

void force_cpu_variant(const std::string& short_name) {
  in_use() = &find(short_name);
}

}  // namespace tessera
