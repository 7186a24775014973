// SPDX-License-Identifier: MIT
// Calls of CUDA and cuBLAS, each of them checked, and nothing else.
#include "tessera/runtime/gpu/driver.hpp"

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <limits>
#include <string>
#include <utility>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/gpu/cuda/check.cuh"

namespace tessera::gpu_cuda {
namespace {

[[noreturn]] void fail(const char* call, const char* text, const char* name, int code,
                       bool out_of_memory) {
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) device = -1;
  cudaGetLastError();  // forgets what is reported here, for whoever asks later
  ErrorFacts facts{.problem = std::string(call) + " failed: " + text,
                   .operation = call,
                   .found = std::string(name) + " (" + std::to_string(code) +
                            ") on cuda:" + std::to_string(device)};
  if (out_of_memory) throw OutOfMemoryError(std::move(facts));
  throw DeviceError(std::move(facts));
}

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    fail(call, cudaGetErrorString(status), cudaGetErrorName(status), static_cast<int>(status),
         status == cudaErrorMemoryAllocation);
}
void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(call, cublasGetStatusString(status), cublasGetStatusName(status), static_cast<int>(status),
         status == CUBLAS_STATUS_ALLOC_FAILED);
}

namespace driver {

struct BlasObject {
  cublasHandle_t handle;
};

const char* const kName = "cuda";
const char* const kHint = "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu";
#ifdef TESSERA_ASSERTIONS
const bool kPoisons = true;
#else
const bool kPoisons = false;
#endif

namespace {

cudaStream_t native(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}
cudaEvent_t native(Event event) {
  return reinterpret_cast<cudaEvent_t>(event);
}
cudaMemPool_t native(Pool pool) {
  return reinterpret_cast<cudaMemPool_t>(pool);
}

// Of this call only: nobody who asks for the last error may find it.
void forget(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();
}

// Null if the memory is not there; other errors are thrown.
void* unless_refused(void* data, cudaError_t status, const char* call) {
  if (status == cudaErrorMemoryAllocation) {
    forget(status);
    return nullptr;
  }
  check(status, call);
  return data;
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, current_device()), "cudaDeviceGetAttribute");
  return value;
}

// What cuBLAS advises: 32 MiB from compute capability 9.0 on, 4 MiB before.
std::size_t workspace_bytes() {
  return std::size_t{attribute(cudaDevAttrComputeCapabilityMajor) >= 9 ? 32u : 4u} << 20;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string toolkit() {
  return version_text(CUDART_VERSION);
}

namespace {

struct Found {
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);  // without one: an error that says why
};
const Found& found() {
  static const Found devices;
  return devices;
}

}  // namespace

int device_count() {
  return found().status == cudaSuccess ? found().count : 0;
}
std::string why_none() {
  return std::string("no CUDA device can be used: ") + cudaGetErrorString(found().status);
}
void set_device(int index) {
  check(cudaSetDevice(index), "cudaSetDevice");
}
int current_device() {
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  return index;
}

std::string identity(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : properties.uuid.bytes) {
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

GpuInfo info() {
  GpuInfo info;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, current_device()), "cudaGetDeviceProperties");
  info.name = properties.name;
  info.architecture = "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
  info.identity = identity(current_device());
  int version = 0;
  check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  info.driver = version_text(version);
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  info.runtime = version_text(version);
  int part[3] = {};
  const libraryPropertyType parts[3] = {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL};
  for (int i = 0; i < 3; ++i) {
    check(cublasGetProperty(parts[i], &part[i]), "cublasGetProperty");
    info.blas += (i == 0 ? "" : ".") + std::to_string(part[i]);
  }
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  info.free_bytes = static_cast<std::int64_t>(free);
  info.total_bytes = static_cast<std::int64_t>(total);
  info.workspace_bytes = static_cast<std::int64_t>(workspace_bytes());
  return info;
}

void* allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  return unless_refused(data, status, "cudaMalloc");
}
void free(void* data) noexcept {
  forget(cudaFree(data));
}
// Not the device's default pool: how much that one keeps is up to the program around us.
Pool create_pool() {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = current_device();
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
        "cudaMemPoolSetAttribute");
  return reinterpret_cast<Pool>(pool);
}
void* allocate_async(Pool pool, std::size_t bytes, Stream stream) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocFromPoolAsync(&data, bytes, native(pool), native(stream));
  return unless_refused(data, status, "cudaMallocFromPoolAsync");
}
void free_async(void* data, Stream stream) noexcept {
  forget(cudaFreeAsync(data, native(stream)));
}
void trim(Pool pool) {
  check(cudaMemPoolTrimTo(native(pool), 0), "cudaMemPoolTrimTo");
}
void* allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, bytes);
  return unless_refused(data, status, "cudaMallocHost");
}
void free_pinned(void* data) noexcept {
  forget(cudaFreeHost(data));
}

void copy_async(void* to, const void* from, std::size_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "cudaMemcpyAsync");
}
void fill_async(void* to, int byte, std::size_t bytes, Stream stream) {
  check(cudaMemsetAsync(to, byte, bytes, native(stream)), "cudaMemsetAsync");
}
void fill(void* to, int byte, std::size_t bytes) {
  check(cudaMemset(to, byte, bytes), "cudaMemset");
  check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
}

Stream create_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return reinterpret_cast<Stream>(stream);
}
void synchronize(Stream stream) {
  check(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
}
Event create_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return reinterpret_cast<Event>(event);
}
void record(Event event, Stream stream) {
  check(cudaEventRecord(native(event), native(stream)), "cudaEventRecord");
}
bool done(Event event) {
  const cudaError_t status = cudaEventQuery(native(event));
  if (status == cudaErrorNotReady) {
    forget(status);
    return false;
  }
  check(status, "cudaEventQuery");
  return true;
}
void wait(Event event) {
  check(cudaEventSynchronize(native(event)), "cudaEventSynchronize");
}
void make_wait(Stream stream, Event event) {
  check(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent");
}

// Half precision sums stay in f32 when a product is split along k.
Blas create_blas(Stream stream) {
  const std::size_t bytes = workspace_bytes();
  void* workspace = nullptr;
  check(cudaMalloc(&workspace, bytes), "cudaMalloc");
  Blas blas = new BlasObject{};
  check(cublasCreate(&blas->handle), "cublasCreate");
  check(cublasSetStream(blas->handle, native(stream)), "cublasSetStream");
  check(cublasSetWorkspace(blas->handle, workspace, bytes), "cublasSetWorkspace");
  check(cublasSetMathMode(blas->handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
        "cublasSetMathMode");
  return blas;
}

namespace {

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::f64) return CUDA_R_64F;
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}
cublasOperation_t operation_of(const Gemm::Operand& operand) {
  return operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

void gemm(Blas blas, const Gemm& p) {
  const bool wide = p.dtype == DType::f64;
  const float factors[2] = {static_cast<float>(p.alpha), static_cast<float>(p.beta)};
  const void* alpha = wide ? static_cast<const void*>(&p.alpha) : &factors[0];
  const void* beta = wide ? static_cast<const void*>(&p.beta) : &factors[1];
  const cublasComputeType_t compute = wide     ? CUBLAS_COMPUTE_64F
                                      : p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                               : CUBLAS_COMPUTE_32F;
  check(cublasGemmStridedBatchedEx_64(blas->handle, operation_of(p.a), operation_of(p.b), p.m, p.n,
                                      p.k, alpha, p.a.data, type_of(p.dtype), p.a.leading,
                                      p.a.batch_stride, p.b.data, type_of(p.dtype), p.b.leading,
                                      p.b.batch_stride, beta, p.c, type_of(p.c_dtype), p.c_leading,
                                      p.c_batch_stride, p.batch, compute, CUBLAS_GEMM_DEFAULT),
        "cublasGemmStridedBatchedEx_64");
}

}  // namespace driver
}  // namespace tessera::gpu_cuda
