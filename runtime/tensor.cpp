// SPDX-License-Identifier: MIT
#include "tessera/runtime/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/stream.hpp"

namespace tessera {

namespace {

// Bytes of all elements, and offsets in them, are counted in 64 bits.
[[noreturn]] void too_large(const char* operation, const Shape& shape) {
  throw ShapeError({.problem = "a tensor of more than 2^63 bytes",
                    .operation = operation,
                    .found = format_shape(shape)});
}

void check_bytes(const char* operation, std::int64_t elements, DType dtype, const Shape& shape) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::int64_t>(size_of(dtype)), &bytes))
    too_large(operation, shape);
}

}  // namespace

std::string format_shape(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::int64_t numel(const Shape& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t n = 1;
  for (const std::int64_t size : shape)
    if (__builtin_mul_overflow(n, size, &n)) too_large("numel", shape);
  return n;
}

Strides row_major_strides(const Shape& shape) {
  Strides strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    // What is too large has no elements, or is refused by who makes the tensor.
    (void)__builtin_mul_overflow(stride, shape[d], &stride);
  }
  return strides;
}

int normalize_dim(int dim, int ndim, std::string_view operation) {
  if (dim < -ndim || dim >= ndim)
    throw RangeError({.problem = "dim out of range",
                      .operation = std::string(operation),
                      .found = fmt::format("dim {} of {} dims", dim, ndim),
                      .expected = fmt::format("{}..{}", -ndim, ndim - 1)});
  return dim < 0 ? dim + ndim : dim;
}

class Storage {
 public:
  Storage(Device device, std::int64_t bytes)
      : data_(detail::allocate(device, bytes)),
        booking_(std::in_place, bytes, current_purpose()),
        device_(device),
        bytes_(bytes) {}
  Storage(void* data, Device device, std::int64_t bytes, std::shared_ptr<void> owner)
      : data_(std::move(owner), data), device_(device), bytes_(bytes) {}

  void* data() const { return data_.get(); }
  Device device() const { return device_; }
  std::int64_t bytes() const { return bytes_; }
  void relabel(Purpose purpose) {
    if (booking_) booking_->relabel(purpose);
  }
  std::atomic<std::uint64_t> version{0};

 private:
  std::shared_ptr<void> data_;
  std::optional<memory_ledger::Booking> booking_;  // none for borrowed memory
  Device device_;
  std::int64_t bytes_;
};

Tensor Tensor::empty(Shape shape, DType dtype, Device device) {
  for (const std::int64_t size : shape)
    if (size < 0)
      throw ShapeError(
          {.problem = "negative size", .operation = "Tensor::empty", .found = format_shape(shape)});
  check_bytes("Tensor::empty", tessera::numel(shape), dtype, shape);
  Tensor t;
  t.dtype_ = dtype;
  t.strides_ = row_major_strides(shape);
  t.shape_ = std::move(shape);
  t.storage_ = std::make_shared<Storage>(device, t.bytes());
  return t;
}

Tensor Tensor::zeros(Shape shape, DType dtype, Device device) {
  return full(std::move(shape), 0.0, dtype, device);
}

Tensor Tensor::full(Shape shape, double value, DType dtype, Device device) {
  Tensor t = empty(std::move(shape), dtype, device);
  fill(t, value);
  return t;
}

Tensor Tensor::from_values(Shape shape, const std::vector<double>& values, DType dtype) {
  if (tessera::numel(shape) != static_cast<std::int64_t>(values.size()))
    throw ShapeError({.problem = "number of values differs from the shape's",
                      .operation = "Tensor::from_values",
                      .found = fmt::format("{} values", values.size()),
                      .expected = format_shape(shape)});
  Tensor t = empty(std::move(shape), DType::f64);
  std::copy(values.begin(), values.end(), static_cast<double*>(t.data()));
  return t.to(dtype);
}

namespace {
void check_lengths(const char* operation, const Shape& shape, const Strides& strides) {
  if (shape.size() == strides.size()) return;
  throw StrideError({.problem = "shape and strides differ in length",
                     .operation = operation,
                     .found = fmt::format("{} and {}", shape.size(), strides.size())});
}

void check_memory(const void* data, const Shape& shape, DType dtype) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0;
  if (data != nullptr && aligned) return;
  throw UsageError({.problem = aligned ? "a null pointer is no memory"
                                       : "memory that is not aligned to its elements",
                    .operation = "Tensor::wrap",
                    .tensor = "data",
                    .found = fmt::format("{}", data),
                    .expected = fmt::format("{} of {} at a multiple of {} bytes",
                                            format_shape(shape), name_of(dtype), size_of(dtype))});
}
}  // namespace

Tensor Tensor::wrap(void* data, Shape shape, Strides strides, DType dtype, Device device,
                    std::shared_ptr<void> owner) {
  check_lengths("Tensor::wrap", shape, strides);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0)
      throw ShapeError(
          {.problem = "negative size", .operation = "Tensor::wrap", .found = format_shape(shape)});
    if (strides[d] < 0)
      throw StrideError({.problem = "negative strides are not supported",
                         .operation = "Tensor::wrap",
                         .found = format_shape(strides),
                         .hint = "begin at the lowest address, or hand over a copy"});
  }
  if (tessera::numel(shape) > 0 && device.kind != DeviceKind::meta)
    check_memory(data, shape, dtype);
  Tensor t;
  t.dtype_ = dtype;
  t.shape_ = std::move(shape);
  t.strides_ = std::move(strides);
  std::int64_t span = t.numel() == 0 ? 0 : 1;
  for (std::size_t d = 0; d < t.shape_.size() && span > 0; ++d) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(t.shape_[d] - 1, t.strides_[d], &reach) ||
        __builtin_add_overflow(span, reach, &span))
      too_large("Tensor::wrap", t.shape_);
  }
  check_bytes("Tensor::wrap", span, dtype, t.shape_);
  const auto bytes = span * static_cast<std::int64_t>(size_of(dtype));
  t.storage_ = std::make_shared<Storage>(data, device, bytes, std::move(owner));
  return t;
}

namespace {
// An element of its own for each index: in the order of the strides, each steps over all that the
// smaller ones reach. Strides that interleave without meeting are not seen as such.
bool has_own_elements(const Shape& shape, const Strides& strides) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return true;
    if (shape[d] > 1) dims.push_back(d);
  }
  std::sort(dims.begin(), dims.end(),
            [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::int64_t reached = 0;
  for (const std::size_t d : dims) {
    if (strides[d] <= reached) return false;
    reached += (shape[d] - 1) * strides[d];
  }
  return true;
}
}  // namespace

Device Tensor::device() const {
  return storage_ ? storage_->device() : cpu_device;
}

std::int64_t Tensor::size(int dim) const {
  return shape_[static_cast<std::size_t>(normalize_dim(dim, ndim(), "Tensor::size"))];
}

bool Tensor::is_contiguous() const {
  std::int64_t stride = 1;
  for (std::size_t d = shape_.size(); d-- > 0;) {
    if (shape_[d] != 1 && strides_[d] != stride) return numel() == 0;
    stride *= shape_[d];
  }
  return true;
}

void* Tensor::data() const {
  return storage_ ? static_cast<char*>(storage_->data()) +
                        offset_ * static_cast<std::int64_t>(size_of(dtype_))
                  : nullptr;
}

namespace {
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::boolean;
}
}  // namespace

template <class T>
T* Tensor::host_data() const {
  if (dtype_ != dtype_of<T>())
    throw TypeError({.problem = "element type differs",
                     .operation = "Tensor::host_data",
                     .found = std::string(name_of(dtype_)),
                     .expected = std::string(name_of(dtype_of<T>()))});
  if (device().kind != DeviceKind::cpu)
    throw DeviceError({.problem = "host access to a tensor on " + name_of(device()),
                       .operation = "Tensor::host_data",
                       .hint = "copy it with to(cpu_device) first"});
  return static_cast<T*>(data());
}
template double* Tensor::host_data() const;
template float* Tensor::host_data() const;
template bf16* Tensor::host_data() const;
template std::int64_t* Tensor::host_data() const;
template std::int32_t* Tensor::host_data() const;
template std::uint8_t* Tensor::host_data() const;

Tensor Tensor::view(Shape shape) const {
  if (tessera::numel(shape) != numel())
    throw ShapeError({.problem = "a view keeps the number of elements",
                      .operation = "Tensor::view",
                      .found = format_shape(shape),
                      .expected = format_shape(shape_)});
  if (!is_contiguous())
    throw StrideError({.problem = "only a contiguous tensor can be viewed with another shape",
                       .operation = "Tensor::view",
                       .found = format_shape(shape_) + " with strides " + format_shape(strides_),
                       .hint = "call contiguous() first"});
  Tensor t = *this;
  t.strides_ = row_major_strides(shape);
  t.shape_ = std::move(shape);
  return t;
}

Tensor Tensor::narrow(int dim, std::int64_t begin, std::int64_t length) const {
  const auto d = static_cast<std::size_t>(normalize_dim(dim, ndim(), "Tensor::narrow"));
  if (begin < 0 || length < 0 || begin + length > shape_[d])
    throw RangeError({.problem = "range outside the dim",
                      .operation = "Tensor::narrow",
                      .found = fmt::format("[{}, {}) of dim {}", begin, begin + length, d),
                      .expected = format_shape(shape_)});
  Tensor t = *this;
  t.shape_[d] = length;
  t.offset_ += begin * strides_[d];
  return t;
}

Tensor Tensor::select(int dim, std::int64_t index) const {
  const int d = normalize_dim(dim, ndim(), "Tensor::select");
  Tensor t = narrow(d, index, 1);
  t.shape_.erase(t.shape_.begin() + d);
  t.strides_.erase(t.strides_.begin() + d);
  return t;
}

Tensor Tensor::transpose(int dim0, int dim1) const {
  const auto a = static_cast<std::size_t>(normalize_dim(dim0, ndim(), "Tensor::transpose"));
  const auto b = static_cast<std::size_t>(normalize_dim(dim1, ndim(), "Tensor::transpose"));
  Tensor t = *this;
  std::swap(t.shape_[a], t.shape_[b]);
  std::swap(t.strides_[a], t.strides_[b]);
  return t;
}

Tensor Tensor::permute(const std::vector<int>& dims) const {
  std::vector<int> sorted = dims;
  std::sort(sorted.begin(), sorted.end());
  for (int d = 0; d < ndim(); ++d)
    if (static_cast<int>(dims.size()) != ndim() || sorted[static_cast<std::size_t>(d)] != d)
      throw RangeError({.problem = "not a permutation of the dims",
                        .operation = "Tensor::permute",
                        .found = fmt::format("({})", fmt::join(dims, ", ")),
                        .expected = fmt::format("each of 0..{} once", ndim() - 1)});
  Tensor t = *this;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    t.shape_[d] = shape_[static_cast<std::size_t>(dims[d])];
    t.strides_[d] = strides_[static_cast<std::size_t>(dims[d])];
  }
  return t;
}

Tensor Tensor::unsqueeze(int dim) const {
  const int d = normalize_dim(dim, ndim() + 1, "Tensor::unsqueeze");
  Tensor t = *this;
  const auto at = static_cast<std::size_t>(d);
  const std::int64_t stride = at < shape_.size() ? shape_[at] * strides_[at] : 1;
  t.shape_.insert(t.shape_.begin() + d, 1);
  t.strides_.insert(t.strides_.begin() + d, stride);
  return t;
}

Tensor Tensor::squeeze(int dim) const {
  const int d = normalize_dim(dim, ndim(), "Tensor::squeeze");
  if (shape_[static_cast<std::size_t>(d)] != 1)
    throw ShapeError({.problem = "only a dim of size 1 can be squeezed",
                      .operation = "Tensor::squeeze",
                      .found = fmt::format("dim {} of {}", d, format_shape(shape_))});
  return select(d, 0);
}

Tensor Tensor::expand(const Shape& shape) const {
  Tensor t = *this;
  bool fits = shape.size() == shape_.size();
  for (std::size_t d = 0; fits && d < shape.size(); ++d) {
    if (shape[d] == shape_[d]) continue;
    fits = shape_[d] == 1 && shape[d] >= 0;
    t.shape_[d] = shape[d];
    t.strides_[d] = 0;
  }
  if (!fits)
    throw ShapeError({.problem = "only dims of size 1 can be expanded",
                      .operation = "Tensor::expand",
                      .found = format_shape(shape),
                      .expected = format_shape(shape_) + " but for its dims of size 1"});
  return t;
}

Tensor Tensor::as_strided(Shape shape, Strides strides, std::int64_t offset_from_here) const {
  check_lengths("Tensor::as_strided", shape, strides);
  Tensor t = *this;
  t.shape_ = std::move(shape);
  t.strides_ = std::move(strides);
  t.offset_ += offset_from_here;
  std::int64_t first = t.offset_;
  std::int64_t last = t.offset_;
  for (std::size_t d = 0; d < t.shape_.size(); ++d) {
    const std::int64_t step = (t.shape_[d] - 1) * t.strides_[d];
    (step < 0 ? first : last) += step;
  }
  if (t.numel() > 0 &&
      (first < 0 || (last + 1) * static_cast<std::int64_t>(size_of(dtype_)) > storage_bytes()))
    throw RangeError({.problem = "the view leaves its storage",
                      .operation = "Tensor::as_strided",
                      .found = format_shape(t.shape_) + " with strides " + format_shape(t.strides_),
                      .expected = fmt::format("within {} bytes", storage_bytes())});
  return t;
}

Tensor Tensor::contiguous() const {
  return is_contiguous() ? *this : clone();
}

Tensor Tensor::clone() const {
  Tensor t = empty(shape_, dtype_, device());
  copy(*this, t);
  return t;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  Tensor t = empty(shape_, dtype, device());
  copy(*this, t);
  return t;
}

// The ledger counts alike on every device: a copy on the host of what is on a GPU, which on a CPU
// would be the tensor itself, is not in it.
Tensor Tensor::to(Device target) const {
  if (target == device()) return *this;
  Tensor t =
      target == cpu_device ? pinned(shape_, dtype_, device()) : empty(shape_, dtype_, target);
  if (is_contiguous() || device() != cpu_device) {
    copy(contiguous(), t);
    return t;
  }
  const Tensor packed = pinned(shape_, dtype_, target);
  copy(*this, packed);
  copy(packed, t);
  return t;
}

void Tensor::relabel(Purpose purpose) const {
  storage_->relabel(purpose);
}
std::int64_t Tensor::storage_bytes() const {
  return storage_ ? storage_->bytes() : 0;
}
std::uint64_t Tensor::version() const {
  return storage_ ? storage_->version.load() : 0;
}
void Tensor::bump_version() const {
  if (!has_own_elements(shape_, strides_))
    throw StrideError({.problem = "an expanded view cannot be written",
                       .operation = "a write in place",
                       .found = format_shape(shape_) + " with strides " + format_shape(strides_),
                       .expected = "an element of its own for each index",
                       .hint = "call contiguous() first"});
  ++storage_->version;
}

double Tensor::item(const std::vector<std::int64_t>& index) const {
  Tensor t = *this;
  for (const std::int64_t i : index) t = t.select(0, i);
  if (t.numel() != 1)
    throw ShapeError({.problem = "item() reads one element",
                      .operation = "Tensor::item",
                      .found = format_shape(t.shape_)});
  return to_values(t).front();
}

bool has_values(const Tensor& tensor) {
  return tensor.device().kind != DeviceKind::meta;
}

std::vector<double> to_values(const Tensor& tensor) {
  const Tensor host = tensor.to(cpu_device).contiguous().to(DType::f64);
  const double* data = host.host_data<double>();
  return {data, data + host.numel()};
}

}  // namespace tessera
