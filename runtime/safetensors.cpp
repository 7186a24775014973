// SPDX-License-Identifier: MIT
#include "tessera/runtime/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "tessera/runtime/error.hpp"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // as other readers of the format have it
constexpr const char* kMetadata = "__metadata__";

struct FormatName {
  DType dtype;
  std::string_view name;
};
constexpr std::array<FormatName, 6> kFormatNames{{{DType::f64, "F64"},
                                                  {DType::f32, "F32"},
                                                  {DType::bf16, "BF16"},
                                                  {DType::i64, "I64"},
                                                  {DType::i32, "I32"},
                                                  {DType::boolean, "BOOL"}}};

std::string_view format_name(DType dtype) {
  return std::find_if(kFormatNames.begin(), kFormatNames.end(),
                      [dtype](const FormatName& f) { return f.dtype == dtype; })
      ->name;
}

std::string error_text() {
  return std::error_code(errno, std::generic_category()).message();
}

// What is wrong with which file, and with which tensor of it.
struct Complaint {
  const fs::path& path;
  std::string_view operation;

  [[noreturn]] void operator()(std::string_view problem, std::string_view tensor = {},
                               std::string found = {}, std::string expected = {}) const {
    throw FileError({.problem = fmt::format("{}: {}", path.string(), problem),
                     .operation = std::string(operation),
                     .tensor = std::string(tensor),
                     .found = std::move(found),
                     .expected = std::move(expected)});
  }
};

// A whole file in memory, private to this process.
struct Mapping {
  std::byte* data = nullptr;
  std::int64_t size = 0;

  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data != nullptr) munmap(data, static_cast<std::size_t>(size));
  }
};

std::shared_ptr<Mapping> map_file(const fs::path& path, const Complaint& complain) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) complain("cannot be opened: " + error_text());
  const std::unique_ptr<const int, void (*)(const int*)> closer(&file,
                                                                [](const int* f) { close(*f); });
  struct stat status {};
  if (fstat(file, &status) != 0) complain("cannot be examined: " + error_text());
  if (!S_ISREG(status.st_mode)) complain("is not a regular file");
  if (status.st_size < kLengthBytes)
    complain("is too short to be a safetensors file", {}, fmt::format("{} bytes", status.st_size),
             "at least 8 bytes");
  auto mapping = std::make_shared<Mapping>();
  void* data = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_NORESERVE, file, 0);
  if (data == MAP_FAILED) complain("cannot be mapped: " + error_text());
  mapping->data = static_cast<std::byte*>(data);
  mapping->size = status.st_size;
  return mapping;
}

std::string_view header_of(const Mapping& mapping, const Complaint& complain) {
  std::uint64_t length = 0;
  std::memcpy(&length, mapping.data, sizeof length);
  const auto available = static_cast<std::uint64_t>(mapping.size - kLengthBytes);
  if (length > available)
    complain("the header is longer than the file (truncated, or not a safetensors file)", {},
             fmt::format("a header of {} bytes", length),
             fmt::format("at most {} bytes", available));
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes))
    complain("the header is too large", {}, fmt::format("{} bytes", length),
             fmt::format("at most {} bytes", kMaxHeaderBytes));
  const std::string_view header(reinterpret_cast<const char*>(mapping.data) + kLengthBytes, length);
  if (header.empty() || header.front() != '{')
    complain("the header does not begin with '{' (not a safetensors file)");
  return header;
}

// The JSON library keeps the last of several equal keys and nests without bound; we do neither.
class StrictKeys {
 public:
  explicit StrictKeys(const Complaint& complain) : complain_(complain) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth > 2)
      complain_("the header is nested too deeply", tensor_);
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (keys_.size() == 1) tensor_ = key;
      if (!keys_.back().insert(key).second)
        complain_(fmt::format("the header has '{}' twice", key), tensor_);
    }
    return true;
  }

 private:
  const Complaint& complain_;
  std::vector<std::set<std::string>> keys_;
  std::string tensor_;  // or the metadata
};

Json parse_header(std::string_view header, const Complaint& complain) {
  try {
    return Json::parse(header.begin(), header.end(), StrictKeys(complain));
  } catch (const Json::exception& error) {
    complain(fmt::format("the header is not valid JSON in UTF-8 ({})", error.what()));
  }
}

std::map<std::string, std::string> parse_metadata(const Json& entry, const Complaint& complain) {
  if (!entry.is_object()) complain("the metadata is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) complain(fmt::format("the metadata '{}' is not a string", key));
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

// A non-negative integer that fits 63 bits.
std::optional<std::int64_t> as_size(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::vector<std::int64_t> parse_sizes(const Json& entry, const char* key, std::string_view name,
                                      const Complaint& complain) {
  const Json& list = entry.at(key);
  std::vector<std::int64_t> sizes;
  if (list.is_array())
    for (const Json& value : list)
      if (const auto size = as_size(value)) sizes.push_back(*size);
  if (!list.is_array() || sizes.size() != list.size())
    complain(fmt::format("'{}' is not a list of sizes", key), name, list.dump().substr(0, 100),
             "non-negative integers below 2^63");
  return sizes;
}

DType parse_format_name(const Json& entry, std::string_view name, const Complaint& complain) {
  const Json& value = entry.at("dtype");
  for (const auto& format : kFormatNames)
    if (value.is_string() && value.get_ref<const std::string&>() == format.name)
      return format.dtype;
  complain("the dtype is not supported", name, value.dump().substr(0, 100),
           "F64, F32, BF16, I64, I32 or BOOL");
}

// Bytes of a tensor; also the strides of one with empty dims must fit.
std::int64_t checked_bytes(const TensorInfo& info, std::string_view name,
                           const Complaint& complain) {
  auto extent = static_cast<std::int64_t>(size_of(info.dtype));
  for (const auto size : info.shape)
    if (__builtin_mul_overflow(extent, std::max<std::int64_t>(size, 1), &extent))
      complain("the tensor has more than 2^63 bytes", name, format_shape(info.shape));
  return std::find(info.shape.begin(), info.shape.end(), 0) == info.shape.end() ? extent : 0;
}

TensorInfo parse_tensor(std::string_view name, const Json& entry, const Complaint& complain) {
  if (!entry.is_object()) complain("the description is not an object", name);
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!entry.contains(key)) complain(fmt::format("'{}' is missing", key), name);
  if (entry.size() != 3) complain("the description has more than dtype, shape, data_offsets", name);

  TensorInfo info;
  info.dtype = parse_format_name(entry, name, complain);
  info.shape = parse_sizes(entry, "shape", name, complain);
  const auto offsets = parse_sizes(entry, "data_offsets", name, complain);
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    complain("'data_offsets' is not a begin and an end", name, entry.at("data_offsets").dump());
  info.begin = offsets[0];
  info.end = offsets[1];
  const auto bytes = checked_bytes(info, name, complain);
  if (info.end - info.begin != bytes)
    complain(
        "the offsets do not fit the shape", name, fmt::format("{} bytes", info.end - info.begin),
        fmt::format("{} bytes for {} {}", bytes, name_of(info.dtype), format_shape(info.shape)));
  return info;
}

using Infos = std::map<std::string, TensorInfo, std::less<>>;

// Names by place in the data, which they must fill without overlap or hole.
std::vector<std::string> check_tiling(const Infos& infos, std::int64_t data_bytes,
                                      const Complaint& complain) {
  std::vector<Infos::const_iterator> order;
  for (auto it = infos.begin(); it != infos.end(); ++it) order.push_back(it);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(a->second.begin, a->second.end, a->first) <
           std::tie(b->second.begin, b->second.end, b->first);
  });
  std::vector<std::string> names;
  std::int64_t end = 0;
  for (const auto& it : order) {
    const auto& [name, info] = *it;
    const auto found = fmt::format("offsets [{}, {})", info.begin, info.end);
    if (info.end > data_bytes)
      complain("the tensor reaches beyond the end of the file", name, found,
               fmt::format("at most {}", data_bytes));
    if (info.begin < end)
      complain(fmt::format("the tensor overlaps '{}'", names.back()), name, found,
               fmt::format("a begin of {}", end));
    if (info.begin > end)
      complain("there is a hole before the tensor", name, found, fmt::format("a begin of {}", end));
    end = info.end;
    names.push_back(name);
  }
  if (end != data_bytes)
    complain("the file goes on after the last tensor", {}, fmt::format("{} bytes", data_bytes),
             fmt::format("{} bytes of data", end));
  return names;
}

}  // namespace

struct SafetensorsFile::State {
  fs::path path;
  std::shared_ptr<Mapping> mapping;
  std::byte* data = nullptr;
  std::map<std::string, std::string> metadata;
  Infos infos;
  std::vector<std::string> names;
};

SafetensorsFile SafetensorsFile::open(const fs::path& path) {
  const Complaint complain{path, "SafetensorsFile::open"};
  auto state = std::make_shared<State>();
  state->path = path;
  state->mapping = map_file(path, complain);
  const auto header = header_of(*state->mapping, complain);
  const auto header_end = kLengthBytes + static_cast<std::int64_t>(header.size());
  state->data = state->mapping->data + header_end;

  const Json json = parse_header(header, complain);
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadata) {
      state->metadata = parse_metadata(entry, complain);
    } else {
      state->infos.emplace(name, parse_tensor(name, entry, complain));
    }
  }
  state->names = check_tiling(state->infos, state->mapping->size - header_end, complain);

  SafetensorsFile file;
  file.state_ = std::move(state);
  return file;
}

const fs::path& SafetensorsFile::path() const {
  return state_->path;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->metadata;
}

std::vector<std::string> SafetensorsFile::names() const {
  return state_->names;
}

bool SafetensorsFile::contains(std::string_view name) const {
  return state_->infos.find(name) != state_->infos.end();
}

const TensorInfo& SafetensorsFile::info(std::string_view name) const {
  const auto found = state_->infos.find(name);
  if (found == state_->infos.end())
    Complaint{state_->path, "SafetensorsFile"}(
        "has no such tensor", name, fmt::format("{} other tensors", state_->infos.size()));
  return found->second;
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  const TensorInfo& about = info(name);
  std::byte* begin = state_->data + about.begin;
  std::byte* end = state_->data + about.end;
  if (about.dtype == DType::boolean &&
      std::any_of(begin, end, [](std::byte b) { return b > std::byte{1}; }))
    Complaint{state_->path, "SafetensorsFile::tensor"}("has a BOOL that is neither 0 nor 1", name);

  if (reinterpret_cast<std::uintptr_t>(begin) % size_of(about.dtype) == 0)
    return Tensor::wrap(begin, about.shape, row_major_strides(about.shape), about.dtype, cpu_device,
                        state_->mapping);
  Tensor copy = Tensor::empty(about.shape, about.dtype);
  if (begin != end) std::memcpy(copy.data(), begin, static_cast<std::size_t>(end - begin));
  return copy;
}

namespace {

NamedTensors in_file_order(const NamedTensors& tensors, const Complaint& complain) {
  std::set<std::string_view> seen{kMetadata};
  for (const auto& [name, tensor] : tensors) {
    if (!seen.insert(name).second) complain("the name cannot be used, or is used twice", name);
    if (!tensor.defined()) complain("the tensor is not defined", name);
  }
  NamedTensors ordered = tensors;
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return size_of(a.second.dtype()) > size_of(b.second.dtype());
  });
  return ordered;
}

std::string make_header(const NamedTensors& tensors,
                        const std::map<std::string, std::string>& metadata,
                        const Complaint& complain) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json[kMetadata] = metadata;
  std::int64_t begin = 0;
  for (const auto& [name, tensor] : tensors) {
    json[name] = {{"dtype", format_name(tensor.dtype())},
                  {"shape", tensor.shape()},
                  {"data_offsets", {begin, begin + tensor.bytes()}}};
    begin += tensor.bytes();
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception& error) {
    complain(fmt::format("a name or the metadata is not UTF-8 ({})", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > static_cast<std::size_t>(kMaxHeaderBytes))
    complain("the header would be too large for readers");
  return text;
}

void write_bytes(std::ofstream& out, const void* data, std::size_t bytes) {
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

}  // namespace

void write_safetensors(const fs::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const Complaint complain{path, "write_safetensors"};
  const PurposeScope workspace(Purpose::workspace);
  const NamedTensors ordered = in_file_order(tensors, complain);
  const std::string header = make_header(ordered, metadata, complain);
  const std::uint64_t length = header.size();

  fs::path partial = path;
  partial += fmt::format(".partial-{}", getpid());
  std::ofstream out(partial, std::ios::binary | std::ios::trunc);
  write_bytes(out, &length, sizeof length);
  write_bytes(out, header.data(), header.size());
  for (const auto& [name, tensor] : ordered) {
    const Tensor local = tensor.to(cpu_device).contiguous();
    write_bytes(out, local.data(), static_cast<std::size_t>(local.bytes()));
  }
  out.close();
  std::error_code failure;
  if (out) fs::rename(partial, path, failure);
  if (!out || failure) {
    const std::string reason = failure ? failure.message() : error_text();
    fs::remove(partial, failure);
    complain("cannot be written: " + reason);
  }
}

}  // namespace tessera
