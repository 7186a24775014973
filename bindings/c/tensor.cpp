// SPDX-License-Identifier: MIT
// Tensors of one rank and distributed tensors.
#include <algorithm>
#include <numeric>

#include "handles.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/stream.hpp"

using namespace tessera;
using c::checked;
using c::guarded;
using c::guarded_give;
using c::required;

namespace tessera::c {
namespace {

// Strides of the global tensor, whose dims lie in memory in the order of those of the block.
Strides global_strides(const Tensor& local, const Shape& global) {
  if (local.ndim() != std::ssize(global))
    throw ShapeError({.problem = "block and tensor differ in the number of dims",
                      .tensor = "local",
                      .found = format_shape(local.shape()),
                      .expected = "a block of " + format_shape(global)});
  std::vector<std::size_t> order(global.size());  // slowest first; equal strides as row-major
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return local.strides()[a] > local.strides()[b];
  });
  Strides strides(global.size());
  std::int64_t next = 1;
  for (std::size_t k = order.size(); k-- > 0;) {
    strides[order[k]] = next;
    // What is too large is no block's tensor, which from_local() says.
    (void)__builtin_mul_overflow(next, global[order[k]], &next);
  }
  return strides;
}

// Calls back when the last view of the caller's memory goes.
std::shared_ptr<void> owner_of(Device device, void (*release)(void*), void* context) {
  return lent(device, [release, context] {
    if (release != nullptr) release(context);
  });
}

}  // namespace

void give_tensor(tessera_tensor** out, Tensor tensor) {
  std::string device = name_of(tensor.device());
  give(out, std::move(tensor), std::move(device));
}

}  // namespace tessera::c

extern "C" {

int tessera_tensor_create(int dtype, int ndim, const int64_t* shape, const char* device,
                          tessera_tensor** tensor) {
  return guarded_give(__func__, tensor, [&] {
    const Device where = parse_device(&required(device, "device"));
    require_device(where);
    c::give_tensor(tensor,
                   Tensor::zeros(c::sizes("shape", ndim, shape), c::dtype_of(dtype), where));
  });
}

int tessera_tensor_wrap(void* data, int dtype, int ndim, const int64_t* shape,
                        const int64_t* strides, const char* device, void (*release)(void* context),
                        void* context, tessera_tensor** tensor) {
  return guarded_give(__func__, tensor, [&] {
    const Device where = parse_device(&required(device, "device"));
    require_device(where);
    const Shape dims = c::sizes("shape", ndim, shape);
    const Strides steps =
        strides == nullptr ? row_major_strides(dims) : c::sizes("strides", ndim, strides);
    const DType type = c::dtype_of(dtype);
    // Throws while the memory is the caller's, who is not told that it is released.
    Tensor::wrap(data, dims, steps, type, where, nullptr);
    c::give_tensor(
        tensor, Tensor::wrap(data, dims, steps, type, where, c::owner_of(where, release, context)));
  });
}

int tessera_tensor_data(const tessera_tensor* tensor, void** data) {
  return guarded(__func__, [&] {
    const Tensor& t = checked(tensor, "tensor").tensor;
    synchronize(t.device());  // what is pending there would come after what the caller does
    required(data, "data") = t.data();
  });
}

int tessera_tensor_dtype(const tessera_tensor* tensor, int* dtype) {
  return guarded(__func__, [&] {
    const Tensor& t = checked(tensor, "tensor").tensor;
    required(dtype, "dtype") = static_cast<int>(t.dtype());
  });
}

int tessera_tensor_device(const tessera_tensor* tensor, const char** device) {
  return guarded(__func__, [&] {
    const std::string& name = checked(tensor, "tensor").device;
    required(device, "device") = name.c_str();
  });
}

int tessera_tensor_ndim(const tessera_tensor* tensor, int* ndim) {
  return guarded(__func__, [&] {
    const Tensor& t = checked(tensor, "tensor").tensor;
    required(ndim, "ndim") = t.ndim();
  });
}

int tessera_tensor_shape(const tessera_tensor* tensor, int capacity, int64_t* shape) {
  return guarded(__func__, [&] {
    c::give_sizes("shape", checked(tensor, "tensor").tensor.shape(), capacity, shape);
  });
}

int tessera_tensor_strides(const tessera_tensor* tensor, int capacity, int64_t* strides) {
  return guarded(__func__, [&] {
    c::give_sizes("strides", checked(tensor, "tensor").tensor.strides(), capacity, strides);
  });
}

int tessera_tensor_copy(const tessera_tensor* from, const tessera_tensor* to) {
  return guarded(__func__, [&] {
    const Tensor& target = checked(to, "to").tensor;
    copy(checked(from, "from").tensor, target);
    synchronize(target.device());
  });
}

int tessera_tensor_destroy(tessera_tensor* tensor) {
  return c::destroy(__func__, tensor, "tensor");
}

int tessera_dtensor_create(const tessera_mesh* mesh, const tessera_tensor* local, int axes,
                           const int* placements, int ndim, const int64_t* shape,
                           tessera_dtensor** dtensor) {
  return guarded_give(__func__, dtensor, [&] {
    const DeviceMesh view = c::view_of(checked(mesh, "mesh").mesh, axes);
    const Tensor& block = checked(local, "local").tensor;
    const Shape global = c::sizes("shape", ndim, shape);
    c::give(dtensor, DTensor::from_local(block, view, c::placements_of(axes, placements), global,
                                         c::global_strides(block, global)));
  });
}

int tessera_dtensor_distribute(const tessera_mesh* mesh, const tessera_tensor* full, int axes,
                               const int* placements, tessera_dtensor** dtensor) {
  return guarded_give(__func__, dtensor, [&] {
    const DeviceMesh view = c::view_of(checked(mesh, "mesh").mesh, axes);
    c::give(dtensor,
            distribute(checked(full, "full").tensor, view, c::placements_of(axes, placements)));
  });
}

int tessera_dtensor_full(const tessera_dtensor* dtensor, tessera_tensor** full) {
  return guarded_give(__func__, full, [&] {
    const DTensor& x = checked(dtensor, "dtensor").dtensor;
    const Tensor whole = full_tensor(x);
    c::give_tensor(full, whole.shares_storage(x.local()) ? whole.clone() : whole);
  });
}

int tessera_dtensor_local(const tessera_dtensor* dtensor, tessera_tensor** local) {
  return guarded_give(__func__, local,
                      [&] { c::give_tensor(local, checked(dtensor, "dtensor").dtensor.local()); });
}

int tessera_dtensor_ndim(const tessera_dtensor* dtensor, int* ndim) {
  return guarded(__func__, [&] {
    const DTensor& x = checked(dtensor, "dtensor").dtensor;
    required(ndim, "ndim") = x.ndim();
  });
}

int tessera_dtensor_shape(const tessera_dtensor* dtensor, int capacity, int64_t* shape) {
  return guarded(__func__, [&] {
    c::give_sizes("shape", checked(dtensor, "dtensor").dtensor.shape(), capacity, shape);
  });
}

int tessera_dtensor_placements(const tessera_dtensor* dtensor, int* axes, int placements[3]) {
  return guarded(__func__, [&] {
    c::give_placements(checked(dtensor, "dtensor").dtensor.placements(), axes, placements);
  });
}

int tessera_dtensor_destroy(tessera_dtensor* dtensor) {
  return c::destroy(__func__, dtensor, "dtensor");
}

}  // extern "C"
