// SPDX-License-Identifier: MIT
// Defaults that AddressSanitizer asks a program for; part of the tests in sanitizer builds only.

// An absurd allocation fails as it does elsewhere. Frames of libraries without frame pointers are
// found by slow unwinding only, and the suppressions below need them.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:fast_unwind_on_malloc=0";
}

// MPI libraries keep what they allocated until the process ends.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libmpi\nleak:libopen-\nleak:mca_\nleak:libhwloc\nleak:libpmix\nleak:libevent\n"
         "leak:libfabric\nleak:libuc\nleak:ld-linux\n";
}

extern "C" const char* __lsan_default_options() {
  return "print_suppressions=0";
}
