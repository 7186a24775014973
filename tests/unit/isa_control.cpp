// SPDX-License-Identifier: MIT
// What the check of symbols must find: an inline function outside the kernels' namespace.
inline int escapes(int x) {
  return x + 1;
}
int (*address)(int) = escapes;
