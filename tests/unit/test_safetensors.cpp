// SPDX-License-Identifier: MIT
// ranks: 1
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "support/errors.hpp"
#include "support/files.hpp"
#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/safetensors.hpp"

namespace tessera {
namespace {

std::string file_of(std::string header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + data;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return '"' + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + '}';
}

// Bits of a tensor; exact also for values that do not compare.
std::string bytes_of(const Tensor& tensor) {
  const Tensor local = tensor.contiguous();
  std::string bytes(static_cast<std::size_t>(local.bytes()), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), local.data(), bytes.size());
  return bytes;
}

void check_equal(const Tensor& a, const Tensor& b) {
  CHECK(a.dtype() == b.dtype());
  CHECK(a.shape() == b.shape());
  CHECK(bytes_of(a) == bytes_of(b));
}

NamedTensors one_of_each() {
  return {{"flags", Tensor::from_values({3}, {1, 0, 1}, DType::boolean)},
          {"half", Tensor::from_values({2, 2}, {1.5, -2, 0, 3e38}, DType::bf16)},
          {"single", Tensor::from_values({5}, {0.1, -0.0, 1e-40, 3, 4}, DType::f32)},
          {"double", Tensor::from_values({1, 2, 2}, {0.1, -0.0, 1e-310, 7}, DType::f64)},
          {"int", Tensor::from_values({1}, {-2147483648.0}, DType::i32)},
          {"long", Tensor::from_values({2}, {-9007199254740992.0, 3}, DType::i64)},
          {"scalar", Tensor::from_values({}, {42}, DType::f64)},
          {"empty", Tensor::from_values({0, 4}, {}, DType::f32)}};
}

// Checks what tensor() gives against the bytes of the file that info() points at.
void check_reading(const std::string& bytes, const SafetensorsFile& file) {
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (const auto& name : file.names()) {
    const TensorInfo& info = file.info(name);
    const Tensor tensor = file.tensor(name);
    const auto begin = sizeof header + header + static_cast<std::size_t>(info.begin);
    REQUIRE(tensor.shape() == info.shape);
    REQUIRE(tensor.dtype() == info.dtype);
    REQUIRE(bytes_of(tensor) ==
            bytes.substr(begin, static_cast<std::size_t>(info.end - info.begin)));
  }
}

}  // namespace

TEST_CASE("what was written is read back bit for bit") {
  const ScratchDirectory scratch;
  const auto path = scratch / "a.safetensors";
  const auto tensors = one_of_each();
  const std::map<std::string, std::string> metadata{{"case", "x"},
                                                    {"text", "\"quoted\"\n\xc3\xa9"}};
  write_safetensors(path, tensors, metadata);

  const auto file = SafetensorsFile::open(path);
  CHECK(file.path() == path);
  CHECK(file.metadata() == metadata);
  CHECK(file.names().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    REQUIRE(file.contains(name));
    check_equal(file.tensor(name), tensor);
  }
  CHECK_FALSE(file.contains("nothing"));
  require_error<FileError>([&] { file.tensor("nothing"); }, "nothing", path.string());

  const auto again = scratch / "b.safetensors";
  NamedTensors read;
  for (const auto& name : file.names()) read.emplace_back(name, file.tensor(name));
  write_safetensors(again, read, file.metadata());
  CHECK(read_file(path) == read_file(again));
}

TEST_CASE("views are written as the values they show") {
  const ScratchDirectory scratch;
  const Tensor whole = Tensor::from_values({2, 3}, {1, 2, 3, 4, 5, 6}, DType::f64);
  write_safetensors(scratch / "v", {{"t", whole.transpose(0, 1)}, {"n", whole.narrow(1, 1, 2)}});
  const auto file = SafetensorsFile::open(scratch / "v");
  CHECK(to_values(file.tensor("t")) == std::vector<double>{1, 4, 2, 5, 3, 6});
  CHECK(to_values(file.tensor("n")) == std::vector<double>{2, 3, 5, 6});
}

TEST_CASE("a file without tensors is a file") {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "none", {});
  CHECK(SafetensorsFile::open(scratch / "none").names().empty());
  CHECK(read_file(scratch / "none") == file_of("{}      ", ""));
}

TEST_CASE("aligned data are mapped, unaligned data are copied") {
  const ScratchDirectory scratch;
  const std::string data("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", 16);  // 1.0, 2.0
  std::string header = "{" + entry("x", "F64", "[2]", "[0,16]") + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  for (const bool aligned : {true, false}) {
    const std::string bytes = file_of(header + (aligned ? "" : " "), data);
    write_file(scratch / "x", bytes);
    const auto file = SafetensorsFile::open(scratch / "x");
    const auto before = memory_ledger::total().live;
    const Tensor x = file.tensor("x");
    CHECK((memory_ledger::total().live == before) == aligned);
    CHECK(to_values(x) == std::vector<double>{1, 2});
    x.host_data<double>()[0] = 7;  // ours alone
    CHECK(read_file(scratch / "x") == bytes);
  }
}

TEST_CASE("a tensor outlives its file object and the file's name") {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "x", {{"x", Tensor::from_values({2}, {1, 2}, DType::f64)}});
  Tensor x;
  {
    const auto file = SafetensorsFile::open(scratch / "x");
    x = file.tensor("x");
  }
  std::filesystem::remove(scratch / "x");
  CHECK(to_values(x) == std::vector<double>{1, 2});
}

TEST_CASE("goldens survive a round trip") {
  const ScratchDirectory scratch;
  const auto golden = SafetensorsFile::open(golden_directory() / "atom_encoder.safetensors");
  NamedTensors tensors;
  for (const auto& name : golden.names()) tensors.emplace_back(name, golden.tensor(name));
  write_safetensors(scratch / "copy", tensors, golden.metadata());
  const auto copy = SafetensorsFile::open(scratch / "copy");
  CHECK(copy.metadata() == golden.metadata());
  REQUIRE(copy.names().size() == golden.names().size());
  REQUIRE(golden.info("in.feats.ref_element").dtype == DType::boolean);
  for (const auto& name : golden.names()) check_equal(copy.tensor(name), golden.tensor(name));
}

TEST_CASE("every golden opens and names its case") {
  int files = 0;
  for (const auto& item : std::filesystem::directory_iterator(golden_directory())) {
    if (item.path().extension() != ".safetensors") continue;
    INFO(item.path());
    const auto golden = SafetensorsFile::open(item.path());
    CHECK(golden.metadata().at("case") == item.path().stem());
    for (const auto& name : golden.names()) CHECK(golden.tensor(name).defined());
    ++files;
  }
  CHECK(files > 0);
}

TEST_CASE("malformed files are refused by name") {
  const ScratchDirectory scratch;
  const auto path = scratch / "bad.safetensors";
  const std::string eight(8, '\0');
  const std::string good = entry("w", "F64", "[1]", "[0,8]");
  struct Case {
    const char* what;
    std::string bytes;
    std::vector<std::string> words;
  };
  const auto header = [](const std::string& entries, const std::string& data) {
    return file_of("{" + entries + "}", data);
  };
  const std::string two = "9223372036854775807";
  const std::vector<Case> cases{
      {"empty file", "", {"0 bytes"}},
      {"seven bytes", std::string(7, 'x'), {"7 bytes"}},
      {"plain text", "this is not a file of tensors", {"longer than the file"}},
      {"no header", file_of("", ""), {"'{'"}},
      {"truncated header", file_of("{" + good + "}", "").substr(0, 30), {"longer than the file"}},
      {"length 2^64-1", std::string(8, '\xff') + "{}", {"18446744073709551615"}},
      {"length -8", std::string("\xf8") + std::string(7, '\xff') + "{}", {"longer"}},
      {"truncated data", header(good, "1234567"), {"'w'", "beyond"}},
      {"data after the end", header(good, eight + "x"), {"goes on"}},
      {"not an object", file_of("[1,2]", ""), {"'{'"}},
      {"leading blank", file_of(" {}", ""), {"'{'"}},
      {"not JSON", header("\"a\":", ""), {"JSON"}},
      {"two values", file_of("{}{}", ""), {"JSON"}},
      {"not UTF-8", header("\"\xff\":1", ""), {"UTF-8"}},
      {"not UTF-8 in the metadata", header("\"__metadata__\":{\"a\":\"\xc3\"}", ""), {"UTF-8"}},
      {"a NUL in the JSON", file_of(std::string("{\0}", 3), ""), {"JSON"}},
      {"entry is a number", header("\"w\":3", ""), {"'w'", "not an object"}},
      {"entry is null", header("\"w\":null", ""), {"'w'", "not an object"}},
      {"no dtype", header(R"("w":{"shape":[],"data_offsets":[0,0]})", ""), {"'w'", "dtype"}},
      {"no shape", header(R"("w":{"dtype":"F64","data_offsets":[0,0]})", ""), {"'w'", "shape"}},
      {"no offsets", header(R"("w":{"dtype":"F64","shape":[]})", ""), {"'w'", "data_offsets"}},
      {"extra key",
       header(R"("w":{"dtype":"F64","shape":[1],"data_offsets":[0,8],"x":1})", eight),
       {"'w'", "more"}},
      {"unknown dtype", header(entry("w", "F8_E4M3", "[1]", "[0,1]"), "x"), {"'w'", "F8_E4M3"}},
      {"U8", header(entry("w", "U8", "[1]", "[0,1]"), "x"), {"'w'", "U8", "BOOL"}},
      {"lower case dtype", header(entry("w", "f64", "[1]", "[0,8]"), eight), {"'w'", "f64"}},
      {"dtype is a number",
       header(R"("w":{"dtype":8,"shape":[1],"data_offsets":[0,8]})", eight),
       {"'w'", "dtype"}},
      {"shape is a number", header(entry("w", "F64", "1", "[0,8]"), eight), {"'w'", "shape"}},
      {"shape of strings", header(entry("w", "F64", "[\"1\"]", "[0,8]"), eight), {"'w'", "shape"}},
      {"shape of floats", header(entry("w", "F64", "[1.0]", "[0,8]"), eight), {"'w'", "1.0"}},
      {"negative size", header(entry("w", "F64", "[-1]", "[0,8]"), eight), {"'w'", "-1"}},
      {"size over 2^63",
       header(entry("w", "F64", "[9223372036854775808]", "[0,8]"), eight),
       {"'w'"}},
      {"size over 2^64",
       header(entry("w", "F64", "[99999999999999999999]", "[0,8]"), eight),
       {"'w'"}},
      {"nested shape", header(entry("w", "F64", "[[1]]", "[0,8]"), eight), {"'w'", "nested"}},
      {"product wraps to 1",
       header(entry("w", "F64", "[4294967296,4294967296,1]", "[0,0]"), ""),
       {"'w'", "2^63"}},
      {"bytes wrap",
       header(entry("w", "F64", "[2305843009213693952]", "[0,0]"), ""),
       {"'w'", "2^63"}},
      {"absurd and empty",
       header(entry("w", "F64", "[" + two + "," + two + ",0]", "[0,0]"), ""),
       {"'w'", "2^63"}},
      {"too short for the shape", header(entry("w", "F64", "[2]", "[0,8]"), eight), {"'w'", "16"}},
      {"too long for the shape", header(entry("w", "F32", "[1]", "[0,8]"), eight), {"'w'", "4"}},
      {"one offset", header(entry("w", "F64", "[1]", "[8]"), eight), {"'w'", "data_offsets"}},
      {"three offsets",
       header(entry("w", "F64", "[1]", "[0,8,8]"), eight),
       {"'w'", "data_offsets"}},
      {"offsets backwards",
       header(entry("w", "F64", "[1]", "[8,0]"), eight),
       {"'w'", "data_offsets"}},
      {"negative offset",
       header(entry("w", "F64", "[1]", "[-8,0]"), eight),
       {"'w'", "data_offsets"}},
      {"offsets near 2^63",
       header(entry("w", "F64", "[1]", "[9223372036854775799,9223372036854775807]"), eight),
       {"'w'", "beyond"}},
      {"hole in front", header(entry("w", "F64", "[1]", "[8,16]"), eight + eight), {"'w'", "hole"}},
      {"hole between",
       header(good + "," + entry("v", "F64", "[1]", "[16,24]"), eight + eight + eight),
       {"'v'", "hole"}},
      {"same data twice",
       header(good + "," + entry("v", "F64", "[1]", "[0,8]"), eight),
       {"'v'", "'w'"}},
      {"overlap",
       header(good + "," + entry("v", "F64", "[1]", "[4,12]"), eight + "1234"),
       {"'v'", "'w'", "overlaps"}},
      {"a name twice",
       header(good + "," + entry("w", "F64", "[1]", "[8,16]"), eight + eight),
       {"'w'", "twice"}},
      {"a name twice, once escaped",
       header(good + "," + entry("\\u0077", "F64", "[1]", "[0,8]"), eight),
       {"'w'", "twice"}},
      {"a key twice",
       header(R"("w":{"dtype":"F64","dtype":"F64","shape":[1],"data_offsets":[0,8]})", eight),
       {"'w'", "dtype", "twice"}},
      {"metadata twice", header(R"("__metadata__":{},"__metadata__":{})", ""), {"twice"}},
      {"metadata is a list", header(R"("__metadata__":[])", ""), {"metadata"}},
      {"metadata of numbers", header(R"("__metadata__":{"a":1})", ""), {"metadata", "'a'"}},
      {"deep nesting", header("\"w\":" + std::string(100000, '['), ""), {"nested"}},
  };
  for (const auto& c : cases) {
    INFO(c.what);
    write_file(path, c.bytes);
    try {
      SafetensorsFile::open(path);
      FAIL("accepted");
    } catch (const FileError& error) {
      CHECK(mentions(error, path.string()));
      for (const auto& word : c.words) {
        INFO("looked for " << word << " in: " << error.what());
        CHECK(mentions(error, word));
      }
    }
  }
  // The table itself: its parts make a readable file.
  write_file(path, header(good, eight));
  CHECK(SafetensorsFile::open(path).tensor("w").item({0}) == 0);
}

TEST_CASE("headers over 100 MB are refused before they are parsed") {
  const ScratchDirectory scratch;
  const auto path = scratch / "large";
  const std::uint64_t length = 100'000'001;
  write_file(path, std::string(reinterpret_cast<const char*>(&length), sizeof length) + "{}");
  std::filesystem::resize_file(path, 8 + length);  // sparse
  require_error<FileError>([&] { SafetensorsFile::open(path); }, "too large", path.string());
}

TEST_CASE("what is not a regular file is refused at once") {
  const ScratchDirectory scratch;
  require_error<FileError>([&] { SafetensorsFile::open(scratch / "missing"); }, "missing");
  require_error<FileError>([&] { SafetensorsFile::open(scratch.path()); }, "regular");
  REQUIRE(mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  require_error<FileError>([&] { SafetensorsFile::open(scratch / "pipe"); }, "regular");
}

TEST_CASE("a BOOL has two values") {
  const ScratchDirectory scratch;
  write_file(scratch / "b", file_of("{" + entry("b", "BOOL", "[2]", "[0,2]") + "}", "\x01\x02"));
  const auto file = SafetensorsFile::open(scratch / "b");
  require_error<FileError>([&] { file.tensor("b"); }, "BOOL", "'b'");
}

TEST_CASE("the writer refuses what no reader would take, and leaves no pieces") {
  const ScratchDirectory scratch;
  const Tensor x = Tensor::zeros({2}, DType::f32);
  const auto path = scratch / "x";
  require_error<FileError>([&] { write_safetensors(path, {{"a", x}, {"a", x}}); }, "'a'", "twice");
  require_error<FileError>([&] { write_safetensors(path, {{"__metadata__", x}}); }, "__metadata__");
  require_error<FileError>([&] { write_safetensors(path, {{"a", Tensor()}}); }, "'a'", "defined");
  require_error<FileError>([&] { write_safetensors(path, {{"\xff", x}}); }, "UTF-8");
  require_error<FileError>([&] { write_safetensors(scratch / "no" / "x", {{"a", x}}); }, "no/x");
  std::filesystem::create_directories(path / "full");
  require_error<FileError>([&] { write_safetensors(path, {{"a", x}}); }, path.string());
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), {}) == 1);
}

TEST_CASE("damaged files are refused or read as they are") {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "whole", one_of_each(), {{"case", "fuzz"}});
  const std::string whole = read_file(scratch / "whole");
  check_reading(whole, SafetensorsFile::open(scratch / "whole"));

  std::mt19937 random(20240229);
  const auto below = [&random](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  const std::string spice = "0123456789[]{}\",:- \\u";  // so that many mutants are still JSON
  int refused = 0;
  int accepted = 0;
  for (int mutant = 0; mutant < 6000; ++mutant) {
    INFO("mutant " << mutant);
    std::string bytes = whole;
    for (auto edits = 1 + below(3); edits > 0; --edits) {
      const auto at =
          below(below(4) == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 600));
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 1:
          bytes[at] = static_cast<char>(below(256));
          break;
        case 2:
          bytes[at] = spice[below(spice.size())];
          break;
        case 3:
          bytes.erase(at, 1);
          break;
        case 4:
          bytes.insert(at, 1, spice[below(spice.size())]);
          break;
        default:
          bytes[at] = static_cast<char>('0' + below(10));
          break;
      }
    }
    if (below(20) == 0) bytes.resize(below(bytes.size()) + 1);
    write_file(scratch / "mutant", bytes);
    try {
      check_reading(bytes, SafetensorsFile::open(scratch / "mutant"));
      ++accepted;
    } catch (const FileError& error) {
      REQUIRE(mentions(error, (scratch / "mutant").string()));
      ++refused;
    }
  }
  CHECK(refused > 2000);  // both kinds occur often, else the mutants are not worth much
  CHECK(accepted > 200);
}

}  // namespace tessera
