// The sample index on disk: found again, rebuilt when damaged, built once by several builders.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "src/base/signals.h"
#include "src/data/gpt_index.h"
#include "src/data/index_cache.h"
#include "tests/data/data_test_support.h"

namespace deltron {
namespace {

GptIndexRequest request_in(const std::string& folder) {
  GptIndexRequest request;
  request.range = {0, 4};
  request.seq_length = 4;
  request.samples_wanted = 9;
  request.seed = 1234;
  request.cache_folder = folder;
  return request;
}

void expect_published_index(const CachedGptIndex& index) {
  const GptIndex plain = build_gpt_index({5, 3, 7, 4}, 0, 4, 9, 1234);
  ASSERT_EQ(index.num_samples(), 9);
  ASSERT_EQ(index.num_positions(), 8);
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(index.document(i), plain.documents[static_cast<std::size_t>(i)]);
  for (std::int64_t i = 0; i <= 9; ++i) {
    EXPECT_EQ(index.start_position(i), plain.sample_start[static_cast<std::size_t>(2 * i)]);
    EXPECT_EQ(index.start_offset(i), plain.sample_start[static_cast<std::size_t>(2 * i + 1)]);
  }
  for (std::int64_t i = 0; i < 9; ++i) EXPECT_EQ(index.shuffled(i), plain.shuffle[static_cast<std::size_t>(i)]);
}

TEST(IndexCache, is_built_once_and_found_again) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({5, 3, 7, 4}), 10000);
  const GptIndexRequest request = request_in(folder.file("cache/deep"));
  const CachedGptIndex first = CachedGptIndex::open(*dataset, request);
  EXPECT_FALSE(first.was_cached());
  expect_published_index(first);
  const CachedGptIndex second = CachedGptIndex::open(*dataset, request);
  EXPECT_TRUE(second.was_cached());
  EXPECT_EQ(second.path(), first.path());
  expect_published_index(second);
}

TEST(IndexCache, works_without_a_folder) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({5, 3, 7, 4}), 10000);
  const CachedGptIndex index = CachedGptIndex::open(*dataset, request_in(""));
  EXPECT_TRUE(index.path().empty());
  expect_published_index(index);
}

TEST(IndexCache, key_follows_everything_that_changes_the_index) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({5, 3, 7, 4}), 10000);
  const auto other = build_dataset(folder.file("other"), numbered_documents({5, 3, 4, 7}), 10000);
  const GptIndexRequest base = request_in("");
  const std::string key = CachedGptIndex::open(*dataset, base).key();
  EXPECT_EQ(CachedGptIndex::open(*dataset, base).key(), key);
  EXPECT_NE(CachedGptIndex::open(*other, base).key(), key);
  GptIndexRequest changed = base;
  changed.range = {1, 4};
  EXPECT_NE(CachedGptIndex::open(*dataset, changed).key(), key);
  changed = base;
  changed.range = {0, 3};
  EXPECT_NE(CachedGptIndex::open(*dataset, changed).key(), key);
  changed = base;
  changed.seq_length = 5;
  EXPECT_NE(CachedGptIndex::open(*dataset, changed).key(), key);
  changed = base;
  changed.samples_wanted = 10;
  EXPECT_NE(CachedGptIndex::open(*dataset, changed).key(), key);
  changed = base;
  changed.seed = 1235;
  EXPECT_NE(CachedGptIndex::open(*dataset, changed).key(), key);
}

TEST(IndexCache, any_flipped_bit_or_cut_leads_to_a_rebuild) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({5, 3, 7, 4}), 10000);
  const GptIndexRequest request = request_in(folder.file("cache"));
  const std::string path = CachedGptIndex::open(*dataset, request).path();
  const std::string sound = read_file(path);
  std::vector<std::string> damaged = {"", sound.substr(0, 63), sound.substr(0, 64), sound.substr(0, sound.size() - 1), sound + "x"};
  for (std::size_t at = 0; at < sound.size(); at += 5) {
    damaged.push_back(sound);
    damaged.back()[at] = static_cast<char>(damaged.back()[at] ^ 0x10);
  }
  for (const std::string& content : damaged) {
    write_plain(path, content);
    const CachedGptIndex index = CachedGptIndex::open(*dataset, request);
    ASSERT_FALSE(index.was_cached());
    expect_published_index(index);
    ASSERT_EQ(read_file(path), sound);
  }
}

TEST(IndexCache, concurrent_builders_build_once) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({5, 3, 7, 4}), 10000);
  const GptIndexRequest request = request_in(folder.file("cache"));
  std::atomic<int> built{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const CachedGptIndex index = CachedGptIndex::open(*dataset, request);
      if (!index.was_cached()) built++;
      expect_published_index(index);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(built.load(), 1);
  EXPECT_EQ(list_directory(folder.file("cache")).size(), 2u);  // index and lock, no temporary files
}

TEST(IndexCache, a_stop_while_building_leaves_no_half_file) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({5, 3, 7, 4}), 10000);
  const GptIndexRequest request = request_in(folder.file("cache"));
  install_stop_signals();
  std::raise(SIGTERM);
  EXPECT_THROW(CachedGptIndex::open(*dataset, request), StopRequested);
  clear_stop_signal();
  for (const std::string& name : list_directory(folder.file("cache"))) EXPECT_EQ(name.substr(name.size() - 5), ".lock");
  expect_published_index(CachedGptIndex::open(*dataset, request));
}

TEST(IndexCache, unwritable_folder_is_named) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({5, 3, 7, 4}), 10000);
  write_plain(folder.file("file"), "x");
  expect_error(ErrorCode::ResourceUnavailable, "file", [&] { CachedGptIndex::open(*dataset, request_in(folder.file("file"))); });
}

}  // namespace
}  // namespace deltron
