// SPDX-License-Identifier: MIT
// ranks: 1 4
// What was allocated and what was sent; parity of a layer.
#include "check.h"

static void memory(void) {
  const int64_t shape[2] = {100, 10};
  double mine[1000];
  int64_t before = 0, live = 0, peak = 0;
  tessera_tensor *tensor = NULL, *wrapped = NULL;
  char* report = NULL;
  DOES(tessera_memory_reset_peak());
  DOES(tessera_memory_total(&before, &peak));
  CHECK(peak == before);
  DOES(tessera_tensor_create(TESSERA_F64, 2, shape, "cpu", &tensor));
  DOES(tessera_tensor_wrap(mine, TESSERA_F64, 2, shape, NULL, "cpu", NULL, NULL, &wrapped));
  DOES(tessera_memory_total(&live, &peak));
  CHECK(live == before + 8000 && peak == live);
  DOES(tessera_memory_report(&report));
  CHECK(strstr(report, "\"purpose\":\"activation\",\"live\":8000") != NULL);
  tessera_text_destroy(report);
  DOES(tessera_tensor_destroy(tensor));
  DOES(tessera_tensor_destroy(wrapped));
  DOES(tessera_memory_total(&live, &peak));
  CHECK(live == before && peak == before + 8000);
  DOES(tessera_memory_reset_peak());
  DOES(tessera_memory_total(&live, &peak));
  CHECK(peak == before);

  DOES(tessera_memory_set_limit(before + 7999));
  REFUSES(TESSERA_OUT_OF_MEMORY, "OutOfMemoryError", "8000",
          tessera_tensor_create(TESSERA_F64, 2, shape, "cpu", &tensor));
  DOES(tessera_memory_set_limit(0));
  DOES(tessera_tensor_create(TESSERA_F64, 2, shape, "cpu", &tensor));
  DOES(tessera_tensor_destroy(tensor));
  REFUSES(TESSERA_USAGE, "UsageError", "negative", tessera_memory_set_limit(-1));
  REFUSES(TESSERA_USAGE, "UsageError", "'peak'", tessera_memory_total(&live, NULL));
}

static void messages(const tessera_mesh* mesh) {
  double values[64] = {0};
  const int64_t shape[2] = {8, 8};
  const int tiles[3] = {TESSERA_REPLICATE, 0, 1};
  tessera_tensor *full = NULL, *gathered = NULL;
  tessera_dtensor* dtensor = NULL;
  char* list = NULL;
  DOES(tessera_mesh_messages_clear(mesh));
  DOES(tessera_tensor_wrap(values, TESSERA_F64, 2, shape, NULL, "cpu", NULL, NULL, &full));
  DOES(tessera_dtensor_distribute(mesh, full, 3, tiles, &dtensor));
  DOES(tessera_mesh_messages(mesh, &list));
  CHECK(strcmp(list, "[]") == 0);
  tessera_text_destroy(list);
  DOES(tessera_dtensor_full(dtensor, &gathered));
  DOES(tessera_mesh_messages(mesh, &list));
  if (ranks() == 4) {
    // Along cp1 this rank sends its block of 4 x 4, along cp0 the 4 x 8 that it then has.
    CHECK(strstr(list,
                 "\"op\":\"all_gather\",\"axis\":\"cp1\",\"count\":1,\"messages\":1,"
                 "\"bytes\":128") != NULL);
    CHECK(strstr(list,
                 "\"op\":\"all_gather\",\"axis\":\"cp0\",\"count\":1,\"messages\":1,"
                 "\"bytes\":256") != NULL);
  } else {
    CHECK(strstr(list, "\"bytes\":1") == NULL && strstr(list, "\"bytes\":2") == NULL);
  }
  tessera_text_destroy(list);
  DOES(tessera_mesh_messages_clear(mesh));
  DOES(tessera_mesh_messages(mesh, &list));
  CHECK(strcmp(list, "[]") == 0);
  tessera_text_destroy(list);
  DOES(tessera_tensor_destroy(full));
  DOES(tessera_tensor_destroy(gathered));
  DOES(tessera_dtensor_destroy(dtensor));
}

static void parity(const tessera_mesh* mesh) {
  int pass = 0;
  char* report = NULL;
  DOES(tessera_parity(mesh, "triangle_multiplication_incoming", "tiny", TESSERA_F64, 1, &pass,
                      &report));
  CHECK(pass == 1 && report != NULL);
  CHECK(strstr(report, "\"name\":\"triangle_multiplication_incoming\"") != NULL);
  CHECK(strstr(report, "\"tensor\":\"grad p_in.weight\"") != NULL);
  tessera_text_destroy(report);
  REFUSES(TESSERA_USAGE, "UsageError", "tiniest",
          tessera_parity(mesh, "linear", "tiniest", TESSERA_F64, 1, &pass, &report));
  REFUSES(TESSERA_USAGE, "UsageError", "liner",
          tessera_parity(mesh, "liner", "tiny", TESSERA_F64, 1, &pass, &report));
  REFUSES(TESSERA_USAGE, "UsageError", "'dtype'",
          tessera_parity(mesh, "linear", "tiny", TESSERA_BOOL, 1, &pass, &report));
}

int main(int argc, char** argv) {
  start(&argc, &argv);
  memory();
  tessera_environment* environment = world();
  tessera_mesh* mesh = grid(environment);
  messages(mesh);
  parity(mesh);
  DOES(tessera_mesh_destroy(mesh));
  DOES(tessera_environment_destroy(environment));
  return finish();
}
