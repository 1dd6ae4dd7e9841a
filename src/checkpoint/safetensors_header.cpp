// See safetensors_header.h.
#include "src/checkpoint/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/checkpoint/json_strict.h"

namespace deltron {
namespace {

using nlohmann::json;

[[noreturn]] void fail(ErrorCode code, const std::string& path, const std::string& tensor, const std::string& what,
                       const std::string& values = {}, const std::string& rule = {}) {
  throw Error(code, ErrorText{tensor.empty() ? what : "tensor '" + tensor + "': " + what, path, values, rule});
}

std::uint64_t read_length(const std::uint8_t* data) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | data[i];
  return value;
}

const json& field(const json& entry, const char* key, const std::string& path, const std::string& name) {
  const auto found = entry.find(key);
  if (found == entry.end()) fail(ErrorCode::TensorHeaderInvalid, path, name, std::string("'") + key + "' is missing");
  return *found;
}

// Bytes of the tensor; every overflow and a broken byte is an error.
std::uint64_t byte_count(const SafetensorsEntry& entry, const std::string& path) {
  std::uint64_t bits = static_cast<std::uint64_t>(entry.dtype->bits);
  bool overflow = false;
  bool empty = false;
  for (const std::int64_t size : entry.shape) {
    empty = empty || size == 0;
    overflow = overflow || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits);
  }
  // The product is formed in order, as the reference does: an overflow is one even where a later size is 0.
  if (overflow) {
    fail(ErrorCode::TensorLayoutInvalid, path, entry.name, "size overflows", "shape " + shape_text(entry.shape));
  }
  if (empty) return 0;
  if (bits % 8 != 0) {
    fail(ErrorCode::TensorLayoutInvalid, path, entry.name, "is not a whole number of bytes",
         std::string(entry.dtype->name) + " " + shape_text(entry.shape));
  }
  return bits / 8;
}

SafetensorsEntry parse_entry(const std::string& name, const json& value, const std::string& path) {
  const ErrorCode code = ErrorCode::TensorHeaderInvalid;
  if (!value.is_object()) fail(code, path, name, "is not an object");
  SafetensorsEntry entry;
  entry.name = name;
  const json& dtype = field(value, "dtype", path, name);
  if (!dtype.is_string()) fail(code, path, name, "'dtype' is not a string");
  for (const FileDtype& row : file_dtypes()) {
    if (dtype.get_ref<const std::string&>() == row.name) entry.dtype = &row;
  }
  if (entry.dtype == nullptr) fail(code, path, name, "unknown dtype", dtype.get<std::string>());

  const json& shape = field(value, "shape", path, name);
  if (!shape.is_array()) fail(code, path, name, "'shape' is not a list");
  for (const json& size : shape) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      fail(code, path, name, "'shape' must hold whole numbers >= 0", size.dump());
    }
    entry.shape.push_back(size.get<std::int64_t>());
  }
  const json& offsets = field(value, "data_offsets", path, name);
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    fail(code, path, name, "'data_offsets' must be two whole numbers >= 0", offsets.dump());
  }
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  return entry;
}

void check_tiling(const SafetensorsHeader& header, std::uint64_t data_bytes, const std::string& path) {
  const ErrorCode code = ErrorCode::TensorLayoutInvalid;
  std::uint64_t previous = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    const std::string range = "begin " + std::to_string(entry.begin) + ", end " + std::to_string(entry.end);
    if (entry.end < entry.begin) fail(code, path, entry.name, "ends before it begins", range);
    if (entry.begin != previous) {
      fail(code, path, entry.name, entry.begin > previous ? "hole before the tensor" : "overlaps the tensor before it",
           "previous end " + std::to_string(previous) + ", " + range);
    }
    if (entry.end > data_bytes) {
      fail(code, path, entry.name, "ends beyond the file", range + ", data " + std::to_string(data_bytes) + " bytes");
    }
    const std::uint64_t needed = byte_count(entry, path);
    if (needed != entry.end - entry.begin) {
      fail(code, path, entry.name, "offsets contradict shape and dtype",
           range + ", " + entry.dtype->name + " " + shape_text(entry.shape) + " needs " + std::to_string(needed) + " bytes");
    }
    previous = entry.end;
  }
  if (previous != data_bytes) {
    fail(code, path, "", "bytes after the last tensor",
         "tensors end at " + std::to_string(previous) + ", data has " + std::to_string(data_bytes) + " bytes");
  }
}

}  // namespace

const std::vector<FileDtype>& file_dtypes() {
  static const std::vector<FileDtype> table = {
      {"BOOL", 8, DType::Bool, 0},   {"F4", 4, {}, 1},
      {"F6_E2M3", 6, {}, 2},         {"F6_E3M2", 6, {}, 3},
      {"U8", 8, DType::U8, 4},       {"I8", 8, {}, 5},
      {"F8_E5M2", 8, {}, 6},         {"F8_E4M3", 8, {}, 7},
      {"F8_E8M0", 8, {}, 8},         {"F8_E4M3FNUZ", 8, {}, 9},
      {"F8_E5M2FNUZ", 8, {}, 10},    {"I16", 16, {}, 11},
      {"U16", 16, DType::U16, 12},   {"F16", 16, DType::F16, 13},
      {"BF16", 16, DType::BF16, 14}, {"I32", 32, DType::I32, 15},
      {"U32", 32, {}, 16},           {"F32", 32, DType::F32, 17},
      {"C64", 64, {}, 18},           {"F64", 64, DType::F64, 19},
      {"I64", 64, DType::I64, 20},   {"U64", 64, {}, 21},
  };
  return table;
}

const FileDtype& file_dtype_of(DType dtype) {
  for (const FileDtype& row : file_dtypes()) {
    if (row.dtype == dtype) return row;
  }
  DELTRON_CHECK(false, "dtype ", dtype_name(dtype), " has no place in safetensors");
  return file_dtypes().front();
}

SafetensorsHeader parse_safetensors_header(const std::uint8_t* data, std::size_t bytes, const std::string& path) {
  if (bytes < 8) {
    fail(ErrorCode::TensorFileTruncated, path, "", "too short for a safetensors file", std::to_string(bytes) + " bytes",
         "at least 8");
  }
  const std::uint64_t length = read_length(data);
  if (length > kSafetensorsHeaderLimit) {
    fail(ErrorCode::TensorFileTruncated, path, "", "header is too large", std::to_string(length) + " bytes",
         "at most " + std::to_string(kSafetensorsHeaderLimit));
  }
  if (length > bytes - 8) {
    fail(ErrorCode::TensorFileTruncated, path, "", "header of " + std::to_string(length) + " bytes does not fit",
         "file has " + std::to_string(bytes) + " bytes");
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 8, static_cast<std::size_t>(length));
  if (text.empty() || text.front() != '{') {
    fail(ErrorCode::TensorHeaderInvalid, path, "", "header does not begin with '{'");
  }
  const json root = parse_json_strict(text, path, ErrorCode::TensorHeaderInvalid);

  SafetensorsHeader header;
  header.data_offset = 8 + length;
  for (const auto& item : root.items()) {
    if (item.key() != "__metadata__") {
      header.entries.push_back(parse_entry(item.key(), item.value(), path));
      continue;
    }
    if (!item.value().is_object()) fail(ErrorCode::TensorHeaderInvalid, path, "", "'__metadata__' is not an object");
    for (const auto& pair : item.value().items()) {
      if (!pair.value().is_string()) {
        fail(ErrorCode::TensorHeaderInvalid, path, "", "'__metadata__' must map strings to strings", pair.key());
      }
      header.metadata.emplace(pair.key(), pair.value().get<std::string>());
    }
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_tiling(header, bytes - header.data_offset, path);
  return header;
}

std::vector<std::size_t> safetensors_order(const std::vector<HostView>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int rank_a = file_dtype_of(tensors[a].dtype).rank;
    const int rank_b = file_dtype_of(tensors[b].dtype).rank;
    return rank_a != rank_b ? rank_a > rank_b : tensors[a].name < tensors[b].name;
  });
  return order;
}

std::string compose_safetensors_header(const std::vector<HostView>& tensors, std::map<std::string, std::string> metadata) {
  metadata.emplace("format", "pt");  // some readers refuse metadata without it
  std::string text = "{\"__metadata__\":{";
  const char* comma = "";
  for (const auto& [key, value] : metadata) {
    text += comma + json_quoted(key) + ":" + json_quoted(value);
    comma = ",";
  }
  text += "}";
  std::set<std::string_view> names = {"__metadata__"};
  std::uint64_t offset = 0;
  for (const HostView& tensor : tensors) {
    DELTRON_CHECK(names.insert(tensor.name).second, "tensor name '", tensor.name, "' given twice or reserved");
    DELTRON_CHECK_EQ(tensor.bytes, static_cast<std::size_t>(element_count(tensor.shape)) * dtype_size(tensor.dtype), tensor.name);
    text += "," + json_quoted(tensor.name) + ":{\"dtype\":\"" + file_dtype_of(tensor.dtype).name +
            "\",\"shape\":" + shape_text(tensor.shape) + ",\"data_offsets\":[" + std::to_string(offset) + "," +
            std::to_string(offset + tensor.bytes) + "]}";
    offset += tensor.bytes;
  }
  text += "}";
  while (text.size() % 8 != 0) text += ' ';
  std::string result(8, '\0');
  for (int i = 0; i < 8; ++i) result[static_cast<std::size_t>(i)] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return result + text;
}

}  // namespace deltron
