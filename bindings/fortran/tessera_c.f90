! SPDX-License-Identifier: MIT
! The functions of tessera.h as Fortran sees them; see there for what they do. The module tessera is
! for use.
module tessera_c
  use, intrinsic :: iso_c_binding
  implicit none
  public

  interface
    function c_last_error() bind(c, name="tessera_last_error") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function

    function c_last_error_kind() bind(c, name="tessera_last_error_kind") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function

    subroutine c_text_destroy(text) bind(c, name="tessera_text_destroy")
      import :: c_ptr
      type(c_ptr), value :: text
    end subroutine

    function c_strlen(text) bind(c, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function

    ! `strides` may be c_null_ptr.
    function c_tensor_wrap(data, dtype, ndim, shape, strides, device, release, context, tensor) &
        bind(c, name="tessera_tensor_wrap") result(status)
      import :: c_char, c_funptr, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: data
      integer(c_int), value :: dtype, ndim
      integer(c_int64_t), intent(in) :: shape(*)
      type(c_ptr), value :: strides
      character(kind=c_char), intent(in) :: device(*)
      type(c_funptr), value :: release
      type(c_ptr), value :: context
      type(c_ptr), intent(inout) :: tensor
      integer(c_int) :: status
    end function

    function c_version(major, minor, patch) &
        bind(c, name="tessera_version") result(status)
      import :: c_int
      integer(c_int), intent(out) :: major, minor, patch
      integer(c_int) :: status
    end function

    function c_info(json) &
        bind(c, name="tessera_info") result(status)
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: json
      integer(c_int) :: status
    end function

    function c_threads_set(threads) &
        bind(c, name="tessera_threads_set") result(status)
      import :: c_int
      integer(c_int), value :: threads
      integer(c_int) :: status
    end function

    function c_log_set(callback, context) &
        bind(c, name="tessera_log_set") result(status)
      import :: c_funptr, c_int, c_ptr
      type(c_funptr), value :: callback
      type(c_ptr), value :: context
      integer(c_int) :: status
    end function

    function c_environment_create(mpi_comm, environment) &
        bind(c, name="tessera_environment_create") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: mpi_comm
      type(c_ptr), intent(inout) :: environment
      integer(c_int) :: status
    end function

    function c_environment_create_fortran(mpi_comm, environment) &
        bind(c, name="tessera_environment_create_fortran") result(status)
      import :: c_int, c_ptr
      integer(c_int), value :: mpi_comm
      type(c_ptr), intent(inout) :: environment
      integer(c_int) :: status
    end function

    function c_environment_rank(environment, rank) &
        bind(c, name="tessera_environment_rank") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: environment
      integer(c_int), intent(out) :: rank
      integer(c_int) :: status
    end function

    function c_environment_size(environment, size) &
        bind(c, name="tessera_environment_size") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: environment
      integer(c_int), intent(out) :: size
      integer(c_int) :: status
    end function

    function c_environment_destroy(environment) &
        bind(c, name="tessera_environment_destroy") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: environment
      integer(c_int) :: status
    end function

    function c_mesh_create(environment, dp, cp0, cp1, device, mesh) &
        bind(c, name="tessera_mesh_create") result(status)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: environment
      integer(c_int), value :: dp, cp0, cp1
      character(kind=c_char), intent(in) :: device(*)
      type(c_ptr), intent(inout) :: mesh
      integer(c_int) :: status
    end function

    function c_mesh_shape(mesh, shape) &
        bind(c, name="tessera_mesh_shape") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: mesh
      integer(c_int), intent(out) :: shape(*)
      integer(c_int) :: status
    end function

    function c_mesh_coordinate(mesh, coordinate) &
        bind(c, name="tessera_mesh_coordinate") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: mesh
      integer(c_int), intent(out) :: coordinate(*)
      integer(c_int) :: status
    end function

    function c_mesh_block(mesh, axes, placements, ndim, shape, begin, size) &
        bind(c, name="tessera_mesh_block") result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: mesh
      integer(c_int), value :: axes
      integer(c_int), intent(in) :: placements(*)
      integer(c_int), value :: ndim
      integer(c_int64_t), intent(in) :: shape(*)
      integer(c_int64_t), intent(out) :: begin(*), size(*)
      integer(c_int) :: status
    end function

    function c_mesh_messages(mesh, json) &
        bind(c, name="tessera_mesh_messages") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: mesh
      type(c_ptr), intent(inout) :: json
      integer(c_int) :: status
    end function

    function c_mesh_messages_clear(mesh) &
        bind(c, name="tessera_mesh_messages_clear") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: mesh
      integer(c_int) :: status
    end function

    function c_mesh_destroy(mesh) &
        bind(c, name="tessera_mesh_destroy") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: mesh
      integer(c_int) :: status
    end function

    function c_tensor_create(dtype, ndim, shape, device, tensor) &
        bind(c, name="tessera_tensor_create") result(status)
      import :: c_char, c_int, c_int64_t, c_ptr
      integer(c_int), value :: dtype, ndim
      integer(c_int64_t), intent(in) :: shape(*)
      character(kind=c_char), intent(in) :: device(*)
      type(c_ptr), intent(inout) :: tensor
      integer(c_int) :: status
    end function

    function c_tensor_data(tensor, data) &
        bind(c, name="tessera_tensor_data") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: tensor
      type(c_ptr), intent(inout) :: data
      integer(c_int) :: status
    end function

    function c_tensor_dtype(tensor, dtype) &
        bind(c, name="tessera_tensor_dtype") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: tensor
      integer(c_int), intent(out) :: dtype
      integer(c_int) :: status
    end function

    function c_tensor_device(tensor, device) &
        bind(c, name="tessera_tensor_device") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: tensor
      type(c_ptr), intent(inout) :: device
      integer(c_int) :: status
    end function

    function c_tensor_ndim(tensor, ndim) &
        bind(c, name="tessera_tensor_ndim") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: tensor
      integer(c_int), intent(out) :: ndim
      integer(c_int) :: status
    end function

    function c_tensor_shape(tensor, capacity, shape) &
        bind(c, name="tessera_tensor_shape") result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: tensor
      integer(c_int), value :: capacity
      integer(c_int64_t), intent(out) :: shape(*)
      integer(c_int) :: status
    end function

    function c_tensor_strides(tensor, capacity, strides) &
        bind(c, name="tessera_tensor_strides") result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: tensor
      integer(c_int), value :: capacity
      integer(c_int64_t), intent(out) :: strides(*)
      integer(c_int) :: status
    end function

    function c_tensor_copy(from, to) &
        bind(c, name="tessera_tensor_copy") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: from, to
      integer(c_int) :: status
    end function

    function c_tensor_destroy(tensor) &
        bind(c, name="tessera_tensor_destroy") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: tensor
      integer(c_int) :: status
    end function

    function c_dtensor_create(mesh, local, axes, placements, ndim, shape, dtensor) &
        bind(c, name="tessera_dtensor_create") result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: mesh, local
      integer(c_int), value :: axes
      integer(c_int), intent(in) :: placements(*)
      integer(c_int), value :: ndim
      integer(c_int64_t), intent(in) :: shape(*)
      type(c_ptr), intent(inout) :: dtensor
      integer(c_int) :: status
    end function

    function c_dtensor_distribute(mesh, full, axes, placements, dtensor) &
        bind(c, name="tessera_dtensor_distribute") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: mesh, full
      integer(c_int), value :: axes
      integer(c_int), intent(in) :: placements(*)
      type(c_ptr), intent(inout) :: dtensor
      integer(c_int) :: status
    end function

    function c_dtensor_full(dtensor, full) &
        bind(c, name="tessera_dtensor_full") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: dtensor
      type(c_ptr), intent(inout) :: full
      integer(c_int) :: status
    end function

    function c_dtensor_local(dtensor, local) &
        bind(c, name="tessera_dtensor_local") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: dtensor
      type(c_ptr), intent(inout) :: local
      integer(c_int) :: status
    end function

    function c_dtensor_ndim(dtensor, ndim) &
        bind(c, name="tessera_dtensor_ndim") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: dtensor
      integer(c_int), intent(out) :: ndim
      integer(c_int) :: status
    end function

    function c_dtensor_shape(dtensor, capacity, shape) &
        bind(c, name="tessera_dtensor_shape") result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: dtensor
      integer(c_int), value :: capacity
      integer(c_int64_t), intent(out) :: shape(*)
      integer(c_int) :: status
    end function

    function c_dtensor_placements(dtensor, axes, placements) &
        bind(c, name="tessera_dtensor_placements") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: dtensor
      integer(c_int), intent(out) :: axes, placements(*)
      integer(c_int) :: status
    end function

    function c_dtensor_destroy(dtensor) &
        bind(c, name="tessera_dtensor_destroy") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: dtensor
      integer(c_int) :: status
    end function

    function c_layer_list(json) &
        bind(c, name="tessera_layer_list") result(status)
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: json
      integer(c_int) :: status
    end function

    function c_layer_create(mesh, name, hyperparameters, dtype, layer) &
        bind(c, name="tessera_layer_create") result(status)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: mesh
      character(kind=c_char), intent(in) :: name(*), hyperparameters(*)
      integer(c_int), value :: dtype
      type(c_ptr), intent(inout) :: layer
      integer(c_int) :: status
    end function

    function c_layer_initialize(layer, seed) &
        bind(c, name="tessera_layer_initialize") result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: layer
      integer(c_int64_t), value :: seed
      integer(c_int) :: status
    end function

    function c_layer_load_file(layer, path, prefix) &
        bind(c, name="tessera_layer_load_file") result(status)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: layer
      character(kind=c_char), intent(in) :: path(*), prefix(*)
      integer(c_int) :: status
    end function

    function c_layer_load(layer, count, names, tensors) &
        bind(c, name="tessera_layer_load") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int), value :: count
      type(c_ptr), intent(in) :: names(*), tensors(*)
      integer(c_int) :: status
    end function

    function c_layer_parameter_count(layer, count) &
        bind(c, name="tessera_layer_parameter_count") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int), intent(out) :: count
      integer(c_int) :: status
    end function

    function c_layer_parameter_name(layer, index, name) &
        bind(c, name="tessera_layer_parameter_name") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int), value :: index
      type(c_ptr), intent(inout) :: name
      integer(c_int) :: status
    end function

    function c_layer_parameter(layer, name, parameter) &
        bind(c, name="tessera_layer_parameter") result(status)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: layer
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), intent(inout) :: parameter
      integer(c_int) :: status
    end function

    function c_layer_gradient(layer, name, gradient) &
        bind(c, name="tessera_layer_gradient") result(status)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: layer
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), intent(inout) :: gradient
      integer(c_int) :: status
    end function

    function c_layer_zero_gradients(layer) &
        bind(c, name="tessera_layer_zero_gradients") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int) :: status
    end function

    function c_layer_input_count(layer, count) &
        bind(c, name="tessera_layer_input_count") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int), intent(out) :: count
      integer(c_int) :: status
    end function

    function c_layer_input_name(layer, index, name) &
        bind(c, name="tessera_layer_input_name") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int), value :: index
      type(c_ptr), intent(inout) :: name
      integer(c_int) :: status
    end function

    function c_layer_input_placements(layer, index, ndim, axes, placements) &
        bind(c, name="tessera_layer_input_placements") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int), value :: index, ndim
      integer(c_int), intent(out) :: axes, placements(*)
      integer(c_int) :: status
    end function

    function c_layer_output_count(layer, count) &
        bind(c, name="tessera_layer_output_count") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int), intent(out) :: count
      integer(c_int) :: status
    end function

    function c_layer_output_name(layer, index, name) &
        bind(c, name="tessera_layer_output_name") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int), value :: index
      type(c_ptr), intent(inout) :: name
      integer(c_int) :: status
    end function

    function c_layer_destroy(layer) &
        bind(c, name="tessera_layer_destroy") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int) :: status
    end function

    function c_layer_forward(layer, keep, count, inputs, run) &
        bind(c, name="tessera_layer_forward") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: layer
      integer(c_int), value :: keep, count
      type(c_ptr), intent(in) :: inputs(*)
      type(c_ptr), intent(inout) :: run
      integer(c_int) :: status
    end function

    function c_run_output(run, index, output) &
        bind(c, name="tessera_run_output") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: run
      integer(c_int), value :: index
      type(c_ptr), intent(inout) :: output
      integer(c_int) :: status
    end function

    function c_run_backward(run, count, gradients) &
        bind(c, name="tessera_run_backward") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: run
      integer(c_int), value :: count
      type(c_ptr), intent(in) :: gradients(*)
      integer(c_int) :: status
    end function

    function c_run_input_gradient(run, index, gradient) &
        bind(c, name="tessera_run_input_gradient") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: run
      integer(c_int), value :: index
      type(c_ptr), intent(inout) :: gradient
      integer(c_int) :: status
    end function

    function c_run_destroy(run) &
        bind(c, name="tessera_run_destroy") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: run
      integer(c_int) :: status
    end function

    function c_memory_total(live, peak) &
        bind(c, name="tessera_memory_total") result(status)
      import :: c_int, c_int64_t
      integer(c_int64_t), intent(out) :: live, peak
      integer(c_int) :: status
    end function

    function c_memory_report(json) &
        bind(c, name="tessera_memory_report") result(status)
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: json
      integer(c_int) :: status
    end function

    function c_memory_reset_peak() &
        bind(c, name="tessera_memory_reset_peak") result(status)
      import :: c_int
      integer(c_int) :: status
    end function

    function c_memory_set_limit(bytes) &
        bind(c, name="tessera_memory_set_limit") result(status)
      import :: c_int, c_int64_t
      integer(c_int64_t), value :: bytes
      integer(c_int) :: status
    end function

    function c_parity(mesh, layer, size, dtype, seed, pass, json) &
        bind(c, name="tessera_parity") result(status)
      import :: c_char, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: mesh
      character(kind=c_char), intent(in) :: layer(*), size(*)
      integer(c_int), value :: dtype
      integer(c_int64_t), value :: seed
      integer(c_int), intent(out) :: pass
      type(c_ptr), intent(inout) :: json
      integer(c_int) :: status
    end function
  end interface
end module tessera_c
