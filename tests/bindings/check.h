// SPDX-License-Identifier: MIT
// What the tests of the C interface share: a program each, on the ranks that it was registered for.
#ifndef TESSERA_TEST_CHECK_H
#define TESSERA_TEST_CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera.h"

static int checks = 0;
static int failures = 0;

static void check_at(int line, int holds, const char* what) {
  ++checks;
  if (holds) return;
  ++failures;
  fprintf(stderr, "line %d: %s; last error: %s\n", line, what, tessera_last_error());
}

// A call that must be refused: status, kind, and a part of the text.
static void refused_at(int line, int status, int expected, const char* kind, const char* text) {
  check_at(line, status == expected, "wrong status");
  check_at(line, strcmp(tessera_last_error_kind(), kind) == 0, kind);
  check_at(line, strstr(tessera_last_error(), text) != NULL, text);
}

#define CHECK(condition) check_at(__LINE__, (condition), #condition)
#define DOES(call) check_at(__LINE__, (call) == TESSERA_OK, #call)
#define REFUSES(status, kind, text, call) refused_at(__LINE__, (call), status, kind, text)

static int ranks(void) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

static int rank(void) {
  int own = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  return own;
}

// All ranks on one environment, as a grid of 1x1, 2x2 or 1xN.
static tessera_environment* world(void) {
  MPI_Comm comm = MPI_COMM_WORLD;
  tessera_environment* environment = NULL;
  DOES(tessera_environment_create(&comm, &environment));
  return environment;
}

static tessera_mesh* grid(const tessera_environment* environment) {
  tessera_mesh* mesh = NULL;
  int size = 0;
  DOES(tessera_environment_size(environment, &size));
  const int cp0 = size % 2 == 0 ? 2 : 1;
  DOES(tessera_mesh_create(environment, 1, cp0, size / cp0, "cpu", &mesh));
  return mesh;
}

static void start(int* argc, char*** argv) {
  MPI_Init(argc, argv);
  const char* expected = getenv("TESSERA_TEST_RANKS");
  CHECK(expected == NULL || atoi(expected) == ranks());
}

// The exit code: 1 on all ranks if a check of any failed.
static int finish(void) {
  int all = 0;
  const int own = failures > 0 || checks == 0;
  MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (rank() == 0) printf("%d checks, %d failures on rank 0\n", checks, failures);
  MPI_Finalize();
  // Not every test uses every helper.
  (void)refused_at;
  (void)world;
  (void)grid;
  return all;
}

#endif
