// Reads a safetensors file for tests: every tensor as doubles, plus its dtype, shape and the metadata strings.
// Independent of the project's own reader, which it helps to judge.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace deltron::testing {

struct GoldenTensor {
  std::string dtype;  // "F64", "F32", "BF16", "I32", "I64"
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

struct GoldenFile {
  std::map<std::string, GoldenTensor> tensors;
  std::map<std::string, std::string> metadata;
  bool has(const std::string& name) const { return tensors.count(name) != 0; }
  const GoldenTensor& at(const std::string& name) const {
    const auto found = tensors.find(name);
    if (found == tensors.end()) throw std::runtime_error("golden file has no tensor " + name);
    return found->second;
  }
};

inline GoldenFile read_golden(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot open " + path);
  std::uint64_t header_bytes = 0;
  stream.read(reinterpret_cast<char*>(&header_bytes), 8);
  std::string header(header_bytes, '\0');
  stream.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const auto json = nlohmann::json::parse(header);
  GoldenFile file;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.items()) file.metadata[key] = value.get<std::string>();
      continue;
    }
    GoldenTensor tensor;
    tensor.dtype = entry.at("dtype").get<std::string>();
    tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    const std::uint64_t begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
    const std::uint64_t end = entry.at("data_offsets").at(1).get<std::uint64_t>();
    std::string bytes(end - begin, '\0');
    stream.seekg(static_cast<std::streamoff>(8 + header_bytes + begin));
    stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!stream) throw std::runtime_error(path + " is truncated at " + name);
    const auto widen = [&](auto element, const auto& convert) {
      const std::size_t count = bytes.size() / sizeof(element);
      tensor.values.resize(count);
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(&element, bytes.data() + i * sizeof(element), sizeof(element));
        tensor.values[i] = convert(element);
      }
    };
    const auto plain = [](auto x) { return static_cast<double>(x); };
    if (tensor.dtype == "F64") widen(double{}, plain);
    else if (tensor.dtype == "F32") widen(float{}, plain);
    else if (tensor.dtype == "I32") widen(std::int32_t{}, plain);
    else if (tensor.dtype == "I64") widen(std::int64_t{}, plain);
    else if (tensor.dtype == "BF16")
      widen(std::uint16_t{}, [](std::uint16_t bits) {
        const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, 4);
        return static_cast<double>(value);
      });
    else
      throw std::runtime_error(path + ": dtype " + tensor.dtype + " of " + name + " is not read by tests");
    file.tensors.emplace(name, std::move(tensor));
  }
  return file;
}

}  // namespace deltron::testing
