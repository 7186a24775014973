// SPDX-License-Identifier: MIT
// Files of tests.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera {

// The environment variable TESSERA_GOLDEN_DIR, or the folder `golden` beside that of the program.
std::filesystem::path golden_directory();

// A new empty directory of this process; removed with everything in it.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace tessera
