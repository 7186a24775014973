// SPDX-License-Identifier: MIT
// Collectives that move blocks.
#include "tessera/mesh/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/mesh/door.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

// Where a block of a result is received: the block itself if it is contiguous, else a buffer that
// settle() copies from.
Tensor landing(const Tensor& block) {
  if (block.is_contiguous()) return block;
  const PurposeScope purpose(Purpose::communication);
  return Tensor::empty(block.shape(), block.dtype(), block.device());
}
void settle(const Tensor& landed, const Tensor& block) {
  if (!landed.shares_storage(block)) copy(landed, block);
}
Tensor packed(const Tensor& block) {
  const PurposeScope purpose(Purpose::communication);
  return block.contiguous();
}

// One round: places[c] gets send[c], and receive[c] comes from it.
void swap_blocks(Operation& operation, const Group& group, const std::vector<Tensor>& send,
                 const std::vector<Tensor>& receive) {
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  const auto me = static_cast<std::size_t>(group.me);
  // Each starts with its neighbour, so that not all ranks send to one at a time.
  for (int k = 1; k < group.size(); ++k) {
    const auto to = static_cast<std::size_t>((group.me + k) % group.size());
    const auto from = static_cast<std::size_t>((group.me - k + group.size()) % group.size());
    sends.push_back({group.ranks[to], packed(send[to])});
    receives.push_back({group.ranks[from], landing(receive[from])});
  }
  operation.post(sends, receives);
  copy(send[me], receive[me]);
  operation.finish();
  for (int k = 1; k < group.size(); ++k) {
    const auto from = static_cast<std::size_t>((group.me - k + group.size()) % group.size());
    settle(receives[static_cast<std::size_t>(k - 1)].data, receive[from]);
  }
}

void check_even(const Shape& shape, int dim, int parts, const char* operation,
                const std::string& label) {
  const std::int64_t size = shape[static_cast<std::size_t>(dim)];
  if (size % parts == 0) return;
  throw UnevenError(
      {.problem = fmt::format("dim {} of size {} does not divide by {} ranks", dim, size, parts),
       .operation = operation,
       .tensor = label,
       .found = format_shape(shape),
       .expected = fmt::format("a multiple of {}", parts),
       .hint = fmt::format("the next valid size is {}", (size / parts + 1) * parts)});
}

void check_root(const Group& group, int root, const char* operation, const std::string& label) {
  if (root >= 0 && root < group.size()) return;
  throw RangeError({.problem = "no such root on the axis",
                    .operation = operation,
                    .tensor = label,
                    .found = fmt::format("coordinate {}", root),
                    .expected = fmt::format("0..{}", group.size() - 1)});
}

Shape with_dim(Shape shape, int dim, std::int64_t size) {
  shape[static_cast<std::size_t>(dim)] = size;
  return shape;
}

}  // namespace

Group group_of(const DeviceMesh& mesh, std::span<const int> axes) {
  for (const int axis : axes) check_axis(mesh, axis, "collective");
  Group group{.ranks = mesh.group(axes)};
  const auto own = std::find(group.ranks.begin(), group.ranks.end(), mesh.rank());
  group.me = static_cast<int>(own - group.ranks.begin());
  return group;
}

Content content_of(const Tensor& tensor, const Group& group) {
  return {tensor.dtype(), tensor.numel(), group.ranks.front()};
}

std::vector<Tensor> equal_parts(const Tensor& tensor, int dim, int parts, const char* operation,
                                const std::string& label) {
  dim = normalize_dim(dim, tensor.ndim(), operation);
  check_even(tensor.shape(), dim, parts, operation, label);
  const std::int64_t size = tensor.size(dim) / parts;
  std::vector<Tensor> views;
  for (int c = 0; c < parts; ++c) views.push_back(tensor.narrow(dim, c * size, size));
  return views;
}

Tensor all_gather(const DeviceMesh& mesh, int axis, const Tensor& local, int dim,
                  const std::string& label, CallSite where) {
  const Group group = group_of(mesh, std::span<const int>(&axis, 1));
  check_buffer(mesh, "all_gather", label, local);
  dim = normalize_dim(dim, local.ndim(), "all_gather");
  if (group.size() == 1) return local.clone();
  const Shape shape = with_dim(local.shape(), dim, local.size(dim) * group.size());
  const Tensor whole = Tensor::empty(shape, local.dtype(), local.device());
  Operation operation(mesh, {"all_gather", mesh.axis_name(axis), label, where},
                      content_of(local, group));
  const std::vector<Tensor> same(group.ranks.size(), local);
  swap_blocks(operation, group, same, equal_parts(whole, dim, group.size(), "all_gather", label));
  operation.close();
  return whole;
}

Tensor all_to_all(const DeviceMesh& mesh, int axis, const Tensor& local, int split_dim,
                  int concat_dim, const std::string& label, CallSite where) {
  const Group group = group_of(mesh, std::span<const int>(&axis, 1));
  check_buffer(mesh, "all_to_all", label, local);
  concat_dim = normalize_dim(concat_dim, local.ndim(), "all_to_all");
  const std::vector<Tensor> send = equal_parts(local, split_dim, group.size(), "all_to_all", label);
  if (group.size() == 1) return local.clone();
  const Shape& part = send.front().shape();
  const Shape shape =
      with_dim(part, concat_dim, part[static_cast<std::size_t>(concat_dim)] * group.size());
  const Tensor whole = Tensor::empty(shape, local.dtype(), local.device());
  Operation operation(mesh, {"all_to_all", mesh.axis_name(axis), label, where},
                      content_of(local, group));
  swap_blocks(operation, group, send,
              equal_parts(whole, concat_dim, group.size(), "all_to_all", label));
  operation.close();
  return whole;
}

// A binomial tree over the places counted from the root.
void broadcast_rounds(Operation& operation, const Group& group, int root, const Tensor& tensor) {
  const int n = group.size();
  const int place = (group.me - root + n) % n;
  int bit = 1;
  while (bit < n && (place & bit) == 0) bit *= 2;
  if (place != 0) operation.round({}, {{group.at(root + place - bit), tensor}});
  std::vector<Outgoing> children;
  for (bit /= 2; bit > 0; bit /= 2)
    if (place + bit < n) children.push_back({group.at(root + place + bit), tensor});
  operation.round(children, {});
}

void check_root_tensor(const Tensor& full, const Shape& shape, DType dtype, const char* operation,
                       const std::string& label) {
  if (full.defined() && full.shape() == shape && full.dtype() == dtype) return;
  throw ShapeError({.problem = "the root's tensor is not what all ranks were told",
                    .operation = operation,
                    .tensor = label,
                    .found = full.defined() ? fmt::format("{} {}", name_of(full.dtype()),
                                                          format_shape(full.shape()))
                                            : "an undefined tensor",
                    .expected = fmt::format("{} {}", name_of(dtype), format_shape(shape))});
}

void scatter_rounds(Operation& operation, const Group& group, int root, const Tensor& full, int dim,
                    const Tensor& part) {
  if (group.me != root) return operation.round({}, {{group.at(root), part}});
  const std::vector<Tensor> parts = equal_parts(full, dim, group.size(), "scatter", "");
  std::vector<Outgoing> sends;
  for (int c = 0; c < group.size(); ++c)
    if (c != root) sends.push_back({group.at(c), packed(parts[static_cast<std::size_t>(c)])});
  operation.post(sends, {});
  copy(parts[static_cast<std::size_t>(root)], part);
  operation.finish();
}

void broadcast(const DeviceMesh& mesh, int axis, int root, const Tensor& tensor,
               const std::string& label, CallSite where) {
  const Group group = group_of(mesh, std::span<const int>(&axis, 1));
  check_root(group, root, "broadcast", label);
  check_buffer(mesh, "broadcast", label, tensor);
  if (group.size() == 1) return;
  Operation operation(mesh, {"broadcast", mesh.axis_name(axis), label, where},
                      content_of(tensor, group));
  broadcast_rounds(operation, group, root, tensor);
  operation.close();
}

Tensor scatter(const DeviceMesh& mesh, int axis, int root, const Tensor& full,
               const Shape& full_shape, DType dtype, int dim, const std::string& label,
               CallSite where) {
  const Group group = group_of(mesh, std::span<const int>(&axis, 1));
  check_root(group, root, "scatter", label);
  dim = normalize_dim(dim, static_cast<int>(full_shape.size()), "scatter");
  check_even(full_shape, dim, group.size(), "scatter", label);
  const auto check = [&] {
    if (group.me == root) check_root_tensor(full, full_shape, dtype, "scatter", label);
  };
  collective_try(mesh, check, where);
  const std::int64_t size = full_shape[static_cast<std::size_t>(dim)] / group.size();
  const Tensor part = Tensor::empty(with_dim(full_shape, dim, size), dtype, mesh.device());
  if (group.size() == 1) {
    copy(full, part);
    return part;
  }
  Operation operation(mesh, {"scatter", mesh.axis_name(axis), label, where},
                      content_of(part, group));
  scatter_rounds(operation, group, root, full, dim, part);
  operation.close();
  return part;
}

}  // namespace tessera
