// Reads tests/golden/*.safetensors for tests: tensors as doubles, metadata as strings. Shares no code with the checkpoint reader.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace deltron::test {

struct GoldenTensor {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
  std::string dtype;
};

struct GoldenFile {
  std::map<std::string, GoldenTensor> tensors;
  std::map<std::string, std::string> metadata;

  // `name` below tests/golden of the source tree, or an absolute path.
  explicit GoldenFile(const std::string& name) {
    const bool absolute = !name.empty() && name.front() == '/';
    const char* elsewhere = std::getenv("DELTRON_GOLDEN");  // where binaries run that were built on another machine
    const std::string folder = elsewhere != nullptr ? elsewhere : std::string(DELTRON_SOURCE_DIR) + "/tests/golden";
    std::ifstream file(absolute ? name : folder + "/" + name, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (bytes.size() < 8) throw std::runtime_error("golden file is missing: " + name);
    std::uint64_t header_size = 0;
    std::memcpy(&header_size, bytes.data(), 8);
    const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, header_size));
    const char* data = bytes.data() + 8 + header_size;
    for (const auto& [key, entry] : header.items()) {
      if (key == "__metadata__") {
        metadata = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      const std::string dtype = entry.at("dtype").get<std::string>();
      GoldenTensor tensor{entry.at("shape").get<std::vector<std::int64_t>>(), {}, dtype};
      const std::size_t begin = entry.at("data_offsets")[0].get<std::size_t>(),
                        end = entry.at("data_offsets")[1].get<std::size_t>();
      if (dtype == "F64") tensor.values = read<double>(data + begin, end - begin);
      if (dtype == "F32") tensor.values = read<float>(data + begin, end - begin);
      if (dtype == "I64") tensor.values = read<std::int64_t>(data + begin, end - begin);
      if (dtype == "I32") tensor.values = read<std::int32_t>(data + begin, end - begin);
      if (dtype == "BF16") tensor.values = read_bfloat16(data + begin, end - begin);
      if (tensor.values.empty() && end > begin) throw std::runtime_error("golden tensor " + key + " has dtype " + dtype);
      tensors.emplace(key, std::move(tensor));
    }
  }

  const GoldenTensor& at(const std::string& key) const {
    const auto found = tensors.find(key);
    if (found == tensors.end()) throw std::runtime_error("golden file has no tensor " + key);
    return found->second;
  }
  double number(const std::string& key) const { return std::stod(metadata.at(key)); }
  const std::vector<double>& values(const std::string& key) const { return tensors.at(key).values; }

 private:
  template <class T>
  static std::vector<double> read(const char* from, std::size_t size) {
    std::vector<T> typed(size / sizeof(T));
    std::memcpy(typed.data(), from, size);
    return std::vector<double>(typed.begin(), typed.end());
  }
  static std::vector<double> read_bfloat16(const char* from, std::size_t size) {
    std::vector<double> values(size / 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      char wide[4] = {0, 0, from[2 * i], from[2 * i + 1]};
      float value;
      std::memcpy(&value, wide, 4);
      values[i] = static_cast<double>(value);
    }
    return values;
  }
};

}  // namespace deltron::test
