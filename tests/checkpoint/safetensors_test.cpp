// safetensors: the reference vector to the bit, every rule of the reader, golden files, sharded folders.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "src/checkpoint/safetensors.h"
#include "tests/checkpoint/temp_folder.h"

namespace deltron {
namespace {

std::string with_length(const std::string& header, const std::string& data = {}) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + data;
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(reinterpret_cast<const std::uint8_t*>(file.data()), file.size(), "x.safetensors");
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

std::vector<HostArray> reference_tensors() {
  return {from_doubles("c", DType::BF16, {}, {1}), from_doubles("b", DType::BF16, {2}, {1, 2}),
          from_doubles("a", DType::F32, {1}, {1})};
}

std::vector<HostView> views_of(const std::vector<HostArray>& arrays) {
  std::vector<HostView> views;
  for (const HostArray& array : arrays) views.push_back(array.view());
  return views;
}

TEST(SafetensorsWriter, equals_the_reference_writer_bit_for_bit) {
  const TempFolder folder;
  write_safetensors(folder / "t.safetensors", views_of(reference_tensors()));
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},"c":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})"
      "       ";
  ASSERT_EQ(header.size(), 200u);
  const std::string data("\x00\x00\x80\x3f\x80\x3f\x00\x40\x80\x3f", 10);
  EXPECT_EQ(read_file(folder / "t.safetensors"), with_length(header, data));
  EXPECT_EQ(file_size(folder / "t.safetensors"), 218u);
  EXPECT_EQ(list_directory(folder.path()).size(), 1u);  // no temporary file left
}

TEST(SafetensorsWriter, every_dtype_and_empty_shape_comes_back) {
  const TempFolder folder;
  std::vector<HostArray> arrays;
  for (const DType dtype :
       {DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I64, DType::U8, DType::U16, DType::Bool}) {
    arrays.push_back(from_doubles(dtype_name(dtype), dtype, {3}, {0, 1, 1}));
  }
  arrays.push_back(from_doubles("empty", DType::F32, {0, 7}, {}));
  arrays.push_back(from_doubles("quote \" and \\ and \n and \xc3\xa9", DType::F64, {}, {-2.5}));
  write_safetensors(folder / "t.safetensors", views_of(arrays), {{"note", "x"}});
  const SafetensorsFile file(folder / "t.safetensors");
  EXPECT_EQ(file.metadata().at("note"), "x");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.names().size(), arrays.size());
  for (const HostArray& array : arrays) {
    const HostArray read = file.read(array.name);
    EXPECT_EQ(read.dtype, array.dtype) << array.name;
    EXPECT_EQ(read.shape, array.shape) << array.name;
    EXPECT_EQ(read.bytes, array.bytes) << array.name;
  }
}

TEST(SafetensorsWriter, a_failed_write_leaves_the_old_file_and_no_temporary_one) {
  struct Full : WriteObserver {
    int at = 0;
    int seen = 0;
    void before(const WritePoint&) override {
      if (seen++ == at) throw Error(ErrorCode::ResourceUnavailable, ErrorText{"no space"});
    }
  };
  const TempFolder folder;
  write_safetensors(folder / "t.safetensors", views_of(reference_tensors()));
  const std::string before = read_file(folder / "t.safetensors");
  int points = 0;
  for (bool failed = true; failed; ++points) {
    Full full;
    full.at = points;
    failed = false;
    try {
      write_safetensors(folder / "t.safetensors", views_of(reference_tensors()), {}, &full);
    } catch (const Error&) {
      failed = true;
    }
    EXPECT_EQ(read_file(folder / "t.safetensors"), before);
    EXPECT_EQ(list_directory(folder.path()).size(), 1u) << points;
  }
  EXPECT_GE(points, 7);
}

TEST(SafetensorsReader, accepts_what_the_format_allows) {
  EXPECT_EQ(parse(with_length("{}")).entries.size(), 0u);
  EXPECT_EQ(parse(with_length("{}   ")).entries.size(), 0u);
  const SafetensorsHeader header =
      parse(with_length("{" + entry("e", "F32", "[0,5]", "[0,0]") + "," + entry("s", "F64", "[]", "[0,8]") + "," +
                            entry("f", "F4", "[4]", "[8,10]") + "," + entry("q", "F8_E4M3", "[1]", "[10,11]") + "}",
                        std::string(11, 'x')));
  EXPECT_EQ(header.entries.size(), 4u);
  EXPECT_EQ(header.entries[1].name, "s");
}

struct BadFile {
  const char* name;
  std::string file;
  ErrorCode code;
  std::string message;
};

std::vector<BadFile> bad_files() {
  const ErrorCode short_file = ErrorCode::TensorFileTruncated;
  const ErrorCode header = ErrorCode::TensorHeaderInvalid;
  const ErrorCode layout = ErrorCode::TensorLayoutInvalid;
  const std::string data4(4, 'x');
  const std::string a = entry("a", "F32", "[1]", "[0,4]");
  return {
      {"empty", "", short_file, "0 bytes"},
      {"seven_bytes", "1234567", short_file, "7 bytes"},
      {"huge_length", std::string(8, '\xff'), short_file, "18446744073709551615 bytes"},
      {"above_the_limit", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), short_file, "100000001 bytes"},
      {"longer_than_the_file", std::string("\x05\0\0\0\0\0\0\0{}", 10), short_file, "does not fit"},
      {"no_header", with_length(""), header, "begin with '{'"},
      {"leading_space", with_length(" {}"), header, "begin with '{'"},
      {"list", with_length("[]"), header, "begin with '{'"},
      {"not_json", with_length("{\"a\""), header, "malformed"},
      {"text_after", with_length("{}x"), header, "malformed"},
      {"zero_after", with_length(std::string("{}\0", 3)), header, "zero byte"},
      {"hidden_behind_zero", with_length(std::string("{}\0hidden", 9)), header, "zero byte"},
      {"not_utf8", with_length("{\"\xff\":1}"), header, "malformed"},
      {"deep", with_length("{\"a\":" + std::string(100000, '[')), header, "nested deeper"},
      {"deep_objects", with_length([] {
         std::string text;
         for (int i = 0; i < 1000; ++i) text += "{\"a\":";
         return text;
       }()),
       header, "nested deeper"},
      {"huge_number", with_length("{\"a\":1e999}"), header, "number overflow"},
      {"twice", with_length("{" + a + "," + a + "}", data4), header, "'a' appears twice"},
      {"field_twice", with_length("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", data4),
       header, "'dtype' appears twice"},
      {"metadata_twice", with_length("{\"__metadata__\":{},\"__metadata__\":{}}"), header, "appears twice"},
      {"metadata_list", with_length("{\"__metadata__\":[]}"), header, "not an object"},
      {"metadata_number", with_length("{\"__metadata__\":{\"a\":1}}"), header, "strings to strings"},
      {"entry_number", with_length("{\"a\":1}"), header, "tensor 'a': is not an object"},
      {"no_dtype", with_length("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", data4), header, "'dtype' is missing"},
      {"no_shape", with_length("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", data4), header, "'shape' is missing"},
      {"no_offsets", with_length("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", data4), header, "'data_offsets' is missing"},
      {"unknown_dtype", with_length("{" + entry("a", "F33", "[1]", "[0,4]") + "}", data4), header, "unknown dtype (F33)"},
      {"dtype_number", with_length("{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", data4), header, "not a string"},
      {"shape_text", with_length("{" + entry("a", "F32", "\"1\"", "[0,4]") + "}", data4), header, "not a list"},
      {"negative_size", with_length("{" + entry("a", "F32", "[-1]", "[0,4]") + "}", data4), header, "whole numbers >= 0 (-1)"},
      {"float_size", with_length("{" + entry("a", "F32", "[1.0]", "[0,4]") + "}", data4), header, "whole numbers >= 0"},
      {"size_beyond_int64", with_length("{" + entry("a", "F32", "[18446744073709551615]", "[0,4]") + "}", data4), header,
       "whole numbers"},
      {"negative_offset", with_length("{" + entry("a", "F32", "[1]", "[-4,0]") + "}", data4), header, "two whole numbers"},
      {"three_offsets", with_length("{" + entry("a", "F32", "[1]", "[0,4,8]") + "}", data4), header, "two whole numbers"},
      {"end_before_begin", with_length("{" + entry("a", "F32", "[1]", "[4,0]") + "}", data4), layout, "ends before it begins"},
      {"first_not_zero", with_length("{" + entry("a", "F32", "[1]", "[4,8]") + "}", data4 + data4), layout, "hole"},
      {"hole", with_length("{" + a + "," + entry("b", "F32", "[1]", "[8,12]") + "}", data4 + data4 + data4), layout,
       "tensor 'b': hole"},
      {"overlap", with_length("{" + a + "," + entry("b", "F32", "[1]", "[2,6]") + "}", data4 + "xx"), layout,
       "tensor 'b': overlaps"},
      {"same_place", with_length("{" + a + "," + entry("b", "F32", "[1]", "[0,4]") + "}", data4), layout, "tensor 'b': overlaps"},
      {"beyond", with_length("{" + entry("a", "F32", "[2]", "[0,8]") + "}", data4), layout, "ends beyond the file"},
      {"offset_near_2_64", with_length("{" + entry("a", "F32", "[1]", "[0,18446744073709551612]") + "}", data4), layout, "beyond"},
      {"trailing", with_length("{" + a + "}", data4 + "x"), layout, "bytes after the last tensor"},
      {"wrong_shape", with_length("{" + entry("a", "F32", "[2]", "[0,4]") + "}", data4), layout, "needs 8 bytes"},
      {"overflow", with_length("{" + entry("a", "F32", "[4294967296,4294967296]", "[0,4]") + "}", data4), layout, "overflows"},
      {"overflow_by_bits", with_length("{" + entry("a", "F64", "[2305843009213693952]", "[0,4]") + "}", data4), layout,
       "overflows"},
      {"part_of_a_byte", with_length("{" + entry("a", "F4", "[1]", "[0,1]") + "}", "x"), layout, "whole number of bytes"},
  };
}

TEST(SafetensorsReader, refuses_every_broken_rule_and_names_path_and_tensor) {
  for (const BadFile& bad : bad_files()) {
    SCOPED_TRACE(bad.name);
    EXPECT_ERROR(parse(bad.file), bad.code, "x.safetensors: ", bad.message);
  }
}

TEST(SafetensorsReader, every_truncation_of_a_good_file_is_refused) {
  const TempFolder folder;
  write_safetensors(folder / "t.safetensors", views_of(reference_tensors()));
  const std::string good = read_file(folder / "t.safetensors");
  EXPECT_NO_THROW(parse(good));
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_THROW(parse(good.substr(0, size)), Error) << size;
  EXPECT_THROW(parse(good + "x"), Error);
}

TEST(SafetensorsReader, unknown_names_list_the_nearest_and_unsupported_dtypes_are_refused_on_access) {
  const TempFolder folder;
  const std::string path = folder / "t.safetensors";
  write_file_atomically(
      path, with_length("{" + entry("model.norm.weight", "F32", "[1]", "[0,4]") + "," + entry("q", "F8_E4M3", "[2]", "[4,6]") + "}",
                        "abcdef"));
  const SafetensorsFile file(path);
  EXPECT_ERROR(file.view("model.nrom.weight"), ErrorCode::TensorNotFound, path, "'model.nrom.weight'",
               "nearest names: model.norm.weight");
  EXPECT_ERROR(file.view("q"), ErrorCode::TensorDtypeUnsupported, path, "'q'", "F8_E4M3");
}

TEST(SafetensorsReader, golden_files_read_with_all_their_dtypes) {
  const std::string golden = std::string(DELTRON_SOURCE_DIR) + "/tests/golden/";
  const SafetensorsFile op(golden + "op_gdn_basic.safetensors");
  EXPECT_EQ(op.metadata().at("variant"), "gdn");
  EXPECT_EQ(op.view("o").dtype, DType::F64);
  EXPECT_EQ(op.view("q").dtype, DType::BF16);
  EXPECT_EQ(op.view("g").dtype, DType::F32);
  EXPECT_EQ(op.as_doubles("cu_seqlens"), (std::vector<double>{0, 96}));
  for (const double g : op.as_doubles("g")) EXPECT_LE(g, 0);
  for (const double beta : op.as_doubles("beta")) {
    EXPECT_GT(beta, 0);
    EXPECT_LT(beta, 1);
  }
  const SafetensorsFile expected(golden + "hf_qwen3_5_tiny/expected.safetensors");
  const double loss = expected.as_doubles("loss").at(0);
  EXPECT_NEAR(expected.as_doubles("adamw_losses").at(0), loss, 1e-3);
}

// Writing a golden file's tensors again gives the same file: our order, header and padding are the reference's.
TEST(SafetensorsWriter, reproduces_a_file_of_the_reference_writer) {
  const std::string path = std::string(DELTRON_SOURCE_DIR) + "/tests/golden/hf_qwen3_5_tiny/model.safetensors";
  const SafetensorsFile file(path);
  std::vector<HostView> views;
  for (const std::string& name : file.names()) views.push_back(file.view(name));
  const TempFolder folder;
  write_safetensors(folder / "t.safetensors", views);
  EXPECT_TRUE(read_file(folder / "t.safetensors") == read_file(path));
}

class ShardedFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    write_safetensors(folder_ / "model-00001-of-00002.safetensors", {a_.view()});
    write_safetensors(folder_ / "model-00002-of-00002.safetensors", {b_.view()});
  }
  void index(const std::string& map) {
    write_file_atomically(folder_ / "model.safetensors.index.json",
                          "{\"metadata\":{\"total_size\":12},\"weight_map\":" + map + "}");
  }
  HostArray a_ = from_doubles("a", DType::F32, {2}, {1, 2});
  HostArray b_ = from_doubles("b", DType::F32, {1}, {3});
  TempFolder folder_;
};

TEST_F(ShardedFolder, finds_every_tensor_in_its_shard) {
  index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  const SafetensorsFolder weights(folder_.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(weights.as_doubles("b"), std::vector<double>{3});
  EXPECT_ERROR(weights.view("bb"), ErrorCode::TensorNotFound, "nearest names");
}

TEST_F(ShardedFolder, a_wrong_index_is_refused) {
  const ErrorCode code = ErrorCode::TensorIndexInvalid;
  index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00003-of-00002.safetensors"})");
  EXPECT_ERROR(SafetensorsFolder(folder_.path()), code, "file is missing");
  index(R"({"a":"model-00002-of-00002.safetensors"})");
  EXPECT_ERROR(SafetensorsFolder(folder_.path()), code, "'a' is not in its file");
  index(R"({"a":"../a.safetensors"})");
  EXPECT_ERROR(SafetensorsFolder(folder_.path()), code, "leaves the folder");
  index(R"({"a":"model-00001-of-00002.safetensors","a":"model-00001-of-00002.safetensors"})");
  EXPECT_ERROR(SafetensorsFolder(folder_.path()), code, "appears twice");
  index("[]");
  EXPECT_ERROR(SafetensorsFolder(folder_.path()), code, "weight_map");
  index(R"({"a":7})");
  EXPECT_ERROR(SafetensorsFolder(folder_.path()), code, "not a string");
  write_safetensors(folder_ / "model-00002-of-00002.safetensors", {b_.view(), a_.view()});
  index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  EXPECT_ERROR(SafetensorsFolder(folder_.path()), code, "'a' is not in the index under its file");
}

TEST(SafetensorsFolderErrors, a_folder_without_weights_is_an_error) {
  const TempFolder folder;
  EXPECT_ERROR(SafetensorsFolder(folder.path()), ErrorCode::TensorFolderInvalid, "no model.safetensors");
  EXPECT_ERROR(SafetensorsFolder(folder / "none"), ErrorCode::FileNotReadable, "none");
}

}  // namespace
}  // namespace deltron
