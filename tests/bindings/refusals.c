// SPDX-License-Identifier: MIT
// ranks: 1
// Every function with every pointer null, with handles that are destroyed or of another kind, and
// with numbers out of range: an error that names the function, and nothing written.
#include "check.h"

#include <limits.h>

// The text of the last failure begins with the function that was called.
static void refused_in(int line, const char* call, int status) {
  const size_t name = strcspn(call, "(");
  check_at(line, status != TESSERA_OK, call);
  check_at(line, strncmp(tessera_last_error(), call, name) == 0, call);
  check_at(line, tessera_last_error()[name] == ':', call);
}
#define NO(call) refused_in(__LINE__, #call, (call))

// One of each kind, on one rank.
static tessera_environment* environment;
static tessera_mesh* mesh;
static tessera_tensor* tensor;
static tessera_dtensor* dtensor;
static tessera_layer* layer;
static tessera_run* run;
static const int64_t shape[4] = {1, 4, 4, 6}, huge[4] = {1, INT64_MAX / 2, INT64_MAX / 2, 8};
static const int tiles[3] = {0, 1, 2}, beyond[3] = {0, 1, 7};
static const char* const sizes = "{\"dim\": 6}";

static void make(void) {
  DOES(tessera_environment_create(NULL, &environment));
  DOES(tessera_mesh_create(environment, 1, 1, 1, "cpu", &mesh));
  DOES(tessera_tensor_create(TESSERA_F64, 4, shape, "cpu", &tensor));
  DOES(tessera_dtensor_create(mesh, tensor, 3, tiles, 4, shape, &dtensor));
  DOES(tessera_layer_create(mesh, "layer_norm", sizes, TESSERA_F64, &layer));
  const tessera_dtensor* inputs[1] = {dtensor};
  DOES(tessera_layer_forward(layer, 1, 1, inputs, &run));
}

// With handles that are none.
static void use(tessera_environment* e, tessera_mesh* m, tessera_tensor* t, tessera_dtensor* d,
                tessera_layer* l, tessera_run* r) {
  int a = -7, b = -7, three[3];
  int64_t four[4], more[4];
  uint64_t seed = 1;
  char* json = NULL;
  const char* text = NULL;
  void* data = NULL;
  const tessera_dtensor* inputs[1] = {d};
  const tessera_tensor* values[1] = {t};
  const char* names[1] = {"weight"};
  tessera_mesh* new_mesh = mesh;
  tessera_tensor* new_tensor = tensor;
  tessera_dtensor* new_dtensor = dtensor;
  tessera_layer* new_layer = layer;
  tessera_run* new_run = run;
  NO(tessera_environment_rank(e, &a));
  NO(tessera_environment_size(e, &a));
  NO(tessera_mesh_create(e, 1, 1, 1, "cpu", &new_mesh));
  NO(tessera_mesh_shape(m, three));
  NO(tessera_mesh_coordinate(m, three));
  NO(tessera_mesh_block(m, 3, tiles, 4, shape, four, more));
  NO(tessera_mesh_messages(m, &json));
  NO(tessera_mesh_messages_clear(m));
  NO(tessera_tensor_data(t, &data));
  NO(tessera_tensor_dtype(t, &a));
  NO(tessera_tensor_device(t, &text));
  NO(tessera_tensor_ndim(t, &a));
  NO(tessera_tensor_shape(t, 4, four));
  NO(tessera_tensor_strides(t, 4, four));
  NO(tessera_tensor_copy(t, tensor));
  NO(tessera_tensor_copy(tensor, t));
  NO(tessera_dtensor_create(m, tensor, 3, tiles, 4, shape, &new_dtensor));
  NO(tessera_dtensor_create(mesh, t, 3, tiles, 4, shape, &new_dtensor));
  NO(tessera_dtensor_distribute(m, tensor, 3, tiles, &new_dtensor));
  NO(tessera_dtensor_distribute(mesh, t, 3, tiles, &new_dtensor));
  NO(tessera_dtensor_full(d, &new_tensor));
  NO(tessera_dtensor_local(d, &new_tensor));
  NO(tessera_dtensor_ndim(d, &a));
  NO(tessera_dtensor_shape(d, 4, four));
  NO(tessera_dtensor_placements(d, &a, three));
  NO(tessera_layer_create(m, "layer_norm", sizes, TESSERA_F64, &new_layer));
  NO(tessera_layer_initialize(l, seed));
  NO(tessera_layer_load_file(l, "nowhere.safetensors", NULL));
  NO(tessera_layer_load(l, 1, names, values));
  NO(tessera_layer_load(layer, 1, names, values));
  NO(tessera_layer_parameter_count(l, &a));
  NO(tessera_layer_parameter_name(l, 0, &text));
  NO(tessera_layer_parameter(l, "weight", &new_tensor));
  NO(tessera_layer_gradient(l, "weight", &new_tensor));
  NO(tessera_layer_zero_gradients(l));
  NO(tessera_layer_input_count(l, &a));
  NO(tessera_layer_input_name(l, 0, &text));
  NO(tessera_layer_input_placements(l, 0, 4, &a, three));
  NO(tessera_layer_output_count(l, &a));
  NO(tessera_layer_output_name(l, 0, &text));
  NO(tessera_layer_forward(l, 1, 1, inputs, &new_run));
  NO(tessera_layer_forward(layer, 1, 1, inputs, &new_run));
  NO(tessera_run_output(r, 0, &new_dtensor));
  NO(tessera_run_backward(r, 1, inputs));
  NO(tessera_run_backward(run, 1, inputs));
  NO(tessera_run_input_gradient(r, 0, &new_dtensor));
  NO(tessera_parity(m, "layer_norm", "tiny", TESSERA_F64, seed, &a, &json));
  CHECK(a == -7 && b == -7 && json == NULL && text == NULL && data == NULL);
  CHECK(new_mesh == NULL && new_tensor == NULL && new_dtensor == NULL && new_layer == NULL &&
        new_run == NULL);
}

static void nothing_to_write_to(void) {
  int a = -7, b = -7, three[3] = {-7, -7, -7};
  int64_t four[4] = {-7, -7, -7, -7};
  const tessera_dtensor* inputs[1] = {dtensor};
  NO(tessera_version(NULL, &a, &b));
  NO(tessera_version(&a, NULL, &b));
  NO(tessera_version(&a, &b, NULL));
  NO(tessera_info(NULL));
  NO(tessera_environment_create(NULL, NULL));
  NO(tessera_environment_create_fortran(0, NULL));
  NO(tessera_environment_rank(environment, NULL));
  NO(tessera_environment_size(environment, NULL));
  NO(tessera_mesh_create(environment, 1, 1, 1, "cpu", NULL));
  NO(tessera_mesh_shape(mesh, NULL));
  NO(tessera_mesh_coordinate(mesh, NULL));
  NO(tessera_mesh_block(mesh, 3, tiles, 4, shape, NULL, four));
  NO(tessera_mesh_block(mesh, 3, tiles, 4, shape, four, NULL));
  NO(tessera_mesh_messages(mesh, NULL));
  NO(tessera_tensor_create(TESSERA_F64, 4, shape, "cpu", NULL));
  NO(tessera_tensor_wrap(&a, TESSERA_I32, 0, NULL, NULL, "cpu", NULL, NULL, NULL));
  NO(tessera_tensor_data(tensor, NULL));
  NO(tessera_tensor_dtype(tensor, NULL));
  NO(tessera_tensor_device(tensor, NULL));
  NO(tessera_tensor_ndim(tensor, NULL));
  NO(tessera_tensor_shape(tensor, 4, NULL));
  NO(tessera_tensor_strides(tensor, 4, NULL));
  NO(tessera_dtensor_create(mesh, tensor, 3, tiles, 4, shape, NULL));
  NO(tessera_dtensor_distribute(mesh, tensor, 3, tiles, NULL));
  NO(tessera_dtensor_full(dtensor, NULL));
  NO(tessera_dtensor_local(dtensor, NULL));
  NO(tessera_dtensor_ndim(dtensor, NULL));
  NO(tessera_dtensor_shape(dtensor, 4, NULL));
  NO(tessera_dtensor_placements(dtensor, NULL, three));
  NO(tessera_dtensor_placements(dtensor, &a, NULL));
  NO(tessera_layer_list(NULL));
  NO(tessera_layer_create(mesh, "layer_norm", sizes, TESSERA_F64, NULL));
  NO(tessera_layer_parameter_count(layer, NULL));
  NO(tessera_layer_parameter_name(layer, 0, NULL));
  NO(tessera_layer_parameter(layer, "weight", NULL));
  NO(tessera_layer_gradient(layer, "weight", NULL));
  NO(tessera_layer_input_count(layer, NULL));
  NO(tessera_layer_input_name(layer, 0, NULL));
  NO(tessera_layer_input_placements(layer, 0, 4, NULL, three));
  NO(tessera_layer_input_placements(layer, 0, 4, &a, NULL));
  NO(tessera_layer_output_count(layer, NULL));
  NO(tessera_layer_output_name(layer, 0, NULL));
  NO(tessera_layer_forward(layer, 1, 1, inputs, NULL));
  NO(tessera_run_output(run, 0, NULL));
  NO(tessera_run_input_gradient(run, 0, NULL));
  NO(tessera_memory_total(NULL, four));
  NO(tessera_memory_total(four, NULL));
  NO(tessera_memory_report(NULL));
  NO(tessera_parity(mesh, "layer_norm", "tiny", TESSERA_F64, 1, &a, NULL));
  char* json = NULL;
  NO(tessera_parity(mesh, "layer_norm", "tiny", TESSERA_F64, 1, NULL, &json));
  CHECK(a == -7 && b == -7 && three[0] == -7 && four[0] == -7 && json == NULL);
}

static void null_arguments(void) {
  int a = 0;
  int64_t four[4], more[4];
  char* json = NULL;
  const char* no_names[1] = {NULL};
  const char* names[1] = {"weight"};
  const tessera_tensor* values[1] = {tensor};
  tessera_mesh* m = NULL;
  tessera_tensor* t = NULL;
  tessera_dtensor* d = NULL;
  tessera_layer* l = NULL;
  tessera_run* r = NULL;
  NO(tessera_mesh_create(environment, 1, 1, 1, NULL, &m));
  NO(tessera_mesh_block(mesh, 3, NULL, 4, shape, four, more));
  NO(tessera_mesh_block(mesh, 3, tiles, 4, NULL, four, more));
  NO(tessera_tensor_create(TESSERA_F64, 4, NULL, "cpu", &t));
  NO(tessera_tensor_create(TESSERA_F64, 4, shape, NULL, &t));
  NO(tessera_tensor_wrap(NULL, TESSERA_F64, 4, shape, NULL, "cpu", NULL, NULL, &t));
  NO(tessera_tensor_wrap(four, TESSERA_I64, 1, NULL, NULL, "cpu", NULL, NULL, &t));
  NO(tessera_tensor_wrap(four, TESSERA_I64, 0, NULL, NULL, NULL, NULL, NULL, &t));
  NO(tessera_dtensor_create(mesh, tensor, 3, NULL, 4, shape, &d));
  NO(tessera_dtensor_create(mesh, tensor, 3, tiles, 4, NULL, &d));
  NO(tessera_dtensor_distribute(mesh, tensor, 3, NULL, &d));
  NO(tessera_layer_create(mesh, NULL, sizes, TESSERA_F64, &l));
  NO(tessera_layer_create(mesh, "layer_norm", NULL, TESSERA_F64, &l));
  NO(tessera_layer_load_file(layer, NULL, NULL));
  NO(tessera_layer_load(layer, 1, NULL, values));
  NO(tessera_layer_load(layer, 1, no_names, values));
  NO(tessera_layer_load(layer, 1, names, NULL));
  NO(tessera_layer_parameter(layer, NULL, &t));
  NO(tessera_layer_gradient(layer, NULL, &t));
  NO(tessera_layer_forward(layer, 1, 1, NULL, &r));
  NO(tessera_run_backward(run, 1, NULL));
  NO(tessera_parity(mesh, NULL, "tiny", TESSERA_F64, 1, &a, &json));
  NO(tessera_parity(mesh, "layer_norm", NULL, TESSERA_F64, 1, &a, &json));
}

static void numbers_and_names(void) {
  static const int64_t negative[4] = {1, -4, 4, 6}, flat[1] = {96}, odd[4] = {1, 4, 4, 5};
  int a = 0, three[3];
  int64_t four[4], more[4];
  double memory[96] = {0};
  char* json = NULL;
  const char* text = NULL;
  const char* names[1] = {"weihgt"};
  const tessera_tensor* values[1] = {tensor};
  tessera_environment* e = NULL;
  tessera_mesh* m = NULL;
  tessera_tensor *t = NULL, *whole = NULL;
  tessera_dtensor *d = NULL, *numbers = NULL;
  tessera_layer* l = NULL;
  tessera_run* r = NULL;
  const int bad[] = {INT_MIN, -1, INT_MAX};
  for (int k = 0; k < 3; ++k) {
    NO(tessera_mesh_create(environment, bad[k], 1, 1, "cpu", &m));
    NO(tessera_mesh_create(environment, bad[k], bad[k], bad[k], "cpu", &m));
    NO(tessera_mesh_block(mesh, bad[k], tiles, 4, shape, four, more));
    NO(tessera_mesh_block(mesh, 3, tiles, bad[k], shape, four, more));
    NO(tessera_tensor_create(bad[k], 4, shape, "cpu", &t));
    NO(tessera_tensor_create(TESSERA_F64, bad[k], shape, "cpu", &t));
    NO(tessera_tensor_wrap(memory, bad[k], 4, shape, NULL, "cpu", NULL, NULL, &t));
    NO(tessera_tensor_wrap(memory, TESSERA_F64, bad[k], shape, NULL, "cpu", NULL, NULL, &t));
    NO(tessera_dtensor_create(mesh, tensor, bad[k], tiles, 4, shape, &d));
    NO(tessera_dtensor_create(mesh, tensor, 3, tiles, bad[k], shape, &d));
    NO(tessera_dtensor_distribute(mesh, tensor, bad[k], tiles, &d));
    NO(tessera_layer_create(mesh, "layer_norm", sizes, bad[k], &l));
    NO(tessera_layer_load(layer, bad[k] < 0 ? bad[k] : 0, names, values));
    NO(tessera_layer_parameter_name(layer, bad[k], &text));
    NO(tessera_layer_input_name(layer, bad[k], &text));
    NO(tessera_layer_input_placements(layer, bad[k], 4, &a, three));
    NO(tessera_layer_input_placements(layer, 0, bad[k], &a, three));
    NO(tessera_layer_output_name(layer, bad[k], &text));
    NO(tessera_layer_forward(layer, bad[k], 1, (const tessera_dtensor* const*)&dtensor, &r));
    NO(tessera_layer_forward(layer, 1, bad[k], (const tessera_dtensor* const*)&dtensor, &r));
    NO(tessera_run_output(run, bad[k], &d));
    NO(tessera_run_backward(run, bad[k], (const tessera_dtensor* const*)&dtensor));
    NO(tessera_run_input_gradient(run, bad[k], &d));
    NO(tessera_parity(mesh, "layer_norm", "tiny", bad[k], 1, &a, &json));
  }
  NO(tessera_threads_set(0));
  NO(tessera_threads_set(INT_MAX));
  NO(tessera_memory_set_limit(-1));
  NO(tessera_environment_create_fortran(-77, &e));
  NO(tessera_mesh_create(environment, 1, 1, 1, "", &m));
  NO(tessera_mesh_create(environment, 1, 1, 1, "imitation:-1", &m));
  NO(tessera_mesh_block(mesh, 3, beyond, 4, shape, four, more));
  NO(tessera_mesh_block(mesh, 3, tiles, 4, negative, four, more));
  NO(tessera_tensor_create(TESSERA_F64, 4, negative, "cpu", &t));
  NO(tessera_tensor_create(TESSERA_F64, 4, huge, "cpu", &t));
  NO(tessera_tensor_create(TESSERA_F64, 4, shape, "abacus", &t));
  NO(tessera_tensor_wrap(memory, TESSERA_F64, 4, negative, NULL, "cpu", NULL, NULL, &t));
  NO(tessera_tensor_wrap(memory, TESSERA_F64, 4, huge, NULL, "cpu", NULL, NULL, &t));
  NO(tessera_tensor_wrap(memory, TESSERA_F64, 4, shape, huge, "cpu", NULL, NULL, &t));
  NO(tessera_tensor_wrap((char*)memory + 4, TESSERA_F64, 1, flat, NULL, "cpu", NULL, NULL, &t));
  NO(tessera_tensor_wrap(memory, TESSERA_F64, 1, flat, NULL, "cuda:9999", NULL, NULL, &t));
  NO(tessera_tensor_shape(tensor, 3, four));
  NO(tessera_tensor_strides(tensor, -1, four));
  NO(tessera_dtensor_shape(dtensor, 3, four));
  DOES(tessera_tensor_wrap(memory, TESSERA_F64, 1, flat, NULL, "cpu", NULL, NULL, &whole));
  NO(tessera_tensor_copy(whole, tensor));
  NO(tessera_dtensor_create(mesh, whole, 3, tiles, 4, shape, &d));
  NO(tessera_dtensor_create(mesh, tensor, 3, beyond, 4, shape, &d));
  NO(tessera_dtensor_create(mesh, tensor, 3, tiles, 4, odd, &d));
  NO(tessera_dtensor_create(mesh, tensor, 3, tiles, 4, huge, &d));
  NO(tessera_dtensor_distribute(mesh, whole, 3, tiles, &d));
  NO(tessera_layer_create(mesh, "layer_nrom", sizes, TESSERA_F64, &l));
  NO(tessera_layer_create(mesh, "layer_norm", sizes, TESSERA_BF16, &l));
  NO(tessera_layer_load_file(layer, "nowhere.safetensors", NULL));
  NO(tessera_layer_load_file(layer, ".", "prefix"));
  NO(tessera_layer_load_file(layer, "", NULL));
  NO(tessera_layer_load(layer, 1, names, values));
  NO(tessera_layer_parameter(layer, names[0], &t));
  NO(tessera_layer_gradient(layer, names[0], &t));
  NO(tessera_parity(mesh, "layer_nrom", "tiny", TESSERA_F64, 1, &a, &json));
  NO(tessera_parity(mesh, "layer_norm", "huge", TESSERA_F64, 1, &a, &json));
  NO(tessera_parity(mesh, "layer_norm", "tiny", TESSERA_I64, 1, &a, &json));

  // Whole numbers where values belong.
  DOES(tessera_tensor_create(TESSERA_I64, 4, shape, "cpu", &t));
  DOES(tessera_dtensor_create(mesh, t, 3, tiles, 4, shape, &numbers));
  NO(tessera_layer_forward(layer, 1, 1, (const tessera_dtensor* const*)&numbers, &r));
  NO(tessera_run_backward(run, 1, (const tessera_dtensor* const*)&numbers));
  DOES(tessera_tensor_destroy(t));
  DOES(tessera_tensor_destroy(whole));
  DOES(tessera_dtensor_destroy(numbers));
}

// What was destroyed is told from what lives.
static void destroyed(void) {
  tessera_environment* e = environment;
  tessera_mesh* m = mesh;
  tessera_tensor* t = tensor;
  tessera_dtensor* d = dtensor;
  tessera_layer* l = layer;
  tessera_run* r = run;
  make();
  DOES(tessera_environment_destroy(e));
  DOES(tessera_mesh_destroy(m));
  DOES(tessera_tensor_destroy(t));
  DOES(tessera_dtensor_destroy(d));
  DOES(tessera_layer_destroy(l));
  DOES(tessera_run_destroy(r));
  use(e, m, t, d, l, r);
  NO(tessera_environment_destroy(e));
  NO(tessera_mesh_destroy(m));
  NO(tessera_tensor_destroy(t));
  NO(tessera_dtensor_destroy(d));
  NO(tessera_layer_destroy(l));
  NO(tessera_run_destroy(r));
  DOES(tessera_environment_destroy(environment));
  DOES(tessera_mesh_destroy(mesh));
  DOES(tessera_tensor_destroy(tensor));
  DOES(tessera_dtensor_destroy(dtensor));
  DOES(tessera_layer_destroy(layer));
  DOES(tessera_run_destroy(run));
}

int main(int argc, char** argv) {
  start(&argc, &argv);
  make();
  use(NULL, NULL, NULL, NULL, NULL, NULL);
  use((void*)mesh, (void*)tensor, (void*)dtensor, (void*)layer, (void*)run, (void*)environment);
  nothing_to_write_to();
  null_arguments();
  numbers_and_names();
  destroyed();
  return finish();
}
