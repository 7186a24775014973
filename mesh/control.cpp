// SPDX-License-Identifier: MIT
// Agreement between ranks: numbers that steer control flow, errors of one rank, equal replicas.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>
#include <numeric>
#include <optional>

#include "tessera/mesh/door.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/hash.hpp"

namespace tessera {
namespace {

// A small array on the host.
Tensor control_values(const std::vector<std::int64_t>& values) {
  const PurposeScope purpose(Purpose::communication);
  const Tensor t = Tensor::empty({static_cast<std::int64_t>(values.size())}, DType::i64);
  std::copy(values.begin(), values.end(), t.host_data<std::int64_t>());
  return t;
}

void broadcast_to_all(const DeviceMesh& mesh, int root, const Tensor& tensor,
                      const std::string& label, CallSite where) {
  if (mesh.ranks() == 1) return;
  const std::vector<int> axes = all_axes(mesh);
  const Group group = group_of(mesh, axes);
  Operation operation(mesh, {"broadcast", mesh.axes_name(axes), label, where},
                      content_of(tensor, group));
  broadcast_rounds(operation, group, root, tensor);
  operation.close();
}

Tensor control_bytes(std::int64_t count) {
  const PurposeScope purpose(Purpose::communication);
  return Tensor::empty({count}, DType::boolean);  // one byte per element
}

std::string broadcast_text(const DeviceMesh& mesh, int root, const std::string& text,
                           const std::string& label, CallSite where) {
  const Tensor length = control_values({static_cast<std::int64_t>(text.size())});
  broadcast_to_all(mesh, root, length, label, where);
  const std::int64_t bytes = *length.host_data<std::int64_t>();
  const Tensor buffer = control_bytes(bytes);
  auto* data = buffer.host_data<std::uint8_t>();
  if (mesh.rank() == root) std::copy(text.begin(), text.end(), data);
  broadcast_to_all(mesh, root, buffer, label, where);
  return {data, data + bytes};
}

// An error on its way: kind, exit code and facts, separated by zero bytes.
struct Failure {
  std::string kind = "Error";
  ExitCode code = ExitCode::check_failed;
  ErrorFacts facts;
};

auto members(auto& facts) {
  return std::array{&facts.problem,  &facts.operation, &facts.tensor, &facts.found,
                    &facts.expected, &facts.hint,      &facts.layer};
}

std::string pack(const Failure& failure) {
  std::string text = failure.kind + '\0' + std::to_string(static_cast<int>(failure.code)) + '\0';
  for (const std::string* member : members(failure.facts)) {
    text += *member;
    text += '\0';
  }
  return text;
}

Failure unpack(const std::string& text) {
  std::size_t at = 0;
  const auto next = [&] {
    const std::size_t end = text.find('\0', at);
    std::string part = text.substr(at, end - at);
    at = end + 1;
    return part;
  };
  Failure failure;
  failure.kind = next();
  failure.code = static_cast<ExitCode>(std::stoi(next()));
  for (std::string* member : members(failure.facts)) *member = next();
  return failure;
}

template <class... Kinds>
[[noreturn]] void rethrow_as(const Failure& failure) {
  ((Kinds({}).kind() == failure.kind ? throw Kinds(failure.facts) : void()), ...);
  throw Error(failure.kind, failure.code, failure.facts);
}

[[noreturn]] void rethrow(const Failure& failure) {
  rethrow_as<TypeError, MeshError, PlacementError, PartialError, UnevenError, ShapeError,
             RangeError, StrideError, UnsupportedError, GradientError, UsageError, FileError,
             StateDictError, CommStateError, InitError, MpiError, DeviceError, TimeoutError,
             LockstepError, OutOfMemoryError, AssertionError, BudgetError, ReplicaError,
             NonFiniteError>(failure);
}

std::optional<Failure> failure_of(const std::function<void()>& work) {
  Failure failure;
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    failure = {error.kind(), error.exit_code(), error.facts()};
  } catch (const std::bad_alloc&) {
    failure = {"OutOfMemoryError", ExitCode::out_of_memory, {.problem = "no memory left"}};
  } catch (const std::exception& error) {
    failure.facts.problem = error.what();
  }
  return failure;
}

}  // namespace

std::vector<int> all_axes(const DeviceMesh& mesh) {
  std::vector<int> axes(static_cast<std::size_t>(mesh.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

void barrier(const DeviceMesh& mesh, CallSite where) {
  all_reduce_as("barrier", mesh, all_axes(mesh), ReduceOp::max, control_values({0}), "", where);
}

ControlScalar ControlScalar::broadcast(const DeviceMesh& mesh, std::int64_t value_on_rank_0,
                                       CallSite where) {
  const Tensor value = control_values({value_on_rank_0});
  broadcast_to_all(mesh, 0, value, "control", where);
  return ControlScalar(*value.host_data<std::int64_t>());
}

std::string broadcast_string(const DeviceMesh& mesh, std::string value_on_rank_0, CallSite where) {
  return broadcast_text(mesh, 0, value_on_rank_0, "text", where);
}

std::vector<std::string> gather_strings(const DeviceMesh& mesh, const std::string& own,
                                        CallSite where) {
  if (mesh.ranks() == 1) return {own};
  Operation operation(mesh, {"gather", mesh.axes_name(all_axes(mesh)), "text", where},
                      {.dtype = DType::boolean});
  const Tensor length = control_values({static_cast<std::int64_t>(own.size())});
  const Tensor bytes = control_bytes(static_cast<std::int64_t>(own.size()));
  std::copy(own.begin(), own.end(), bytes.host_data<std::uint8_t>());
  if (mesh.rank() != 0) {
    operation.round({{0, length}}, {});
    operation.round({{0, bytes}}, {});
    operation.close();
    return {};
  }
  std::vector<Incoming> lengths, texts;
  for (int peer = 1; peer < mesh.ranks(); ++peer) lengths.push_back({peer, control_values({0})});
  operation.round({}, lengths);
  for (const Incoming& in : lengths)
    texts.push_back({in.peer, control_bytes(*in.data.host_data<std::int64_t>())});
  operation.round({}, texts);
  operation.close();
  std::vector<std::string> all{own};
  for (const Incoming& in : texts) {
    const auto* data = in.data.host_data<std::uint8_t>();
    all.emplace_back(data, data + in.data.numel());
  }
  return all;
}

void collective_try(const DeviceMesh& mesh, const std::function<void()>& work, CallSite where) {
  if (mesh.ranks() == 1) return work();
  const std::optional<Failure> own = failure_of(work);
  // After a time-out there is nobody to agree with.
  if (own && !mesh.state().unfinished.empty()) rethrow(*own);
  const std::vector<int> axes = all_axes(mesh);
  const Tensor lowest = control_values({own ? mesh.rank() : mesh.ranks()});
  all_reduce_as("agree", mesh, axes, ReduceOp::min, lowest, "failing rank", where);
  const auto rank = static_cast<int>(*lowest.host_data<std::int64_t>());
  if (rank == mesh.ranks()) return;
  const Tensor failed = control_values({own ? 1 : 0});
  all_reduce_as("agree", mesh, axes, ReduceOp::sum, failed, "failing ranks", where);
  Failure first = unpack(broadcast_text(mesh, rank, own ? pack(*own) : "", "error", where));
  const std::int64_t others = *failed.host_data<std::int64_t>() - 1;
  std::string& hint = first.facts.hint;
  hint += fmt::format("{}on rank {}", hint.empty() ? "" : "; ", rank);
  if (others > 0) hint += fmt::format(", and {} other rank(s) failed", others);
  rethrow(first);
}

bool replicas_identical(const DeviceMesh& mesh, std::span<const int> axes, const Tensor& tensor,
                        CallSite where) {
  const auto hash = static_cast<std::int64_t>(hash_of(tensor));
  // The largest of h and of ~h: if all hashes are equal, these are complements as well.
  const Tensor most = control_values({hash, ~hash});
  all_reduce_as("compare", mesh, axes, ReduceOp::max, most, "replicas", where);
  const auto* v = most.host_data<std::int64_t>();
  return v[0] == ~v[1];
}

}  // namespace tessera
