// Text and JSONL input, the byte tokenizer, preparation, and what inspect reports.
#include <gtest/gtest.h>

#include <csignal>

#include <nlohmann/json.hpp>

#include "src/base/signals.h"
#include "src/config/run_config.h"
#include "src/data/data_source.h"
#include "src/data/inspect.h"
#include "src/data/prepare.h"
#include "src/data/tokenizer.h"
#include "src/data/utf8.h"
#include "tests/data/data_test_support.h"

namespace deltron {
namespace {

using Lines = std::vector<std::pair<std::string, std::int64_t>>;

Lines text_documents(const std::string& content, const std::string& separator, TextStats* stats = nullptr) {
  const ScratchFolder folder;
  write_plain(folder.file("in.txt"), content);
  Lines result;
  TextStats local;
  read_text_documents(folder.file("in.txt"), separator, stats != nullptr ? *stats : local,
                      [&](std::string_view text, std::int64_t line) { result.emplace_back(std::string(text), line); });
  return result;
}

TEST(ByteTokenizer, any_bytes_survive_the_round_trip) {
  const auto tokenizer = make_tokenizer("byte");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod_id(), 256);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  std::vector<std::int32_t> tokens = tokenizer->encode(all);
  ASSERT_EQ(tokens.size(), 256u);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(tokens[static_cast<std::size_t>(byte)], byte);
  tokens.push_back(256);
  EXPECT_EQ(tokenizer->decode(tokens), all);
  expect_error(ErrorCode::TokenOutOfVocabulary, "id 257", [&] { tokenizer->decode({257}); });
  expect_error(ErrorCode::TokenOutOfVocabulary, "id -1", [&] { tokenizer->decode({-1}); });
  expect_error(ErrorCode::DataOptionInvalid, "did you mean 'byte'", [] { make_tokenizer("bytes"); });
}

TEST(Utf8, validity_and_characters) {
  EXPECT_EQ(find_invalid_utf8("plain"), -1);
  EXPECT_EQ(find_invalid_utf8("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf \xee\x80\x80"), -1);
  const struct {
    std::string text;
    std::int64_t at;
  } bad[] = {{"a\x80", 1},
             {"\xc0\xaf", 0},
             {"\xc1\xbf", 0},
             {"ab\xc3", 2},
             {"\xc3(", 0},
             {"\xe0\x9f\xbf", 0},
             {"\xed\xa0\x80", 0},
             {"\xe2\x82", 0},
             {"\xf0\x8f\xbf\xbf", 0},
             {"\xf4\x90\x80\x80", 0},
             {"\xf5\x80\x80\x80", 0},
             {"x\xf0\x9f\x98", 1},
             {"\xe2\x82(", 0},
             {"\xff", 0}};
  for (const auto& item : bad) EXPECT_EQ(find_invalid_utf8(item.text), item.at) << item.text;
  EXPECT_EQ(count_characters("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"), 4);
}

TEST(TextReader, separators_cut_documents) {
  EXPECT_EQ(text_documents("a\nb\n\nc\n", "\n\n"), (Lines{{"a\nb", 1}, {"c", 4}}));
  EXPECT_EQ(text_documents("\n\n\na\n\n\n\nb", "\n\n"), (Lines{{"a", 4}, {"b", 8}}));
  EXPECT_EQ(text_documents("a\n\fb\n\f\fc\n", "\f"), (Lines{{"a\n", 1}, {"b\n", 2}, {"c\n", 3}}));  // bytes are kept
  EXPECT_EQ(text_documents("a\n\nb\n", ""), (Lines{{"a\n\nb\n", 1}}));
  EXPECT_EQ(text_documents("oneSEPtwo", "SEP"), (Lines{{"one", 1}, {"two", 1}}));
  EXPECT_EQ(text_documents("", "\n\n"), Lines{});
}

TEST(TextReader, empty_documents_crlf_and_byte_order_marks_are_counted) {
  TextStats stats;
  EXPECT_EQ(text_documents("\xef\xbb\xbf"
                           "a\r\nb\r\n\r\nc\rd",
                           "\n\n", &stats),
            (Lines{{"a\nb", 1}, {"c\rd", 4}}));
  EXPECT_EQ(stats.crlf_lines, 3);
  EXPECT_EQ(stats.byte_order_marks, 1);
  EXPECT_EQ(stats.documents, 2);
  TextStats empty;
  text_documents("\f\fx\f", "\f", &empty);
  EXPECT_EQ(empty.empty_documents, 2);
  EXPECT_EQ(empty.documents, 1);
}

TEST(TextReader, escapes_of_separators) {
  EXPECT_EQ(unescape_separator("\\n\\n"), "\n\n");
  EXPECT_EQ(unescape_separator("<\\t\\r\\f\\\\\\x1e\\0>"), std::string("<\t\r\f\\\x1e\0>", 8));
  EXPECT_EQ(unescape_separator("plain"), "plain");
  EXPECT_EQ(unescape_separator(""), "");
  for (const char* text : {"\\", "\\q", "\\x1", "\\xg0"}) {
    expect_error(ErrorCode::DataOptionInvalid, "separator", [&] { unescape_separator(text); });
  }
}

TEST(JsonlReader, reads_the_key_and_skips_blank_lines) {
  const ScratchFolder folder;
  write_plain(folder.file("in.jsonl"),
              "{\"text\": \"a\\nb\", \"id\": 1}\r\n\n  \n{\"text\": \"\"}\n{\"id\": [1], \"text\": \"\\u00e4\"}");
  Lines result;
  TextStats stats;
  read_jsonl_documents(folder.file("in.jsonl"), "text", stats,
                       [&](std::string_view text, std::int64_t line) { result.emplace_back(std::string(text), line); });
  EXPECT_EQ(result, (Lines{{"a\nb", 1}, {"\xc3\xa4", 5}}));
  EXPECT_EQ(stats.blank_lines, 2);
  EXPECT_EQ(stats.empty_documents, 1);
}

TEST(JsonlReader, every_bad_line_is_named_with_file_line_and_column) {
  const struct {
    std::string line;
    std::string where;
    std::string what;
  } cases[] = {
      {"{\"text\": \"a\"", ":2:13: no valid JSON", "unexpected end of input"},
      {"{\"text\" \"a\"}", ":2:", "expected ':'"},
      {"plain", ":2:1: no valid JSON", "invalid literal"},
      {"{\"text\": \"\xff\"}", ":2:11: no valid JSON", "ill-formed UTF-8"},
      {"{\"text\": \"a\"} x", ":2:15: no valid JSON", "expected end of input"},
      {"{\"text\": \"a\", \"id\": 1e999}", ":2:1: JSON that cannot be held", "number overflow"},
      {"[1]", ":2:1: no JSON object (array)", "write {\"text\""},
      {"{\"test\": \"a\", \"id\": 1}", ":2:1: no key 'text'", "did you mean 'test'"},
      {"{}", ":2:1: no key 'text'", "no keys"},
      {"{\"id\": 1, \"text\": 5}", ":2:11: the value of 'text' is not a string", "number"},
      {"{\"text\": null}", ":2:2: the value of 'text' is not a string", "null"},
  };
  const ScratchFolder folder;
  for (const auto& item : cases) {
    write_plain(folder.file("in.jsonl"), "{\"text\": \"fine\"}\n" + item.line + "\n");
    auto read = [&] {
      TextStats stats;
      read_jsonl_documents(folder.file("in.jsonl"), "text", stats, [](std::string_view, std::int64_t) {});
    };
    expect_error(ErrorCode::TextInvalid, "in.jsonl" + item.where, read);
    expect_error(ErrorCode::TextInvalid, item.what, read);
  }
}

TEST(Prepare, text_becomes_token_files_with_counts) {
  const ScratchFolder folder;
  write_plain(folder.file("a.txt"), "In the\nbeginning\n\nGod \xc3\xa4\n\n\n\n");
  write_plain(folder.file("b.jsonl"), "{\"text\": \"third\"}\n{\"text\": \"\"}\n");
  PrepareOptions options;
  options.inputs = {folder.file("a.txt"), folder.file("b.jsonl")};
  options.output = folder.file("out/set");
  const PrepareReport report = prepare_data(options);
  EXPECT_EQ(report.meta.documents, 3);
  EXPECT_EQ(report.text.empty_documents, 2);
  EXPECT_EQ(report.meta.text_bytes, 16 + 6 + 5);
  EXPECT_EQ(report.meta.text_characters, 16 + 5 + 5);
  EXPECT_EQ(report.meta.tokens, 16 + 6 + 5 + 3);
  const IndexedDataset dataset(options.output);
  EXPECT_EQ(make_tokenizer("byte")->decode(dataset.read_all(0)), "In the\nbeginning");
  EXPECT_EQ(dataset.token(2, 5), 256);
  const DatasetMeta meta = load_dataset_meta(dataset);
  EXPECT_EQ(meta.tokenizer, "byte");
  EXPECT_EQ(meta.vocab_size, 257);
  EXPECT_EQ(meta.eod_id, 256);
  EXPECT_TRUE(meta.documents_end_with_eod);
  EXPECT_EQ(meta.bin_hash, report.meta.bin_hash);
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["documents"], 3);
  EXPECT_EQ(json["largest_token"], 256);
  EXPECT_NE(to_text(report).find("documents   3 (2 empty ones skipped)"), std::string::npos) << to_text(report);
}

TEST(Prepare, same_input_gives_the_same_bytes) {
  const ScratchFolder folder;
  write_plain(folder.file("a.txt"), "one\n\ntwo");
  PrepareOptions options;
  options.inputs = {folder.file("a.txt")};
  options.output = folder.file("x");
  prepare_data(options);
  options.output = folder.file("y");
  prepare_data(options);
  for (const char* ending : {".bin", ".idx", ".meta.json"})
    EXPECT_EQ(read_file(folder.file("x") + ending), read_file(folder.file("y") + ending));
}

TEST(Prepare, invalid_utf8_is_kept_and_reported) {
  const ScratchFolder folder;
  write_plain(folder.file("a.txt"), "fine\n\n\nbad \xff\n\nfine");
  PrepareOptions options;
  options.inputs = {folder.file("a.txt")};
  options.output = folder.file("set");
  const PrepareReport report = prepare_data(options);
  EXPECT_EQ(report.invalid_utf8_documents, 1);
  EXPECT_EQ(report.first_invalid_utf8, folder.file("a.txt") + ":4");
  EXPECT_EQ(IndexedDataset(options.output).token(1, 4), 255);
}

TEST(Prepare, wrong_options_and_empty_input_are_errors) {
  const ScratchFolder folder;
  write_plain(folder.file("a.txt"), "\n\n\n");
  PrepareOptions options;
  options.output = folder.file("set");
  expect_error(ErrorCode::DataOptionInvalid, "no input file", [&] { prepare_data(options); });
  options.inputs = {folder.file("a.txt")};
  expect_error(ErrorCode::DataEmpty, "no document found", [&] { prepare_data(options); });
  options.format = "csv";
  expect_error(ErrorCode::DataOptionInvalid, "auto, text or jsonl", [&] { prepare_data(options); });
  options.format = "text";
  options.inputs = {folder.file("none.txt")};
  expect_error(ErrorCode::DataFileNotReadable, "none.txt", [&] { prepare_data(options); });
  options.output = "";
  expect_error(ErrorCode::DataOptionInvalid, "no output prefix", [&] { prepare_data(options); });
  EXPECT_EQ(list_directory(folder.path()), (std::vector<std::string>{"a.txt"}));  // nothing half-written
}

TEST(Prepare, token_files_that_are_there_are_replaced_only_on_request) {
  const ScratchFolder folder;
  write_plain(folder.file("a.txt"), "one\n\ntwo");
  write_plain(folder.file("b.txt"), "three");
  PrepareOptions options;
  options.inputs = {folder.file("a.txt")};
  options.output = folder.file("set");
  prepare_data(options);
  const std::string before = read_file(folder.file("set.bin"));
  options.inputs = {folder.file("b.txt")};
  expect_error(ErrorCode::DataOptionInvalid, "give --overwrite", [&] { prepare_data(options); });
  options.output = folder.file("set.bin");  // the same prefix, named by one of its files
  expect_error(ErrorCode::DataOptionInvalid, "set.bin exists", [&] { prepare_data(options); });
  EXPECT_EQ(read_file(folder.file("set.bin")), before);
  options.overwrite = true;
  prepare_data(options);
  EXPECT_EQ(IndexedDataset(folder.file("set")).num_sequences(), 1);
}

TEST(Prepare, options_that_no_input_reads_are_refused) {
  const ScratchFolder folder;
  write_plain(folder.file("a.jsonl"), "{\"text\": \"one\"}\n");
  write_plain(folder.file("a.txt"), "one\n\ntwo");
  PrepareOptions options;
  options.inputs = {folder.file("a.jsonl")};
  options.output = folder.file("set");
  options.document_separator = "\\f";
  expect_error(ErrorCode::DataOptionInvalid, "--document-separator", [&] { prepare_data(options); });
  options.inputs.push_back(folder.file("a.txt"));  // read for this one
  EXPECT_EQ(prepare_data(options).meta.documents, 2);
  options = {};
  options.inputs = {folder.file("a.txt")};
  options.output = folder.file("other");
  options.json_key = "content";
  expect_error(ErrorCode::DataOptionInvalid, "--json-key", [&] { prepare_data(options); });
}

TEST(Prepare, stops_on_request_and_leaves_nothing) {
  const ScratchFolder folder;
  write_plain(folder.file("a.txt"), "one\n\ntwo");
  PrepareOptions options;
  options.inputs = {folder.file("a.txt")};
  options.output = folder.file("set");
  install_stop_signals();
  std::raise(SIGTERM);
  EXPECT_THROW(prepare_data(options), StopRequested);
  clear_stop_signal();
  EXPECT_EQ(list_directory(folder.path()), (std::vector<std::string>{"a.txt"}));
}

TEST(Inspect, reports_splits_and_writes_the_text_of_one) {
  const ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 10; ++i) text += "document " + std::to_string(i) + "\n\f";
  write_plain(folder.file("a.txt"), text);
  PrepareOptions options;
  options.inputs = {folder.file("a.txt")};
  options.output = folder.file("set");
  options.document_separator = "\\f";
  prepare_data(options);
  DatasetInspectOptions inspect;
  inspect.prefix = options.output;
  inspect.split = "80,20,0";
  inspect.dump_split = "valid";
  inspect.dump_path = folder.file("held.txt");
  inspect.verify = true;
  const DatasetReport report = inspect_data(inspect);
  EXPECT_EQ(read_file(inspect.dump_path), "document 8\ndocument 9\n");
  ASSERT_EQ(report.splits.size(), 3u);
  EXPECT_EQ(report.splits[1].text.characters, 22);
  EXPECT_EQ(report.splits[1].text.tokens, 24);
  EXPECT_EQ(report.ending_with_eod, 10);
  EXPECT_EQ(report.median, 12);
  EXPECT_TRUE(report.verified);
  ASSERT_EQ(report.previews.size(), 1u);
  EXPECT_EQ(report.previews[0].text, "document 0\n");
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["splits"][1]["characters"], 22);
  EXPECT_NE(to_text(report).find("valid: documents 8 to 10, 24 tokens, 22 characters"), std::string::npos) << to_text(report);
}

TEST(Inspect, cuts_by_default_as_a_configuration_does) {
  EXPECT_EQ(DatasetInspectOptions().split, DataConfig().split);
  EXPECT_EQ(DataOptions().split, DataConfig().split);
}

TEST(Inspect, finds_changed_tokens_and_bad_requests) {
  const ScratchFolder folder;
  write_plain(folder.file("a.txt"), "one\n\ntwo");
  PrepareOptions options;
  options.inputs = {folder.file("a.txt")};
  options.output = folder.file("set");
  prepare_data(options);
  std::string bin = read_file(folder.file("set.bin"));
  bin[0] = static_cast<char>(bin[0] ^ 1);
  write_plain(folder.file("set.bin"), bin);
  DatasetInspectOptions inspect;
  inspect.prefix = options.output;
  inspect.verify = true;
  expect_error(ErrorCode::DataFileInvalid, "the tokens differ", [&] { inspect_data(inspect); });
  inspect.verify = false;
  std::string wide = bin;
  wide[0] = 5;
  wide[1] = 1;  // id 261 where the side file says bytes
  write_plain(folder.file("set.bin"), wide);
  expect_error(ErrorCode::TokenOutOfVocabulary, "set.bin, token 0", [&] { inspect_data(inspect); });
  write_plain(folder.file("set.bin"), bin);
  inspect.dump_path = folder.file("x");
  expect_error(ErrorCode::DataOptionInvalid, "a split and a file", [&] { inspect_data(inspect); });
  inspect.dump_split = "validation";
  expect_error(ErrorCode::DataOptionInvalid, "train, valid or test", [&] { inspect_data(inspect); });
  build_dataset(folder.file("foreign"), {{1, 2}});
  inspect.prefix = folder.file("foreign");
  inspect.dump_split = "valid";
  expect_error(ErrorCode::DataOptionInvalid, "no tokenizer recorded", [&] { inspect_data(inspect); });
  inspect.dump_path = inspect.dump_split = "";
  EXPECT_EQ(inspect_data(inspect).previews[0].text, "1 2");
  inspect.verify = true;
  EXPECT_TRUE(inspect_data(inspect).verified);
}

}  // namespace
}  // namespace deltron
