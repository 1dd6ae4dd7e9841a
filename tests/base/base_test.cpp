// src/base: errors, number formats, files, hashes, suggestions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/bfloat16.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/human.h"
#include "src/base/suggest.h"
#include "tests/support/generated_page.h"

namespace deltron {
namespace {

TEST(ErrorTable, codes_are_unique_and_complete) {
  int last = 0;
  for (const ErrorEntry& entry : error_table()) {
    EXPECT_GT(static_cast<int>(entry.code), last) << entry.name;
    last = static_cast<int>(entry.code);
    EXPECT_NE(std::string(entry.example), "");
    EXPECT_NE(std::string(entry.fix), "");
    EXPECT_EQ(std::string(entry.example).substr(0, 4), "E" + std::to_string(last)) << entry.name;
  }
}

TEST(ErrorTable, the_reference_page_is_up_to_date) {
  test::expect_page("errors.md", error_reference_markdown());
}

TEST(ErrorTable, message_names_place_values_rule_and_fix) {
  const Error error(ErrorCode::DataFileInvalid, {"bad size", "a.idx", "81 bytes", "82 are needed", "prepare it again"});
  EXPECT_STREQ(error.what(), "E300 a.idx: bad size (81 bytes); rule: 82 are needed; fix: prepare it again");
  EXPECT_EQ(error.exit_code(), ExitCode::Data);
}

TEST(Check, prints_both_values) {
  try {
    DELTRON_CHECK_EQ(2 + 2, 5, "sum");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("4 against 5"), std::string::npos) << error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::Internal);
  }
}

TEST(BFloat16, rounds_to_nearest_even) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(1.00390625f).bits, 0x3f80);        // halfway, even below
  EXPECT_EQ(to_bfloat16(1.01171875f).bits, 0x3f82);        // halfway, even above
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::quiet_NaN()).bits, 0x7fc0);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
}

TEST(Float16, every_value_survives_the_round_trip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float16 half{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(half);
    if (std::isnan(wide)) continue;
    ASSERT_EQ(to_float16(wide).bits, half.bits);
  }
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_float16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_float16(std::ldexp(1.0f, -25)).bits, 0);
  EXPECT_EQ(to_float16(std::ldexp(1.5f, -25)).bits, 1);
}

TEST(Human, numbers) {
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_count(494.6e6), "494.60 M");
  EXPECT_EQ(human_seconds(250), "4 min 10 s");
  EXPECT_EQ(std::stod(shortest(0.1 + 0.2)), 0.1 + 0.2);
  EXPECT_EQ(thousands(-1234567), "-1,234,567");
}

TEST(Suggest, finds_the_near_word) {
  EXPECT_EQ(did_you_mean("warmup_step", {"warmup_steps", "lr"}), "; did you mean 'warmup_steps'?");
  EXPECT_EQ(did_you_mean("zzz", {"warmup_steps"}), "");
}

TEST(File, atomic_write_replaces_whole_content) {
  const std::string path = testing::TempDir() + "/deltron_atomic.txt";
  write_file_atomically(path, "first");
  write_file_atomically(path, "second");
  EXPECT_EQ(read_file(path), "second");
  const MappedFile map(path);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(map.data()), map.size()), "second");
}

TEST(File, missing_file_is_a_user_error) {
  EXPECT_THROW(read_file("/nonexistent/file"), Error);
  EXPECT_THROW(MappedFile("/nonexistent/file"), Error);
  EXPECT_THROW(FileWriter("/nonexistent/folder/file"), Error);
}

TEST(Hash, streaming_equals_whole) {
  const std::string text(100000, 'x');
  StreamingHash streaming;
  for (std::size_t place = 0; place < text.size(); place += 777) {
    streaming.update(text.data() + place, std::min<std::size_t>(777, text.size() - place));
  }
  EXPECT_EQ(streaming.digest(), hash64(text.data(), text.size()));
}

}  // namespace
}  // namespace deltron
