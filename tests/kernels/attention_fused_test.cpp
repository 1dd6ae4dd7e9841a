// kernels/attention_fused: what the fused kernels are asked for, how documents are cut into calls, and the workspace that is
// counted.
#include "kernels/attention_fused.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace deltron::kernels {
namespace {

using ::testing::HasSubstr;

FusedAttentionQuestion good() { return {DType::BF16, 8, 2, 128, 0, 4096, true}; }

TEST(FusedAttentionRefusal, is_empty_for_what_the_kernels_take) {
  EXPECT_EQ(fused_attention_refusal(good()), "");
  FusedAttentionQuestion half = good();
  half.dtype = DType::F16;
  half.dim = 256;
  EXPECT_EQ(fused_attention_refusal(half), "");
}

TEST(FusedAttentionRefusal, names_what_they_do_not_take) {
  FusedAttentionQuestion q = good();
  q.dtype = DType::F32;
  EXPECT_THAT(fused_attention_refusal(q), HasSubstr("bf16 and fp16"));
  q = good();
  q.drop_probability = 0.1;
  EXPECT_THAT(fused_attention_refusal(q), HasSubstr("attention_dropout"));
  for (std::int64_t dim : {4, 36, 264}) {
    q = good();
    q.dim = dim;
    EXPECT_THAT(fused_attention_refusal(q), HasSubstr("heads of " + std::to_string(dim) + " channels"));
  }
  q = good();
  q.query_heads = 9;
  EXPECT_THAT(fused_attention_refusal(q), HasSubstr("9 query heads over 2"));
}

// 4 query heads a key head: 2 x 4 x T^2 bytes are 16 GiB at T = 46,340.
TEST(FusedAttentionRefusal, of_long_documents_concerns_the_backward_alone) {
  FusedAttentionQuestion q = good();
  q.longest = 46080;
  EXPECT_EQ(fused_attention_refusal(q), "");
  q.longest = 46500;
  EXPECT_THAT(fused_attention_refusal(q), HasSubstr("46500 tokens exceeds 16 GiB"));
  q.backward = false;
  EXPECT_EQ(fused_attention_refusal(q), "");
}

TEST(FusedAttentionRefusal, of_wide_heads_depends_on_the_version_of_cudnn) {
  FusedAttentionQuestion q = good();
  q.library_version = 91400;
  EXPECT_EQ(fused_attention_refusal(q), "");
  q.dim = 256;
  EXPECT_THAT(fused_attention_refusal(q), HasSubstr("heads of 256 channels, of which cuDNN below 9.19"));
  q.library_version = 91900;
  EXPECT_EQ(fused_attention_refusal(q), "");
}

struct Batch {
  explicit Batch(const std::vector<std::int64_t>& lengths) : offsets{0} {
    for (std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  }
  Documents documents() const { return {static_cast<std::int64_t>(offsets.size()) - 1, offsets.data()}; }
  std::vector<std::int64_t> offsets;
};

AttentionForwardArgs forward_args(const Batch& batch) {
  AttentionForwardArgs args;
  args.tokens = batch.offsets.back(), args.query_heads = 8, args.kv_heads = 2, args.dim = 64, args.dtype = DType::BF16;
  args.documents = batch.documents();
  args.q = {nullptr, 0, 512, 64}, args.k = args.v = {nullptr, 0, 128, 64}, args.o = {nullptr, 0, 512, 64};
  return args;
}

TEST(FusedAttentionRefusal, of_a_call_names_the_tensor_whose_rows_do_not_start_on_16_bytes) {
  const Batch batch({100, 100});
  AttentionForwardArgs args = forward_args(batch);
  EXPECT_EQ(fused_attention_refusal(args), "");
  args.k.token_stride = 132;
  EXPECT_THAT(fused_attention_refusal(args), HasSubstr("k does not start its rows"));
  args = forward_args(batch);
  args.o.data = reinterpret_cast<void*>(std::uintptr_t{8});
  EXPECT_THAT(fused_attention_refusal(args), HasSubstr("o does not start its rows"));
}

TEST(FusedAttentionRefusal, of_a_call_wants_unequal_documents_packed) {
  const Batch equal({100, 100}), unequal({100, 90});
  for (const Batch* batch : {&equal, &unequal}) {
    AttentionForwardArgs args = forward_args(*batch);
    args.q.sequence_stride = 100 * 512;
    EXPECT_EQ(fused_attention_refusal(args).empty(), batch == &equal);
  }
}

// Every document and every key head is served exactly once, by a call whose bounds hold the document.
void expect_served_once(const std::vector<std::int64_t>& lengths, std::int64_t query_heads, std::int64_t kv_heads, bool backward) {
  const Batch batch(lengths);
  const FusedAttentionSchedule schedule = fused_attention_schedule(batch.documents(), query_heads, kv_heads, backward);
  std::map<std::pair<std::int64_t, std::int64_t>, int> served;  // document, key head
  for (const FusedAttentionCall& call : schedule.calls) {
    ASSERT_GE(call.batch, call.taken);
    std::int64_t ordinal = 0;
    for (std::int64_t n = 0; n < static_cast<std::int64_t>(lengths.size()); ++n) {
      const std::int64_t length = lengths[static_cast<std::size_t>(n)];
      const bool member = call.ragged ? length > call.above && length <= call.length : length > 0;
      if (!member) continue;
      if (!call.ragged) {
        ASSERT_EQ(length, call.length);
      }
      if (ordinal >= call.first && ordinal < call.first + call.taken) {
        for (std::int64_t h = call.first_kv_head; h < call.first_kv_head + call.kv_heads; ++h) ++served[{n, h}];
      }
      ++ordinal;
    }
    if (backward && (call.batch > 1 || call.kv_heads > 1)) {
      const std::int64_t side = (call.length + 127) / 128 * 128;
      EXPECT_LE(call.batch * side * side * 2 * call.kv_heads * (query_heads / kv_heads), kFusedScoreBytes);
    }
  }
  std::size_t expected = 0;
  for (std::int64_t length : lengths) expected += length > 0 ? static_cast<std::size_t>(kv_heads) : 0;
  EXPECT_EQ(served.size(), expected);
  for (const auto& [what, times] : served) EXPECT_EQ(times, 1) << "document " << what.first << " head " << what.second;
}

TEST(FusedAttentionSchedule, serves_every_document_and_head_once) {
  const std::vector<std::vector<std::int64_t>> batches = {{1},
                                                          {64, 64},
                                                          {63, 63},
                                                          {4096, 4096, 4096, 4096, 4096},
                                                          {5, 0, 700, 128, 129, 256, 257, 3000, 1536, 1537, 0, 12},
                                                          {20000, 1, 20000, 20000},
                                                          {0, 0}};
  for (const std::vector<std::int64_t>& lengths : batches) {
    for (bool backward : {false, true}) {
      expect_served_once(lengths, 8, 2, backward);
      expect_served_once(lengths, 32, 8, backward);
      expect_served_once(lengths, 6, 3, backward);
    }
  }
  std::vector<std::int64_t> many;
  for (std::int64_t n = 0; n < 3000; ++n) many.push_back(n * 37 % 400);
  expect_served_once(many, 8, 2, true);
}

TEST(FusedAttentionSchedule, takes_equal_lengths_as_a_dense_batch_in_equal_parts) {
  const Batch batch({4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096});
  const FusedAttentionSchedule forward = fused_attention_schedule(batch.documents(), 8, 2, false);
  ASSERT_EQ(forward.calls.size(), 1u);
  EXPECT_TRUE(forward.dense);
  EXPECT_EQ(forward.calls[0].batch, 8);
  const FusedAttentionSchedule backward = fused_attention_schedule(batch.documents(), 8, 2, true);  // 256 MiB of scores a document
  ASSERT_EQ(backward.calls.size(), 2u);
  EXPECT_EQ(backward.calls[0].taken, 4);
  EXPECT_EQ(backward.calls[1].first, 4);
}

TEST(FusedAttentionSchedule, cuts_one_long_document_over_key_heads) {
  const Batch batch({8192});
  const FusedAttentionSchedule schedule = fused_attention_schedule(batch.documents(), 32, 8, true);  // 128 MiB a query head
  ASSERT_EQ(schedule.calls.size(), 4u);
  EXPECT_EQ(schedule.calls[3].first_kv_head, 6);
  EXPECT_EQ(schedule.calls[3].kv_heads, 2);
}

TEST(FusedAttentionSchedule, needs_few_plans_whatever_the_packing) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> shapes;
  for (std::int64_t seed = 1; seed <= 200; ++seed) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = 0; n < 40; ++n) lengths.push_back(1 + (seed * 7919 + n * n * 104729) % 4096);
    const Batch batch(lengths);
    for (const FusedAttentionCall& call : fused_attention_schedule(batch.documents(), 8, 2, true).calls)
      ++shapes[{call.batch, call.length}];
  }
  EXPECT_LT(shapes.size(), 40u);
}

TEST(FusedAttentionStatistics, have_one_place_for_every_token_and_head) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{100, 100, 100}, {100, 90, 110}}) {
    const Batch batch(lengths);
    const FusedAttentionSchedule schedule = fused_attention_schedule(batch.documents(), 8, 2, false);
    std::vector<std::int64_t> places;
    for (std::int64_t t = 0; t < 300; ++t) {
      for (std::int64_t h = 0; h < 8; ++h) places.push_back(fused_log_sum_exp_place(schedule, 8, t, h));
    }
    std::sort(places.begin(), places.end());
    for (std::size_t i = 0; i < places.size(); ++i) ASSERT_EQ(places[i], static_cast<std::int64_t>(i));
  }
}

// What cuDNN 9.14 and 9.19 were seen to ask for the whole of these, in GB.
TEST(FusedAttentionWorkspace, bounds_what_was_measured) {
  const FusedAttentionCall first{.batch = 1, .length = 8192, .taken = 1, .kv_heads = 8},
      second{.batch = 8, .length = 4096, .taken = 8, .kv_heads = 2}, third{.batch = 1, .length = 8192, .taken = 1, .kv_heads = 4};
  EXPECT_NEAR(static_cast<double>(fused_workspace_estimate(first, 4, 128, true)) / 1e9, 4.4, 0.05);
  EXPECT_NEAR(static_cast<double>(fused_workspace_estimate(second, 4, 128, true)) / 1e9, 2.3, 0.05);
  EXPECT_NEAR(static_cast<double>(fused_workspace_estimate(third, 4, 256, true)) / 1e9, 2.3, 0.05);
}

}  // namespace
}  // namespace deltron::kernels
