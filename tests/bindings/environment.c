// SPDX-License-Identifier: MIT
// ranks: 1 4
// Versions, errors, environments on communicators of all kinds, meshes.
#define _POSIX_C_SOURCE 200112L  // setenv
#include "check.h"

#include <pthread.h>

static void versions(void) {
  int major = -1, minor = -1, patch = -1;
  DOES(tessera_version(&major, &minor, &patch));
  CHECK(major == TESSERA_VERSION_MAJOR && minor == TESSERA_VERSION_MINOR &&
        patch == TESSERA_VERSION_PATCH);
  REFUSES(TESSERA_USAGE, "UsageError", "minor", tessera_version(&major, NULL, &patch));

  char expected[64];
  char* info = NULL;
  snprintf(expected, sizeof expected, "\"tessera\":\"%d.%d.%d\"", major, minor, patch);
  DOES(tessera_info(&info));
  CHECK(strstr(info, expected) != NULL && strstr(info, "x86-64-v") != NULL);
  tessera_text_destroy(info);
  tessera_text_destroy(NULL);
  REFUSES(TESSERA_USAGE, "UsageError", "tessera_info", tessera_info(NULL));

  DOES(tessera_threads_set(1));
  REFUSES(TESSERA_USAGE, "UsageError", "thread", tessera_threads_set(0));
}

// Without a communicator: one rank, and no MPI.
static void alone(void) {
  tessera_environment* environment = NULL;
  tessera_mesh* mesh = NULL;
  int size = 0, own = -1, shape[3] = {0, 0, 0};
  DOES(tessera_environment_create(NULL, &environment));
  DOES(tessera_environment_size(environment, &size));
  DOES(tessera_environment_rank(environment, &own));
  CHECK(size == 1 && own == 0);
  DOES(tessera_mesh_create(environment, 1, 1, 1, "cpu", &mesh));
  DOES(tessera_mesh_shape(mesh, shape));
  CHECK(shape[0] == 1 && shape[1] == 1 && shape[2] == 1);
  // What a mesh is made of lives as long as it does.
  DOES(tessera_environment_destroy(environment));
  DOES(tessera_mesh_coordinate(mesh, shape));
  CHECK(shape[0] == 0 && shape[1] == 0 && shape[2] == 0);
  DOES(tessera_mesh_destroy(mesh));
}

static void before_mpi(void) {
  MPI_Comm comm = MPI_COMM_NULL;
  tessera_environment* environment = (tessera_environment*)&comm;
  REFUSES(TESSERA_ENVIRONMENT, "InitError", "MPI is not running",
          tessera_environment_create(&comm, &environment));
  CHECK(environment == NULL);
  REFUSES(TESSERA_ENVIRONMENT, "InitError", "MPI is not running",
          tessera_environment_create_fortran(0, &environment));
  alone();
}

static void wrong_handles(void) {
  tessera_environment* environment = world();
  tessera_mesh* mesh = NULL;
  int value = 0, shape[3];
  REFUSES(TESSERA_USAGE, "UsageError", "handle to write", tessera_environment_create(NULL, NULL));
  REFUSES(TESSERA_USAGE, "UsageError", "'environment'", tessera_environment_rank(NULL, &value));
  REFUSES(TESSERA_USAGE, "UsageError", "tessera_environment_rank",
          tessera_environment_rank(environment, NULL));
  REFUSES(TESSERA_USAGE, "UsageError", "another kind",
          tessera_mesh_shape((const tessera_mesh*)environment, shape));
  REFUSES(TESSERA_USAGE, "UsageError", "never made",
          tessera_environment_rank((const tessera_environment*)&value, &value));
  DOES(tessera_environment_destroy(environment));
  REFUSES(TESSERA_USAGE, "UsageError", "destroyed", tessera_environment_rank(environment, &value));
  REFUSES(TESSERA_USAGE, "UsageError", "destroyed", tessera_environment_destroy(environment));
  REFUSES(TESSERA_USAGE, "UsageError", "destroyed",
          tessera_mesh_create(environment, 1, 1, 1, "cpu", &mesh));
  DOES(tessera_environment_destroy(NULL));
  DOES(tessera_mesh_destroy(NULL));
}

static void* error_of_another_thread(void* text) {
  strcpy((char*)text, tessera_last_error());
  return NULL;
}

static void errors_are_kept_per_thread(void) {
  int value = 0;
  char other[256] = "not called";
  pthread_t thread;
  REFUSES(TESSERA_USAGE, "UsageError", "null", tessera_environment_size(NULL, &value));
  pthread_create(&thread, NULL, error_of_another_thread, other);
  pthread_join(thread, NULL);
  CHECK(strcmp(other, "") == 0);
  CHECK(strcmp(tessera_last_error(), "") != 0);
}

static void meshes(void) {
  tessera_environment* environment = world();
  tessera_mesh* mesh = grid(environment);
  int shape[3], at[3], size = 0, own = -1;
  DOES(tessera_environment_size(environment, &size));
  DOES(tessera_environment_rank(environment, &own));
  CHECK(size == ranks() && own == rank());
  DOES(tessera_mesh_shape(mesh, shape));
  DOES(tessera_mesh_coordinate(mesh, at));
  CHECK(shape[0] * shape[1] * shape[2] == size);
  CHECK((at[0] * shape[1] + at[1]) * shape[2] + at[2] == own);

  // Blocks of [2, 4, 6]: dim 1 cut by cp0, dim 2 by cp1; and dim 1 by both.
  const int64_t global[3] = {2, 4, 12};
  const int tiles[3] = {TESSERA_REPLICATE, 1, 2};
  const int flat[2] = {TESSERA_REPLICATE, 1};
  int64_t begin[3], length[3];
  DOES(tessera_mesh_block(mesh, 3, tiles, 3, global, begin, length));
  CHECK(begin[0] == 0 && begin[1] == at[1] * 4 / shape[1] && begin[2] == at[2] * 12 / shape[2]);
  CHECK(length[0] == 2 && length[1] == 4 / shape[1] && length[2] == 12 / shape[2]);
  DOES(tessera_mesh_block(mesh, 2, flat, 3, global, begin, length));
  CHECK(begin[1] == own * 4 / size && length[1] == 4 / size && length[2] == 12);

  const int twice[3] = {TESSERA_REPLICATE, 1, 1};
  const int beyond[3] = {TESSERA_REPLICATE, 1, 3};
  const int nonsense[3] = {-2, 1, 2};
  REFUSES(TESSERA_USAGE, "PlacementError", "dim 1",
          tessera_mesh_block(mesh, 3, twice, 3, global, begin, length));
  REFUSES(TESSERA_USAGE, "RangeError", "3",
          tessera_mesh_block(mesh, 3, beyond, 3, global, begin, length));
  REFUSES(TESSERA_USAGE, "UsageError", "-2",
          tessera_mesh_block(mesh, 3, nonsense, 3, global, begin, length));
  REFUSES(TESSERA_USAGE, "UsageError", "4 axes",
          tessera_mesh_block(mesh, 4, tiles, 3, global, begin, length));
  REFUSES(TESSERA_USAGE, "UsageError", "null",
          tessera_mesh_block(mesh, 3, NULL, 3, global, begin, length));
  REFUSES(TESSERA_USAGE, "RangeError", "9",
          tessera_mesh_block(mesh, 3, tiles, 9, global, begin, length));
  if (size > 1) {
    const int64_t odd[3] = {2, 3, 12};
    REFUSES(TESSERA_USAGE, "UnevenError", "3",
            tessera_mesh_block(mesh, 3, tiles, 3, odd, begin, length));
  }

  tessera_mesh* other = mesh;
  REFUSES(TESSERA_ENVIRONMENT, "InitError", "5",
          tessera_mesh_create(environment, 1, 5, 1, "cpu", &other));
  CHECK(other == NULL);
  REFUSES(TESSERA_USAGE, "UsageError", "no ranks",
          tessera_mesh_create(environment, 0, 1, size, "cpu", &other));
  REFUSES(TESSERA_USAGE, "UsageError", "abacus",
          tessera_mesh_create(environment, 1, 1, size, "abacus", &other));
  REFUSES(TESSERA_ENVIRONMENT, "DeviceError", "cuda",
          tessera_mesh_create(environment, 1, 1, size, "cuda:77", &other));
  DOES(tessera_mesh_destroy(mesh));
  DOES(tessera_environment_destroy(environment));
}

static void count_line(void* lines, const char* level, const char* line) {
  if (strcmp(level, "info") == 0 || strcmp(level, "debug") == 0) ++*(int*)lines;
  CHECK(line[0] != 0 && strchr(line, '\n') == NULL);
}

static void the_log(void) {
  int lines = 0;
  DOES(tessera_log_set(count_line, &lines));
  tessera_environment* environment = world();
  tessera_mesh* mesh = grid(environment);
  const int before = lines;
  CHECK(before > 0);
  DOES(tessera_log_set(NULL, NULL));
  DOES(tessera_mesh_destroy(mesh));
  mesh = grid(environment);
  CHECK(lines == before);
  DOES(tessera_mesh_destroy(mesh));
  DOES(tessera_environment_destroy(environment));
}

static void silent(MPI_Comm* comm, int* code, ...) {
  (void)comm;
  (void)code;
}

// Part of the ranks, while the others do not call the library; and the caller's communicator with
// its error handler is as it was.
static void communicators_of_the_caller(void) {
  MPI_Comm part;
  MPI_Errhandler mine, found;
  const int upper = rank() >= ranks() / 2;
  MPI_Comm_split(MPI_COMM_WORLD, upper, 0, &part);
  MPI_Comm_create_errhandler(silent, &mine);
  MPI_Comm_set_errhandler(part, mine);
  if (upper) {
    tessera_environment* environment = NULL;
    int size = 0, own = -1;
    DOES(tessera_environment_create(&part, &environment));
    DOES(tessera_environment_size(environment, &size));
    DOES(tessera_environment_rank(environment, &own));
    CHECK(size == ranks() - ranks() / 2 && own == rank() - ranks() / 2);
    tessera_mesh* mesh = grid(environment);
    DOES(tessera_mesh_destroy(mesh));
    DOES(tessera_environment_destroy(environment));
    DOES(tessera_environment_create_fortran((int)MPI_Comm_c2f(part), &environment));
    DOES(tessera_environment_rank(environment, &own));
    CHECK(own == rank() - ranks() / 2);
    DOES(tessera_environment_destroy(environment));
  }
  MPI_Comm_get_errhandler(part, &found);
  CHECK(found == mine);
  MPI_Errhandler_free(&found);
  MPI_Errhandler_free(&mine);
  MPI_Comm_free(&part);
  part = MPI_COMM_NULL;
  tessera_environment* environment = NULL;
  REFUSES(TESSERA_ENVIRONMENT, "InitError", "MPI_COMM_NULL",
          tessera_environment_create(&part, &environment));
}

// Numbers that Fortran has for no communicator; MPI_COMM_WORLD ends the program at its errors
// still.
static void no_communicators(void) {
  MPI_Errhandler found;
  tessera_environment* environment = NULL;
  const int numbers[3] = {-77, 12345, (int)MPI_Comm_c2f(MPI_COMM_NULL)};
  for (int k = 0; k < 3; ++k)
    REFUSES(TESSERA_ENVIRONMENT, "InitError", "Communicator::duplicate",
            tessera_environment_create_fortran(numbers[k], &environment));
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &found);
  CHECK(found == MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler_free(&found);
}

// Two groups of ranks are no world of one.
static void an_intercommunicator(void) {
  if (ranks() < 2) return;
  MPI_Comm part, both;
  const int upper = rank() >= ranks() / 2;
  MPI_Comm_split(MPI_COMM_WORLD, upper, 0, &part);
  MPI_Intercomm_create(part, 0, MPI_COMM_WORLD, upper ? 0 : ranks() / 2, 1, &both);
  tessera_environment* environment = NULL;
  REFUSES(TESSERA_ENVIRONMENT, "InitError", "intercommunicator",
          tessera_environment_create(&both, &environment));
  MPI_Comm_free(&both);
  MPI_Comm_free(&part);
}

// All ranks learn that one of them lacks the device.
static void a_device_that_one_rank_lacks(void) {
  tessera_environment* environment = world();
  tessera_mesh* mesh = NULL;
  if (rank() == ranks() - 1) setenv("TESSERA_IMITATION_DEVICES", "0", 1);
  REFUSES(TESSERA_ENVIRONMENT, "DeviceError", "imitation:0",
          tessera_mesh_create(environment, 1, 1, ranks(), "imitation:0", &mesh));
  DOES(tessera_environment_destroy(environment));
}

// What is left then can be destroyed, and nothing else.
static void after_mpi(tessera_environment* environment, tessera_mesh* mesh) {
  const int64_t shape[3] = {1, 4, 4};
  const int tiles[3] = {TESSERA_REPLICATE, 1, 2};
  tessera_environment* again = NULL;
  tessera_mesh* other = NULL;
  tessera_tensor *tensor = NULL, *full = NULL;
  tessera_dtensor* dtensor = NULL;
  REFUSES(TESSERA_ENVIRONMENT, "InitError", "MPI is not running",
          tessera_environment_create_fortran(0, &again));
  REFUSES(TESSERA_ENVIRONMENT, "InitError", "MPI is not running",
          tessera_mesh_create(environment, 1, 1, 1, "cpu", &other));
  DOES(tessera_tensor_create(TESSERA_F64, 3, shape, "cpu", &tensor));
  DOES(tessera_dtensor_distribute(mesh, tensor, 3, tiles, &dtensor));
  const int status = tessera_dtensor_full(dtensor, &full);  // of one rank: no message
  if (status != TESSERA_OK) REFUSES(TESSERA_ENVIRONMENT, "InitError", "MPI is not running", status);
  DOES(tessera_dtensor_destroy(dtensor));
  DOES(tessera_tensor_destroy(tensor));
  DOES(tessera_tensor_destroy(full));
  DOES(tessera_mesh_destroy(mesh));
  DOES(tessera_environment_destroy(environment));
}

int main(int argc, char** argv) {
  CHECK(strcmp(tessera_last_error(), "") == 0 && strcmp(tessera_last_error_kind(), "") == 0);
  before_mpi();
  start(&argc, &argv);
  versions();
  alone();
  wrong_handles();
  errors_are_kept_per_thread();
  meshes();
  the_log();
  communicators_of_the_caller();
  no_communicators();
  an_intercommunicator();
  a_device_that_one_rank_lacks();
  tessera_environment* environment = world();
  tessera_mesh* mesh = grid(environment);
  const int failed = finish();
  after_mpi(environment, mesh);
  return failed || failures > 0;
}
