// SPDX-License-Identifier: MIT
// ranks: 1 4
// Layers by name: parameters from seeds, memory and files; forward, backward, gradients.
#include "check.h"

#include <math.h>

enum { tokens = 4, dim = 6, positions = tokens * tokens, elements = positions * dim };
static const char* const triangle = "triangle_multiplication_outgoing";

static tessera_layer* make(const tessera_mesh* mesh, const char* name,
                           const char* hyperparameters) {
  tessera_layer* layer = NULL;
  DOES(tessera_layer_create(mesh, name, hyperparameters, TESSERA_F64, &layer));
  return layer;
}

static void names(const tessera_mesh* mesh) {
  char* list = NULL;
  DOES(tessera_layer_list(&list));
  CHECK(strstr(list, "\"name\":\"pairformer_module\"") != NULL && strstr(list, triangle) != NULL);
  tessera_text_destroy(list);

  tessera_layer* layer = NULL;
  REFUSES(TESSERA_USAGE, "UsageError", "triangel",
          tessera_layer_create(mesh, "triangel", "{}", TESSERA_F64, &layer));
  REFUSES(TESSERA_USAGE, "UsageError", "hyperparameters",
          tessera_layer_create(mesh, triangle, "{", TESSERA_F64, &layer));
  REFUSES(TESSERA_USAGE, "UsageError", "dim",
          tessera_layer_create(mesh, triangle, "{}", TESSERA_F64, &layer));
  REFUSES(TESSERA_USAGE, "UsageError", "hyperparameters",
          tessera_layer_create(mesh, triangle, NULL, TESSERA_F64, &layer));
  REFUSES(TESSERA_USAGE, "TypeError", "i64",
          tessera_layer_create(mesh, triangle, "{\"dim\": 6}", TESSERA_I64, &layer));
  CHECK(layer == NULL);

  layer = make(mesh, triangle, "{\"dim\": 6}");
  const char* name = NULL;
  int count = 0, ndim = 0, axes = 0, at[3] = {9, 9, 9};
  int64_t shape[2] = {0, 0};
  tessera_tensor* parameter = NULL;
  DOES(tessera_layer_parameter_count(layer, &count));
  CHECK(count == 8);
  DOES(tessera_layer_parameter_name(layer, 2, &name));
  CHECK(strcmp(name, "p_in.weight") == 0);
  DOES(tessera_layer_parameter(layer, name, &parameter));
  DOES(tessera_tensor_ndim(parameter, &ndim));
  DOES(tessera_tensor_shape(parameter, 2, shape));
  CHECK(ndim == 2 && shape[0] == 12 && shape[1] == 6);
  DOES(tessera_tensor_destroy(parameter));
  REFUSES(TESSERA_USAGE, "UsageError", "8", tessera_layer_parameter_name(layer, 8, &name));
  REFUSES(TESSERA_USAGE, "UsageError", "-1", tessera_layer_parameter_name(layer, -1, &name));
  REFUSES(TESSERA_USAGE, "StateDictError", "q_in",
          tessera_layer_parameter(layer, "q_in", &parameter));

  DOES(tessera_layer_input_count(layer, &count));
  CHECK(count == 2);
  DOES(tessera_layer_input_name(layer, 1, &name));
  CHECK(strcmp(name, "mask") == 0);
  DOES(tessera_layer_input_placements(layer, 0, 4, &axes, at));
  CHECK(axes == 3 && at[0] == 0 && at[1] == 1 && at[2] == 2);
  DOES(tessera_layer_output_count(layer, &count));
  DOES(tessera_layer_output_name(layer, 0, &name));
  CHECK(count == 1 && strcmp(name, "y") == 0);
  REFUSES(TESSERA_USAGE, "UsageError", "2", tessera_layer_input_placements(layer, 2, 4, &axes, at));
  REFUSES(TESSERA_USAGE, "RangeError", "'x'; found 3; expected 4",
          tessera_layer_input_placements(layer, 0, 3, &axes, at));
  REFUSES(TESSERA_USAGE, "RangeError", "'mask'; found 4; expected 3",
          tessera_layer_input_placements(layer, 1, 4, &axes, at));
  DOES(tessera_layer_destroy(layer));

  // A layer for tensors of several classes: placements go by the number of dims.
  layer = make(mesh, "transition", "{\"dim\": 6, \"hidden\": 8}");
  DOES(tessera_layer_input_placements(layer, 0, 3, &axes, at));
  CHECK(axes == 3 && at[0] == 0 && at[1] == 1 && at[2] == TESSERA_REPLICATE);
  REFUSES(TESSERA_USAGE, "RangeError", "found 0; expected 1 to 8",
          tessera_layer_input_placements(layer, 0, 0, &axes, at));
  DOES(tessera_layer_destroy(layer));
}

// Of layers that would else be made without, or with something else than what was asked for.
static void hyperparameters(const tessera_mesh* mesh) {
  static const char* const wrong[][2] = {{"{\"dimm\": 6}", "'dimm'"},
                                         {"{\"dim\": 6, \"heads\": 2}", "'heads'"},
                                         {"{}", "'dim'"},
                                         {"{\"dim\": 16.5}", "found 16.5"},
                                         {"{\"dim\": -3}", "found -3"},
                                         {"{\"dim\": 0}", "from 1"},
                                         {"{\"dim\": \"6\"}", "found \"6\""},
                                         {"{\"dim\": [6]}", "found an array"},
                                         {"{\"dim\": 6, \"dim\": 8}", "given twice"},
                                         {"[6]", "JSON object"},
                                         {"dim=6", "not JSON"},
                                         {"", "not JSON"}};
  for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; ++k) {
    tessera_layer* layer = NULL;
    REFUSES(TESSERA_USAGE, "UsageError", wrong[k][1],
            tessera_layer_create(mesh, triangle, wrong[k][0], TESSERA_F64, &layer));
    CHECK(layer == NULL && strstr(tessera_last_error(), triangle) != NULL);
  }
  // Deeper than the stack is.
  static char deep[2000000] = "{\"dim\":";
  memset(deep + 7, '[', 999000);
  memset(deep + 7 + 999000, ']', 999000);
  deep[7 + 2 * 999000] = '}';
  tessera_layer* layer = NULL;
  REFUSES(TESSERA_USAGE, "UsageError", "found an array",
          tessera_layer_create(mesh, triangle, deep, TESSERA_F64, &layer));
}

// Copies a parameter; returns the number of elements.
static int values_of(const tessera_layer* layer, const char* name, double* values) {
  tessera_tensor* parameter = NULL;
  int64_t shape[2] = {1, 1};
  void* data = NULL;
  DOES(tessera_layer_parameter(layer, name, &parameter));
  DOES(tessera_tensor_shape(parameter, 2, shape));
  DOES(tessera_tensor_data(parameter, &data));
  const int count = (int)(shape[0] * shape[1]);
  memcpy(values, data, (size_t)count * sizeof(double));
  DOES(tessera_tensor_destroy(parameter));
  return count;
}

static void parameters_from_seed_and_memory(const tessera_mesh* mesh) {
  tessera_layer* layer = make(mesh, "linear", "{\"in\": 3, \"out\": 2, \"bias\": true}");
  double first[6], again[6];
  DOES(tessera_layer_initialize(layer, 5));
  CHECK(values_of(layer, "weight", first) == 6);
  DOES(tessera_layer_initialize(layer, 6));
  values_of(layer, "weight", again);
  CHECK(memcmp(first, again, sizeof first) != 0);
  DOES(tessera_layer_initialize(layer, 5));
  values_of(layer, "weight", again);
  CHECK(memcmp(first, again, sizeof first) == 0 && first[0] != 0);
  double root[6];
  memcpy(root, first, sizeof root);
  MPI_Bcast(root, 6, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  CHECK(memcmp(root, first, sizeof root) == 0);

  float weight[6] = {1, 2, 3, 4, 5, 6};
  double bias[3] = {7, 8, 9};
  const int64_t weight_shape[2] = {2, 3}, two[1] = {2}, three[1] = {3};
  tessera_tensor *w = NULL, *b = NULL, *wrong = NULL;
  DOES(tessera_tensor_wrap(weight, TESSERA_F32, 2, weight_shape, NULL, "cpu", NULL, NULL, &w));
  DOES(tessera_tensor_wrap(bias, TESSERA_F64, 1, two, NULL, "cpu", NULL, NULL, &b));
  DOES(tessera_tensor_wrap(bias, TESSERA_F64, 1, three, NULL, "cpu", NULL, NULL, &wrong));
  const char* names[3] = {"weight", "bias", "bais"};
  const char* doubled[3] = {"weight", "bias", "bias"};
  const tessera_tensor* tensors[3] = {w, b, b};
  const tessera_tensor* wrong_shape[2] = {w, wrong};
  REFUSES(TESSERA_USAGE, "StateDictError", "missing: bias",
          tessera_layer_load(layer, 1, names, tensors));
  REFUSES(TESSERA_USAGE, "StateDictError", "unexpected: bais",
          tessera_layer_load(layer, 3, names, tensors));
  REFUSES(TESSERA_USAGE, "StateDictError", "bias [3] instead of [2]",
          tessera_layer_load(layer, 2, names, wrong_shape));
  REFUSES(TESSERA_USAGE, "StateDictError", "twice", tessera_layer_load(layer, 3, doubled, tensors));
  REFUSES(TESSERA_USAGE, "UsageError", "'names'", tessera_layer_load(layer, 2, NULL, tensors));
  int64_t numbers[6] = {0};
  tessera_tensor* whole = NULL;
  DOES(tessera_tensor_wrap(numbers, TESSERA_I64, 2, weight_shape, NULL, "cpu", NULL, NULL, &whole));
  const tessera_tensor* wrong_dtype[2] = {whole, b};
  REFUSES(TESSERA_USAGE, "StateDictError", "weight of i64",
          tessera_layer_load(layer, 2, names, wrong_dtype));
  DOES(tessera_tensor_destroy(whole));
  values_of(layer, "weight", again);
  CHECK(memcmp(first, again, sizeof first) == 0);  // what was refused changed nothing
  DOES(tessera_layer_load(layer, 2, names, tensors));
  values_of(layer, "weight", again);
  CHECK(again[0] == 1 && again[5] == 6);
  DOES(tessera_tensor_destroy(w));
  DOES(tessera_tensor_destroy(b));
  DOES(tessera_tensor_destroy(wrong));
  DOES(tessera_layer_destroy(layer));
}

// A safetensors file with the header and so many doubles: 0, 1, 2 ...
static void write_file(const char* path, const char* header, int count) {
  FILE* file = fopen(path, "wb");
  const uint64_t length = strlen(header);
  fwrite(&length, sizeof length, 1, file);
  fwrite(header, 1, (size_t)length, file);
  for (int k = 0; k < count; ++k) {
    const double value = k;
    fwrite(&value, sizeof value, 1, file);
  }
  fclose(file);
}

static void parameters_from_a_file(const tessera_mesh* mesh) {
  static const char whole[] =
      "{\"net.weight\":{\"dtype\":\"F64\",\"shape\":[2,3],\"data_offsets\":[0,48]},"
      "\"net.bias\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[48,64]},"
      "\"step\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[64,72]}}";
  static const char no_bias[] =
      "{\"net.weight\":{\"dtype\":\"F64\",\"shape\":[2,3],\"data_offsets\":[0,48]}}";
  char good[64], truncated[64], incomplete[64];
  snprintf(good, sizeof good, "c_layer_%d_%d.safetensors", ranks(), rank());
  snprintf(truncated, sizeof truncated, "c_layer_%d_%d_cut.safetensors", ranks(), rank());
  snprintf(incomplete, sizeof incomplete, "c_layer_%d_%d_part.safetensors", ranks(), rank());
  write_file(good, whole, 9);
  write_file(truncated, whole, 5);
  write_file(incomplete, no_bias, 6);

  tessera_layer* layer = make(mesh, "linear", "{\"in\": 3, \"out\": 2, \"bias\": true}");
  double values[6] = {0};
  REFUSES(TESSERA_USAGE, "FileError", "nowhere.safetensors",
          tessera_layer_load_file(layer, "nowhere.safetensors", NULL));
  // On one rank only: all are told.
  REFUSES(TESSERA_USAGE, "FileError", "_cut.safetensors",
          tessera_layer_load_file(layer, rank() == ranks() - 1 ? truncated : good, "net."));
  REFUSES(TESSERA_USAGE, "StateDictError", "missing: bias",
          tessera_layer_load_file(layer, incomplete, "net."));
  REFUSES(TESSERA_USAGE, "StateDictError", "unexpected: net.bias, net.weight, step",
          tessera_layer_load_file(layer, good, NULL));
  REFUSES(TESSERA_USAGE, "UsageError", "'path'", tessera_layer_load_file(layer, NULL, NULL));
  DOES(tessera_layer_load_file(layer, good, "net."));
  values_of(layer, "weight", values);
  CHECK(values[0] == 0 && values[5] == 5);
  values_of(layer, "bias", values);
  CHECK(values[0] == 6 && values[1] == 7);
  DOES(tessera_layer_destroy(layer));
  remove(good);
  remove(truncated);
  remove(incomplete);
}

// --- runs --------------------------------------------------------------------------------------

// The block of a tensor of one sample that is given by its values in row-major order.
static tessera_dtensor* spread(const tessera_mesh* mesh, const tessera_layer* layer, int input,
                               double* values, int channels) {
  const int64_t shape[4] = {1, tokens, tokens, channels};
  const int ndim = channels > 0 ? 4 : 3;
  int axes = 0, placements[3];
  tessera_tensor* full = NULL;
  tessera_dtensor* dtensor = NULL;
  DOES(tessera_layer_input_placements(layer, input, ndim, &axes, placements));
  DOES(tessera_tensor_wrap(values, TESSERA_F64, ndim, shape, NULL, "cpu", NULL, NULL, &full));
  DOES(tessera_dtensor_distribute(mesh, full, axes, placements, &dtensor));
  DOES(tessera_tensor_destroy(full));
  return dtensor;
}

struct problem {
  double x[elements], mask[positions], cotangent[elements];
};

static struct problem problem(void) {
  struct problem p;
  for (int k = 0; k < elements; ++k) {
    p.x[k] = sin(1.3 * k);
    p.cotangent[k] = cos(0.7 * k);
  }
  for (int k = 0; k < positions; ++k) p.mask[k] = k % 5 != 3;
  return p;
}

static tessera_run* forward(const tessera_mesh* mesh, const tessera_layer* layer, int keep,
                            struct problem* p) {
  tessera_dtensor* x = spread(mesh, layer, 0, p->x, dim);
  tessera_dtensor* mask = spread(mesh, layer, 1, p->mask, 0);
  const tessera_dtensor* inputs[2] = {x, mask};
  tessera_run* run = NULL;
  DOES(tessera_layer_forward(layer, keep, 2, inputs, &run));
  DOES(tessera_dtensor_destroy(x));
  DOES(tessera_dtensor_destroy(mask));
  return run;
}

static void backward(const tessera_mesh* mesh, const tessera_layer* layer, tessera_run* run,
                     struct problem* p) {
  tessera_dtensor* gradient = spread(mesh, layer, 0, p->cotangent, dim);
  const tessera_dtensor* gradients[1] = {gradient};
  DOES(tessera_run_backward(run, 1, gradients));
  DOES(tessera_dtensor_destroy(gradient));
}

// Takes the distributed tensor; its values, in row-major order.
static void collect(tessera_dtensor* dtensor, double* values) {
  tessera_tensor* full = NULL;
  void* data = NULL;
  DOES(tessera_dtensor_full(dtensor, &full));
  DOES(tessera_tensor_data(full, &data));
  memcpy(values, data, elements * sizeof(double));
  DOES(tessera_tensor_destroy(full));
  DOES(tessera_dtensor_destroy(dtensor));
}

// sum(y * cotangent)
static double loss(const tessera_mesh* mesh, const tessera_layer* layer, struct problem* p) {
  double y[elements], sum = 0;
  tessera_dtensor* output = NULL;
  tessera_run* run = forward(mesh, layer, 0, p);
  DOES(tessera_run_output(run, 0, &output));
  DOES(tessera_run_destroy(run));
  collect(output, y);
  for (int k = 0; k < elements; ++k) sum += y[k] * p->cotangent[k];
  return sum;
}

static int close_to(double a, double b, double tolerance) {
  return fabs(a - b) <= tolerance * (1 + fabs(b));
}

// An element of a parameter and the gradient for it.
static double* element(const tessera_layer* layer, const char* name, int gradient) {
  tessera_tensor* tensor = NULL;
  void* data = NULL;
  if (gradient)
    DOES(tessera_layer_gradient(layer, name, &tensor));
  else
    DOES(tessera_layer_parameter(layer, name, &tensor));
  DOES(tessera_tensor_data(tensor, &data));
  DOES(tessera_tensor_destroy(tensor));  // the layer keeps the memory
  return (double*)data + 4;
}

static void gradients_are_slopes(const tessera_mesh* mesh) {
  struct problem p = problem();
  tessera_layer* layer = make(mesh, triangle, "{\"dim\": 6}");
  // As it begins: every output projection zero. All other ones for more to look at.
  DOES(tessera_layer_initialize(layer, 11));
  static const char* const all[] = {"p_in.weight", "g_in.weight", "norm_out.bias", "p_out.weight",
                                    "g_out.weight"};
  for (int k = 0; k < 5; ++k) {
    double* value = element(layer, all[k], 0) - 4;
    for (int m = 0; m < 6; ++m) value[m] = 0.3 * sin(2.0 * m + k);
  }
  tessera_run* run = forward(mesh, layer, 1, &p);
  backward(mesh, layer, run, &p);

  const double h = 1e-5;
  for (int k = 0; k < 5; ++k) {
    double* value = element(layer, all[k], 0);
    const double before = *value, found = *element(layer, all[k], 1);
    *value = before + h;
    const double above = loss(mesh, layer, &p);
    *value = before - h;
    const double below = loss(mesh, layer, &p);
    *value = before;
    CHECK(close_to(found, (above - below) / (2 * h), 1e-7) && found != 0);
  }
  double grad_x[elements];
  tessera_dtensor* gradient = NULL;
  DOES(tessera_run_input_gradient(run, 0, &gradient));
  collect(gradient, grad_x);
  p.x[7] += h;
  const double above = loss(mesh, layer, &p);
  p.x[7] -= 2 * h;
  const double below = loss(mesh, layer, &p);
  CHECK(close_to(grad_x[7], (above - below) / (2 * h), 1e-7) && grad_x[7] != 0);
  DOES(tessera_run_destroy(run));
  DOES(tessera_layer_destroy(layer));
}

// The same layer on this rank alone.
static void equal_to_one_rank(const tessera_mesh* mesh) {
  struct problem p = problem();
  tessera_environment* alone = NULL;
  DOES(tessera_environment_create(NULL, &alone));
  tessera_mesh* serial = grid(alone);
  double y[2][elements], grad_x[2][elements], grad_w[2];
  for (int k = 0; k < 2; ++k) {
    const tessera_mesh* on = k == 0 ? serial : mesh;
    tessera_layer* layer = make(on, "triangle_attention_starting_node",
                                "{\"c_in\": 6, \"c_hidden\": 4, \"no_heads\": 2}");
    DOES(tessera_layer_initialize(layer, 3));
    tessera_dtensor* result = NULL;
    tessera_run* run = forward(on, layer, 1, &p);
    backward(on, layer, run, &p);
    grad_w[k] = *element(layer, "layer_norm.bias", 1);
    DOES(tessera_layer_destroy(layer));  // the run keeps what it needs
    DOES(tessera_run_output(run, 0, &result));
    collect(result, y[k]);
    DOES(tessera_run_input_gradient(run, 0, &result));
    DOES(tessera_run_destroy(run));
    collect(result, grad_x[k]);
  }
  int close = 0;
  for (int k = 0; k < elements; ++k)
    close += close_to(y[1][k], y[0][k], 1e-13) && close_to(grad_x[1][k], grad_x[0][k], 1e-13);
  CHECK(close == elements);
  CHECK(close_to(grad_w[1], grad_w[0], 1e-13));
  DOES(tessera_mesh_destroy(serial));
  DOES(tessera_environment_destroy(alone));
}

static void gradients_add_up(const tessera_mesh* mesh) {
  struct problem p = problem();
  tessera_layer* layer = make(mesh, triangle, "{\"dim\": 6}");
  tessera_tensor* gradient = NULL;
  DOES(tessera_layer_initialize(layer, 1));
  *element(layer, "p_out.weight", 0) = 0.5;
  REFUSES(TESSERA_USAGE, "GradientError", "g_in.weight",
          tessera_layer_gradient(layer, "g_in.weight", &gradient));
  tessera_run* first = forward(mesh, layer, 1, &p);
  tessera_run* second = forward(mesh, layer, 1, &p);
  backward(mesh, layer, first, &p);
  const double once = *element(layer, "g_out.weight", 1);
  backward(mesh, layer, second, &p);
  CHECK(once != 0 && close_to(*element(layer, "g_out.weight", 1), 2 * once, 1e-13));
  DOES(tessera_layer_zero_gradients(layer));
  REFUSES(TESSERA_USAGE, "GradientError", "g_out.weight",
          tessera_layer_gradient(layer, "g_out.weight", &gradient));
  DOES(tessera_run_destroy(first));
  DOES(tessera_run_destroy(second));
  DOES(tessera_layer_destroy(layer));
}

static void wrong_use(const tessera_mesh* mesh) {
  struct problem p = problem();
  tessera_layer* layer = make(mesh, triangle, "{\"dim\": 6}");
  DOES(tessera_layer_initialize(layer, 1));
  tessera_dtensor* x = spread(mesh, layer, 0, p.x, dim);
  tessera_dtensor* mask = spread(mesh, layer, 1, p.mask, 0);
  tessera_dtensor *whole = NULL, *result = NULL;
  tessera_tensor* full = NULL;
  const int64_t shape[4] = {1, tokens, tokens, dim};
  const int everywhere[3] = {TESSERA_REPLICATE, TESSERA_REPLICATE, TESSERA_REPLICATE};
  DOES(tessera_tensor_wrap(p.x, TESSERA_F64, 4, shape, NULL, "cpu", NULL, NULL, &full));
  DOES(tessera_dtensor_distribute(mesh, full, 3, everywhere, &whole));

  const tessera_dtensor* right[2] = {x, mask};
  const tessera_dtensor* swapped[2] = {mask, x};
  const tessera_dtensor* replicated[2] = {whole, mask};
  const tessera_dtensor* absent[2] = {NULL, NULL};
  tessera_run* run = NULL;
  REFUSES(TESSERA_USAGE, "PlacementError", "(S0,S1,S2)",
          tessera_layer_forward(layer, 1, 2, replicated, &run));
  CHECK(run == NULL);
  REFUSES(TESSERA_USAGE, "ShapeError", triangle, tessera_layer_forward(layer, 1, 2, swapped, &run));
  REFUSES(TESSERA_USAGE, "UsageError", "wrong number",
          tessera_layer_forward(layer, 1, 1, right, &run));
  REFUSES(TESSERA_USAGE, "UsageError", "'inputs'",
          tessera_layer_forward(layer, 1, 2, absent, &run));
  REFUSES(TESSERA_USAGE, "UsageError", "'inputs'", tessera_layer_forward(layer, 1, 2, NULL, &run));

  const tessera_dtensor* gradient[1] = {x};
  DOES(tessera_layer_forward(layer, 0, 2, right, &run));
  REFUSES(TESSERA_USAGE, "GradientError", "output", tessera_run_backward(run, 1, gradient));
  DOES(tessera_run_destroy(run));

  DOES(tessera_layer_forward(layer, 1, 2, right, &run));
  REFUSES(TESSERA_USAGE, "GradientError", "'x'", tessera_run_input_gradient(run, 0, &result));
  REFUSES(TESSERA_USAGE, "UsageError", "no output", tessera_run_backward(run, 1, absent));
  gradient[0] = whole;
  REFUSES(TESSERA_USAGE, "PlacementError", "(S0,S1,S2)", tessera_run_backward(run, 1, gradient));
  gradient[0] = mask;
  REFUSES(TESSERA_USAGE, "ShapeError", "[1, 4, 4]", tessera_run_backward(run, 1, gradient));
  gradient[0] = x;
  DOES(tessera_run_backward(run, 1, gradient));
  REFUSES(TESSERA_USAGE, "GradientError", "second", tessera_run_backward(run, 1, gradient));
  REFUSES(TESSERA_USAGE, "GradientError", "'mask'", tessera_run_input_gradient(run, 1, &result));
  REFUSES(TESSERA_USAGE, "UsageError", "1", tessera_run_output(run, 1, &result));
  DOES(tessera_run_destroy(run));
  REFUSES(TESSERA_USAGE, "UsageError", "destroyed", tessera_run_output(run, 0, &result));

  DOES(tessera_dtensor_destroy(x));
  DOES(tessera_dtensor_destroy(mask));
  DOES(tessera_dtensor_destroy(whole));
  DOES(tessera_tensor_destroy(full));
  DOES(tessera_layer_destroy(layer));
}

int main(int argc, char** argv) {
  start(&argc, &argv);
  tessera_environment* environment = world();
  tessera_mesh* mesh = grid(environment);
  names(mesh);
  hyperparameters(mesh);
  parameters_from_seed_and_memory(mesh);
  parameters_from_a_file(mesh);
  gradients_are_slopes(mesh);
  equal_to_one_rank(mesh);
  gradients_add_up(mesh);
  wrong_use(mesh);
  DOES(tessera_mesh_destroy(mesh));
  DOES(tessera_environment_destroy(environment));
  return finish();
}
