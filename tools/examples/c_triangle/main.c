// SPDX-License-Identifier: MIT
// A C program that owns MPI and its arrays, and runs triangle multiplication on them, forward and
// backward, spread over all ranks; then the same on one rank, to compare.
//
//   mpiexec -n 4 c_triangle [FILE]
//
// FILE gets the results, as rows of doubles. Build: see CMakeLists.txt.
#include <inttypes.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera.h"

enum { batch = 2, tokens = 12, channels = 8, parameters = 8 };
enum { positions = batch * tokens * tokens, elements = positions * channels };

static void check(int status) {
  if (status == TESSERA_OK) return;
  fprintf(stderr, "c_triangle: %s\n", tessera_last_error());
  MPI_Abort(MPI_COMM_WORLD, status);
}

static void* allocate(int64_t count) {
  void* memory = malloc((size_t)count * sizeof(double));
  if (memory == NULL) MPI_Abort(MPI_COMM_WORLD, TESSERA_OUT_OF_MEMORY);
  return memory;
}

// The numbers of the problem, by global index: exact in every language.
static double number(int64_t index, int64_t kind) {
  return (double)((index * 37 + kind * 11) % 256 - 128) / 128;
}

static double mask_at(int64_t index) {
  return index % 7 == 3 ? 0 : 1;
}

// --- this rank's part of the problem -----------------------------------------------------------

// A block of one of the program's arrays [batch, tokens, tokens, depth], and Tessera's view of it.
struct block {
  double* values;
  tessera_dtensor* dtensor;
};

static struct block make_block(const tessera_mesh* mesh, int64_t depth, int kind) {
  const int pair[3] = {0, 1, 2};  // dp cuts the batch, cp0 the rows, cp1 the columns
  const int ndim = depth > 1 ? 4 : 3;
  const int64_t shape[4] = {batch, tokens, tokens, depth};
  int64_t begin[4] = {0, 0, 0, 0}, size[4] = {1, 1, 1, 1};
  check(tessera_mesh_block(mesh, 3, pair, ndim, shape, begin, size));

  struct block block;
  block.values = allocate(size[0] * size[1] * size[2] * size[3]);
  double* next = block.values;
  for (int64_t b = begin[0]; b < begin[0] + size[0]; ++b)
    for (int64_t i = begin[1]; i < begin[1] + size[1]; ++i)
      for (int64_t j = begin[2]; j < begin[2] + size[2]; ++j)
        for (int64_t c = 0; c < depth; ++c) {
          const int64_t index = ((b * tokens + i) * tokens + j) * depth + c;
          *next++ = depth > 1 ? number(index, kind) : mask_at(index);
        }

  tessera_tensor* local = NULL;
  check(
      tessera_tensor_wrap(block.values, TESSERA_F64, ndim, size, NULL, "cpu", NULL, NULL, &local));
  check(tessera_dtensor_create(mesh, local, 3, pair, ndim, shape, &block.dtensor));
  check(tessera_tensor_destroy(local));
  return block;
}

static void free_block(struct block* block) {
  check(tessera_dtensor_destroy(block->dtensor));
  free(block->values);
}

// The parameters are the program's too: it has them by name and gives them to the layer.
static void load_parameters(const tessera_layer* layer) {
  const char* names[parameters];
  tessera_tensor* tensors[parameters];
  double* values[parameters];
  int count = 0;
  check(tessera_layer_parameter_count(layer, &count));
  for (int k = 0; k < count; ++k) {
    int64_t shape[2] = {1, 1};
    int ndim = 0;
    tessera_tensor* parameter = NULL;
    check(tessera_layer_parameter_name(layer, k, &names[k]));
    check(tessera_layer_parameter(layer, names[k], &parameter));
    check(tessera_tensor_ndim(parameter, &ndim));
    check(tessera_tensor_shape(parameter, 2, shape));
    check(tessera_tensor_destroy(parameter));
    values[k] = allocate(shape[0] * shape[1]);
    for (int64_t index = 0; index < shape[0] * shape[1]; ++index)
      values[k][index] = number(index, 3 + k) / 2;
    check(tessera_tensor_wrap(values[k], TESSERA_F64, ndim, shape, NULL, "cpu", NULL, NULL,
                              &tensors[k]));
  }
  check(tessera_layer_load(layer, count, names, (const tessera_tensor* const*)tensors));
  for (int k = 0; k < count; ++k) {
    check(tessera_tensor_destroy(tensors[k]));
    free(values[k]);
  }
}

// --- the run -----------------------------------------------------------------------------------

struct results {
  int64_t count;
  double* values;  // output, gradient of x, gradients of the parameters in their order
};

static void append(struct results* results, tessera_tensor* tensor) {
  int64_t shape[4] = {1, 1, 1, 1};
  void* data = NULL;
  check(tessera_tensor_shape(tensor, 4, shape));
  check(tessera_tensor_data(tensor, &data));
  const int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
  memcpy(results->values + results->count, data, (size_t)count * sizeof(double));
  results->count += count;
  check(tessera_tensor_destroy(tensor));
}

// Takes the distributed tensor.
static void append_whole(struct results* results, tessera_dtensor* dtensor) {
  tessera_tensor* full = NULL;
  check(tessera_dtensor_full(dtensor, &full));
  check(tessera_dtensor_destroy(dtensor));
  append(results, full);
}

static struct results run(const tessera_mesh* mesh) {
  tessera_layer* layer = NULL;
  char hyperparameters[32];
  snprintf(hyperparameters, sizeof hyperparameters, "{\"dim\": %d}", channels);
  check(tessera_layer_create(mesh, "triangle_multiplication_outgoing", hyperparameters, TESSERA_F64,
                             &layer));
  load_parameters(layer);

  struct block x = make_block(mesh, channels, 0);
  struct block mask = make_block(mesh, 1, 1);
  struct block cotangent = make_block(mesh, channels, 2);
  const tessera_dtensor* inputs[2] = {x.dtensor, mask.dtensor};
  const tessera_dtensor* gradients[1] = {cotangent.dtensor};
  tessera_run* pass = NULL;
  check(tessera_layer_forward(layer, 1, 2, inputs, &pass));
  check(tessera_run_backward(pass, 1, gradients));

  struct results results = {0, allocate(3 * elements)};
  tessera_dtensor* dtensor = NULL;
  check(tessera_run_output(pass, 0, &dtensor));
  append_whole(&results, dtensor);
  check(tessera_run_input_gradient(pass, 0, &dtensor));
  append_whole(&results, dtensor);
  int count = 0;
  check(tessera_layer_parameter_count(layer, &count));
  for (int k = 0; k < count; ++k) {
    const char* name = NULL;
    tessera_tensor* gradient = NULL;
    check(tessera_layer_parameter_name(layer, k, &name));
    check(tessera_layer_gradient(layer, name, &gradient));
    append(&results, gradient);
  }
  check(tessera_run_destroy(pass));
  free_block(&x);
  free_block(&mask);
  free_block(&cotangent);
  check(tessera_layer_destroy(layer));
  return results;
}

// --- what comes out ----------------------------------------------------------------------------

static void print_checksum(const char* what, const double* values, int64_t count) {
  uint64_t sum = 0, bits = 0;
  for (int64_t k = 0; k < count; ++k) {
    memcpy(&bits, values + k, sizeof bits);
    sum = (sum << 1 | sum >> 63) ^ bits;
  }
  printf("%-24s %016" PRIX64 "\n", what, sum);
}

// A value that is not a number stays.
static double larger(double a, double b) {
  return a > b || a != a ? a : b;
}

// Largest difference over the largest value.
static double difference(const struct results* a, const struct results* b) {
  double largest = 0, scale = 0;
  for (int64_t k = 0; k < a->count; ++k) {
    largest = larger(largest, fabs(a->values[k] - b->values[k]));
    scale = larger(scale, fabs(b->values[k]));
  }
  return scale > 0 ? largest / scale : 1;
}

static int report(const struct results* together, const struct results* alone, const int grid[2],
                  const char* path) {
  const double largest = difference(together, alone);
  const int well = together->count == alone->count && largest < 1e-13;
  printf("triangle multiplication on %d x %d ranks\n", grid[0], grid[1]);
  print_checksum("output", together->values, elements);
  print_checksum("gradient of x", together->values + elements, elements);
  print_checksum("gradients of parameters", together->values + 2 * elements,
                 together->count - 2 * elements);
  printf("largest difference from one rank: %.1e, %s\n", largest, well ? "well" : "TOO LARGE");
  if (path == NULL) return well ? 0 : 1;
  FILE* file = fopen(path, "wb");
  const size_t count = (size_t)together->count;
  if (file == NULL || fwrite(together->values, sizeof(double), count, file) != count) {
    fprintf(stderr, "c_triangle: cannot write %s\n", path);
    return 2;
  }
  fclose(file);
  return well ? 0 : 1;
}

int main(int argc, char** argv) {
  int ranks = 0, rank = 0, code = 0;
  MPI_Comm comm = MPI_COMM_WORLD;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  int grid[2] = {0, 0};
  MPI_Dims_create(ranks, 2, grid);

  tessera_environment *world = NULL, *self = NULL;
  tessera_mesh *mesh = NULL, *one = NULL;
  check(tessera_environment_create(&comm, &world));
  check(tessera_mesh_create(world, 1, grid[0], grid[1], "cpu", &mesh));
  struct results together = run(mesh);
  check(tessera_mesh_destroy(mesh));
  check(tessera_environment_destroy(world));

  if (rank == 0) {
    check(tessera_environment_create(NULL, &self));
    check(tessera_mesh_create(self, 1, 1, 1, "cpu", &one));
    struct results alone = run(one);
    check(tessera_mesh_destroy(one));
    check(tessera_environment_destroy(self));
    code = report(&together, &alone, grid, argc > 1 ? argv[1] : NULL);
    free(alone.values);
  }
  free(together.values);
  MPI_Bcast(&code, 1, MPI_INT, 0, comm);
  MPI_Finalize();
  return code;
}
