// SPDX-License-Identifier: MIT
// The boundary between C and C++: exceptions become statuses, and pointers of C are checked.
#pragma once

#include <memory>
#include <string>
#include <typeindex>
#include <utility>

#include "tessera.h"
#include "tessera/runtime/tensor.hpp"

namespace tessera::c {

// The status of the exception that is being handled; keeps its text for tessera_last_error().
int status_of_exception(const char* function) noexcept;

// The body of every function of tessera.h that can fail.
template <class Body>
int guarded(const char* function, const Body& body) noexcept {
  try {
    body();
    return TESSERA_OK;
  } catch (...) {
    return status_of_exception(function);
  }
}

// UsageError that names the argument.
[[noreturn]] void refuse(const char* argument, std::string problem);

template <class T>
T& required(T* pointer, const char* argument) {
  if (pointer == nullptr) refuse(argument, "a null pointer");
  return *pointer;
}

// All handles that are alive, so that one that was destroyed or is of another kind is found
// without reading it.
namespace handles {
void add(const void* handle, std::type_index kind);
void remove(const void* handle) noexcept;
void check(const void* handle, std::type_index kind, const char* argument);  // UsageError
}  // namespace handles

template <class Handle>
Handle& checked(Handle* handle, const char* argument) {
  handles::check(handle, typeid(Handle), argument);
  return *handle;
}

// Makes a handle out of its members and gives it to the caller.
template <class Handle, class... Members>
void give(Handle** out, Members&&... members) {
  auto handle = std::make_unique<Handle>(Handle{std::forward<Members>(members)...});
  handles::add(handle.get(), typeid(Handle));
  *out = handle.release();
}

// The body of functions that write a handle, which is NULL after a failure.
template <class Handle, class Body>
int guarded_give(const char* function, Handle** out, const Body& body) noexcept {
  if (out != nullptr) *out = nullptr;
  return guarded(function, [&] {
    required(out, "the handle to write");
    body();
  });
}

template <class Handle>
int destroy(const char* function, Handle* handle, const char* argument) noexcept {
  return guarded(function, [&] {
    if (handle == nullptr) return;
    const std::unique_ptr<Handle> owned(&checked(handle, argument));
    handles::remove(handle);
  });
}

// A copy that tessera_text_destroy() frees.
void give_text(char** out, const std::string& text);

// Lists of C.
inline constexpr int kMostDims = 8;
Shape sizes(const char* argument, int ndim, const std::int64_t* values);
void give_sizes(const char* argument, const Shape& values, int capacity, std::int64_t* out);
template <class List>
const auto& entry(const List& list, int index, const char* argument) {
  if (index < 0 || index >= std::ssize(list))
    refuse(argument,
           "there is no number " + std::to_string(index) + " of " + std::to_string(list.size()));
  return list[static_cast<std::size_t>(index)];
}
DType dtype_of(int dtype);

}  // namespace tessera::c
