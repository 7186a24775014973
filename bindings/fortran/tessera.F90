! SPDX-License-Identifier: MIT
! Tessera from Fortran 2018: a subroutine for each function of tessera.h, by the same name, where
! ownership, ranks and threads are described.
!
! Arrays. Fortran's first dim is the fastest, Tessera's the last; both lie in memory alike. An array
!   a(C,N,N,B) is the tensor [B,N,N,C] without a copy. In this module shapes, dims and first indices
!   are always Fortran's: dim 1 is the fastest, blocks begin at 1. Placements are the number of the
!   dim of the Fortran array that the axis of the mesh cuts, or tessera_replicate: a pair array
!   a(C,N,N,B) is [4, 3, 2] on (dp, cp0, cp1).
! Errors. Every subroutine ends with (stat, errmsg), both optional: stat is tessera_ok or the status
!   of tessera.h, errmsg the text. Without stat a failure is an error stop with the text.
! Memory. tessera_tensor_wrap() borrows an array, which must be a target, contiguous, and stay until
!   all that was made of it is destroyed.
! With TESSERA_HAVE_MPI_F08, environments are also made on a type(MPI_Comm) of mpi_f08.
module tessera
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use tessera_c
  implicit none
  private

  integer, parameter, public :: tessera_ok = 0, tessera_check_failed = 1, tessera_usage = 2, &
      tessera_environment_failed = 3, tessera_timed_out = 4, tessera_out_of_step = 5, &
      tessera_out_of_memory = 6
  integer, parameter, public :: tessera_f64 = 0, tessera_f32 = 1, tessera_bf16 = 2, &
      tessera_i64 = 3, tessera_i32 = 4, tessera_bool = 5
  integer, parameter, public :: tessera_replicate = 0

  type, public :: tessera_environment
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: tessera_mesh
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: tessera_tensor
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: tessera_dtensor
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: tessera_layer
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: tessera_run
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! (environment): one rank, without MPI; (comm, environment): of mpi, mpif.h or mpi_f08.
  interface tessera_environment_create
    module procedure environment_alone, environment_on_integer
#ifdef TESSERA_HAVE_MPI_F08
    module procedure environment_on_f08
#endif
  end interface
  ! (array, tensor): an array of rank 0 to 7; (address, dtype, shape, device, tensor): any memory.
  interface tessera_tensor_wrap
    module procedure wrap_real64, wrap_real32, wrap_int64, wrap_int32, wrap_address
  end interface
  ! (tensor, pointer): the elements as an array of rank 1, to be given bounds by the caller, as in
  ! a(1:3, 1:4) => pointer.
  interface tessera_tensor_data
    module procedure data_real64, data_real32
  end interface

  public :: tessera_version, tessera_info, tessera_threads_set, tessera_log_set
  public :: tessera_environment_create, tessera_environment_rank, tessera_environment_size, &
      tessera_environment_destroy
  public :: tessera_mesh_create, tessera_mesh_shape, tessera_mesh_coordinate, tessera_mesh_block, &
      tessera_mesh_messages, tessera_mesh_messages_clear, tessera_mesh_destroy
  public :: tessera_tensor_create, tessera_tensor_wrap, tessera_tensor_data, tessera_tensor_dtype, &
      tessera_tensor_shape, tessera_tensor_copy, tessera_tensor_destroy
  public :: tessera_dtensor_create, tessera_dtensor_distribute, tessera_dtensor_full, &
      tessera_dtensor_local, tessera_dtensor_shape, tessera_dtensor_placements, &
      tessera_dtensor_destroy
  public :: tessera_layer_list, tessera_layer_create, tessera_layer_initialize, &
      tessera_layer_load_file, tessera_layer_load, tessera_layer_parameter_count, &
      tessera_layer_parameter_name, tessera_layer_parameter, tessera_layer_gradient, &
      tessera_layer_zero_gradients, tessera_layer_input_count, tessera_layer_input_name, &
      tessera_layer_input_placements, tessera_layer_output_count, tessera_layer_output_name, &
      tessera_layer_destroy
  public :: tessera_layer_forward, tessera_run_output, tessera_run_backward, &
      tessera_run_input_gradient, tessera_run_destroy
  public :: tessera_memory_total, tessera_memory_report, tessera_memory_reset_peak, &
      tessera_memory_set_limit, tessera_parity

contains

  ! --- texts, errors, the order of dims ---------------------------------------------------------

  function text_of(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: k, length
    length = 0
    if (c_associated(pointer)) length = int(c_strlen(pointer))
    text = repeat(" ", length)
    if (length == 0) return
    call c_f_pointer(pointer, letters, [length])
    do k = 1, length
      text(k:k) = letters(k)
    end do
  end function

  ! Takes a text that the library allocated.
  function taken(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(:), allocatable :: text
    text = text_of(pointer)
    call c_text_destroy(pointer)
  end function

  function c_text(text) result(terminated)
    character(*), intent(in) :: text
    character(:), allocatable :: terminated
    terminated = trim(text) // c_null_char
  end function

  subroutine report(status, text, stat, errmsg)
    integer, intent(in) :: status
    character(*), intent(in) :: text
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    if (present(stat)) stat = status
    if (status == tessera_ok) return
    if (present(errmsg)) errmsg = text
    if (.not. present(stat)) error stop text
  end subroutine

  subroutine finish(status, stat, errmsg)
    integer(c_int), intent(in) :: status
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    if (status == tessera_ok) then
      if (present(stat)) stat = tessera_ok
    else
      call report(status, text_of(c_last_error()), stat, errmsg)
    end if
  end subroutine

  function reversed(dims) result(other_order)
    integer(c_int64_t), intent(in) :: dims(:)
    integer(c_int64_t) :: other_order(size(dims))
    other_order = dims(size(dims):1:-1)
  end function

  ! Dim k of n of Fortran is dim n - k of Tessera, and the other way round.
  elemental function dim_of(dim, ndim) result(other)
    integer, intent(in) :: dim, ndim
    integer(c_int) :: other
    other = merge(-1, ndim - dim, dim == tessera_replicate)
  end function

  elemental function fortran_dim_of(dim, ndim) result(other)
    integer(c_int), intent(in) :: dim
    integer, intent(in) :: ndim
    integer :: other
    other = merge(tessera_replicate, ndim - dim, dim < 0)
  end function

  ! --- versions, threads ------------------------------------------------------------------------

  subroutine tessera_version(major, minor, patch, stat, errmsg)
    integer, intent(out) :: major, minor, patch
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_version(major, minor, patch), stat, errmsg)
  end subroutine

  subroutine tessera_info(json, stat, errmsg)
    character(:), allocatable, intent(out) :: json
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: text
    text = c_null_ptr
    call finish(c_info(text), stat, errmsg)
    json = taken(text)
  end subroutine

  subroutine tessera_threads_set(threads, stat, errmsg)
    integer, intent(in) :: threads
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_threads_set(threads), stat, errmsg)
  end subroutine

  ! `callback`: c_funloc of a bind(c) subroutine (context, level, line) of three type(c_ptr), by
  ! value; c_null_funptr for none.
  subroutine tessera_log_set(callback, context, stat, errmsg)
    type(c_funptr), intent(in) :: callback
    type(c_ptr), intent(in) :: context
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_log_set(callback, context), stat, errmsg)
  end subroutine

  ! --- environment ------------------------------------------------------------------------------

  subroutine environment_alone(environment, stat, errmsg)
    type(tessera_environment), intent(out) :: environment
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_environment_create(c_null_ptr, environment%handle), stat, errmsg)
  end subroutine

  subroutine environment_on_integer(comm, environment, stat, errmsg)
    integer, intent(in) :: comm
    type(tessera_environment), intent(out) :: environment
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_environment_create_fortran(comm, environment%handle), stat, errmsg)
  end subroutine

#ifdef TESSERA_HAVE_MPI_F08
  subroutine environment_on_f08(comm, environment, stat, errmsg)
    use mpi_f08, only: MPI_Comm
    type(MPI_Comm), intent(in) :: comm
    type(tessera_environment), intent(out) :: environment
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call environment_on_integer(comm%MPI_VAL, environment, stat, errmsg)
  end subroutine
#endif

  subroutine tessera_environment_rank(environment, rank, stat, errmsg)
    type(tessera_environment), intent(in) :: environment
    integer, intent(out) :: rank
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_environment_rank(environment%handle, rank), stat, errmsg)
  end subroutine

  subroutine tessera_environment_size(environment, size, stat, errmsg)
    type(tessera_environment), intent(in) :: environment
    integer, intent(out) :: size
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_environment_size(environment%handle, size), stat, errmsg)
  end subroutine

  subroutine tessera_environment_destroy(environment, stat, errmsg)
    type(tessera_environment), intent(inout) :: environment
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_environment_destroy(environment%handle), stat, errmsg)
    environment%handle = c_null_ptr
  end subroutine

  ! --- mesh -------------------------------------------------------------------------------------

  subroutine tessera_mesh_create(environment, shape, device, mesh, stat, errmsg)
    type(tessera_environment), intent(in) :: environment
    integer, intent(in) :: shape(3)  ! dp, cp0, cp1
    character(*), intent(in) :: device
    type(tessera_mesh), intent(out) :: mesh
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_mesh_create(environment%handle, shape(1), shape(2), shape(3), c_text(device), &
        mesh%handle), stat, errmsg)
  end subroutine

  subroutine tessera_mesh_shape(mesh, shape, stat, errmsg)
    type(tessera_mesh), intent(in) :: mesh
    integer, intent(out) :: shape(3)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_mesh_shape(mesh%handle, shape), stat, errmsg)
  end subroutine

  ! From 0, as ranks are.
  subroutine tessera_mesh_coordinate(mesh, coordinate, stat, errmsg)
    type(tessera_mesh), intent(in) :: mesh
    integer, intent(out) :: coordinate(3)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_mesh_coordinate(mesh%handle, coordinate), stat, errmsg)
  end subroutine

  ! `first`: the first global index of this rank's block, from 1, per dim.
  subroutine tessera_mesh_block(mesh, placements, shape, first, length, stat, errmsg)
    type(tessera_mesh), intent(in) :: mesh
    integer, intent(in) :: placements(:)
    integer(int64), intent(in) :: shape(:)
    integer(int64), intent(out) :: first(:), length(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: n
    n = size(shape)
    if (size(first) < n .or. size(length) < n) then
      call report(tessera_usage, "tessera_mesh_block: too little room in first or length", stat, errmsg)
      return
    end if
    call finish(c_mesh_block(mesh%handle, size(placements), dim_of(placements, n), n, &
        reversed(shape), first, length), stat, errmsg)
    first(:n) = reversed(first(:n)) + 1
    length(:n) = reversed(length(:n))
  end subroutine

  subroutine tessera_mesh_messages(mesh, json, stat, errmsg)
    type(tessera_mesh), intent(in) :: mesh
    character(:), allocatable, intent(out) :: json
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: text
    text = c_null_ptr
    call finish(c_mesh_messages(mesh%handle, text), stat, errmsg)
    json = taken(text)
  end subroutine

  subroutine tessera_mesh_messages_clear(mesh, stat, errmsg)
    type(tessera_mesh), intent(in) :: mesh
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_mesh_messages_clear(mesh%handle), stat, errmsg)
  end subroutine

  subroutine tessera_mesh_destroy(mesh, stat, errmsg)
    type(tessera_mesh), intent(inout) :: mesh
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_mesh_destroy(mesh%handle), stat, errmsg)
    mesh%handle = c_null_ptr
  end subroutine

  ! --- tensors ----------------------------------------------------------------------------------

  subroutine tessera_tensor_create(dtype, shape, device, tensor, stat, errmsg)
    integer, intent(in) :: dtype
    integer(int64), intent(in) :: shape(:)
    character(*), intent(in) :: device
    type(tessera_tensor), intent(out) :: tensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_tensor_create(dtype, size(shape), reversed(shape), c_text(device), &
        tensor%handle), stat, errmsg)
  end subroutine

  subroutine wrap_address(address, dtype, shape, device, tensor, stat, errmsg)
    type(c_ptr), intent(in) :: address
    integer, intent(in) :: dtype
    integer(int64), intent(in) :: shape(:)
    character(*), intent(in) :: device
    type(tessera_tensor), intent(out) :: tensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_tensor_wrap(address, dtype, size(shape), reversed(shape), c_null_ptr, &
        c_text(device), c_null_funptr, c_null_ptr, tensor%handle), stat, errmsg)
  end subroutine

  subroutine wrap_array(contiguous, address, dtype, shape, tensor, stat, errmsg)
    logical, intent(in) :: contiguous
    type(c_ptr), intent(in) :: address
    integer, intent(in) :: dtype
    integer(int64), intent(in) :: shape(:)
    type(tessera_tensor), intent(out) :: tensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    if (contiguous) then
      call wrap_address(address, dtype, shape, "cpu", tensor, stat, errmsg)
    else
      call report(tessera_usage, "tessera_tensor_wrap: the array is not contiguous", stat, errmsg)
    end if
  end subroutine

  subroutine wrap_real64(array, tensor, stat, errmsg)
    real(real64), target :: array(..)
    type(tessera_tensor), intent(out) :: tensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call wrap_array(is_contiguous(array), c_loc(array), tessera_f64, shape(array, int64), tensor, &
        stat, errmsg)
  end subroutine

  subroutine wrap_real32(array, tensor, stat, errmsg)
    real(real32), target :: array(..)
    type(tessera_tensor), intent(out) :: tensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call wrap_array(is_contiguous(array), c_loc(array), tessera_f32, shape(array, int64), tensor, &
        stat, errmsg)
  end subroutine

  subroutine wrap_int64(array, tensor, stat, errmsg)
    integer(int64), target :: array(..)
    type(tessera_tensor), intent(out) :: tensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call wrap_array(is_contiguous(array), c_loc(array), tessera_i64, shape(array, int64), tensor, &
        stat, errmsg)
  end subroutine

  subroutine wrap_int32(array, tensor, stat, errmsg)
    integer(int32), target :: array(..)
    type(tessera_tensor), intent(out) :: tensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call wrap_array(is_contiguous(array), c_loc(array), tessera_i32, shape(array, int64), tensor, &
        stat, errmsg)
  end subroutine

  subroutine check_elements(tensor, dtype, pointer, count, stat, errmsg, ok)
    type(tessera_tensor), intent(in) :: tensor
    integer, intent(in) :: dtype
    type(c_ptr), intent(out) :: pointer
    integer(int64), intent(out) :: count
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical, intent(out) :: ok
    integer(int64), allocatable :: dims(:)
    integer(c_int64_t) :: strides(8)
    integer(c_int) :: found, status
    integer :: k
    ok = .false.
    status = c_tensor_dtype(tensor%handle, found)
    if (status == tessera_ok) status = c_tensor_strides(tensor%handle, 8, strides)
    if (status == tessera_ok) status = c_tensor_data(tensor%handle, pointer)
    if (status /= tessera_ok) then
      call finish(status, stat, errmsg)
      return
    end if
    call tessera_tensor_shape(tensor, dims)
    count = 1
    do k = 1, size(dims)
      ok = dims(k) == 1 .or. strides(size(dims) + 1 - k) == count
      if (.not. ok) exit
      count = count * dims(k)
    end do
    if (size(dims) == 0) ok = .true.
    if (.not. ok) then
      call report(tessera_usage, "tessera_tensor_data: the tensor has gaps", stat, errmsg)
    else if (found /= dtype) then
      ok = .false.
      call report(tessera_usage, "tessera_tensor_data: the tensor has another dtype", stat, errmsg)
    else
      call report(tessera_ok, "", stat, errmsg)
    end if
  end subroutine

  subroutine data_real64(tensor, elements, stat, errmsg)
    type(tessera_tensor), intent(in) :: tensor
    real(real64), pointer, intent(out) :: elements(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address
    integer(int64) :: count
    logical :: ok
    nullify(elements)
    call check_elements(tensor, tessera_f64, address, count, stat, errmsg, ok)
    if (ok) call c_f_pointer(address, elements, [count])
  end subroutine

  subroutine data_real32(tensor, elements, stat, errmsg)
    type(tessera_tensor), intent(in) :: tensor
    real(real32), pointer, intent(out) :: elements(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address
    integer(int64) :: count
    logical :: ok
    nullify(elements)
    call check_elements(tensor, tessera_f32, address, count, stat, errmsg, ok)
    if (ok) call c_f_pointer(address, elements, [count])
  end subroutine

  subroutine tessera_tensor_dtype(tensor, dtype, stat, errmsg)
    type(tessera_tensor), intent(in) :: tensor
    integer, intent(out) :: dtype
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_tensor_dtype(tensor%handle, dtype), stat, errmsg)
  end subroutine

  subroutine tessera_tensor_shape(tensor, shape, stat, errmsg)
    type(tessera_tensor), intent(in) :: tensor
    integer(int64), allocatable, intent(out) :: shape(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int64_t) :: dims(8)
    integer(c_int) :: n, status
    n = 0
    status = c_tensor_ndim(tensor%handle, n)
    if (status == tessera_ok) status = c_tensor_shape(tensor%handle, 8, dims)
    shape = reversed(dims(:n))
    call finish(status, stat, errmsg)
  end subroutine

  subroutine tessera_tensor_copy(from, to, stat, errmsg)
    type(tessera_tensor), intent(in) :: from, to
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_tensor_copy(from%handle, to%handle), stat, errmsg)
  end subroutine

  subroutine tessera_tensor_destroy(tensor, stat, errmsg)
    type(tessera_tensor), intent(inout) :: tensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_tensor_destroy(tensor%handle), stat, errmsg)
    tensor%handle = c_null_ptr
  end subroutine

  ! --- distributed tensors ----------------------------------------------------------------------

  subroutine tessera_dtensor_create(mesh, local, placements, shape, dtensor, stat, errmsg)
    type(tessera_mesh), intent(in) :: mesh
    type(tessera_tensor), intent(in) :: local
    integer, intent(in) :: placements(:)
    integer(int64), intent(in) :: shape(:)  ! of the whole
    type(tessera_dtensor), intent(out) :: dtensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_dtensor_create(mesh%handle, local%handle, size(placements), &
        dim_of(placements, size(shape)), size(shape), reversed(shape), dtensor%handle), stat, errmsg)
  end subroutine

  subroutine tessera_dtensor_distribute(mesh, full, placements, dtensor, stat, errmsg)
    type(tessera_mesh), intent(in) :: mesh
    type(tessera_tensor), intent(in) :: full
    integer, intent(in) :: placements(:)
    type(tessera_dtensor), intent(out) :: dtensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int) :: n, status
    status = c_tensor_ndim(full%handle, n)
    if (status == tessera_ok) status = c_dtensor_distribute(mesh%handle, full%handle, &
        size(placements), dim_of(placements, n), dtensor%handle)
    call finish(status, stat, errmsg)
  end subroutine

  subroutine tessera_dtensor_full(dtensor, full, stat, errmsg)
    type(tessera_dtensor), intent(in) :: dtensor
    type(tessera_tensor), intent(out) :: full
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_dtensor_full(dtensor%handle, full%handle), stat, errmsg)
  end subroutine

  subroutine tessera_dtensor_local(dtensor, local, stat, errmsg)
    type(tessera_dtensor), intent(in) :: dtensor
    type(tessera_tensor), intent(out) :: local
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_dtensor_local(dtensor%handle, local%handle), stat, errmsg)
  end subroutine

  subroutine tessera_dtensor_shape(dtensor, shape, stat, errmsg)
    type(tessera_dtensor), intent(in) :: dtensor
    integer(int64), allocatable, intent(out) :: shape(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int64_t) :: dims(8)
    integer(c_int) :: n, status
    n = 0
    status = c_dtensor_ndim(dtensor%handle, n)
    if (status == tessera_ok) status = c_dtensor_shape(dtensor%handle, 8, dims)
    shape = reversed(dims(:n))
    call finish(status, stat, errmsg)
  end subroutine

  subroutine tessera_dtensor_placements(dtensor, placements, stat, errmsg)
    type(tessera_dtensor), intent(in) :: dtensor
    integer, allocatable, intent(out) :: placements(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int) :: n, axes, found(3), status
    axes = 0
    n = 0
    status = c_dtensor_ndim(dtensor%handle, n)
    if (status == tessera_ok) status = c_dtensor_placements(dtensor%handle, axes, found)
    placements = fortran_dim_of(found(:axes), n)
    call finish(status, stat, errmsg)
  end subroutine

  subroutine tessera_dtensor_destroy(dtensor, stat, errmsg)
    type(tessera_dtensor), intent(inout) :: dtensor
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_dtensor_destroy(dtensor%handle), stat, errmsg)
    dtensor%handle = c_null_ptr
  end subroutine

  ! --- layers -----------------------------------------------------------------------------------

  subroutine tessera_layer_list(json, stat, errmsg)
    character(:), allocatable, intent(out) :: json
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: text
    text = c_null_ptr
    call finish(c_layer_list(text), stat, errmsg)
    json = taken(text)
  end subroutine

  subroutine tessera_layer_create(mesh, name, hyperparameters, dtype, layer, stat, errmsg)
    type(tessera_mesh), intent(in) :: mesh
    character(*), intent(in) :: name, hyperparameters
    integer, intent(in) :: dtype
    type(tessera_layer), intent(out) :: layer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_create(mesh%handle, c_text(name), c_text(hyperparameters), dtype, &
        layer%handle), stat, errmsg)
  end subroutine

  subroutine tessera_layer_initialize(layer, seed, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    integer(int64), intent(in) :: seed
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_initialize(layer%handle, seed), stat, errmsg)
  end subroutine

  subroutine tessera_layer_load_file(layer, path, prefix, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    character(*), intent(in) :: path, prefix
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_load_file(layer%handle, c_text(path), c_text(prefix)), stat, errmsg)
  end subroutine

  subroutine tessera_layer_load(layer, names, tensors, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    character(*), intent(in) :: names(:)
    type(tessera_tensor), intent(in) :: tensors(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(len(names) + 1), target :: texts(size(names))
    type(c_ptr) :: pointers(size(names)), handles(size(names))
    integer :: k
    if (size(tensors) /= size(names)) then
      call report(tessera_usage, "tessera_layer_load: names and tensors differ in number", stat, errmsg)
      return
    end if
    do k = 1, size(names)
      texts(k) = c_text(names(k))
      pointers(k) = c_loc(texts(k))
      handles(k) = tensors(k)%handle
    end do
    call finish(c_layer_load(layer%handle, size(names), pointers, handles), stat, errmsg)
  end subroutine

  subroutine tessera_layer_parameter_count(layer, count, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    integer, intent(out) :: count
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_parameter_count(layer%handle, count), stat, errmsg)
  end subroutine

  ! Parameters, inputs and outputs are counted from 1.
  subroutine tessera_layer_parameter_name(layer, number, name, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    integer, intent(in) :: number
    character(:), allocatable, intent(out) :: name
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: text
    text = c_null_ptr
    call finish(c_layer_parameter_name(layer%handle, number - 1, text), stat, errmsg)
    name = text_of(text)
  end subroutine

  subroutine tessera_layer_parameter(layer, name, parameter, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    character(*), intent(in) :: name
    type(tessera_tensor), intent(out) :: parameter
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_parameter(layer%handle, c_text(name), parameter%handle), stat, errmsg)
  end subroutine

  subroutine tessera_layer_gradient(layer, name, gradient, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    character(*), intent(in) :: name
    type(tessera_tensor), intent(out) :: gradient
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_gradient(layer%handle, c_text(name), gradient%handle), stat, errmsg)
  end subroutine

  subroutine tessera_layer_zero_gradients(layer, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_zero_gradients(layer%handle), stat, errmsg)
  end subroutine

  subroutine tessera_layer_input_count(layer, count, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    integer, intent(out) :: count
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_input_count(layer%handle, count), stat, errmsg)
  end subroutine

  subroutine tessera_layer_input_name(layer, number, name, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    integer, intent(in) :: number
    character(:), allocatable, intent(out) :: name
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: text
    text = c_null_ptr
    call finish(c_layer_input_name(layer%handle, number - 1, text), stat, errmsg)
    name = text_of(text)
  end subroutine

  ! Of an input that is an array of rank `ndim`.
  subroutine tessera_layer_input_placements(layer, number, ndim, placements, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    integer, intent(in) :: number, ndim
    integer, allocatable, intent(out) :: placements(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int) :: axes, found(3), status
    axes = 0
    status = c_layer_input_placements(layer%handle, number - 1, ndim, axes, found)
    placements = fortran_dim_of(found(:axes), ndim)
    call finish(status, stat, errmsg)
  end subroutine

  subroutine tessera_layer_output_count(layer, count, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    integer, intent(out) :: count
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_output_count(layer%handle, count), stat, errmsg)
  end subroutine

  subroutine tessera_layer_output_name(layer, number, name, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    integer, intent(in) :: number
    character(:), allocatable, intent(out) :: name
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: text
    text = c_null_ptr
    call finish(c_layer_output_name(layer%handle, number - 1, text), stat, errmsg)
    name = text_of(text)
  end subroutine

  subroutine tessera_layer_destroy(layer, stat, errmsg)
    type(tessera_layer), intent(inout) :: layer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_destroy(layer%handle), stat, errmsg)
    layer%handle = c_null_ptr
  end subroutine

  ! --- runs -------------------------------------------------------------------------------------

  function handles_of(dtensors) result(handles)
    type(tessera_dtensor), intent(in) :: dtensors(:)
    type(c_ptr) :: handles(size(dtensors))
    integer :: k
    do k = 1, size(dtensors)
      handles(k) = dtensors(k)%handle
    end do
  end function

  subroutine tessera_layer_forward(layer, keep, inputs, run, stat, errmsg)
    type(tessera_layer), intent(in) :: layer
    logical, intent(in) :: keep
    type(tessera_dtensor), intent(in) :: inputs(:)
    type(tessera_run), intent(out) :: run
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_layer_forward(layer%handle, merge(1, 0, keep), size(inputs), &
        handles_of(inputs), run%handle), stat, errmsg)
  end subroutine

  subroutine tessera_run_output(run, number, output, stat, errmsg)
    type(tessera_run), intent(in) :: run
    integer, intent(in) :: number
    type(tessera_dtensor), intent(out) :: output
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_run_output(run%handle, number - 1, output%handle), stat, errmsg)
  end subroutine

  ! A gradient that was never set is none.
  subroutine tessera_run_backward(run, gradients, stat, errmsg)
    type(tessera_run), intent(in) :: run
    type(tessera_dtensor), intent(in) :: gradients(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_run_backward(run%handle, size(gradients), handles_of(gradients)), stat, errmsg)
  end subroutine

  subroutine tessera_run_input_gradient(run, number, gradient, stat, errmsg)
    type(tessera_run), intent(in) :: run
    integer, intent(in) :: number
    type(tessera_dtensor), intent(out) :: gradient
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_run_input_gradient(run%handle, number - 1, gradient%handle), stat, errmsg)
  end subroutine

  subroutine tessera_run_destroy(run, stat, errmsg)
    type(tessera_run), intent(inout) :: run
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_run_destroy(run%handle), stat, errmsg)
    run%handle = c_null_ptr
  end subroutine

  ! --- ledgers and parity -----------------------------------------------------------------------

  subroutine tessera_memory_total(live, peak, stat, errmsg)
    integer(int64), intent(out) :: live, peak
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_memory_total(live, peak), stat, errmsg)
  end subroutine

  subroutine tessera_memory_report(json, stat, errmsg)
    character(:), allocatable, intent(out) :: json
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: text
    text = c_null_ptr
    call finish(c_memory_report(text), stat, errmsg)
    json = taken(text)
  end subroutine

  subroutine tessera_memory_reset_peak(stat, errmsg)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_memory_reset_peak(), stat, errmsg)
  end subroutine

  subroutine tessera_memory_set_limit(bytes, stat, errmsg)
    integer(int64), intent(in) :: bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    call finish(c_memory_set_limit(bytes), stat, errmsg)
  end subroutine

  subroutine tessera_parity(mesh, layer, size, dtype, seed, pass, json, stat, errmsg)
    type(tessera_mesh), intent(in) :: mesh
    character(*), intent(in) :: layer, size
    integer, intent(in) :: dtype
    integer(int64), intent(in) :: seed
    logical, intent(out) :: pass
    character(:), allocatable, intent(out) :: json
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: text
    integer(c_int) :: passed
    passed = 0
    text = c_null_ptr
    call finish(c_parity(mesh%handle, c_text(layer), c_text(size), dtype, seed, passed, text), &
        stat, errmsg)
    pass = passed == 1
    json = taken(text)
  end subroutine

end module tessera
