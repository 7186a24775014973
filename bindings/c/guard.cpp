// SPDX-License-Identifier: MIT
#include "guard.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>

#include "tessera/runtime/error.hpp"

namespace tessera::c {
namespace {

struct LastError {
  std::string kind, text;
};
thread_local LastError t_last_error;

int keep(const char* function, const std::string& kind, const char* text, ExitCode code) noexcept {
  try {
    t_last_error = {kind, std::string(function) + ": " + text};
  } catch (...) {  // no memory for the text: the status says it
    t_last_error.kind.clear();
    t_last_error.text.clear();
  }
  return static_cast<int>(code);
}

struct Alive {
  std::mutex mutex;
  std::unordered_map<const void*, std::type_index> kinds;
};
Alive& alive() {
  static Alive all;
  return all;
}

}  // namespace

int status_of_exception(const char* function) noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return keep(function, error.kind(), error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return keep(function, "OutOfMemoryError", "OutOfMemoryError: the host has no more memory",
                ExitCode::out_of_memory);
  } catch (const std::exception& error) {
    return keep(function, "exception", error.what(), ExitCode::check_failed);
  } catch (...) {
    return keep(function, "exception", "an exception of unknown type", ExitCode::check_failed);
  }
}

void refuse(const char* argument, std::string problem) {
  throw UsageError({.problem = std::move(problem), .tensor = argument});
}

namespace handles {

void add(const void* handle, std::type_index kind) {
  const std::lock_guard lock(alive().mutex);
  alive().kinds.insert_or_assign(handle, kind);
}

void remove(const void* handle) noexcept {
  const std::lock_guard lock(alive().mutex);
  alive().kinds.erase(handle);
}

void check(const void* handle, std::type_index kind, const char* argument) {
  if (handle == nullptr) refuse(argument, "a null handle");
  const std::lock_guard lock(alive().mutex);
  const auto found = alive().kinds.find(handle);
  if (found == alive().kinds.end()) refuse(argument, "a handle that was destroyed or never made");
  if (found->second != kind) refuse(argument, "a handle of another kind");
}

}  // namespace handles

void give_text(char** out, const std::string& text) {
  required(out, "the text to write");
  *out = nullptr;
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
}

Shape sizes(const char* argument, int ndim, const std::int64_t* values) {
  if (ndim < 0 || ndim > kMostDims)
    throw RangeError({.problem = "number of dims out of range",
                      .tensor = argument,
                      .found = std::to_string(ndim),
                      .expected = "0 to " + std::to_string(kMostDims)});
  if (ndim > 0) required(values, argument);
  Shape all(values, values + ndim);
  if (std::any_of(all.begin(), all.end(), [](std::int64_t n) { return n < 0; }))
    throw ShapeError(
        {.problem = "a negative number", .tensor = argument, .found = format_shape(all)});
  return all;
}

void give_sizes(const char* argument, const Shape& values, int capacity, std::int64_t* out) {
  if (capacity < std::ssize(values))
    throw RangeError({.problem = "too little room",
                      .tensor = argument,
                      .found = std::to_string(capacity),
                      .expected = "at least " + std::to_string(values.size())});
  if (!values.empty()) std::copy(values.begin(), values.end(), &required(out, argument));
}

DType dtype_of(int dtype) {
  static_assert(
      static_cast<int>(DType::f64) == TESSERA_F64 && static_cast<int>(DType::f32) == TESSERA_F32 &&
      static_cast<int>(DType::bf16) == TESSERA_BF16 &&
      static_cast<int>(DType::i64) == TESSERA_I64 && static_cast<int>(DType::i32) == TESSERA_I32 &&
      static_cast<int>(DType::boolean) == TESSERA_BOOL);
  if (dtype < TESSERA_F64 || dtype > TESSERA_BOOL)
    throw TypeError({.problem = "there is no such dtype",
                     .found = std::to_string(dtype),
                     .expected = "one of enum tessera_dtype"});
  return static_cast<DType>(dtype);
}

}  // namespace tessera::c

extern "C" {

const char* tessera_last_error() {
  return tessera::c::t_last_error.text.c_str();
}

const char* tessera_last_error_kind() {
  return tessera::c::t_last_error.kind.c_str();
}

void tessera_text_destroy(char* text) {
  std::free(text);
}

}  // extern "C"
