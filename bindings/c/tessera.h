// SPDX-License-Identifier: MIT
// Tessera from C (C99) and C++. Needs no mpi.h and no other header of Tessera.
//
// Errors. Every function returns a status of enum tessera_status; no exception leaves the library.
//   The text of the calling thread's last failure is tessera_last_error(). Results are written
//   through the last pointers of a function, on success only; handles are set to NULL on failure.
// Ownership. A function that writes a handle gives it to the caller, who hands it back to the
//   _destroy() of its kind. Handles may be destroyed in any order: what one is made of lives as
//   long as it does. Destroying NULL does nothing. A handle that is NULL, destroyed or of another
//   kind is a "UsageError". Texts of type char** are the caller's, for tessera_text_destroy();
//   texts of type const char** belong to the handle that was asked.
// Ranks. "Collective" functions are called by all ranks of the environment or mesh in the same
//   order with the same arguments, and all ranks get the same kind of failure. A call that is
//   refused on one rank only, for a NULL pointer say, leaves the others waiting until their
//   time-out. All other functions are local.
// Threads. One thread at a time per environment and what is made from it; MPI_THREAD_FUNNELED
//   suffices if that is the thread that initialised MPI. Errors are kept per thread. The memory
//   ledger, the log and the number of threads are those of the process.
// Arrays. Row-major: the last dim is the fastest. Strides count elements. At most 8 dims.
#ifndef TESSERA_H
#define TESSERA_H

#include <stddef.h>
#include <stdint.h>

#include "tessera/version.h"  // TESSERA_VERSION_MAJOR, _MINOR, _PATCH: what was compiled against

#if defined(__GNUC__)
#define TESSERA_API __attribute__((visibility("default")))
#else
#define TESSERA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// --- errors, versions --------------------------------------------------------------------------

// The numbers are the exit codes of the program `tessera`.
enum tessera_status {
  TESSERA_OK = 0,
  TESSERA_CHECK_FAILED = 1,  // a check of the library failed; also failures of unknown kind
  TESSERA_USAGE = 2,         // arguments, shapes, placements, names, files
  TESSERA_ENVIRONMENT = 3,   // MPI or a device is missing or failed
  TESSERA_TIMED_OUT = 4,     // a rank waited too long
  TESSERA_OUT_OF_STEP = 5,   // ranks made different calls
  TESSERA_OUT_OF_MEMORY = 6
};

// Text and kind ("ShapeError") of the last failure of this thread, "" before the first. Valid until
// the next failure of this thread.
TESSERA_API const char* tessera_last_error(void);
TESSERA_API const char* tessera_last_error_kind(void);

// Of the library that runs, which may be newer than the header.
TESSERA_API int tessera_version(int* major, int* minor, int* patch);
// Versions, instruction sets, MPI, threads, as JSON.
TESSERA_API int tessera_info(char** json);
TESSERA_API void tessera_text_destroy(char* text);

// Threads that a rank computes with, 1 to 4096: else TESSERA_THREADS or the cores that the process
// may use. Hosts that start several ranks on the same cores say here how many each may have.
TESSERA_API int tessera_threads_set(int threads);

// The library prints nothing; what it has to say beside errors goes to `callback`, a line without
// its end at a time, on the rank and the thread that says it. NULL: silence again. The levels are
// "debug", "info", "warning", "error". The callback must not set another one.
TESSERA_API int tessera_log_set(void (*callback)(void* context, const char* level,
                                                 const char* line),
                                void* context);

// --- environment: the ranks --------------------------------------------------------------------

typedef struct tessera_environment tessera_environment;

// Collective over the communicator. `mpi_comm` points to an MPI_Comm, which is duplicated and not
// touched otherwise; MPI is neither initialised nor finalised, and must run until the environment
// and what was made from it are destroyed. NULL: this process alone, without MPI.
TESSERA_API int tessera_environment_create(const void* mpi_comm, tessera_environment** environment);
// The same for a communicator of Fortran (MPI_Fint, as MPI_Comm_c2f gives it).
TESSERA_API int tessera_environment_create_fortran(int mpi_comm, tessera_environment** environment);
TESSERA_API int tessera_environment_rank(const tessera_environment* environment, int* rank);
TESSERA_API int tessera_environment_size(const tessera_environment* environment, int* size);
TESSERA_API int tessera_environment_destroy(tessera_environment* environment);

// --- mesh: ranks as a grid ---------------------------------------------------------------------

typedef struct tessera_mesh tessera_mesh;

// Where the values of a tensor are along each axis of a mesh: a number d >= 0 says that the axis
// cuts dim d into equal parts, TESSERA_REPLICATE that all its ranks hold the same. Arrays of
// placements have one entry for each axis: (dp, cp0, cp1), or 2 for (dp, cp), where cp is cp0 and
// cp1 as one axis.
enum { TESSERA_REPLICATE = -1 };

// Collective. dp * cp0 * cp1 ranks; rank = (d * cp0 + i) * cp1 + j. `device`: "cpu", "cuda:0".
TESSERA_API int tessera_mesh_create(const tessera_environment* environment, int dp, int cp0,
                                    int cp1, const char* device, tessera_mesh** mesh);
TESSERA_API int tessera_mesh_shape(const tessera_mesh* mesh, int shape[3]);
TESSERA_API int tessera_mesh_coordinate(const tessera_mesh* mesh, int coordinate[3]);
// The block of a tensor of this shape that this rank holds: where it begins and its size, per dim.
TESSERA_API int tessera_mesh_block(const tessera_mesh* mesh, int axes, const int* placements,
                                   int ndim, const int64_t* shape, int64_t* begin, int64_t* size);
// The communication ledger of this rank since the last clear, as JSON: a list of
// {"op", "axis", "count", "messages", "bytes"}, messages and bytes as sent by this rank.
TESSERA_API int tessera_mesh_messages(const tessera_mesh* mesh, char** json);
TESSERA_API int tessera_mesh_messages_clear(const tessera_mesh* mesh);
TESSERA_API int tessera_mesh_destroy(tessera_mesh* mesh);

// --- tensors: arrays of one rank ---------------------------------------------------------------

typedef struct tessera_tensor tessera_tensor;

enum tessera_dtype {
  TESSERA_F64 = 0,
  TESSERA_F32 = 1,
  TESSERA_BF16 = 2,  // the upper half of an IEEE float32
  TESSERA_I64 = 3,
  TESSERA_I32 = 4,
  TESSERA_BOOL = 5  // one byte, 0 or 1
};

// New memory, all zero.
TESSERA_API int tessera_tensor_create(int dtype, int ndim, const int64_t* shape, const char* device,
                                      tessera_tensor** tensor);
// The caller's memory, aligned to its elements, without a copy. `strides` may be NULL for
// row-major. The memory must stay until `release(context)` is called, which happens once, when the
// last handle or computation that uses it has let go, on the thread that does so; without `release`
// until all of these are destroyed. What is refused stays the caller's. Inputs of layers are only
// read. Such memory is not in the memory ledger.
TESSERA_API int tessera_tensor_wrap(void* data, int dtype, int ndim, const int64_t* shape,
                                    const int64_t* strides, const char* device,
                                    void (*release)(void* context), void* context,
                                    tessera_tensor** tensor);
// The first element; on the device of the tensor, whose pending work is waited for: ask again
// before each look at what Tessera has computed since.
TESSERA_API int tessera_tensor_data(const tessera_tensor* tensor, void** data);
TESSERA_API int tessera_tensor_dtype(const tessera_tensor* tensor, int* dtype);
TESSERA_API int tessera_tensor_device(const tessera_tensor* tensor, const char** device);
TESSERA_API int tessera_tensor_ndim(const tessera_tensor* tensor, int* ndim);
// `capacity` entries fit into `shape` or `strides`; fewer than the dims are a failure.
TESSERA_API int tessera_tensor_shape(const tessera_tensor* tensor, int capacity, int64_t* shape);
TESSERA_API int tessera_tensor_strides(const tessera_tensor* tensor, int capacity,
                                       int64_t* strides);
// Values of equal shapes, of any strides and dtypes; between devices both must be row-major and of
// one dtype.
TESSERA_API int tessera_tensor_copy(const tessera_tensor* from, const tessera_tensor* to);
TESSERA_API int tessera_tensor_destroy(tessera_tensor* tensor);

// --- distributed tensors -----------------------------------------------------------------------

typedef struct tessera_dtensor tessera_dtensor;

// This rank's block (tessera_mesh_block()) of a tensor of the given global shape, without a copy.
// The dims of the block may lie in memory in any order and with gaps between them.
TESSERA_API int tessera_dtensor_create(const tessera_mesh* mesh, const tessera_tensor* local,
                                       int axes, const int* placements, int ndim,
                                       const int64_t* shape, tessera_dtensor** dtensor);
// Every rank has the same full tensor and takes a copy of its block; no message.
TESSERA_API int tessera_dtensor_distribute(const tessera_mesh* mesh, const tessera_tensor* full,
                                           int axes, const int* placements,
                                           tessera_dtensor** dtensor);
// Collective. The global tensor on every rank, a copy: for tests and files.
TESSERA_API int tessera_dtensor_full(const tessera_dtensor* dtensor, tessera_tensor** full);
// This rank's block, which shares memory with the distributed tensor.
TESSERA_API int tessera_dtensor_local(const tessera_dtensor* dtensor, tessera_tensor** local);
TESSERA_API int tessera_dtensor_ndim(const tessera_dtensor* dtensor, int* ndim);
TESSERA_API int tessera_dtensor_shape(const tessera_dtensor* dtensor, int capacity, int64_t* shape);
// `axes` is set to 2 or 3; `placements` has room for 3.
TESSERA_API int tessera_dtensor_placements(const tessera_dtensor* dtensor, int* axes,
                                           int placements[3]);
TESSERA_API int tessera_dtensor_destroy(tessera_dtensor* dtensor);

// --- layers ------------------------------------------------------------------------------------

typedef struct tessera_layer tessera_layer;

// All layers, as JSON: a list of {"name", "description", "inputs", "outputs"}.
TESSERA_API int tessera_layer_list(char** json);
// `hyperparameters` is JSON such as {"dim": 16}: sizes are whole numbers from 1, and a key that the
// layer does not have is a "UsageError" that lists those it has. `dtype`, of the parameters, is
// TESSERA_F64 or TESSERA_F32. The parameters are zero until one of the next three functions is
// called.
TESSERA_API int tessera_layer_create(const tessera_mesh* mesh, const char* name,
                                     const char* hyperparameters, int dtype, tessera_layer** layer);
// As a new model begins: every value from the seed and the parameter's name, equal on every mesh.
TESSERA_API int tessera_layer_initialize(const tessera_layer* layer, uint64_t seed);
// Collective over the mesh; every rank reads the file. Parameter `p` is the tensor `prefix`p of the
// safetensors file. All must be there, in the right shape, and no other with the prefix; then all
// are set, else none. NULL: no prefix, so that the file has the parameters only.
TESSERA_API int tessera_layer_load_file(const tessera_layer* layer, const char* path,
                                        const char* prefix);
// The same from memory, which is copied. No communication: every rank passes the same values.
TESSERA_API int tessera_layer_load(const tessera_layer* layer, int count, const char* const* names,
                                   const tessera_tensor* const* tensors);

TESSERA_API int tessera_layer_parameter_count(const tessera_layer* layer, int* count);
TESSERA_API int tessera_layer_parameter_name(const tessera_layer* layer, int index,
                                             const char** name);
// Shares memory with the layer. Not to be written between a forward pass and its backward pass.
TESSERA_API int tessera_layer_parameter(const tessera_layer* layer, const char* name,
                                        tessera_tensor** parameter);
// The sum over all backward passes since the last tessera_layer_zero_gradients(), complete and
// equal on all ranks. Fails if there was none.
TESSERA_API int tessera_layer_gradient(const tessera_layer* layer, const char* name,
                                       tessera_tensor** gradient);
TESSERA_API int tessera_layer_zero_gradients(const tessera_layer* layer);

TESSERA_API int tessera_layer_input_count(const tessera_layer* layer, int* count);
TESSERA_API int tessera_layer_input_name(const tessera_layer* layer, int index, const char** name);
// Where an input of `ndim` dims must be (layers that take pair and single tensors tell them apart
// by that; else `ndim` is the input's own). `axes` and `placements` as above.
TESSERA_API int tessera_layer_input_placements(const tessera_layer* layer, int index, int ndim,
                                               int* axes, int placements[3]);
TESSERA_API int tessera_layer_output_count(const tessera_layer* layer, int* count);
TESSERA_API int tessera_layer_output_name(const tessera_layer* layer, int index, const char** name);
TESSERA_API int tessera_layer_destroy(tessera_layer* layer);

// --- runs: one forward pass, and its backward pass ---------------------------------------------

typedef struct tessera_run tessera_run;

// Collective. Inputs in the order of the layer. `keep` is 1 to keep what backward needs, 0 not to.
TESSERA_API int tessera_layer_forward(const tessera_layer* layer, int keep, int count,
                                      const tessera_dtensor* const* inputs, tessera_run** run);
TESSERA_API int tessera_run_output(const tessera_run* run, int index, tessera_dtensor** output);
// Collective. One gradient for each output, shaped and placed like it; NULL for none. Adds to the
// gradients of the layer's parameters, and reduces them over all ranks. Once per run.
TESSERA_API int tessera_run_backward(tessera_run* run, int count,
                                     const tessera_dtensor* const* gradients);
// After backward. Fails for inputs without gradient, such as masks.
TESSERA_API int tessera_run_input_gradient(const tessera_run* run, int index,
                                           tessera_dtensor** gradient);
TESSERA_API int tessera_run_destroy(tessera_run* run);

// --- ledgers and parity ------------------------------------------------------------------------

// Bytes of this process, of memory that Tessera allocated: now, and at most since the last reset.
TESSERA_API int tessera_memory_total(int64_t* live, int64_t* peak);
// The same by module path and purpose, as JSON: a list of {"scope", "purpose", "live", "peak"}.
TESSERA_API int tessera_memory_report(char** json);
TESSERA_API int tessera_memory_reset_peak(void);
// Allocations that would bring the total above so many bytes fail; 0 for no limit.
TESSERA_API int tessera_memory_set_limit(int64_t bytes);

// Collective. Holds a layer on this mesh against the same layer on one rank, forward and backward,
// with random values; `size` is "tiny", "small" or "medium". `pass` is 1 if all checks hold, which
// `json` lists, as the program's `parity --json` does.
TESSERA_API int tessera_parity(const tessera_mesh* mesh, const char* layer, const char* size,
                               int dtype, uint64_t seed, int* pass, char** json);

#ifdef __cplusplus
}
#endif

#endif
