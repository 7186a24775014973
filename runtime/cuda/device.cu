// SPDX-License-Identifier: MIT
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/runtime/cuda/device.hpp"
#include "tessera/runtime/cuda/launch.cuh"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/memory.hpp"

namespace tessera::cuda {
namespace {

// Memory of purpose `communication`: plain cudaMalloc, since MPI libraries fail on stream-ordered
// memory, and kept when freed. A block is handed out again only after the work that was in flight
// when it was freed, for MPI does not wait for the stream.
class Arena {
 public:
  void* take(std::size_t bytes) {
    Block block{};
    {
      std::lock_guard lock(mutex_);
      auto& blocks = blocks_[bytes];
      if (!blocks.empty()) {
        block = blocks.back();
        blocks.pop_back();
      }
    }
    if (block.data == nullptr) {
      if (cudaMalloc(&block.data, bytes) == cudaSuccess) return block.data;
      cudaGetLastError();
      return nullptr;
    }
    check(cudaEventSynchronize(block.freed), "cudaEventSynchronize");
    check(cudaEventDestroy(block.freed), "cudaEventDestroy");
    return block.data;
  }

  void give(void* data, std::size_t bytes, cudaStream_t stream) noexcept {
    Block block{data, nullptr};
    if (cudaEventCreateWithFlags(&block.freed, cudaEventDisableTiming) != cudaSuccess ||
        cudaEventRecord(block.freed, stream) != cudaSuccess) {
      cudaFree(data);
      return;
    }
    std::lock_guard lock(mutex_);
    blocks_[bytes].push_back(block);
  }

  void release() {
    std::lock_guard lock(mutex_);
    for (auto& [bytes, blocks] : blocks_)
      for (const Block& block : blocks) {
        cudaFree(block.data);
        cudaEventDestroy(block.freed);
      }
    blocks_.clear();
  }

 private:
  struct Block {
    void* data;
    cudaEvent_t freed;
  };
  std::mutex mutex_;
  std::map<std::size_t, std::vector<Block>> blocks_;
};

struct State {
  cudaStream_t stream = nullptr;
  cublasHandle_t cublas = nullptr;
  cudaMemPool_t pool = nullptr;
  Arena arena;
};

int device_count() {
  static const int count = [] {
    int found = 0;
    return cudaGetDeviceCount(&found) == cudaSuccess ? found : 0;
  }();
  return count;
}

void prepare(State& state, int index) {
  check(cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking),
        "cudaStreamCreateWithFlags");
  check(cublasCreate(&state.cublas), "cublasCreate");
  check(cublasSetStream(state.cublas, state.stream), "cublasSetStream");
  check(cudaDeviceGetDefaultMemPool(&state.pool, index), "cudaDeviceGetDefaultMemPool");
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  check(cudaMemPoolSetAttribute(state.pool, cudaMemPoolAttrReleaseThreshold, &keep),
        "cudaMemPoolSetAttribute");
}

// The state of a device, which becomes the thread's current one. Never destroyed: the driver may
// be gone when static destructors run.
State& use(int index) {
  require(index);
  check(cudaSetDevice(index), "cudaSetDevice");
  static auto* states = new std::vector<State>(static_cast<std::size_t>(device_count()));
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  State& state = (*states)[static_cast<std::size_t>(index)];
  if (state.stream == nullptr) prepare(state, index);
  return state;
}

State& current() {
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  return use(index);
}

void* try_allocate(State& state, std::size_t bytes, bool communication) {
  if (communication) return state.arena.take(bytes);
  void* data = nullptr;
  const cudaError_t status = cudaMallocAsync(&data, bytes, state.stream);
  if (status == cudaSuccess) return data;
  if (status != cudaErrorMemoryAllocation) check(status, "cudaMallocAsync");
  cudaGetLastError();
  return nullptr;
}

void release_caches(State& state) {
  check(cudaStreamSynchronize(state.stream), "cudaStreamSynchronize");
  check(cudaMemPoolTrimTo(state.pool, 0), "cudaMemPoolTrimTo");
  state.arena.release();
}

[[noreturn]] void fail(const char* call, const char* text, const char* name, int code) {
  throw DeviceError({.problem = std::string(call) + " failed: " + text,
                     .operation = call,
                     .found = std::string(name) + " (" + std::to_string(code) + ")"});
}

std::string name_of(int index) {
  return "cuda:" + std::to_string(index);
}

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    fail(call, cudaGetErrorString(status), cudaGetErrorName(status), static_cast<int>(status));
}

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(call, cublasGetStatusString(status), cublasGetStatusName(status),
         static_cast<int>(status));
}

cudaStream_t stream() {
  return current().stream;
}
cublasHandle_t cublas() {
  return current().cublas;
}

std::string toolkit() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

void require(int index) {
  if (index >= 0 && index < device_count()) return;
  throw DeviceError({.problem = device_count() == 0 ? "there is no CUDA device, or no driver"
                                                    : "there is no such CUDA device",
                     .operation = "require_device",
                     .found = name_of(index),
                     .expected = "one of " + std::to_string(device_count()) + " devices",
                     .hint = "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu"});
}

const KernelTable& table(int index) {
  static const KernelTable instance{"cuda",
                                    elementwise,
                                    transpose,
                                    reduce,
                                    gemm,
                                    layer_norm,
                                    layer_norm_backward,
                                    gate,
                                    sum_rows,
                                    fold,
                                    gather_rows,
                                    scatter_add_rows,
                                    softmax_tile,
                                    softmax_tile_backward};
  use(index);
  return instance;
}

void synchronize(int index) {
  check(cudaStreamSynchronize(use(index).stream), "cudaStreamSynchronize");
}

std::shared_ptr<void> allocate(int index, std::int64_t bytes) {
  State& state = use(index);
  constexpr std::size_t unit = 512;
  const auto size =
      (static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)) + unit - 1) / unit * unit;
  const bool communication = current_purpose() == Purpose::communication;
  void* data = try_allocate(state, size, communication);
  if (data == nullptr) {
    release_caches(state);
    data = try_allocate(state, size, communication);
  }
  if (data == nullptr)
    throw OutOfMemoryError(
        {.problem = name_of(index) + " refused " + std::to_string(bytes) + " bytes",
         .operation = "allocate",
         .hint = "use more ranks or a smaller problem"});
#ifdef TESSERA_ASSERTIONS
  check(cudaMemsetAsync(data, 0xff, size, state.stream), "cudaMemsetAsync");
#endif
  if (communication) {
    // Fresh to MPI, which does not wait for the stream.
    check(cudaStreamSynchronize(state.stream), "cudaStreamSynchronize");
    return {data, [&state, size](void* block) { state.arena.give(block, size, state.stream); }};
  }
  return {data, [&state](void* block) { cudaFreeAsync(block, state.stream); }};
}

void copy(const void* from, int from_index, void* to, int to_index, std::int64_t bytes) {
  if (from_index >= 0 && to_index >= 0) synchronize(from_index);
  const cudaStream_t on = use(to_index >= 0 ? to_index : from_index).stream;
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, on),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(on), "cudaStreamSynchronize");
}

}  // namespace tessera::cuda
