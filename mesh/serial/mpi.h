// SPDX-License-Identifier: MIT
// MPI for one rank, for builds without MPI (TESSERA_MPI=OFF): on the include path only there, and
// as much of the standard as mesh/ and the tests use. Not installed. A message would have to go to
// the rank itself, which mesh/ copies without MPI: sending and receiving are errors.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace tessera::serial_mpi {

inline constexpr int MPI_SUCCESS = 0;
inline constexpr int MPI_ERR_RANK = 6;
inline constexpr int MPI_UNDEFINED = -32766;
inline constexpr int MPI_ANY_SOURCE = -2;
inline constexpr int MPI_MAX_ERROR_STRING = 64;
inline constexpr int MPI_MAX_LIBRARY_VERSION_STRING = 64;
inline constexpr int MPI_TAG_UB = 1;
inline constexpr int MPI_COMM_TYPE_SHARED = 1;
enum { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE };

using MPI_Datatype = std::size_t;  // bytes of an element
inline constexpr MPI_Datatype MPI_BYTE = 1;
inline constexpr MPI_Datatype MPI_CHAR = 1;
inline constexpr MPI_Datatype MPI_INT = sizeof(int);

enum MPI_Op { MPI_MIN };
using MPI_Info = const void*;
inline constexpr MPI_Info MPI_INFO_NULL = nullptr;
using MPI_Request = const void*;  // of an operation that is over: always null
inline constexpr MPI_Request MPI_REQUEST_NULL = nullptr;

struct MPI_Status {
  int MPI_SOURCE;
};
inline constexpr MPI_Status* MPI_STATUS_IGNORE = nullptr;
inline constexpr MPI_Status* MPI_STATUSES_IGNORE = nullptr;

enum MPI_Errhandler { MPI_ERRHANDLER_NULL, MPI_ERRORS_ARE_FATAL, MPI_ERRORS_RETURN };

struct Group {
  MPI_Errhandler handler = MPI_ERRORS_ARE_FATAL;
};
using MPI_Comm = Group*;
inline constexpr MPI_Comm MPI_COMM_NULL = nullptr;
using MPI_Fint = int;
inline MPI_Comm MPI_Comm_f2c(MPI_Fint) {
  return MPI_COMM_NULL;  // no Fortran program has one
}

// One for the whole process, in a shared library too.
struct __attribute__((visibility("default"))) Process {
  bool initialized = false;
  bool finalized = false;
  int thread_level = MPI_THREAD_SINGLE;
  Group world, self_only;
  static Process& self() {
    static Process process;
    return process;
  }
};
#define MPI_COMM_WORLD (&tessera::serial_mpi::Process::self().world)
#define MPI_COMM_SELF (&tessera::serial_mpi::Process::self().self_only)

inline int MPI_Init_thread(int*, char***, int required, int* provided) {
  Process::self().initialized = true;
  Process::self().thread_level = *provided = required;
  return MPI_SUCCESS;
}
inline int MPI_Initialized(int* flag) {
  *flag = Process::self().initialized ? 1 : 0;
  return MPI_SUCCESS;
}
inline int MPI_Finalize() {
  Process::self().finalized = true;
  return MPI_SUCCESS;
}
inline int MPI_Finalized(int* flag) {
  *flag = Process::self().finalized ? 1 : 0;
  return MPI_SUCCESS;
}
[[noreturn]] inline int MPI_Abort(MPI_Comm, int code) {
  std::_Exit(code);
}
inline int MPI_Is_thread_main(int* flag) {
  *flag = 1;
  return MPI_SUCCESS;
}
inline int MPI_Query_thread(int* level) {
  *level = Process::self().thread_level;
  return MPI_SUCCESS;
}
inline int MPI_Get_version(int* version, int* subversion) {
  *version = *subversion = 0;  // of no standard
  return MPI_SUCCESS;
}
inline int MPI_Get_library_version(char* text, int* length) {
  std::strcpy(text, "none (built without)");
  *length = static_cast<int>(std::strlen(text));
  return MPI_SUCCESS;
}
inline int MPI_Error_string(int, char* text, int* length) {
  std::strcpy(text, "this build has no MPI: there is no other rank");
  *length = static_cast<int>(std::strlen(text));
  return MPI_SUCCESS;
}

inline int MPI_Comm_rank(MPI_Comm, int* rank) {
  *rank = 0;
  return MPI_SUCCESS;
}
inline int MPI_Comm_size(MPI_Comm, int* size) {
  *size = 1;
  return MPI_SUCCESS;
}
inline int MPI_Comm_test_inter(MPI_Comm, int* inter) {
  *inter = 0;
  return MPI_SUCCESS;
}
inline int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
  *copy = new Group(*comm);
  return MPI_SUCCESS;
}
inline int MPI_Comm_split(MPI_Comm comm, int color, int, MPI_Comm* part) {
  *part = color == MPI_UNDEFINED ? MPI_COMM_NULL : new Group(*comm);
  return MPI_SUCCESS;
}
inline int MPI_Comm_split_type(MPI_Comm comm, int, int key, MPI_Info, MPI_Comm* part) {
  return MPI_Comm_split(comm, 0, key, part);
}
inline int MPI_Comm_free(MPI_Comm* comm) {
  delete *comm;
  *comm = MPI_COMM_NULL;
  return MPI_SUCCESS;
}
inline int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler) {
  comm->handler = handler;
  return MPI_SUCCESS;
}
inline int MPI_Comm_get_errhandler(MPI_Comm comm, MPI_Errhandler* handler) {
  *handler = comm->handler;
  return MPI_SUCCESS;
}
inline int MPI_Errhandler_free(MPI_Errhandler* handler) {
  *handler = MPI_ERRHANDLER_NULL;
  return MPI_SUCCESS;
}
inline int MPI_Comm_get_attr(MPI_Comm, int, void*, int* found) {
  *found = 0;
  return MPI_SUCCESS;
}

inline int MPI_Isend(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) {
  return MPI_ERR_RANK;
}
inline int MPI_Irecv(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) {
  return MPI_ERR_RANK;
}
inline int MPI_Iprobe(int, int, MPI_Comm, int* found, MPI_Status*) {
  *found = 0;
  return MPI_SUCCESS;
}
inline int MPI_Get_count(const MPI_Status*, MPI_Datatype, int* count) {
  *count = 0;
  return MPI_SUCCESS;
}
inline int MPI_Test(MPI_Request*, int* done, MPI_Status*) {
  *done = 1;
  return MPI_SUCCESS;
}
inline int MPI_Testall(int, MPI_Request*, int* done, MPI_Status*) {
  *done = 1;
  return MPI_SUCCESS;
}

inline int MPI_Bcast(void*, int, MPI_Datatype, int, MPI_Comm) {
  return MPI_SUCCESS;
}
inline int MPI_Allreduce(const void* mine, void* all, int count, MPI_Datatype type, MPI_Op,
                         MPI_Comm) {
  std::memcpy(all, mine, static_cast<std::size_t>(count) * type);
  return MPI_SUCCESS;
}
inline int MPI_Allgather(const void* mine, int count, MPI_Datatype type, void* all, int,
                         MPI_Datatype, MPI_Comm) {
  std::memcpy(all, mine, static_cast<std::size_t>(count) * type);
  return MPI_SUCCESS;
}
inline int MPI_Iallgather(const void* mine, int count, MPI_Datatype type, void* all, int,
                          MPI_Datatype, MPI_Comm comm, MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  return MPI_Allgather(mine, count, type, all, count, type, comm);
}

}  // namespace tessera::serial_mpi

using namespace tessera::serial_mpi;  // NOLINT: the standard's names are global
