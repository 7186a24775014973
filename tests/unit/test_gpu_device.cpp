// SPDX-License-Identifier: MIT
// ranks: 1
// The GPU's streams, memory, copies and products, on the imitation, which is as late as a GPU may
// be: each test of an order has a twin that leaves the order out and sees the old values.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>

#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/gpu/imitation/driver.hpp"
#include "tessera/runtime/gpu/imitation/memory.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/stream.hpp"
#include "tessera/runtime/tf32.hpp"

using namespace tessera;

namespace {

constexpr Device gpu0{DeviceKind::imitation, 0};
constexpr Device gpu1{DeviceKind::imitation, 1};

Tensor travelling(const Shape& shape, DType dtype = DType::f32) {
  const PurposeScope purpose(Purpose::communication);
  return Tensor::empty(shape, dtype, gpu0);
}

bool all_are(const Tensor& host, float value) {
  const float* data = host.host_data<float>();
  for (std::int64_t i = 0; i < host.numel(); ++i)
    if (data[i] != value) return false;
  return true;
}

// What the host's calls of the system say of an address, without the risk of a signal.
bool host_can_read(const void* data) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const bool readable = ::write(ends[1], data, 1) == 1;
  if (!readable) CHECK(errno == EFAULT);
  ::close(ends[0]);
  ::close(ends[1]);
  return readable;
}

struct Limited {  // the device's memory, while it lives
  explicit Limited(std::int64_t bytes) { gpu_imitation::set_memory(bytes); }
  ~Limited() { gpu_imitation::set_memory(std::int64_t{1} << 34); }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;
};

std::int64_t free_bytes() {
  return gpu_info(gpu0).free_bytes;
}

}  // namespace

TEST_CASE("work of a stream is done when the host waits for it, and not before", "[stream]") {
  const Tensor t = Tensor::full({100}, 3, DType::f32, gpu0);
  const Tensor host = pinned({100}, DType::f32, gpu0);
  fill(host, 1);
  const Event copied = copy_async(t, host, record(gpu0));
  CHECK(all_are(host, 1));  // a host that does not wait sees the old values
  CHECK_FALSE(copied.done());
  CHECK(all_are(host, 1));
  CHECK(copied.done());  // asked again
  CHECK(all_are(host, 3));

  fill(t, 4);
  const Event again = copy_async(t, host, record(gpu0));
  again.wait();
  CHECK(all_are(host, 4));
  CHECK(again.done());
}

TEST_CASE("waiting for an event runs what was started before it, not what came later", "[stream]") {
  const Tensor host = pinned({10}, DType::f32, gpu0);
  const Tensor first = Tensor::full({10}, 1, DType::f32, gpu0);
  const Event before = record(gpu0);
  const Event after = copy_async(first, host, before);
  fill(first, 2);
  const Event later = record(gpu0);
  after.wait();
  CHECK(all_are(host, 1));
  CHECK(before.done());
  CHECK_FALSE(later.done());
  synchronize(gpu0);
  CHECK(later.done());
}

TEST_CASE("a copy is in step with the operations before it through its event only", "[stream]") {
  for (const bool in_step : {true, false}) {
    CAPTURE(in_step);
    const Tensor t = Tensor::full({50}, 1, DType::f32, gpu0);
    synchronize(gpu0);
    fill(t, 2);
    const Tensor host = pinned({50}, DType::f32, gpu0);
    copy_async(t, host, in_step ? record(gpu0) : Event()).wait();
    CHECK(all_are(host, in_step ? 2 : 1));
  }
}

TEST_CASE("operations are in step with a copy before them through make_wait only", "[stream]") {
  for (const bool in_step : {true, false}) {
    CAPTURE(in_step);
    const Tensor host = pinned({50}, DType::f32, gpu0);
    fill(host, 5);
    const Tensor t = Tensor::full({50}, 1, DType::f32, gpu0);
    const Event arrived = copy_async(host, t, record(gpu0));
    if (in_step) make_wait(gpu0, arrived);
    const Tensor copied = t.clone();
    CHECK(max_abs(copied) == (in_step ? 5 : 1));
    arrived.wait();
  }
}

TEST_CASE("kernels and events are for streams of their device", "[stream]") {
  namespace driver = gpu_imitation::driver;
  driver::set_device(0);
  static const auto stream = driver::create_stream();  // static, as a driver's objects stay
  static const auto event = driver::create_event();
  driver::set_device(1);
  static const auto other_event = driver::create_event();
  require_error<DeviceError>([&] { driver::launch(stream, [] {}); }, "imitation:0", "imitation:1");
  require_error<DeviceError>([&] { driver::record(other_event, stream); }, "imitation:0",
                             "imitation:1");
  driver::record(event, stream);  // whatever is current
  CHECK_FALSE(driver::done(event));
  // What frees on one device does not disturb work on another.
  Tensor other = Tensor::full({10}, 1, DType::f32, gpu1);
  const Tensor t = Tensor::full({10}, 2, DType::f32, gpu0);
  other = {};
  CHECK(max_abs(t) == 2);
}

TEST_CASE("on a CPU every event is done, and copies are", "[stream]") {
  const Event event = record(cpu_device);
  CHECK(event.done());
  event.wait();
  const Tensor from = random_tensor({7, 3}, DType::f64, "from");
  const Tensor to = pinned({7, 3}, DType::f64, cpu_device);
  const std::uint64_t version = to.version();
  CHECK(copy_async(from, to, event).done());
  CHECK(bitwise_equal(from, to));
  CHECK(to.version() == version + 1);
  make_wait(cpu_device, event);
  make_wait(gpu0, event);
}

TEST_CASE("copies between streams name what they refuse", "[stream]") {
  const Tensor t = Tensor::empty({4, 6}, DType::f32, gpu0);
  const Tensor host = pinned({4, 6}, DType::f32, gpu0);
  require_error<ShapeError>(
      [&] {
        copy_async(t, host.view({6, 4}), {});
      },
      "copy_async", "'to'", "[6, 4]");
  require_error<TypeError>(
      [&] {
        copy_async(t, pinned({4, 6}, DType::f64, gpu0), {});
      },
      "copy_async", "f64");
  require_error<StrideError>([&] { copy_async(t.narrow(1, 0, 3), host.narrow(1, 0, 3), {}); },
                             "copy_async", "'from'", "contiguous");
}

TEST_CASE("fresh and freed memory holds NaN", "[memory]") {
  for (const DType dtype : floating_dtypes) {
    CHECK_FALSE(all_finite(Tensor::empty({300}, dtype, gpu0)));
    CHECK_FALSE(all_finite(travelling({300}, dtype).clone()));
    const Tensor host = pinned({300}, dtype, gpu0);
    CHECK_FALSE(all_finite(host));
  }
  Tensor gone = Tensor::full({1000}, 1, DType::f32, gpu0);
  // A view of memory that is no longer owned, as a forgotten reference would have it.
  const Tensor dangling =
      Tensor::wrap(gone.data(), gone.shape(), gone.strides(), DType::f32, gpu0, nullptr);
  CHECK(all_finite(dangling));
  gone = {};
  CHECK_FALSE(all_finite(dangling));
}

TEST_CASE("the pool gives a block again in the order of its stream", "[memory]") {
  Tensor t = Tensor::full({1000}, 1, DType::f32, gpu0);
  const Tensor kept = Tensor::empty({1000}, DType::f32, gpu0);
  copy(t, kept);
  const void* address = t.data();
  t = {};
  const Tensor next = Tensor::full({1000}, 2, DType::f32, gpu0);
  CHECK(next.data() == address);  // though nothing has run yet
  CHECK(max_abs(kept) == 1);
  CHECK(max_abs(next) == 2);
}

TEST_CASE("the pool gives no more than was asked for, but for the alignment", "[memory]") {
  synchronize(gpu0);
  const std::int64_t before = free_bytes();
  const Tensor t = Tensor::empty({1100000}, DType::boolean, gpu0);
  CHECK(before - free_bytes() < 1100000 + 512);
}

TEST_CASE("memory that travels is not the pool's, and is idle when it is handed out", "[memory]") {
  const Tensor host = pinned({1000}, DType::f32, gpu0);
  const void* address = nullptr;
  Event copied;
  {
    const Tensor t = travelling({1000});
    address = t.data();
    fill(t, 7);
    copied = copy_async(t, host, record(gpu0));
  }
  CHECK(Tensor::empty({1000}, DType::f32, gpu0).data() != address);
  const Tensor again = travelling({990});  // the same size class
  CHECK(again.data() == address);
  CHECK(all_are(host, 7));  // the copy out of it came first
  CHECK(copied.done());
  const Tensor other = travelling({1000});
  CHECK(other.data() != address);
}

TEST_CASE("pinned memory is used again, and is not booked", "[memory]") {
  const MemoryCount before = memory_ledger::total();
  const void* address = pinned({5000}, DType::f32, gpu0).data();
  CHECK(pinned({5000}, DType::f32, gpu0).data() == address);
  CHECK(memory_ledger::total().live == before.live);
  CHECK(memory_ledger::total().peak == before.peak);
}

TEST_CASE("pinned memory waits for copies, and not for operations", "[memory]") {
  const Tensor t = Tensor::full({7000}, 1, DType::f32, gpu0);
  const void* address = nullptr;
  Event copied, computed;
  {
    const Tensor host = pinned({7000}, DType::f32, gpu0);
    address = host.data();
    copied = copy_async(t, host, record(gpu0));
    fill(t, 2);
    computed = record(gpu0);
  }
  CHECK(pinned({7000}, DType::f32, gpu0).data() == address);
  CHECK(copied.done());
  CHECK_FALSE(computed.done());
}

TEST_CASE("memory that is lent goes back after the work that uses it", "[memory]") {
  std::vector<float> theirs(100, 4);
  const Tensor copied = Tensor::empty({100}, DType::f32, gpu0);
  {
    const auto owner = lent(gpu0, [&] { theirs.assign(100, 0); });
    copy(Tensor::wrap(theirs.data(), {100}, {1}, DType::f32, gpu0, owner), copied);
    CHECK(theirs[0] == 4);
  }
  CHECK(theirs[0] == 0);
  CHECK(max_abs(copied) == 4);
}

TEST_CASE("the ledger counts on a GPU what it counts on a CPU", "[memory]") {
  const auto booked = [](Device device) {
    const Scope scope(name_of(device));
    const std::int64_t before = memory_ledger::total().live;
    memory_ledger::reset_peak();
    const Tensor a = Tensor::zeros({33, 17}, DType::f64, device);
    const Tensor b = a.transpose(0, 1).clone();
    const Tensor c = Tensor::zeros({33, 33}, DType::f64, device);
    gemm(1, a, b, 0, c);
    { const Tensor d = b.to(DType::f32); }
    gemm(1, a.to(DType::bf16), b.to(DType::bf16), 0, c.to(DType::f32));
    arange(10000, device);
    a.relabel(Purpose::saved);
    const auto entries = memory_ledger::entries();
    return std::vector<std::int64_t>{memory_ledger::total().live - before,
                                     memory_ledger::total().peak - before,
                                     entries.at({current_scope(), Purpose::saved}).live,
                                     entries.at({current_scope(), Purpose::activation}).peak};
  };
  CHECK(booked(cpu_device) == booked(gpu0));
}

TEST_CASE("what a device refuses is an error that says who asked and who holds most", "[memory]") {
  synchronize(gpu0);
  const std::int64_t used = gpu_info(gpu0).total_bytes - free_bytes();
  const Limited limited(used + (std::int64_t{1} << 20));
  const auto book = [](const char* scope, std::int64_t bytes) {
    const Scope layer(scope);
    return Tensor::empty({bytes}, DType::boolean, gpu0);
  };
  const Tensor third = book("third", 50000);
  const Tensor first = book("first", 400000);
  const Tensor fourth = book("fourth", 1000);
  const Tensor second = book("second", 200000);
  const std::int64_t live = memory_ledger::total().live;
  try {
    book("trunk", 600000);
    FAIL("nothing was thrown");
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(
        mentions(error, "[layer trunk]", "imitation:0 refused 600000 bytes",
                 std::to_string(free_bytes()) + " of its " +
                     std::to_string(gpu_info(gpu0).total_bytes) + " are free",
                 "first 400000 bytes (activation), second 200000 bytes (activation), third 50000"));
    CHECK_FALSE(mentions(error, "fourth"));
  }
  CHECK(memory_ledger::total().live == live);  // the refused one is not booked
  book("trunk", 300000);
}

TEST_CASE("what is kept for later is given up before an allocation is refused", "[memory]") {
  synchronize(gpu0);
  const std::int64_t used = gpu_info(gpu0).total_bytes - free_bytes();
  const Limited limited(used + (std::int64_t{1} << 20));
  travelling({200000});  // freed at once, and kept
  CHECK(free_bytes() < 300000);
  const Tensor large = Tensor::empty({900000}, DType::boolean, gpu0);
  CHECK(free_bytes() < 200000);
}

TEST_CASE("copies go in all directions", "[copy]") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64, DType::boolean}) {
    CAPTURE(name_of(dtype));
    const Tensor x = random_tensor({3, 5, 7}, DType::f32, "x");
    scale(100, x);
    const Tensor host = x.to(dtype);
    const Tensor on_device = host.to(gpu0);
    CHECK(on_device.device() == gpu0);
    CHECK(bitwise_equal(on_device.to(cpu_device), host));
    CHECK(bitwise_equal(on_device.to(gpu1).to(cpu_device), host));
    // Strided to strided, where they are.
    const Tensor turned = on_device.permute({2, 0, 1});
    CHECK(bitwise_equal(turned.to(cpu_device), host.permute({2, 0, 1})));
    const Tensor room = Tensor::zeros({7, 3, 9}, dtype, gpu0);
    copy(turned, room.narrow(2, 2, 5));
    CHECK(bitwise_equal(room.to(cpu_device).narrow(2, 2, 5), host.permute({2, 0, 1})));
    CHECK(bitwise_equal(room.to(cpu_device).narrow(2, 0, 2), Tensor::zeros({7, 3, 2}, dtype)));
    CHECK(bitwise_equal(host.to(gpu0).to(DType::f64).to(cpu_device), host.to(DType::f64)));
  }
  CHECK(Tensor::empty({0, 3}, DType::f32, gpu0).to(cpu_device).numel() == 0);
  CHECK(Tensor::empty({4}, DType::f32, gpu0).to(meta_device).shape() == Shape{4});
  const Tensor device = Tensor::zeros({4, 4}, DType::f32, gpu0);
  require_error<StrideError>(
      [&] {
        copy(Tensor::zeros({4, 4}, DType::f32).transpose(0, 1), device);
      },
      "copy", "'src'", "contiguous");
  require_error<DeviceError>([&] { device.host_data<float>(); }, "imitation:0", "to(cpu_device)");
}

TEST_CASE("a guarded device's memory is out of the host's reach, but for its own work",
          "[memory]") {
  const Tensor t = Tensor::full({100}, 2, DType::f32, gpu0);
  const Tensor arena = travelling({100});
  CHECK(host_can_read(t.data()));
  gpu_imitation::set_guard(true);
  CHECK_FALSE(host_can_read(t.data()));
  CHECK_FALSE(host_can_read(arena.data()));
  CHECK(host_can_read(pinned({10}, DType::f32, gpu0).data()));
  CHECK(max_abs(t) == 2);
  fill(arena, 3);
  CHECK(max_abs(arena.to(cpu_device)) == 3);
  CHECK_FALSE(host_can_read(t.data()));
  const Tensor fresh = travelling({100000});  // made while guarded
  CHECK_FALSE(host_can_read(fresh.data()));
  gpu_imitation::set_guard(false);
  CHECK(host_can_read(t.data()));
  CHECK(host_can_read(fresh.data()));
}

TEST_CASE("devices that are not there are refused, and the default one can be chosen", "[device]") {
  CHECK(gpu_count(DeviceKind::imitation) > 1);
  CHECK(gpu_count(DeviceKind::cpu) == 0);
  require_error<DeviceError>(
      [] {
        require_device({DeviceKind::imitation, 9999});
      },
      "imitation:9999", "TESSERA_IMITATION_DEVICES");
  CHECK(name_of(parse_device("imitation")) == "imitation:0");
  set_default_gpu(1);
  CHECK(parse_device("imitation") == gpu1);
  CHECK(parse_device("imitation:0") == gpu0);
  set_default_gpu(0);
  CHECK(gpu_info(gpu0).identity != gpu_info(gpu1).identity);
  CHECK(gpu_info(gpu0).identity == gpu_info(gpu0).identity);
  CHECK(gpu_info(gpu0).total_bytes >= free_bytes());
}

namespace {

// The values of t stored by columns, with room between them.
Tensor by_column(const Tensor& t) {
  const Tensor room = Tensor::empty({t.size(0), t.size(2), t.size(1) + 3}, t.dtype(), t.device());
  const Tensor view = room.narrow(2, 1, t.size(1)).transpose(1, 2);
  copy(t, view);
  return view;
}
// By rows, with room.
Tensor by_row(const Tensor& t) {
  const Tensor room = Tensor::empty({t.size(0), t.size(1), t.size(2) + 2}, t.dtype(), t.device());
  const Tensor view = room.narrow(2, 1, t.size(2));
  copy(t, view);
  return view;
}

// The product of k terms below 1 in another order of the sum, in the arithmetic of the CPU and of
// the device.
double tolerance_of(DType dtype, DType c_dtype, std::int64_t k) {
  return 2 * rounding_of(at_least_f32(dtype)) * static_cast<double>(k + 8) +
         2 * rounding_of(c_dtype);
}

}  // namespace

TEST_CASE("products on a GPU agree with the CPU's in all layouts", "[gemm]") {
  struct Sizes {
    std::int64_t batch, m, n, k;
  };
  for (const DType dtype : floating_dtypes)
    for (const Sizes s : {Sizes{1, 1, 1, 1}, Sizes{2, 1, 17, 5}, Sizes{1, 37, 1, 64},
                          Sizes{3, 16, 16, 16}, Sizes{2, 19, 23, 1}, Sizes{2, 1, 1, 9},
                          Sizes{2, 45, 37, 100}, Sizes{4, 0, 3, 3}, Sizes{4, 3, 2, 0}})
      for (int layout = 0; layout < 9; ++layout)
        for (const DType c_dtype : {dtype, at_least_f32(dtype)})
          for (const double beta : {0.0, -2.0}) {
            CAPTURE(name_of(dtype), name_of(c_dtype), s.batch, s.m, s.n, s.k, layout, beta);
            const auto arranged = [](const Tensor& t, int how) {
              return how == 0 ? t : how == 1 ? by_row(t) : by_column(t);
            };
            const Tensor a = random_tensor({s.batch, s.m, s.k}, dtype, "a");
            const Tensor b = random_tensor({s.batch, s.k, s.n}, dtype, "b");
            const Tensor c = random_tensor({s.batch, s.m, s.n + 2}, c_dtype, "c");
            const Tensor expected = c.clone();
            gemm(0.5, a, b, beta, expected.narrow(2, 1, s.n));
            const Tensor found = c.to(gpu0);
            gemm(0.5, arranged(a.to(gpu0), layout % 3), arranged(b.to(gpu0), layout / 3), beta,
                 found.narrow(2, 1, s.n));
            check_close(found, to_values(expected), tolerance_of(dtype, c_dtype, s.k));
            // What lies beside the view is untouched.
            const Tensor back = found.to(cpu_device);
            CHECK(bitwise_equal(back.select(2, 0), c.select(2, 0)));
            CHECK(bitwise_equal(back.select(2, s.n + 1), c.select(2, s.n + 1)));
          }
}

TEST_CASE("products on a GPU take broadcast operands and matrices without batch", "[gemm]") {
  const Tensor a = random_tensor({20, 30}, DType::f64, "a");
  const Tensor b = random_tensor({30, 10}, DType::f64, "b");
  const Tensor c = Tensor::empty({20, 10}, DType::f64);
  gemm(1, a, b, 0, c);
  const Tensor on_device = Tensor::empty({20, 10}, DType::f64, gpu0);
  gemm(1, a.to(gpu0), b.to(gpu0), 0, on_device);
  check_close(on_device, to_values(c), 1e-14);
  const Tensor twice = Tensor::empty({2, 20, 10}, DType::f64, gpu0);
  gemm(1, a.to(gpu0).as_strided({2, 20, 30}, {0, 30, 1}, 0),
       b.to(gpu0).as_strided({2, 30, 10}, {0, 10, 1}, 0), 0, twice);
  for (int i = 0; i < 2; ++i)
    CHECK(bitwise_equal(twice.select(0, i).to(cpu_device), on_device.to(cpu_device)));
  const Tensor row = a.to(gpu0).narrow(0, 3, 1);
  gemm(1, row.as_strided({20, 30}, {0, 1}, 0), b.to(gpu0), 0, on_device);
  for (std::int64_t i = 0; i < 20; ++i)
    CHECK(std::abs(on_device.item({i, 4}) - c.item({3, 4})) < 1e-14);
}

TEST_CASE("a leading dimension that is too small is refused, as by cuBLAS", "[gemm]") {
  namespace driver = gpu_imitation::driver;
  const Tensor t = Tensor::zeros({64}, DType::f32, gpu0);
  const auto product = [&](std::int64_t a, std::int64_t b, std::int64_t c) {
    return driver::Gemm{.dtype = DType::f32,
                        .c_dtype = DType::f32,
                        .tf32 = false,
                        .m = 4,
                        .n = 3,
                        .k = 2,
                        .batch = 1,
                        .alpha = 1,
                        .beta = 0,
                        .a = {t.data(), false, a, 0},
                        .b = {t.data(), true, b, 0},
                        .c = t.data(),
                        .c_leading = c,
                        .c_batch_stride = 0};
  };
  static const driver::Blas blas = driver::create_blas(driver::create_stream());  // has no end
  driver::gemm(blas, product(4, 3, 4));
  require_error<DeviceError>([&] { driver::gemm(blas, product(3, 3, 4)); }, "gemm", "'a'");
  require_error<DeviceError>([&] { driver::gemm(blas, product(4, 2, 4)); }, "gemm", "'b'");
  require_error<DeviceError>([&] { driver::gemm(blas, product(4, 3, 3)); }, "gemm", "'c'");
}

TEST_CASE("TF32 is used for f32 products if asked for, and only for these", "[gemm]") {
  const auto error_of = [](DType dtype) {
    const Tensor a = random_tensor({30, 40}, dtype, "a");
    const Tensor b = random_tensor({40, 20}, dtype, "b");
    const Tensor c = Tensor::empty({30, 20}, dtype);
    gemm(1, a, b, 0, c);
    const Tensor found = Tensor::empty({30, 20}, dtype, gpu0);
    gemm(1, a.to(gpu0), b.to(gpu0), 0, found);
    return max_difference(found.to(cpu_device), c).max_abs;
  };
  CHECK_FALSE(tf32());
  CHECK(error_of(DType::f32) < 1e-5);
  set_tf32(true);
  CHECK(error_of(DType::f32) > 1e-5);
  CHECK(error_of(DType::f32) < 40 * 0x1p-10);
  CHECK(error_of(DType::f64) < 1e-14);
  set_tf32(false);
}
