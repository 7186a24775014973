// SPDX-License-Identifier: MIT
#include "support/files.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace tessera {

std::filesystem::path golden_directory() {
  if (const char* chosen = std::getenv("TESSERA_GOLDEN_DIR")) return chosen;
  const auto program = std::filesystem::read_symlink("/proc/self/exe");  // in tests/LEVEL
  return program.parent_path().parent_path() / "golden";
}

ScratchDirectory::ScratchDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tessera-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::remove(path);  // some file systems flush a file that is cut and written anew
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace tessera
