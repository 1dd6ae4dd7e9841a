// The loader as a pure function of the sample number, the source factory, blends end to end, and MQAR.
#include <gtest/gtest.h>

#include <filesystem>

#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "src/data/blend.h"
#include "src/data/data_source.h"
#include "src/data/mqar_source.h"
#include "src/data/prepare.h"
#include "tests/data/data_test_support.h"

namespace deltron {
namespace {

void expect_same_batch(const HostBatch& a, const HostBatch& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.labels, b.labels);
  EXPECT_EQ(a.cu_seqlens, b.cu_seqlens);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.sample_ids, b.sample_ids);
  EXPECT_EQ(a.token_sample, b.token_sample);
  EXPECT_EQ(a.token_offset, b.token_offset);
}

// A byte-token data set of `count` documents "<name> 0", "<name> 1", ...
std::string prepared(const ScratchFolder& folder, const std::string& name, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += name + " " + std::to_string(i) + std::string(static_cast<std::size_t>(i % 7), '.') + "\f";
  write_plain(folder.file(name + ".txt"), text);
  PrepareOptions options;
  options.inputs = {folder.file(name + ".txt")};
  options.output = folder.file(name);
  options.document_separator = "\\f";
  prepare_data(options);
  return options.output;
}

DataOptions options_for(const std::string& prefix) {
  DataOptions options;
  options.data_path = {prefix};
  options.split = "80,20,0";
  options.vocab_size = 257;
  options.seq_length = 16;
  return options;
}

TEST(BatchLoader, batches_are_a_pure_function_of_the_sample_number) {
  const ScratchFolder folder;
  DataOptions options = options_for(prepared(folder, "set", 50));
  for (const char* packing : {"windows", "documents"}) {
    options.packing = packing;
    options.cache_folder = folder.file("cache");
    const BatchLoader pairs(make_sample_source(options, Split::Train, 400), 2);
    std::vector<HostBatch> forward;
    for (std::int64_t k = 0; k < 400; k += 2) forward.push_back(pairs.batch(k));
    const BatchLoader again(make_sample_source(options, Split::Train, 400),
                            2);  // resumed: another object, from the middle, backwards
    for (std::int64_t k = 398; k >= 0; k -= 14) expect_same_batch(again.batch(k), forward[static_cast<std::size_t>(k / 2)]);
    // The micro-batch size only groups: a batch of four is two batches of two.
    const HostBatch four = BatchLoader(make_sample_source(options, Split::Train, 400), 4).batch(100);
    EXPECT_EQ(std::vector<std::int32_t>(four.tokens.begin(), four.tokens.begin() + 32), forward[50].tokens);
    EXPECT_EQ(std::vector<std::int32_t>(four.tokens.begin() + 32, four.tokens.end()), forward[51].tokens);
    EXPECT_EQ(four.sample_ids, (std::vector<std::int64_t>{100, 101, 102, 103}));
    EXPECT_EQ(four.token_sample[17], 101);
    EXPECT_EQ(four.token_offset[17], 1);
    EXPECT_EQ(four.num_tokens(), 64);
  }
}

// The side file says one thing, the tokens another: noticed where the token is read, by every kind of source.
TEST(StaleMeta, a_token_outside_the_vocabulary_is_named_where_it_is_read) {
  const ScratchFolder folder;
  const std::string prefix = prepared(folder, "set", 50);
  std::string bin = read_file(prefix + ".bin");
  const std::int64_t bad = 37;  // of 16-bit ids
  bin[2 * bad] = static_cast<char>(0x2c);
  bin[2 * bad + 1] = 1;  // 300
  write_plain(prefix + ".bin", bin);  // the index, and with it the side file, still fit
  DataOptions options = options_for(prefix);
  const IndexedDataset dataset(prefix);
  std::int64_t document = 0, before = 0;
  while (before + dataset.length(document) <= bad) before += dataset.length(document++);
  const std::string place = "id 300 at token " + std::to_string(bad - before) + " of document " + std::to_string(document) + ", vocab_size 257";
  const auto expect = [&](const std::function<void()>& read) {
    expect_error(ErrorCode::TokenOutOfVocabulary, prefix + ".bin, token 37", read);
    expect_error(ErrorCode::TokenOutOfVocabulary, place, read);
    expect_error(ErrorCode::TokenOutOfVocabulary, "remove the .meta.json", read);
  };
  for (const char* packing : {"windows", "documents"}) {
    options.packing = packing;
    expect([&] {
      const BatchLoader loader(make_sample_source(options, Split::Train, 60), 2);
      for (std::int64_t k = 0; k < 60; k += 2) loader.batch(k);
    });
  }
  expect([&] { make_evaluation_sources(options, Split::Train, 64); });
  EXPECT_EQ(error_entry(ErrorCode::TokenOutOfVocabulary).exit_code, ExitCode::Data);
  options.vocab_size = 301;  // large enough
  const BatchLoader loader(make_sample_source(options, Split::Train, 60), 2);
  for (std::int64_t k = 0; k < 60; k += 2) loader.batch(k);
  // Without the side file the tokens are scanned, and the fault is found when the data are opened.
  options.vocab_size = 257;
  std::filesystem::remove(prefix + ".meta.json");
  expect_error(ErrorCode::TokenOutOfVocabulary, "ids ", [&] { make_sample_source(options, Split::Train, 60); });
}

TEST(StaleMeta, wide_and_negative_ids_do_not_wrap_around) {
  const ScratchFolder folder;
  const std::string prefix = folder.file("wide");
  build_dataset(prefix, {{1, 2, 3}}, 100000);  // int32
  std::string bin = read_file(prefix + ".bin");
  ASSERT_EQ(bin.size(), 12u);
  bin.replace(4, 4, std::string(4, '\xff'));  // -1
  write_plain(prefix + ".bin", bin);
  IndexedDataset dataset(prefix);
  EXPECT_EQ(dataset.token(0, 1), -1) << "unchecked";
  dataset.set_vocabulary(257);
  EXPECT_EQ(dataset.token(0, 2), 3);
  expect_error(ErrorCode::TokenOutOfVocabulary, "id -1 at token 1 of document 0", [&] { dataset.token(0, 1); });
  std::string idx = read_file(prefix + ".idx");
  idx[17] = 5;  // int64: the same three sequences of ids, eight bytes each
  write_plain(prefix + ".idx", idx);
  std::string eight;
  for (const std::int64_t id : {std::int64_t{1}, (std::int64_t{1} << 32) + 5, std::int64_t{3}}) eight.append(reinterpret_cast<const char*>(&id), 8);
  write_plain(prefix + ".bin", eight);
  IndexedDataset wide(prefix);
  wide.set_vocabulary(257);
  expect_error(ErrorCode::TokenOutOfVocabulary, "id 4294967301 at token 1", [&] { wide.read_all(0); });
}

TEST(BatchLoader, the_end_of_the_data_is_an_error_with_numbers) {
  const ScratchFolder folder;
  const DataOptions options = options_for(prepared(folder, "set", 50));
  const auto source = make_sample_source(options, Split::Valid, -1);
  const BatchLoader loader(source, 2);
  const std::int64_t n = source->num_samples();
  EXPECT_EQ(loader.batch(n - 2).num_tokens(), 32);
  expect_error(ErrorCode::DataExhausted, "of " + std::to_string(n), [&] { loader.batch(n - 1); });
}

TEST(DataSource, a_blend_takes_from_its_sources_by_weight) {
  const ScratchFolder folder;
  DataOptions options = options_for("");
  options.data_path = {"0.25", prepared(folder, "aaaa", 40), "0.75", prepared(folder, "bbbb", 20)};
  const auto source = make_sample_source(options, Split::Train, 200);
  ASSERT_EQ(source->num_samples(), 200);
  int first = 0;
  Sample sample;
  for (std::int64_t k = 0; k < 200; ++k) {
    source->read(k, sample);
    const std::set<std::int32_t> tokens(sample.tokens.begin(), sample.tokens.end());
    ASSERT_NE(tokens.count('a'), tokens.count('b')) << k;
    first += tokens.count('a') != 0 ? 1 : 0;
  }
  EXPECT_EQ(first, 50);
}

TEST(DataSource, wrong_options_are_errors) {
  const ScratchFolder folder;
  const DataOptions good = options_for(prepared(folder, "set", 50));
  DataOptions options = good;
  options.packing = "window";
  expect_error(ErrorCode::DataOptionInvalid, "did you mean 'windows'", [&] { make_sample_source(options, Split::Train, 10); });
  options = good;
  options.vocab_size = 256;
  expect_error(ErrorCode::TokenOutOfVocabulary, "at least 257", [&] { make_sample_source(options, Split::Train, 10); });
  options = good;
  expect_error(ErrorCode::DataEmpty, "split 'test' is empty", [&] { make_sample_source(options, Split::Test, 10); });
  options.seed = std::uint64_t{1} << 32;
  expect_error(ErrorCode::DataOptionInvalid, "below 2^32", [&] { make_sample_source(options, Split::Train, 10); });
  options = good;
  options.tokenizer = "gpt2";
  expect_error(ErrorCode::TokenizerMismatch, "prepared with another tokenizer",
               [&] { make_sample_source(options, Split::Train, 10); });
  options = good;
  options.data_path = {"0.5", good.data_path[0], "0.5", "mqar"};
  expect_error(ErrorCode::DataOptionInvalid, "blend of a synthetic task", [&] { make_sample_source(options, Split::Train, 10); });
  options.data_path = {"mqar"};
  expect_error(ErrorCode::DataOptionInvalid, "evaluation of a synthetic task",
               [&] { make_evaluation_sources(options, Split::Valid, 64); });
  expect_error(ErrorCode::DataOptionInvalid, "index of a synthetic task", [&] { build_sample_index(options, Split::Train, 10); });
}

TEST(DataSource, evaluation_charges_every_character_and_every_end) {
  const ScratchFolder folder;
  const DataOptions options = options_for(prepared(folder, "set", 50));
  const auto sources = make_evaluation_sources(options, Split::Valid, 64);
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(sources[0].text.documents, 10);
  EXPECT_EQ(sources[0].source->num_predictions(), sources[0].text.characters + sources[0].text.documents);
}

TEST(DataSource, index_report_names_file_and_key) {
  const ScratchFolder folder;
  DataOptions options = options_for(prepared(folder, "set", 50));
  options.cache_folder = folder.file("cache");
  const IndexReport built = build_sample_index(options, Split::Train, 300);
  ASSERT_EQ(built.entries.size(), 1u);
  EXPECT_FALSE(built.entries[0].was_cached);
  EXPECT_GE(built.entries[0].samples, 300);
  EXPECT_TRUE(file_exists(built.entries[0].path));
  const IndexReport found = build_sample_index(options, Split::Train, 300);
  EXPECT_TRUE(found.entries[0].was_cached);
  EXPECT_NE(to_text(found).find(found.entries[0].path), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json(found))[0]["key"], found.entries[0].key);
  // Training with the same options finds the same file.
  make_sample_source(options, Split::Train, 300);
  EXPECT_EQ(list_directory(options.cache_folder).size(), 2u);
}

TEST(Mqar, every_query_key_was_shown_with_its_value) {
  for (const bool random_fillers : {false, true}) {
    MqarOptions options;
    options.random_fillers = random_fillers;
    const MqarSource source(options);
    Sample sample;
    for (std::int64_t k = 0; k < 300; ++k) {
      source.read(k, sample);
      ASSERT_EQ(sample.tokens.size(), 32u);
      std::map<std::int32_t, std::int32_t> value_of;
      std::set<std::int32_t> values;
      for (std::size_t i = 0; i < 8; i += 2) {
        ASSERT_TRUE(sample.tokens[i] >= 1 && sample.tokens[i] < 32);
        ASSERT_TRUE(sample.tokens[i + 1] >= 32 && sample.tokens[i + 1] < 64);
        ASSERT_EQ(sample.labels[i], kIgnoreLabel);
        ASSERT_EQ(sample.labels[i + 1], kIgnoreLabel);
        value_of[sample.tokens[i]] = sample.tokens[i + 1];
        values.insert(sample.tokens[i + 1]);
      }
      ASSERT_EQ(value_of.size(), 4u);
      ASSERT_EQ(values.size(), 4u);
      std::set<std::int32_t> asked;
      for (std::size_t i = 8; i < 32; ++i) {
        if (sample.labels[i] == kIgnoreLabel) {
          ASSERT_TRUE(random_fillers || sample.tokens[i] == 0);
          continue;
        }
        ASSERT_EQ(i % 2, 0u);
        ASSERT_EQ(value_of.at(sample.tokens[i]), sample.labels[i]);
        asked.insert(sample.tokens[i]);
      }
      ASSERT_EQ(asked.size(), 4u);
    }
  }
}

TEST(Mqar, early_slots_are_asked_more_often) {
  const MqarSource source(MqarOptions{});
  std::vector<int> count(12, 0);
  Sample sample;
  for (std::int64_t k = 0; k < 2000; ++k) {
    source.read(k, sample);
    for (std::size_t slot = 0; slot < 12; ++slot) count[slot] += sample.labels[8 + 2 * slot] != kIgnoreLabel ? 1 : 0;
  }
  EXPECT_GT(count[0], 1400);  // weight 1 of 3.1 in each of four draws
  EXPECT_LT(count[11], 700);
  EXPECT_GT(count[11], 100);
}

TEST(Mqar, a_pure_function_with_separate_training_and_validation_streams) {
  MqarOptions options;
  MqarOptions validation = options;
  validation.validation = true;
  MqarOptions reseeded = options;
  reseeded.seed = 4321;
  const MqarSource a(options), b(options), v(validation), r(reseeded);
  std::set<std::vector<std::int32_t>> training;
  Sample x, y;
  for (std::int64_t k = 999; k >= 0; --k) {
    a.read(k, x);
    b.read(k, y);
    ASSERT_EQ(x.tokens, y.tokens);
    ASSERT_EQ(x.labels, y.labels);
    r.read(k, y);
    ASSERT_NE(x.tokens, y.tokens);
    training.insert(x.tokens);
  }
  EXPECT_EQ(training.size(), 1000u);
  for (std::int64_t k = 0; k < 1000; ++k) {
    v.read(k, y);
    ASSERT_EQ(training.count(y.tokens), 0u);
  }
}

TEST(Mqar, specification_and_limits) {
  EXPECT_TRUE(is_mqar_spec("mqar"));
  EXPECT_TRUE(is_mqar_spec("mqar:pairs=2"));
  EXPECT_FALSE(is_mqar_spec("mqar_text"));
  const MqarOptions options = parse_mqar_spec("mqar:vocab_size=8192,pairs=8,random_fillers=1,power=0.5", 128, 7, true);
  EXPECT_EQ(options.vocab_size, 8192);
  EXPECT_EQ(options.pairs, 8);
  EXPECT_TRUE(options.random_fillers);
  EXPECT_EQ(options.power, 0.5);
  EXPECT_EQ(options.seq_length, 128);
  EXPECT_TRUE(options.validation);
  const struct {
    const char* spec;
    const char* message;
  } bad[] = {{"mqar:pair=4", "did you mean 'pairs'"}, {"mqar:pairs", "no number"},
             {"mqar:pairs=x", "no number"},           {"mqar:pairs=1.5", "no whole number"},
             {"mqar:random_fillers=2", "no switch"},  {"mqar:pairs=0", "too few pairs"},
             {"mqar:pairs=9", "too short"},           {"mqar:vocab_size=8", "does not fit"},
             {"mqar:power=0", "power out of range"}};
  for (const auto& item : bad) {
    expect_error(ErrorCode::DataOptionInvalid, item.message, [&] { MqarSource source(parse_mqar_spec(item.spec, 32, 1, false)); });
  }
  DataOptions data;
  data.data_path = {"mqar:vocab_size=64"};
  data.seq_length = 32;
  data.vocab_size = 63;
  expect_error(ErrorCode::TokenOutOfVocabulary, "at least 64", [&] { make_sample_source(data, Split::Train, 1); });
  data.vocab_size = 64;
  EXPECT_EQ(make_sample_source(data, Split::Train, 1)->num_samples(), SampleSource::kEndless);
}

}  // namespace
}  // namespace deltron
