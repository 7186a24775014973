// SPDX-License-Identifier: MIT
// ranks: 1
#include "tessera/runtime/memory.hpp"

#include <cstring>

#include "support/errors.hpp"
#include "tessera/runtime/cpu/memory.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

std::int64_t live(const char* scope, Purpose purpose) {
  const auto entries = memory_ledger::entries();
  const auto found = entries.find({scope, purpose});
  return found == entries.end() ? 0 : found->second.live;
}

constexpr std::int64_t mib = std::int64_t{1} << 20;

}  // namespace

TEST_CASE("allocations are booked under scope and purpose, and leave the ledger when freed") {
  const std::int64_t before = memory_ledger::total().live;
  {
    const Scope outer("model");
    const Scope inner("layer0");
    CHECK(current_scope() == "model.layer0");
    const PurposeScope purpose(Purpose::gradient);
    const Tensor t = Tensor::empty({100}, DType::f64);
    CHECK(live("model.layer0", Purpose::gradient) == 800);
    CHECK(memory_ledger::total().live == before + 800);
    const Tensor view = t.narrow(0, 0, 10);
    CHECK(memory_ledger::total().live == before + 800);  // views are free
  }
  CHECK(current_scope().empty());
  CHECK(current_purpose() == Purpose::activation);
  CHECK(live("model.layer0", Purpose::gradient) == 0);
  CHECK(memory_ledger::total().live == before);
}

TEST_CASE("the peak is the highest total since the last reset") {
  memory_ledger::reset_peak();
  const std::int64_t before = memory_ledger::total().live;
  CHECK(memory_ledger::total().peak == before);
  Tensor a = Tensor::empty({1000}, DType::f32);
  { const Tensor b = Tensor::empty({500}, DType::f32); }
  const Tensor c = Tensor::empty({100}, DType::f32);
  CHECK(memory_ledger::total().peak == before + 6000);
  CHECK(memory_ledger::total().live == before + 4400);
  a = {};
  memory_ledger::reset_peak();
  CHECK(memory_ledger::total().peak == before + 400);
}

TEST_CASE("relabelling moves bytes from one purpose to another") {
  const std::int64_t saved = memory_ledger::total(Purpose::saved).live;
  const std::int64_t activation = memory_ledger::total(Purpose::activation).live;
  {
    const Tensor t = Tensor::empty({8}, DType::f64);
    CHECK(memory_ledger::total(Purpose::activation).live == activation + 64);
    t.narrow(0, 2, 2).relabel(Purpose::saved);  // the whole storage moves
    CHECK(memory_ledger::total(Purpose::activation).live == activation);
    CHECK(memory_ledger::total(Purpose::saved).live == saved + 64);
  }
  CHECK(memory_ledger::total(Purpose::saved).live == saved);
}

TEST_CASE("the limit refuses what would exceed it, and says by how much") {
  const std::int64_t now = memory_ledger::total().live;
  memory_ledger::set_limit(now + 1000);
  const Tensor fits = Tensor::empty({1000}, DType::boolean);
  require_error<OutOfMemoryError>([] { Tensor::empty({24}, DType::boolean); }, "24 bytes",
                                  "missing");
  memory_ledger::set_limit(0);
  CHECK(memory_ledger::total().live == now + 1000);  // the refused one is not booked
  Tensor::empty({24}, DType::boolean);
}

TEST_CASE("memory is aligned, and empty tensors have an address") {
  for (const std::int64_t size : {0, 1, 100, 5000000}) {
    const Tensor t = Tensor::empty({size}, DType::boolean);
    CHECK(t.data() != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(t.data()) % 64 == 0);
  }
}

#ifndef __SANITIZE_ADDRESS__  // which has an allocator of its own
TEST_CASE("what the system refuses is an error that names the bytes and who holds most") {
  const Scope outer("trunk");
  Tensor held;
  {
    const Scope inner("layer3");
    held = Tensor::empty({1000}, DType::f64);
  }
  const std::int64_t before = memory_ledger::total().live;
  require_error<OutOfMemoryError>([] { Tensor::empty({std::int64_t{1} << 55}, DType::f64); },
                                  "288230376151711744");
  require_error<OutOfMemoryError>([] { Tensor::empty({std::int64_t{1} << 46}, DType::f64); },
                                  "562949953421312", "[layer trunk]",
                                  "trunk.layer3 8000 bytes (activation)");
  CHECK(memory_ledger::total().live == before);
}

TEST_CASE("large blocks are kept and used again, up to a bound") {
  cpu::release_cache();
  CHECK(cpu::cached_bytes() == 0);
  const void* address = nullptr;
  {
    const Tensor t = Tensor::empty({3 * mib}, DType::boolean);
    address = t.data();
  }
  CHECK(cpu::cached_bytes() == 3 * mib);
  {
    const Tensor again = Tensor::empty({3 * mib - 1000}, DType::boolean);  // the same size class
    CHECK(again.data() == address);
    CHECK(cpu::cached_bytes() == 0);
    const Tensor small = Tensor::empty({1000}, DType::boolean);  // does not come from the cache
  }
  CHECK(cpu::cached_bytes() == 3 * mib);
  {
    const Tensor larger = Tensor::empty({8 * mib}, DType::boolean);
    CHECK(cpu::cached_bytes() == 3 * mib);
  }
  for (int i = 0; i < 100; ++i) Tensor::empty({(40 + i) * mib}, DType::boolean);
  CHECK(cpu::cached_bytes() <= 256 * mib);
  CHECK(cpu::cached_bytes() > 0);
  cpu::release_cache();
  CHECK(cpu::cached_bytes() == 0);
}
#endif

#ifdef TESSERA_ASSERTIONS
TEST_CASE("fresh memory holds NaN where assertions are on") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    { const Tensor used = Tensor::full({2 * mib}, 1, dtype); }
    CHECK_FALSE(all_finite(Tensor::empty({2 * mib}, dtype)));
    CHECK_FALSE(all_finite(Tensor::empty({1}, dtype)));
  }
}
#endif
