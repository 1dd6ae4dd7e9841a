// The layout of packed documents: what it refuses, and what it derives.
#include "src/tensor/sequence_layout.h"

#include <set>

#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::contains;
using test::message_of;
using test::small_context;

template <class T>
std::vector<T> host(const T* data, std::int64_t count) {
  return std::vector<T>(data, data + count);
}

TEST(SequenceLayout, every_fault_of_the_offsets_has_its_own_message) {
  Context ctx(small_context());
  struct Row {
    std::vector<std::int64_t> offsets;
    std::int64_t tokens;
    std::vector<std::string> parts;
  };
  const std::vector<Row> rows = {
      {{}, 0, {"no document", "0 offsets"}},
      {{0}, 0, {"no document", "1 offsets"}},
      {{1, 5}, 5, {"does not start at 0", "first offset 1"}},
      {{-1, 5}, 5, {"does not start at 0", "first offset -1"}},
      {{0, 4, 3, 5}, 5, {"decreases", "offset 2 is 3 after 4"}},
      {{0, 4}, 5, {"does not describe this buffer", "last offset 4, tokens 5"}},
      {{0, 3, 6}, 5, {"does not describe this buffer", "last offset 6, tokens 5"}},
  };
  for (const Row& row : rows) {
    const std::string message = message_of([&] { SequenceLayout(ctx, row.offsets, row.tokens); }, ErrorCode::InvalidOffsets);
    EXPECT_TRUE(contains(message, row.parts));
    EXPECT_TRUE(contains(message, {"cu_seqlens"}));
  }
}

TEST(SequenceLayout, token_arrays_of_another_length_are_refused_by_name) {
  Context ctx(small_context());
  EXPECT_TRUE(contains(message_of([&] { SequenceLayout(ctx, {0, 3}, 3, {0, 1}); }), {"positions", "2", "3"}));
  EXPECT_TRUE(contains(message_of([&] { SequenceLayout(ctx, {0, 3}, 3, {}, {0, 1}); }), {"token_sample", "2", "3"}));
  EXPECT_TRUE(contains(message_of([&] { SequenceLayout(ctx, {0, 3}, 3, {}, {}, {0, 1, 2, 3}); }), {"token_offset", "4", "3"}));
}

TEST(SequenceLayout, positions_and_random_addresses_restart_at_every_document) {
  Context ctx(small_context());
  const SequenceLayout layout(ctx, {0, 2, 2, 5, 6}, 6);  // one empty document
  EXPECT_EQ(layout.tokens(), 6);
  EXPECT_EQ(layout.documents(), 4);
  EXPECT_EQ(layout.longest(), 3);
  EXPECT_EQ(host(layout.positions(), 6), (std::vector<std::int32_t>{0, 1, 0, 1, 2, 0}));
  const kernels::TokenRng rng = layout.token_rng({7, 1, kRngSiteHiddenDropoutMlp}, 0.25);
  EXPECT_EQ(host(rng.token_sample, 6), (std::vector<std::int64_t>{0, 0, 2, 2, 2, 3}));
  EXPECT_EQ(host(rng.token_offset, 6), (std::vector<std::int32_t>{0, 1, 0, 1, 2, 0}));
  EXPECT_EQ(rng.drop_probability, 0.25);
  EXPECT_EQ(rng.key, rng_key({7, 1, kRngSiteHiddenDropoutMlp}));
  const kernels::Documents documents = layout.device_documents();
  EXPECT_EQ(documents.count, 4);
  EXPECT_EQ(host(documents.cu_seqlens, 5), (std::vector<std::int64_t>{0, 2, 2, 5, 6}));
}

TEST(SequenceLayout, given_positions_and_addresses_are_taken) {
  Context ctx(small_context());
  const SequenceLayout layout(ctx, {0, 3}, 3, {10, 11, 12}, {5, 5, 6}, {1, 2, 0});
  EXPECT_EQ(host(layout.positions(), 3), (std::vector<std::int32_t>{10, 11, 12}));
  const kernels::TokenRng rng = layout.token_rng({}, 0.5);
  EXPECT_EQ(host(rng.token_sample, 3), (std::vector<std::int64_t>{5, 5, 6}));
  EXPECT_EQ(host(rng.token_offset, 3), (std::vector<std::int32_t>{1, 2, 0}));
}

TEST(SequenceLayout, dense_is_the_case_of_equal_lengths) {
  Context ctx(small_context());
  const SequenceLayout layout = SequenceLayout::dense(ctx, 3, 4);
  EXPECT_EQ(layout.cu_seqlens(), (std::vector<std::int64_t>{0, 4, 8, 12}));
  EXPECT_EQ(layout.tokens(), 12);
  EXPECT_EQ(layout.longest(), 4);
}

TEST(SequenceLayout, an_empty_buffer_with_one_document_is_legal) {
  Context ctx(small_context());
  const SequenceLayout layout(ctx, {0, 0}, 0);
  EXPECT_EQ(layout.documents(), 1);
  EXPECT_EQ(layout.longest(), 0);
}

TEST(SequenceLayout, its_bytes_are_data_on_every_device) {
  for (DeviceKind device : {DeviceKind::Cpu, DeviceKind::Meta}) {
    Context ctx(small_context(1, device));
    const SequenceLayout layout = SequenceLayout::dense(ctx, 2, 300);
    const MemoryStats stats = ctx.memory()->stats();
    EXPECT_EQ(stats.current, stats.by_tag[static_cast<std::size_t>(MemoryTag::Data)]);
    EXPECT_EQ(stats.current, 512 + 2 * 2560 + 5120);
  }
}

}  // namespace
}  // namespace deltron
