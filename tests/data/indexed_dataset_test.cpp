// Megatron indexed datasets: the published bytes, every corruption with its message, 64-bit offsets, the side file.
#include <gtest/gtest.h>

#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

#include "src/base/hash.h"
#include "tests/data/data_test_support.h"

namespace deltron {
namespace {

std::string hex_of(const std::string& bytes) {
  std::string text;
  char digits[3];
  for (const char byte : bytes) {
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

template <class T>
std::string patched(std::string bytes, std::size_t at, T value) {
  return bytes.replace(at, sizeof(value), reinterpret_cast<const char*>(&value), sizeof(value));
}

TEST(IndexedDataset, written_bytes_are_megatrons) {
  const ScratchFolder folder;
  build_dataset(folder.file("two"), {{1, 2, 3}, {4, 5}});
  EXPECT_EQ(hex_of(read_file(folder.file("two.idx"))),
            "4d4d49444944580000"
            "0100000000000000"
            "08"
            "0200000000000000"
            "0300000000000000"
            "03000000"
            "02000000"
            "0000000000000000"
            "0600000000000000"
            "0000000000000000"
            "0100000000000000"
            "0200000000000000");
  EXPECT_EQ(hex_of(read_file(folder.file("two.bin"))), "01000200030004000500");
}

TEST(IndexedDataset, reads_back_what_was_written) {
  const ScratchFolder folder;
  const std::vector<std::vector<std::int32_t>> documents = {{7}, {}, {250, 1, 2}, {65498}};
  const auto dataset = build_dataset(folder.file("set"), documents, 65499);
  EXPECT_EQ(dataset->token_type(), TokenType::U16);
  ASSERT_EQ(dataset->num_sequences(), 4);
  EXPECT_EQ(dataset->num_documents(), 4);
  EXPECT_EQ(dataset->num_tokens(), 5);
  for (std::size_t i = 0; i < documents.size(); ++i) EXPECT_EQ(dataset->read_all(static_cast<std::int64_t>(i)), documents[i]);
  EXPECT_EQ(dataset->token(2, 2), 2);
  EXPECT_EQ(dataset->byte_offset(3), 8);
  EXPECT_EQ(IndexedDataset(folder.file("set.bin")).num_tokens(), 5);  // either ending is taken off
}

TEST(IndexedDataset, large_vocabularies_take_four_bytes) {
  EXPECT_EQ(token_type_for_vocabulary(65499), TokenType::U16);
  EXPECT_EQ(token_type_for_vocabulary(65500), TokenType::I32);
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), {{100000, 0}}, 100001);
  EXPECT_EQ(dataset->token_type(), TokenType::I32);
  EXPECT_EQ(dataset->read_all(0), (std::vector<std::int32_t>{100000, 0}));
}

TEST(IndexedDataset, end_of_document_is_appended_on_request) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), {{1, 2}, {}}, 257, 256);
  EXPECT_EQ(dataset->read_all(0), (std::vector<std::int32_t>{1, 2, 256}));
  EXPECT_EQ(dataset->read_all(1), (std::vector<std::int32_t>{256}));
  EXPECT_EQ(load_dataset_meta(*dataset).token_range.largest, 256);
}

TEST(IndexedDataset, every_integer_type_is_read) {
  const ScratchFolder folder;
  build_dataset(folder.file("set"), {{1, 2, 3}, {4, 5}});
  const std::string idx = read_file(folder.file("set.idx"));
  const struct {
    TokenType type;
    int width;
  } cases[] = {{TokenType::U8, 1},  {TokenType::I8, 1},  {TokenType::I16, 2},
               {TokenType::U16, 2}, {TokenType::I32, 4}, {TokenType::I64, 8}};
  for (const auto& item : cases) {
    std::string bin;
    for (std::int64_t value = 1; value <= 5; ++value)
      bin.append(reinterpret_cast<const char*>(&value), static_cast<std::size_t>(item.width));
    write_plain(folder.file("set.bin"), bin);
    write_plain(folder.file("set.idx"), patched(patched(idx, 17, item.type), 50, std::int64_t{3 * item.width}));
    const IndexedDataset dataset(folder.file("set"));
    EXPECT_EQ(dataset.read_all(0), (std::vector<std::int32_t>{1, 2, 3})) << token_type_name(item.type);
    EXPECT_EQ(dataset.read_all(1), (std::vector<std::int32_t>{4, 5})) << token_type_name(item.type);
    EXPECT_EQ(dataset.scan_token_range().largest, 5);
    EXPECT_EQ(dataset.scan_token_range().smallest, 1);
  }
}

TEST(IndexedDataset, every_corruption_is_named) {
  const ScratchFolder folder;
  build_dataset(folder.file("set"), {{1, 2, 3}, {4, 5}});
  const std::string idx = read_file(folder.file("set.idx"));
  const std::string bin = read_file(folder.file("set.bin"));
  ASSERT_EQ(idx.size(), 82u);
  const std::int64_t huge = std::int64_t{1} << 60;
  const struct {
    std::string idx;
    std::string bin;
    std::string message;
  } cases[] = {
      {"", bin, "shorter than its header"},
      {idx.substr(0, 33), bin, "shorter than its header"},
      {patched(idx, 0, 'X'), bin, "wrong magic number"},
      {patched(idx, 8, 'X'), bin, "wrong magic number"},
      {patched(idx, 9, std::uint64_t{2}), bin, "unknown index version (2)"},
      {patched(idx, 17, std::uint8_t{0}), bin, "unknown dtype code (0)"},
      {patched(idx, 17, std::uint8_t{9}), bin, "unknown dtype code (9)"},
      {patched(idx, 17, std::uint8_t{6}), bin, "floating-point"},
      {patched(idx, 17, std::uint8_t{7}), bin, "floating-point"},
      {patched(idx, 17, std::uint8_t{4}), bin, "the index counts at least 12"},
      {patched(idx, 17, std::uint8_t{1}), bin, "wrong byte offset of sequence 1 (6)"},
      {patched(idx, 18, std::uint64_t{3}), bin, "the size of the index contradicts its header (82 bytes)"},
      {patched(idx, 18, std::uint64_t{1}), bin, "the size of the index contradicts its header"},
      {patched(idx, 18, huge), bin, "more sequences announced"},
      {patched(idx, 18, std::int64_t{-1}), bin, "more sequences announced"},
      {patched(idx, 26, std::uint64_t{0}), bin, "impossible number of document boundaries"},
      {patched(idx, 26, huge), bin, "impossible number of document boundaries"},
      {patched(idx, 26, std::uint64_t{2}), bin, "the size of the index contradicts its header"},
      {idx.substr(0, 81), bin, "the size of the index contradicts its header (81 bytes)"},
      {idx + std::string(1, '\0'), bin, "the size of the index contradicts its header (83 bytes)"},
      {idx + std::string(2, '\0'), bin, "multimodal"},
      {patched(idx, 34, std::int32_t{-1}), bin, "negative length of sequence 0"},
      {patched(idx, 34, std::int32_t{2}), bin, "wrong byte offset of sequence 1"},
      {patched(idx, 38, std::int32_t{3}), bin, "the size of the token file contradicts the index (10 bytes)"},
      {patched(idx, 38, std::int32_t{1}), bin, "the size of the token file contradicts the index (10 bytes)"},
      {patched(idx, 42, std::int64_t{2}), bin, "wrong byte offset of sequence 0"},
      {patched(idx, 50, std::int64_t{4}), bin, "wrong byte offset of sequence 1"},
      {patched(idx, 58, std::int64_t{1}), bin, "the first document boundary is not 0"},
      {patched(idx, 66, std::int64_t{3}), bin, "document boundary 1 is out of order"},
      {patched(idx, 66, std::int64_t{-1}), bin, "document boundary 1 is out of order"},
      {patched(idx, 74, std::int64_t{1}), bin, "the last document boundary"},
      {patched(idx, 74, std::int64_t{0}), bin, "document boundary 2 is out of order"},
      {idx, bin.substr(0, 9), "the size of the token file contradicts the index (9 bytes)"},
      {idx, bin + "x", "the size of the token file contradicts the index (11 bytes)"},
      {idx, "", "the size of the token file contradicts the index (0 bytes)"},
  };
  for (const auto& item : cases) {
    write_plain(folder.file("bad.idx"), item.idx);
    write_plain(folder.file("bad.bin"), item.bin);
    expect_error(ErrorCode::DataFileInvalid, item.message, [&] { IndexedDataset dataset(folder.file("bad")); });
  }
  write_plain(folder.file("bad.idx"), idx);
  write_plain(folder.file("bad.bin"), bin);
  EXPECT_EQ(IndexedDataset(folder.file("bad")).num_tokens(), 5);
}

TEST(IndexedDataset, missing_files_are_named) {
  const ScratchFolder folder;
  expect_error(ErrorCode::DataEmpty, "none.idx does not exist", [&] { IndexedDataset dataset(folder.file("none")); });
}

TEST(IndexedDataset, offsets_beyond_four_gib_are_exact) {
  const ScratchFolder folder;
  const std::int32_t lengths[3] = {1 << 30, 1 << 30, 5};  // uint16: the third starts at exactly 4 GiB
  const std::int64_t offsets[3] = {0, std::int64_t{1} << 31, std::int64_t{1} << 32};
  const std::int64_t bounds[4] = {0, 1, 2, 3};
  std::string idx("MMIDIDX\0\0", 9);
  auto put = [&idx](const auto& value) { idx.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  put(std::uint64_t{1});
  put(std::uint8_t{8});
  put(std::uint64_t{3});
  put(std::uint64_t{4});
  put(lengths);
  put(offsets);
  put(bounds);
  write_plain(folder.file("big.idx"), idx);
  const std::uint16_t tail[5] = {11, 12, 13, 14, 15};
  const int descriptor = open(folder.file("big.bin").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_GE(descriptor, 0);
  const bool sparse = pwrite(descriptor, tail, sizeof(tail), std::int64_t{1} << 32) == static_cast<ssize_t>(sizeof(tail));
  close(descriptor);
  ASSERT_TRUE(sparse) << "the scratch file system takes no sparse file of 4 GiB";
  const IndexedDataset dataset(folder.file("big"));
  EXPECT_EQ(dataset.num_tokens(), (std::int64_t{1} << 31) + 5);
  EXPECT_EQ(dataset.read_all(2), (std::vector<std::int32_t>{11, 12, 13, 14, 15}));
  EXPECT_EQ(dataset.token(1, (1 << 30) - 1), 0);
}

TEST(IndexedDatasetBuilder, unfinished_files_leave_nothing_behind) {
  const ScratchFolder folder;
  build_dataset(folder.file("set"), {{1}});
  {
    IndexedDatasetBuilder builder(folder.file("set"), 257);
    builder.add_document({2, 3});
  }
  EXPECT_EQ(list_directory(folder.path()), (std::vector<std::string>{"set.bin", "set.idx", "set.meta.json"}));
  EXPECT_EQ(IndexedDataset(folder.file("set")).read_all(0), (std::vector<std::int32_t>{1}));
}

TEST(IndexedDatasetBuilder, refuses_ids_outside_the_vocabulary) {
  const ScratchFolder folder;
  IndexedDatasetBuilder builder(folder.file("set"), 10);
  expect_error(ErrorCode::TokenOutOfVocabulary, "ids 3 to 10, vocab_size 10", [&] { builder.add_document({3, 10}); });
  expect_error(ErrorCode::TokenOutOfVocabulary, "ids -1 to 3", [&] { builder.add_document({3, -1}); });
}

TEST(DatasetMeta, largest_id_is_checked_against_the_vocabulary) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), {{1, 200}, {3}});
  const DatasetMeta meta = load_dataset_meta(*dataset);
  EXPECT_EQ(meta.token_range.largest, 200);
  EXPECT_EQ(meta.token_range.smallest, 1);
  check_vocabulary(*dataset, meta, 201);
  expect_error(ErrorCode::TokenOutOfVocabulary, "at least 201", [&] { check_vocabulary(*dataset, meta, 200); });
}

TEST(DatasetMeta, missing_damaged_or_foreign_side_files_lead_to_a_scan) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), {{1, 200}, {3}});
  const std::string path = folder.file("set.meta.json");
  const std::string sound = read_file(path);
  build_dataset(folder.file("other"), {{9}});
  for (const std::string& content : {std::string(), std::string("{"), std::string("{\"format\":\"x\"}"), std::string("[]"),
                                     read_file(folder.file("other.meta.json"))}) {
    if (content.empty()) {
      unlink(path.c_str());
    } else {
      write_plain(path, content);
    }
    const DatasetMeta meta = load_dataset_meta(*dataset);
    EXPECT_EQ(meta.token_range.largest, 200) << content;
    EXPECT_EQ(meta.source, "scanned");
    EXPECT_TRUE(file_exists(path));  // kept for the next time
    EXPECT_EQ(load_dataset_meta(*dataset).token_range.largest, 200);
  }
  write_plain(path, sound);
  EXPECT_EQ(load_dataset_meta(*dataset).source, "");
}

TEST(DatasetMeta, another_tokenizer_is_refused) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), {{1}});
  DatasetMeta meta;
  check_tokenizer(*dataset, meta, "byte");  // unknown: nothing to compare
  meta.tokenizer = "gpt2";
  expect_error(ErrorCode::TokenizerMismatch, "data: 'gpt2', configuration: 'byte'",
               [&] { check_tokenizer(*dataset, meta, "byte"); });
}

}  // namespace
}  // namespace deltron
