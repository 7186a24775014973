// SPDX-License-Identifier: MIT
// Communicators as Fortran has them.
#pragma once

#include "tessera/mesh/communicator.hpp"

namespace tessera {

// Communicator::duplicate() of a handle that MPI_Comm_c2f or a Fortran program gave (MPI_Fint).
Communicator duplicate_fortran(int mpi_comm);

}  // namespace tessera
