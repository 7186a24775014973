// SPDX-License-Identifier: MIT
// The test macros, from Catch2 2.13 or 3.
#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_test_macros.hpp>
#else
#include <catch2/catch.hpp>
#endif
