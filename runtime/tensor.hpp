// SPDX-License-Identifier: MIT
// Tensor: dtype, device, shape, strides and offset over shared storage. A value; copies share the
// storage. All sizes are 64 bit, strides count elements. Row-major unless a view says otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/runtime/device.hpp"
#include "tessera/runtime/dtype.hpp"
#include "tessera/runtime/memory.hpp"

namespace tessera {

using Shape = std::vector<std::int64_t>;
using Strides = std::vector<std::int64_t>;

std::string format_shape(const Shape& shape);  // "[2, 12, 12, 16]"
std::int64_t numel(const Shape& shape);
Strides row_major_strides(const Shape& shape);
// Negative dims count from the end; RangeError names the operation.
int normalize_dim(int dim, int ndim, std::string_view operation);

class Storage;

class Tensor {
 public:
  Tensor() = default;  // defined() is false

  // Booked under the current scope and purpose. Throws OutOfMemoryError, DeviceError.
  static Tensor empty(Shape shape, DType dtype, Device device = cpu_device);
  static Tensor zeros(Shape shape, DType dtype, Device device = cpu_device);
  static Tensor full(Shape shape, double value, DType dtype, Device device = cpu_device);
  // Values of a row-major list, cast to dtype; on the CPU. For tests and small constants.
  static Tensor from_values(Shape shape, const std::vector<double>& values, DType dtype);
  // Borrows memory; `owner` is kept alive as long as any view. Not booked in the ledger.
  static Tensor wrap(void* data, Shape shape, Strides strides, DType dtype, Device device,
                     std::shared_ptr<void> owner);

  bool defined() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  Device device() const;
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  int ndim() const { return static_cast<int>(shape_.size()); }
  std::int64_t size(int dim) const;  // negative dims count from the end
  std::int64_t numel() const { return tessera::numel(shape_); }
  std::int64_t bytes() const { return numel() * static_cast<std::int64_t>(size_of(dtype_)); }
  bool is_contiguous() const;  // row-major without gaps; strides of size-1 dims do not matter
  bool shares_storage(const Tensor& other) const { return storage_ == other.storage_; }

  // First element. The pointer may be on the device; host code asks for host_data().
  void* data() const;
  // Checked: dtype must match T and the tensor must be on the CPU (TypeError, DeviceError).
  template <class T>
  T* host_data() const;

  // Views: no copy.
  Tensor view(Shape shape) const;  // contiguous tensors only (StrideError)
  Tensor narrow(int dim, std::int64_t begin, std::int64_t length) const;
  Tensor select(int dim, std::int64_t index) const;  // drops the dim
  Tensor transpose(int dim0, int dim1) const;
  Tensor permute(const std::vector<int>& dims) const;
  Tensor unsqueeze(int dim) const;
  Tensor squeeze(int dim) const;
  // Dims of size 1 to the given sizes, with stride 0; a view that is only read (ShapeError).
  Tensor expand(const Shape& shape) const;
  Tensor as_strided(Shape shape, Strides strides, std::int64_t offset_from_here) const;

  // Copies, booked under the current scope and purpose.
  Tensor contiguous() const;       // itself if it already is
  Tensor clone() const;            // row-major
  Tensor to(DType dtype) const;    // itself if it already is
  Tensor to(Device device) const;  // itself if it already is

  // Moves the storage's booking to another purpose ("activation" becomes "saved").
  void relabel(Purpose purpose) const;
  std::int64_t storage_bytes() const;
  const void* storage_id() const { return storage_.get(); }

  // Counts in-place writes through the operations of ops.hpp; saved tensors are checked by it.
  // A view that has several indices for one element cannot be written (StrideError).
  std::uint64_t version() const;
  void bump_version() const;

  // Reads one element as double (tests, messages; copies from the device if it must).
  double item(const std::vector<std::int64_t>& index = {}) const;

 private:
  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::f32;
  Shape shape_;
  Strides strides_;
  std::int64_t offset_ = 0;
};

// False on the meta device, where tensors have shapes only.
bool has_values(const Tensor& tensor);
// Host values in row-major order, as double (tests, messages).
std::vector<double> to_values(const Tensor& tensor);

}  // namespace tessera
