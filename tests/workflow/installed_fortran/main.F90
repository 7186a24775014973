! SPDX-License-Identifier: MIT
! Order of dims, kinds, communicators, errors. Says "all well" or stops with the line that is wrong.
#define CHECK(condition) call check(condition, __LINE__)
program user
  use, intrinsic :: iso_fortran_env, only: int64, real32, real64
#ifdef TESSERA_HAVE_MPI_F08
  use mpi_f08
#else
  use mpi
#endif
  use tessera
  implicit none
  type(tessera_environment) :: environment
  type(tessera_mesh) :: mesh
  integer :: rank, ranks, found, stat, shape3(3), major, minor, patch, comm
  character(200) :: errmsg
  character(:), allocatable :: json
  logical :: pass

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)

  ! One rank without MPI, an integer and, where there is mpi_f08, a type(MPI_Comm).
  call tessera_environment_create(environment)
  call tessera_environment_size(environment, found)
  CHECK(found == 1)
  call tessera_environment_destroy(environment)
#ifdef TESSERA_HAVE_MPI_F08
  call tessera_environment_create(MPI_COMM_WORLD, environment)
  call tessera_environment_rank(environment, found)
  CHECK(found == rank)
  call tessera_environment_destroy(environment)
  comm = MPI_COMM_WORLD%MPI_VAL
#else
  comm = MPI_COMM_WORLD
#endif
  call tessera_environment_create(comm, environment)
  call tessera_environment_size(environment, found)
  CHECK(found == ranks)

  ! Errors.
  errmsg = ""
  call tessera_mesh_create(environment, [1, 5, 1], "cpu", mesh, stat, errmsg)
  CHECK(stat == tessera_environment_failed .and. index(errmsg, "InitError") > 0)
  call tessera_mesh_shape(mesh, shape3, stat, errmsg)
  CHECK(stat == tessera_usage .and. index(errmsg, "null handle") > 0)
  call tessera_mesh_create(environment, [1, merge(2, 1, ranks == 4), merge(2, 1, ranks == 4)], &
      "cpu", mesh, stat)
  CHECK(stat == tessera_ok)
  call tessera_version(major, minor, patch)
  call tessera_info(json)
  CHECK(major >= 0 .and. index(json, '"tessera":"') > 0)

  call arrays()
  call layers()
  call tessera_parity(mesh, "layer_norm", "tiny", tessera_f64, 1_int64, pass, json)
  CHECK(pass .and. index(json, '"pass":true') > 0)
  call tessera_mesh_destroy(mesh)
  call tessera_environment_destroy(environment)
  if (rank == 0) print '(a)', "all well"
  call MPI_Finalize()

contains

  subroutine check(holds, line)
    logical, intent(in) :: holds
    integer, intent(in) :: line
    if (holds) return
    print '(a, i0)', "wrong: line ", line
    error stop 1
  end subroutine

  subroutine arrays()
    real(real64), target :: a(3, 4, 2)
    real(real32), target :: narrow(3, 4, 2)
    integer(int64), target :: whole(5)
    real(real64), pointer :: flat(:)
    integer(int64), allocatable :: dims(:)
    integer, allocatable :: placements(:)
    integer(int64) :: first(3), length(3)
    type(tessera_tensor) :: tensor, other, full
    type(tessera_dtensor) :: dtensor
    integer :: k
    a = reshape([(real(k, real64), k = 1, 24)], [3, 4, 2])
    call tessera_tensor_wrap(a, tensor)
    call tessera_tensor_shape(tensor, dims)
    CHECK(all(dims == [3, 4, 2]))
    call tessera_tensor_wrap(narrow, other)
    call tessera_tensor_copy(tensor, other)
    CHECK(all(narrow == real(a, real32)))
    call tessera_tensor_data(other, flat, stat, errmsg)
    CHECK(stat == tessera_usage .and. .not. associated(flat))
    call tessera_tensor_data(tensor, flat)
    flat(2) = -7
    CHECK(a(2, 1, 1) == -7)
    call tessera_tensor_destroy(other)
    call tessera_tensor_wrap(a(:, 1:2, :), other, stat, errmsg)
    CHECK(stat == tessera_usage .and. index(errmsg, "contiguous") > 0)
    call tessera_tensor_wrap(whole, other)
    call tessera_tensor_dtype(other, found)
    CHECK(found == tessera_i64)
    call tessera_tensor_destroy(other)

    ! cp0 cuts dim 3, cp1 dim 2 of the Fortran array.
    call tessera_dtensor_distribute(mesh, tensor, [tessera_replicate, 3, 2], dtensor)
    call tessera_dtensor_placements(dtensor, placements)
    CHECK(all(placements == [tessera_replicate, 3, 2]))
    call tessera_mesh_block(mesh, placements, [3_int64, 4_int64, 2_int64], first, length)
    call tessera_dtensor_local(dtensor, other)
    call tessera_tensor_data(other, flat)
    CHECK(size(flat) == product(length))
    CHECK(flat(1) == a(first(1), first(2), first(3)))
    CHECK(flat(size(flat)) == a(3, first(2) + length(2) - 1, first(3) + length(3) - 1))
    if (ranks == 4) then
      CHECK(all(length == [3, 2, 1]))
      CHECK(first(3) == 1 + rank / 2 .and. first(2) == 1 + 2 * mod(rank, 2))
    end if
    call tessera_tensor_destroy(other)
    call tessera_dtensor_full(dtensor, full)
    call tessera_tensor_data(full, flat)
    CHECK(all(flat == reshape(a, [24])))
    call tessera_tensor_destroy(full)
    call tessera_dtensor_destroy(dtensor)
    call tessera_tensor_destroy(tensor)
  end subroutine

  ! y = W x + b by the layer and by matmul: weight [out, in] is a Fortran array (in, out).
  subroutine layers()
    real(real64), target :: x(3, 4, 4, 1), weight(3, 2), bias(2)
    real(real64), pointer :: flat(:), y(:, :)
    type(tessera_tensor) :: tensors(2), full
    type(tessera_dtensor) :: input, output
    type(tessera_layer) :: layer
    type(tessera_run) :: run
    integer, allocatable :: placements(:)
    character(:), allocatable :: name
    integer :: k
    x = reshape([(sin(real(k, real64)), k = 1, 48)], [3, 4, 4, 1])
    weight = reshape([(real(k, real64), k = 1, 6)], [3, 2])
    bias = [10, 20]
    call tessera_layer_create(mesh, "linear", '{"in": 3, "out": 2, "bias": true}', tessera_f64, layer)
    call tessera_tensor_wrap(weight, tensors(1))
    call tessera_tensor_wrap(bias, tensors(2))
    call tessera_layer_load(layer, ["weight", "bais  "], tensors, stat, errmsg)
    CHECK(stat == tessera_usage .and. index(errmsg, "bais") > 0)
    call tessera_layer_load(layer, ["weight", "bias  "], tensors)
    call tessera_layer_input_placements(layer, 1, 4, placements)
    CHECK(all(placements == [4, 3, 2]))
    call tessera_layer_output_name(layer, 1, name)
    CHECK(name == "y")
    call tessera_tensor_wrap(x, full)
    call tessera_dtensor_distribute(mesh, full, placements, input)
    call tessera_tensor_destroy(full)
    call tessera_layer_forward(layer, .false., [input], run)
    call tessera_run_output(run, 1, output)
    call tessera_dtensor_full(output, full)
    call tessera_tensor_data(full, flat)
    y(1:2, 1:16) => flat
    do k = 1, 16
      CHECK(all(abs(y(:, k) - matmul(x(:, 1 + mod(k - 1, 4), 1 + (k - 1) / 4, 1), weight) - bias) < 1e-12))
    end do
    call tessera_tensor_destroy(full)
    call tessera_dtensor_destroy(output)
    call tessera_dtensor_destroy(input)
    call tessera_run_destroy(run)
    call tessera_tensor_destroy(tensors(1))
    call tessera_tensor_destroy(tensors(2))
    call tessera_layer_destroy(layer)
  end subroutine

end program user
