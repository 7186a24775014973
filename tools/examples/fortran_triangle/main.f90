! SPDX-License-Identifier: MIT
! A Fortran program that owns MPI and its arrays, and runs triangle multiplication on them, forward
! and backward, spread over all ranks; then the same on one rank, to compare.
!
!   mpiexec -n 4 fortran_triangle [FILE]
!
! FILE gets the results, as rows of real64. Build: see CMakeLists.txt.
program fortran_triangle
  use, intrinsic :: iso_fortran_env, only: error_unit, int64, real64
  use mpi
  use tessera
  implicit none

  integer, parameter :: batch = 2, tokens = 12, channels = 8
  integer, parameter :: elements = batch * tokens * tokens * channels
  ! Of an array (channels, column, row, batch): dp cuts the batch, cp0 the rows, cp1 the columns.
  integer, parameter :: pair(3) = [4, 3, 2]
  ! The mask has no channels: (column, row, batch).
  integer, parameter :: pair_mask(3) = [3, 2, 1]

  type(tessera_environment) :: world, self
  type(tessera_mesh) :: mesh, one
  real(real64), allocatable :: together(:), alone(:)
  integer :: rank, ranks, grid(2), code, ierr

  call MPI_Init(ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  grid = 0
  call MPI_Dims_create(ranks, 2, grid, ierr)

  ! Without `stat` a failure ends the program with Tessera's text.
  call tessera_environment_create(MPI_COMM_WORLD, world)
  call tessera_mesh_create(world, [1, grid(1), grid(2)], "cpu", mesh)
  call run(mesh, together)
  call tessera_mesh_destroy(mesh)
  call tessera_environment_destroy(world)

  code = 0
  if (rank == 0) then
    call tessera_environment_create(self)
    call tessera_mesh_create(self, [1, 1, 1], "cpu", one)
    call run(one, alone)
    call tessera_mesh_destroy(one)
    call tessera_environment_destroy(self)
    call report(code)
  end if
  call MPI_Bcast(code, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, ierr)
  call MPI_Finalize(ierr)
  if (code /= 0) error stop 1

contains

  ! The numbers of the problem, by global index from 0: exact in every language.
  elemental function number(index, kind) result(value)
    integer(int64), intent(in) :: index
    integer, intent(in) :: kind
    real(real64) :: value
    value = real(mod(index * 37 + kind * 11, 256_int64) - 128, real64) / 128
  end function

  ! This rank's block of one of the program's arrays, and Tessera's view of it.
  subroutine make_block(mesh, kind, array, dtensor)
    type(tessera_mesh), intent(in) :: mesh
    integer, intent(in) :: kind
    real(real64), allocatable, target, intent(out) :: array(:, :, :, :)
    type(tessera_dtensor), intent(out) :: dtensor
    integer(int64), parameter :: shape_(4) = [channels, tokens, tokens, batch]
    integer(int64) :: first(4), length(4), c, i, j, b
    type(tessera_tensor) :: local
    call tessera_mesh_block(mesh, pair, shape_, first, length)
    allocate(array(length(1), length(2), length(3), length(4)))
    do b = 1, length(4)
      do i = 1, length(3)
        do j = 1, length(2)
          do c = 1, length(1)
            array(c, j, i, b) = number((((first(4) + b - 2) * tokens + first(3) + i - 2) * tokens &
                + first(2) + j - 2) * channels + first(1) + c - 2, kind)
          end do
        end do
      end do
    end do
    call tessera_tensor_wrap(array, local)
    call tessera_dtensor_create(mesh, local, pair, shape_, dtensor)
    call tessera_tensor_destroy(local)
  end subroutine

  subroutine make_mask(mesh, array, dtensor)
    type(tessera_mesh), intent(in) :: mesh
    real(real64), allocatable, target, intent(out) :: array(:, :, :)
    type(tessera_dtensor), intent(out) :: dtensor
    integer(int64), parameter :: shape_(3) = [tokens, tokens, batch]
    integer(int64) :: first(3), length(3), i, j, b, index
    type(tessera_tensor) :: local
    call tessera_mesh_block(mesh, pair_mask, shape_, first, length)
    allocate(array(length(1), length(2), length(3)))
    do b = 1, length(3)
      do i = 1, length(2)
        do j = 1, length(1)
          index = ((first(3) + b - 2) * tokens + first(2) + i - 2) * tokens + first(1) + j - 2
          array(j, i, b) = merge(0, 1, mod(index, 7_int64) == 3)
        end do
      end do
    end do
    call tessera_tensor_wrap(array, local)
    call tessera_dtensor_create(mesh, local, pair_mask, shape_, dtensor)
    call tessera_tensor_destroy(local)
  end subroutine

  ! Parameters can be written in place.
  subroutine set_parameters(layer)
    type(tessera_layer), intent(in) :: layer
    type(tessera_tensor) :: parameter
    character(:), allocatable :: name
    real(real64), pointer :: values(:)
    integer :: k, count
    integer(int64) :: index
    call tessera_layer_parameter_count(layer, count)
    do k = 1, count
      call tessera_layer_parameter_name(layer, k, name)
      call tessera_layer_parameter(layer, name, parameter)
      call tessera_tensor_data(parameter, values)
      values = [(number(index, 2 + k) / 2, index = 0, size(values) - 1)]
      call tessera_tensor_destroy(parameter)
    end do
  end subroutine

  subroutine append(results, tensor)
    real(real64), allocatable, intent(inout) :: results(:)
    type(tessera_tensor), intent(inout) :: tensor
    real(real64), pointer :: values(:)
    call tessera_tensor_data(tensor, values)
    results = [results, values]
    call tessera_tensor_destroy(tensor)
  end subroutine

  ! Takes the distributed tensor.
  subroutine append_whole(results, dtensor)
    real(real64), allocatable, intent(inout) :: results(:)
    type(tessera_dtensor), intent(inout) :: dtensor
    type(tessera_tensor) :: full
    call tessera_dtensor_full(dtensor, full)
    call tessera_dtensor_destroy(dtensor)
    call append(results, full)
  end subroutine

  ! Output, gradient of x, gradients of the parameters in their order.
  subroutine run(mesh, results)
    type(tessera_mesh), intent(in) :: mesh
    real(real64), allocatable, intent(out) :: results(:)
    real(real64), allocatable, target :: x(:, :, :, :), mask(:, :, :), cotangent(:, :, :, :)
    type(tessera_dtensor) :: dx, dmask, dcotangent, result
    type(tessera_layer) :: layer
    type(tessera_run) :: pass
    type(tessera_tensor) :: gradient
    character(:), allocatable :: name
    character(32) :: hyperparameters
    integer :: k, count
    write (hyperparameters, '(a, i0, a)') '{"dim": ', channels, '}'
    call tessera_layer_create(mesh, "triangle_multiplication_outgoing", hyperparameters, &
        tessera_f64, layer)
    call set_parameters(layer)
    call make_block(mesh, 0, x, dx)
    call make_mask(mesh, mask, dmask)
    call make_block(mesh, 2, cotangent, dcotangent)
    call tessera_layer_forward(layer, .true., [dx, dmask], pass)
    call tessera_run_backward(pass, [dcotangent])

    allocate(results(0))
    call tessera_run_output(pass, 1, result)
    call append_whole(results, result)
    call tessera_run_input_gradient(pass, 1, result)
    call append_whole(results, result)
    call tessera_layer_parameter_count(layer, count)
    do k = 1, count
      call tessera_layer_parameter_name(layer, k, name)
      call tessera_layer_gradient(layer, name, gradient)
      call append(results, gradient)
    end do
    call tessera_run_destroy(pass)
    call tessera_dtensor_destroy(dx)
    call tessera_dtensor_destroy(dmask)
    call tessera_dtensor_destroy(dcotangent)
    call tessera_layer_destroy(layer)
  end subroutine

  subroutine print_checksum(what, values)
    character(*), intent(in) :: what
    real(real64), intent(in) :: values(:)
    integer(int64) :: sum
    integer :: k
    sum = 0
    do k = 1, size(values)
      sum = ieor(ishftc(sum, 1), transfer(values(k), sum))
    end do
    print '(a24, 1x, z16.16)', [character(24) :: what], sum
  end subroutine

  subroutine report(code)
    integer, intent(out) :: code
    character(256) :: path
    real(real64) :: largest
    integer :: unit, status
    largest = huge(largest)
    if (size(together) == size(alone)) largest = maxval(abs(together - alone)) / maxval(abs(alone))
    code = merge(0, 1, largest < 1e-13_real64)
    print '(a, i0, a, i0, a)', "triangle multiplication on ", grid(1), " x ", grid(2), " ranks"
    call print_checksum("output", together(:elements))
    call print_checksum("gradient of x", together(elements + 1 : 2 * elements))
    call print_checksum("gradients of parameters", together(2 * elements + 1 :))
    print '(a, es7.1e2, a)', "largest difference from one rank: ", largest, &
        merge(", well     ", ", TOO LARGE", code == 0)
    if (command_argument_count() == 0) return
    call get_command_argument(1, path)
    open (newunit=unit, file=trim(path), access="stream", form="unformatted", status="replace", &
        iostat=status)
    if (status == 0) write (unit, iostat=status) together
    if (status /= 0) then
      write (error_unit, '(a)') "fortran_triangle: cannot write " // trim(path)
      code = 2
      return
    end if
    close (unit)
  end subroutine

end program fortran_triangle
