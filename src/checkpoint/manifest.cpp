// See manifest.h.
#include "src/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/checkpoint/json_strict.h"

namespace deltron {
namespace {

using nlohmann::json;

constexpr std::string_view kFirst = "{\"manifest_hash\": \"";
constexpr std::string_view kAfter = "\",\n";
constexpr std::size_t kHashDigits = 16;

[[noreturn]] void fail(const std::string& where, const std::string& what, const std::string& values = {}) {
  throw Error(ErrorCode::ManifestInvalid, ErrorText{what, where, values});
}

const json& member(const json& object, const char* key, const std::string& where) {
  if (!object.is_object()) fail(where, "an object was expected", object.type_name());
  const auto found = object.find(key);
  if (found == object.end()) fail(where, std::string("'") + key + "' is missing");
  return *found;
}

std::string text_of(const json& object, const char* key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_string()) fail(where, std::string("'") + key + "' is not a string");
  return value.get<std::string>();
}

std::int64_t whole_of(const json& value, const char* key, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
    fail(where, std::string("'") + key + "' is not a whole number >= 0", value.dump());
  }
  return value.get<std::int64_t>();
}

std::int64_t whole_at(const json& object, const char* key, const std::string& where) {
  return whole_of(member(object, key, where), key, where);
}

const json& list_of(const json& object, const char* key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_array()) fail(where, std::string("'") + key + "' is not a list");
  return value;
}

std::string hash_of(const json& object, const std::string& where) {
  const std::string hash = text_of(object, "hash", where);
  if (hash.size() != kHashDigits || hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    fail(where, "'hash' is not 16 hex digits", hash);
  }
  return hash;
}

ManifestFileEntry parse_file(const json& value, const std::string& where) {
  ManifestFileEntry file;
  file.name = text_of(value, "name", where);
  if (file.name.empty() || file.name.front() == '.' || file.name.find('/') != std::string::npos || file.name == kManifestFile) {
    fail(where, "file name is not a plain name", file.name);
  }
  file.bytes = static_cast<std::uint64_t>(whole_at(value, "bytes", where));
  file.hash = hash_of(value, where);
  return file;
}

std::vector<std::int64_t> sizes_of(const json& object, const char* key, const std::string& where) {
  std::vector<std::int64_t> sizes;
  for (const json& size : list_of(object, key, where)) sizes.push_back(whole_of(size, key, where));
  return sizes;
}

// The product of sizes, or an error where 64 bits do not hold it.
void check_count(const std::vector<std::int64_t>& shape, const std::string& name, const std::string& where) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) fail(where, "tensor '" + name + "' has more elements than can be counted", shape_text(shape));
  }
}

ManifestTensor parse_tensor(const json& value, std::int64_t version, const std::string& where) {
  ManifestTensor tensor;
  tensor.name = text_of(value, "name", where);
  tensor.dtype = dtype_from_name(text_of(value, "dtype", where), where);
  tensor.shape = sizes_of(value, "shape", where);
  check_count(tensor.shape, tensor.name, where);
  if (version < 2 || value.find("pieces") == value.end()) {
    tensor.file = text_of(value, "file", where);
    tensor.hash = hash_of(value, where);
    return tensor;
  }
  std::vector<Block> blocks;
  for (const json& piece : list_of(value, "pieces", where)) {
    blocks.push_back({sizes_of(piece, "offset", where), sizes_of(piece, "shape", where)});
    tensor.pieces.push_back({blocks.back(), text_of(piece, "file", where), hash_of(piece, where)});
  }
  const std::string fault = why_not_tiling(tensor.shape, blocks);
  if (!fault.empty()) fail(where, "the pieces of tensor '" + tensor.name + "' do not make it up", fault);
  return tensor;
}

std::string place_text(const std::string& file, const std::string& hash) {
  return "\"file\": " + json_quoted(file) + ", \"hash\": \"" + hash + "\"";
}

std::string tensor_text(const ManifestTensor& tensor) {
  std::string text = "{\"name\": " + json_quoted(tensor.name) + ", \"dtype\": \"" + dtype_name(tensor.dtype) + "\", \"shape\": " +
                     json(tensor.shape).dump() + ", ";
  if (tensor.pieces.empty()) return text + place_text(tensor.file, tensor.hash) + "}";
  text += "\"pieces\": [";
  const char* comma = "\n ";
  for (const ManifestPiece& piece : tensor.pieces) {
    text += comma + ("{\"offset\": " + json(piece.block.offset).dump()) + ", \"shape\": " + json(piece.block.shape).dump() + ", " +
            place_text(piece.file, piece.hash) + "}";
    comma = ",\n ";
  }
  return text + "]}";
}

// JSON has no NaN and no infinity: they would come back as null.
void check_finite(const json& value) {
  if (value.is_number_float())
    DELTRON_CHECK(std::isfinite(value.get<double>()), "checkpoint state holds a number that is not finite");
  if (value.is_structured()) {
    for (const json& child : value) check_finite(child);
  }
}

}  // namespace

DType dtype_from_name(std::string_view name, const std::string& where) {
  for (const DType dtype :
       {DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I64, DType::U8, DType::U16, DType::Bool}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  fail(where, "unknown dtype", std::string(name));
}

std::vector<ManifestPiece> pieces_of(const ManifestTensor& tensor) {
  if (!tensor.pieces.empty()) return tensor.pieces;
  return {{whole_block(tensor.shape), tensor.file, tensor.hash}};
}

std::uint64_t total_bytes(const Manifest& manifest) {
  std::uint64_t sum = 0;
  for (const ManifestFileEntry& file : manifest.files) sum += file.bytes;
  return sum;
}

std::string compose_manifest(Manifest& manifest) {
  DELTRON_CHECK(manifest.state.is_object(), "checkpoint state is not an object");
  check_finite(manifest.state);
  const bool in_pieces = std::any_of(manifest.tensors.begin(), manifest.tensors.end(), [](const ManifestTensor& t) { return !t.pieces.empty(); });
  std::string rest = "\"format\": \"deltron-checkpoint\",\n\"version\": " + std::to_string(in_pieces ? kManifestVersion : 1);
  rest += ",\n\"step\": " + std::to_string(manifest.step) + ",\n\"save_number\": " + std::to_string(manifest.save_number);
  rest += ",\n\"created_unix\": " + std::to_string(manifest.created_unix) + ",\n\"files\": [";
  const char* comma = "\n";
  for (const ManifestFileEntry& file : manifest.files) {
    rest += comma + ("{\"name\": " + json_quoted(file.name)) + ", \"bytes\": " + std::to_string(file.bytes) + ", \"hash\": \"" +
            file.hash + "\"}";
    comma = ",\n";
  }
  rest += "],\n\"tensors\": [";
  comma = "\n";
  for (const ManifestTensor& tensor : manifest.tensors) {
    rest += comma + tensor_text(tensor);
    comma = ",\n";
  }
  rest += "],\n\"state\": " + manifest.state.dump(1) + "}\n";
  manifest.hash = hash_text(hash64(rest.data(), rest.size()));
  return std::string(kFirst) + manifest.hash + std::string(kAfter) + rest;
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const std::size_t body = kFirst.size() + kHashDigits + kAfter.size();
  if (text.size() < body || text.substr(0, kFirst.size()) != kFirst ||
      text.substr(kFirst.size() + kHashDigits, kAfter.size()) != kAfter) {
    fail(where, "does not begin with its own hash", std::to_string(text.size()) + " bytes");
  }
  Manifest manifest;
  manifest.hash = std::string(text.substr(kFirst.size(), kHashDigits));
  const std::string_view rest = text.substr(body);
  const std::string found = hash_text(hash64(rest.data(), rest.size()));
  if (found != manifest.hash) fail(where, "content does not match its own hash", "stored " + manifest.hash + ", found " + found);

  const json root = parse_json_strict(text, where, ErrorCode::ManifestInvalid);
  if (text_of(root, "format", where) != "deltron-checkpoint") fail(where, "is not a checkpoint manifest");
  const std::int64_t version = whole_at(root, "version", where);
  if (version < 1 || version > kManifestVersion) {
    throw Error(ErrorCode::ManifestInvalid,
                ErrorText{"format version is not supported", where, "version " + std::to_string(version),
                          "versions 1 to " + std::to_string(kManifestVersion), "use the Deltron version that wrote it"});
  }
  manifest.step = whole_at(root, "step", where);
  manifest.save_number = whole_at(root, "save_number", where);
  manifest.created_unix = whole_at(root, "created_unix", where);
  std::set<std::string> files;
  for (const json& value : list_of(root, "files", where)) {
    manifest.files.push_back(parse_file(value, where));
    if (!files.insert(manifest.files.back().name).second) fail(where, "file named twice", manifest.files.back().name);
  }
  std::set<std::string> tensors;
  for (const json& value : list_of(root, "tensors", where)) {
    manifest.tensors.push_back(parse_tensor(value, version, where));
    const ManifestTensor& tensor = manifest.tensors.back();
    if (!tensors.insert(tensor.name).second) fail(where, "tensor named twice", tensor.name);
    for (const ManifestPiece& piece : pieces_of(tensor)) {
      if (files.count(piece.file) == 0) fail(where, "tensor '" + tensor.name + "' lies in a file that is not listed", piece.file);
    }
  }
  manifest.state = member(root, "state", where);
  if (!manifest.state.is_object()) fail(where, "'state' is not an object");
  return manifest;
}

}  // namespace deltron
