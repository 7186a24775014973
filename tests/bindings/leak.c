// SPDX-License-Identifier: MIT
// Forgets a tensor: what the check for leaks must find.
#include "tessera.h"

int main(void) {
  const int64_t shape[1] = {1000};
  tessera_tensor* tensor = NULL;
  return tessera_tensor_create(TESSERA_F64, 1, shape, "cpu", &tensor);
}
