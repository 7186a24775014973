// SPDX-License-Identifier: MIT
// Files of named tensors: 8 bytes with the length of a JSON header, the header, the data. Little
// endian, like every machine that this library runs on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/runtime/tensor.hpp"

namespace tessera {

struct TensorInfo {
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t begin = 0;  // bytes, counted from the end of the header
  std::int64_t end = 0;
};

// An open file, mapped into memory. A value; copies and all tensors share the mapping. Whoever
// shortens the file meanwhile takes the memory away: replace files by renaming.
class SafetensorsFile {
 public:
  // Reads and checks the whole header, so that tensor() cannot leave the file. FileError names the
  // file, and the tensor where one is at fault.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const std::map<std::string, std::string>& metadata() const;
  std::vector<std::string> names() const;  // ascending in the data
  bool contains(std::string_view name) const;
  const TensorInfo& info(std::string_view name) const;  // FileError if there is none

  // On the CPU, without a copy unless the data lie unaligned. Writing to it is private to this
  // process and leaves the file alone. FileError for a BOOL that is neither 0 nor 1.
  Tensor tensor(std::string_view name) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// Writes beside `path` and renames, so that no reader meets half a file. Tensors of large elements
// come first, so that all are aligned; otherwise the order is kept. FileError names the file.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tessera
