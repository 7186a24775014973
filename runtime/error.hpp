// SPDX-License-Identifier: MIT
// Errors. A check is the caller's fault, throws in every build and depends only on facts that are
// equal on all ranks. An assertion is ours, and exists where TESSERA_ASSERTIONS is defined
// (debug and audit builds).
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace tessera {

// Exit codes of the program `tessera`; each error knows its own.
enum class ExitCode : int {
  ok = 0,
  check_failed = 1,
  usage = 2,
  environment = 3,
  timeout = 4,
  out_of_step = 5,
  out_of_memory = 6,
};

// What went wrong, as data. Empty members are left out of the text. `layer` is filled with the
// current scope (runtime/memory.hpp) if the thrower leaves it empty.
struct ErrorFacts {
  std::string problem = {};    // what is wrong, a sentence
  std::string operation = {};  // the function that refused
  std::string tensor = {};     // name of the operand
  std::string found = {};
  std::string expected = {};
  std::string hint = {};  // what to do about it
  std::string layer = {};
};

class Error : public std::exception {
 public:
  Error(std::string_view kind, ExitCode code, ErrorFacts facts);
  const char* what() const noexcept override { return text_.c_str(); }
  const ErrorFacts& facts() const noexcept { return facts_; }
  ExitCode exit_code() const noexcept { return code_; }
  const std::string& kind() const noexcept { return kind_; }  // "ShapeError"

 private:
  ErrorFacts facts_;
  ExitCode code_;
  std::string kind_;
  std::string text_;
};

#define TESSERA_DEFINE_ERROR(Name, code)                                      \
  struct Name : Error {                                                       \
    explicit Name(ErrorFacts facts) : Error(#Name, code, std::move(facts)) {} \
  }

TESSERA_DEFINE_ERROR(TypeError, ExitCode::usage);         // wrong dtype family or kind of argument
TESSERA_DEFINE_ERROR(MeshError, ExitCode::usage);         // operands on different meshes
TESSERA_DEFINE_ERROR(PlacementError, ExitCode::usage);    // a placement that is not accepted
TESSERA_DEFINE_ERROR(PartialError, ExitCode::usage);      // a Partial at an operation boundary
TESSERA_DEFINE_ERROR(UnevenError, ExitCode::usage);       // a sharded dim that does not divide
TESSERA_DEFINE_ERROR(ShapeError, ExitCode::usage);        // sizes that do not match
TESSERA_DEFINE_ERROR(RangeError, ExitCode::usage);        // dim or index out of range
TESSERA_DEFINE_ERROR(StrideError, ExitCode::usage);       // strides not unique or not exhaustive
TESSERA_DEFINE_ERROR(UnsupportedError, ExitCode::usage);  // deliberately not implemented
TESSERA_DEFINE_ERROR(GradientError, ExitCode::usage);     // gradient through what has none
TESSERA_DEFINE_ERROR(UsageError, ExitCode::usage);        // command line, case names
TESSERA_DEFINE_ERROR(FileError, ExitCode::usage);         // unreadable or malformed file
TESSERA_DEFINE_ERROR(StateDictError, ExitCode::usage);    // names or shapes of parameters
TESSERA_DEFINE_ERROR(CommStateError, ExitCode::environment);  // a busy or idle exchange misused
TESSERA_DEFINE_ERROR(InitError, ExitCode::environment);       // MPI or mesh missing or unfit
TESSERA_DEFINE_ERROR(MpiError, ExitCode::environment);        // an MPI call failed
TESSERA_DEFINE_ERROR(DeviceError, ExitCode::environment);     // device absent or failing
TESSERA_DEFINE_ERROR(TimeoutError, ExitCode::timeout);
TESSERA_DEFINE_ERROR(LockstepError, ExitCode::out_of_step);
TESSERA_DEFINE_ERROR(OutOfMemoryError, ExitCode::out_of_memory);
TESSERA_DEFINE_ERROR(AssertionError, ExitCode::check_failed);  // a promise of ours is broken
TESSERA_DEFINE_ERROR(BudgetError, ExitCode::check_failed);     // more saved than the class allows

TESSERA_DEFINE_ERROR(NonFiniteError, ExitCode::check_failed);  // NaN or infinity
TESSERA_DEFINE_ERROR(ReplicaError, ExitCode::check_failed);    // replicated values that differ

#undef TESSERA_DEFINE_ERROR

namespace detail {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line,
                                   const std::string& values);
}

#ifdef TESSERA_ASSERTIONS
#define TESSERA_ASSERT(expression, values) \
  ((expression) ? void(0)                  \
                : ::tessera::detail::assertion_failed(#expression, __FILE__, __LINE__, values))
#else
#define TESSERA_ASSERT(expression, values) void(0)
#endif

}  // namespace tessera
