// SPDX-License-Identifier: MIT
#include "tessera/mesh/fortran.hpp"

#include <mpi.h>

#include "tessera/mesh/environment.hpp"

namespace tessera {

Communicator duplicate_fortran(int mpi_comm) {
  static_assert(sizeof(MPI_Fint) == sizeof(int));
  // Handles mean nothing unless MPI runs; duplicate() says so.
  const MPI_Comm comm = mpi_info().initialized ? MPI_Comm_f2c(mpi_comm) : MPI_COMM_NULL;
  return Communicator::duplicate(&comm);
}

}  // namespace tessera
