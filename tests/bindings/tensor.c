// SPDX-License-Identifier: MIT
// ranks: 1 4
// Tensors on the caller's memory and on new memory; distributed tensors.
#include "check.h"

static void new_memory(void) {
  const int64_t shape[3] = {2, 3, 4};
  int64_t found[3] = {0, 0, 0};
  tessera_tensor* tensor = NULL;
  const char* device = NULL;
  void* data = NULL;
  int ndim = 0, dtype = -1, zeros = 0;
  DOES(tessera_tensor_create(TESSERA_F32, 3, shape, "cpu", &tensor));
  DOES(tessera_tensor_ndim(tensor, &ndim));
  DOES(tessera_tensor_dtype(tensor, &dtype));
  DOES(tessera_tensor_device(tensor, &device));
  CHECK(ndim == 3 && dtype == TESSERA_F32 && strcmp(device, "cpu") == 0);
  DOES(tessera_tensor_shape(tensor, 3, found));
  CHECK(found[0] == 2 && found[1] == 3 && found[2] == 4);
  DOES(tessera_tensor_strides(tensor, 3, found));
  CHECK(found[0] == 12 && found[1] == 4 && found[2] == 1);
  DOES(tessera_tensor_data(tensor, &data));
  for (int k = 0; k < 24; ++k) zeros += ((const float*)data)[k] == 0;
  CHECK(zeros == 24);
  REFUSES(TESSERA_USAGE, "RangeError", "at least 3", tessera_tensor_shape(tensor, 2, found));
  REFUSES(TESSERA_USAGE, "UsageError", "null", tessera_tensor_strides(tensor, 3, NULL));
  DOES(tessera_tensor_destroy(tensor));
  REFUSES(TESSERA_USAGE, "UsageError", "destroyed", tessera_tensor_data(tensor, &data));

  const int64_t negative[2] = {2, -3};
  REFUSES(TESSERA_USAGE, "ShapeError", "[2, -3]",
          tessera_tensor_create(TESSERA_F64, 2, negative, "cpu", &tensor));
  CHECK(tensor == NULL);
  REFUSES(TESSERA_USAGE, "TypeError", "17", tessera_tensor_create(17, 3, shape, "cpu", &tensor));
  REFUSES(TESSERA_USAGE, "RangeError", "9",
          tessera_tensor_create(TESSERA_F64, 9, shape, "cpu", &tensor));
  REFUSES(TESSERA_USAGE, "UsageError", "'shape'",
          tessera_tensor_create(TESSERA_F64, 2, NULL, "cpu", &tensor));
  REFUSES(TESSERA_USAGE, "UsageError", "'device'",
          tessera_tensor_create(TESSERA_F64, 3, shape, NULL, &tensor));
  const int64_t huge[2] = {INT64_C(1) << 28, INT64_C(1) << 28};
  REFUSES(TESSERA_OUT_OF_MEMORY, "OutOfMemoryError", "bytes",
          tessera_tensor_create(TESSERA_F64, 2, huge, "cpu", &tensor));
}

static void count_call(void* context) {
  ++*(int*)context;
}

// What the library writes is in the caller's array, and what the caller writes is in the tensor.
static void memory_of_the_caller(void) {
  double mine[6] = {1, 2, 3, 4, 5, 6};
  float narrow[6] = {0};
  const int64_t shape[2] = {2, 3}, shape_t[2] = {3, 2}, by_column[2] = {1, 3};
  tessera_tensor *tensor = NULL, *transposed = NULL, *target = NULL;
  int released = 0;
  void* data = NULL;
  DOES(tessera_tensor_wrap(mine, TESSERA_F64, 2, shape, NULL, "cpu", count_call, &released,
                           &tensor));
  DOES(tessera_tensor_data(tensor, &data));
  CHECK(data == mine);
  // A transposed view of the same memory, copied into another array in another dtype.
  DOES(tessera_tensor_wrap(mine, TESSERA_F64, 2, shape_t, by_column, "cpu", NULL, NULL,
                           &transposed));
  DOES(tessera_tensor_wrap(narrow, TESSERA_F32, 2, shape_t, NULL, "cpu", NULL, NULL, &target));
  mine[1] = 20;
  DOES(tessera_tensor_copy(transposed, target));
  CHECK(narrow[0] == 1 && narrow[1] == 4 && narrow[2] == 20 && narrow[3] == 5);
  narrow[5] = -7;
  DOES(tessera_tensor_copy(target, transposed));
  CHECK(mine[5] == -7 && mine[4] == 5);
  REFUSES(TESSERA_USAGE, "ShapeError", "[2, 3]", tessera_tensor_copy(tensor, target));

  // The memory is the library's until all that is made of it is gone.
  const int whole[3] = {TESSERA_REPLICATE, TESSERA_REPLICATE, TESSERA_REPLICATE};
  tessera_environment* environment = NULL;
  tessera_dtensor* dtensor = NULL;
  DOES(tessera_environment_create(NULL, &environment));
  tessera_mesh* mesh = grid(environment);
  DOES(tessera_dtensor_create(mesh, tensor, 3, whole, 2, shape, &dtensor));
  DOES(tessera_tensor_destroy(tensor));
  CHECK(released == 0);
  DOES(tessera_dtensor_destroy(dtensor));
  CHECK(released == 1);
  DOES(tessera_tensor_destroy(transposed));
  DOES(tessera_tensor_destroy(target));
  DOES(tessera_mesh_destroy(mesh));
  DOES(tessera_environment_destroy(environment));
  CHECK(released == 1);

  const int64_t backward[2] = {3, -1};
  REFUSES(TESSERA_USAGE, "ShapeError", "'strides'",
          tessera_tensor_wrap(mine, TESSERA_F64, 2, shape, backward, "cpu", count_call, &released,
                              &tensor));
  REFUSES(TESSERA_USAGE, "UsageError", "'data'",
          tessera_tensor_wrap(NULL, TESSERA_F64, 2, shape, NULL, "cpu", count_call, &released,
                              &tensor));
  REFUSES(TESSERA_USAGE, "UsageError", "aligned",
          tessera_tensor_wrap((char*)mine + 1, TESSERA_F64, 1, shape, NULL, "cpu", count_call,
                              &released, &tensor));
  const int64_t too_far[2] = {INT64_MAX, 1};
  REFUSES(TESSERA_USAGE, "ShapeError", "2^63",
          tessera_tensor_wrap(mine, TESSERA_F64, 2, shape, too_far, "cpu", count_call, &released,
                              &tensor));
  CHECK(released == 1);  // what was refused stays the caller's
}

// The value at a global index, and the whole tensor [2, 4, 8].
static double value_at(int64_t i, int64_t j, int64_t k) {
  return (double)((i * 4 + j) * 8 + k);
}

static void full_equals_formula(const tessera_dtensor* dtensor) {
  tessera_tensor* full = NULL;
  void* data = NULL;
  int equal = 0;
  DOES(tessera_dtensor_full(dtensor, &full));
  DOES(tessera_tensor_data(full, &data));
  for (int k = 0; k < 64; ++k) equal += ((const double*)data)[k] == k;
  CHECK(equal == 64);
  DOES(tessera_tensor_destroy(full));
}

static void distributed(const tessera_mesh* mesh) {
  const int tiles[3] = {TESSERA_REPLICATE, 1, 2};
  const int64_t shape[3] = {2, 4, 8};
  int64_t begin[3], size[3], found[3];
  int axes = 0, placements[3] = {9, 9, 9}, ndim = 0;
  double full[64], memory[1000];
  tessera_tensor *local = NULL, *block = NULL;
  tessera_dtensor* dtensor = NULL;
  void* data = NULL;

  DOES(tessera_mesh_block(mesh, 3, tiles, 3, shape, begin, size));
  // The block inside a larger array, as an interior with ghost cells is, last dim slowest.
  const int64_t strides[3] = {1, 3, 3 * 7};
  for (int k = 0; k < 1000; ++k) memory[k] = -1;
  for (int64_t i = 0; i < size[0]; ++i)
    for (int64_t j = 0; j < size[1]; ++j)
      for (int64_t k = 0; k < size[2]; ++k)
        memory[1 + i * strides[0] + j * strides[1] + k * strides[2]] =
            value_at(begin[0] + i, begin[1] + j, begin[2] + k);
  DOES(tessera_tensor_wrap(memory + 1, TESSERA_F64, 3, size, strides, "cpu", NULL, NULL, &local));
  DOES(tessera_dtensor_create(mesh, local, 3, tiles, 3, shape, &dtensor));
  full_equals_formula(dtensor);
  DOES(tessera_dtensor_ndim(dtensor, &ndim));
  DOES(tessera_dtensor_shape(dtensor, 3, found));
  CHECK(ndim == 3 && found[0] == 2 && found[1] == 4 && found[2] == 8);
  DOES(tessera_dtensor_placements(dtensor, &axes, placements));
  CHECK(axes == 3 && placements[0] == TESSERA_REPLICATE && placements[1] == 1 &&
        placements[2] == 2);
  DOES(tessera_dtensor_local(dtensor, &block));
  DOES(tessera_tensor_data(block, &data));
  CHECK(data == memory + 1);
  DOES(tessera_tensor_destroy(block));
  DOES(tessera_dtensor_destroy(dtensor));

  // From the full tensor, over both axes as one.
  const int flat[2] = {TESSERA_REPLICATE, 2};
  const int64_t whole[3] = {2, 4, 8};
  tessera_tensor* given = NULL;
  for (int k = 0; k < 64; ++k) full[k] = k;
  DOES(tessera_tensor_wrap(full, TESSERA_F64, 3, whole, NULL, "cpu", NULL, NULL, &given));
  DOES(tessera_dtensor_distribute(mesh, given, 2, flat, &dtensor));
  full[9] = -1;  // a copy was taken
  full_equals_formula(dtensor);
  DOES(tessera_dtensor_placements(dtensor, &axes, placements));
  CHECK(axes == 2 && placements[1] == 2);
  DOES(tessera_dtensor_destroy(dtensor));

  const int64_t other[3] = {2, 4, 16};
  REFUSES(TESSERA_USAGE, "ShapeError", "[2, 4, 16]",
          tessera_dtensor_create(mesh, local, 3, tiles, 3, other, &dtensor));
  CHECK(dtensor == NULL);
  REFUSES(TESSERA_USAGE, "ShapeError", "number of dims",
          tessera_dtensor_create(mesh, local, 3, tiles, 2, shape, &dtensor));
  REFUSES(TESSERA_USAGE, "UsageError", "'local'",
          tessera_dtensor_create(mesh, NULL, 3, tiles, 3, shape, &dtensor));
  REFUSES(TESSERA_USAGE, "UsageError", "'mesh'",
          tessera_dtensor_create(NULL, local, 3, tiles, 3, shape, &dtensor));
  REFUSES(TESSERA_USAGE, "UsageError", "1 axes",
          tessera_dtensor_distribute(mesh, given, 1, flat, &dtensor));
  REFUSES(TESSERA_USAGE, "UsageError", "another kind",
          tessera_dtensor_full((const tessera_dtensor*)given, &block));
  DOES(tessera_tensor_destroy(given));
  DOES(tessera_tensor_destroy(local));
}

// What is pending on a device is done before the caller sees its memory.
static void memory_of_a_device(void) {
  const int64_t shape[1] = {4}, large[2] = {INT64_C(1) << 40, INT64_C(1) << 40};
  tessera_tensor *there = NULL, *here = NULL;
  void* data = NULL;
  DOES(tessera_tensor_create(TESSERA_F64, 1, shape, "imitation", &there));
  DOES(tessera_tensor_create(TESSERA_F64, 1, shape, "cpu", &here));
  DOES(tessera_tensor_data(there, &data));
  for (int k = 0; k < 4; ++k) ((double*)data)[k] = k + 1;
  DOES(tessera_tensor_copy(there, here));
  DOES(tessera_tensor_data(here, &data));
  for (int k = 0; k < 4; ++k) CHECK(((double*)data)[k] == k + 1);
  DOES(tessera_tensor_destroy(there));
  DOES(tessera_tensor_destroy(here));
  REFUSES(TESSERA_USAGE, "ShapeError", "2^63",
          tessera_tensor_create(TESSERA_F64, 2, large, "cpu", &here));
}

int main(int argc, char** argv) {
  start(&argc, &argv);
  new_memory();
  memory_of_the_caller();
  memory_of_a_device();
  tessera_environment* environment = world();
  tessera_mesh* mesh = grid(environment);
  distributed(mesh);
  DOES(tessera_mesh_destroy(mesh));
  DOES(tessera_environment_destroy(environment));
  return finish();
}
