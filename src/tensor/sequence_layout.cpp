// See sequence_layout.h.
#include "src/tensor/sequence_layout.h"

#include <algorithm>

#include "src/base/sequence_cut.h"
#include "src/tensor/context.h"

namespace deltron {
namespace {

template <class T>
Tensor upload(Context& ctx, const std::vector<T>& values, DType dtype, const char* name) {
  Tensor tensor = Tensor::empty(ctx, {static_cast<std::int64_t>(values.size())}, dtype, name, MemoryTag::Data);
  copy_from_host(ctx, tensor, values.data());
  return tensor;
}

void check_offsets(const std::vector<std::int64_t>& offsets, std::int64_t tokens) {
  const auto fail = [](const std::string& what, const std::string& values, const std::string& rule) {
    throw Error(ErrorCode::InvalidOffsets, ErrorText{what, "cu_seqlens", values, rule, "give the offsets of this very buffer"});
  };
  if (offsets.size() < 2) fail("no document", std::to_string(offsets.size()) + " offsets", "at least two offsets: one document");
  if (offsets.front() != 0) fail("does not start at 0", "first offset " + std::to_string(offsets.front()), "the first offset is 0");
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      fail("decreases", "offset " + std::to_string(i) + " is " + std::to_string(offsets[i]) + " after " + std::to_string(offsets[i - 1]),
           "offsets never decrease");
    }
  }
  if (offsets.back() != tokens) {
    fail("does not describe this buffer", "last offset " + std::to_string(offsets.back()) + ", tokens " + std::to_string(tokens),
         "the last offset is the number of tokens");
  }
}

// Defaults of what the caller leaves empty.
void fill_in(const std::vector<std::int64_t>& offsets, std::vector<std::int32_t>& positions, std::vector<std::int64_t>& token_sample,
             std::vector<std::int32_t>& token_offset) {
  std::vector<std::int32_t> own_positions;
  std::vector<std::int64_t> own_samples;
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
    for (std::int64_t t = offsets[n]; t < offsets[n + 1]; ++t) {
      own_positions.push_back(static_cast<std::int32_t>(t - offsets[n]));
      own_samples.push_back(static_cast<std::int64_t>(n));
    }
  }
  if (positions.empty()) positions = own_positions;
  if (token_sample.empty()) token_sample = own_samples;
  if (token_offset.empty()) token_offset = own_positions;
}

}  // namespace

SequenceLayout::SequenceLayout(Context& ctx, std::vector<std::int64_t> cu_seqlens, std::int64_t tokens, std::vector<std::int32_t> positions,
                               std::vector<std::int64_t> token_sample, std::vector<std::int32_t> token_offset)
    : tokens_(tokens), host_(std::move(cu_seqlens)) {
  check_offsets(host_, tokens_);
  fill_in(host_, positions, token_sample, token_offset);
  DELTRON_CHECK_EQ(static_cast<std::int64_t>(positions.size()), tokens, "positions");
  DELTRON_CHECK_EQ(static_cast<std::int64_t>(token_sample.size()), tokens, "token_sample");
  DELTRON_CHECK_EQ(static_cast<std::int64_t>(token_offset.size()), tokens, "token_offset");
  describe_rows(ctx, positions, token_sample, token_offset);
}

void SequenceLayout::describe_rows(Context& ctx, const std::vector<std::int32_t>& positions, const std::vector<std::int64_t>& token_sample,
                                   const std::vector<std::int32_t>& token_offset) {
  for (std::size_t n = 0; n + 1 < host_.size(); ++n) longest_ = std::max(longest_, host_[n + 1] - host_[n]);
  offsets_ = upload(ctx, host_, DType::I64, "cu_seqlens");
  positions_ = upload(ctx, positions, DType::I32, "positions");
  token_sample_ = upload(ctx, token_sample, DType::I64, "token_sample");
  token_offset_ = upload(ctx, token_offset, DType::I32, "token_offset");
}

std::shared_ptr<const SequenceLayout> SequenceLayout::shared(Context& ctx, const TokenShare& share, std::vector<std::int64_t> cu_seqlens,
                                                             std::int64_t tokens, std::vector<std::int32_t> positions,
                                                             std::vector<std::int64_t> token_sample, std::vector<std::int32_t> token_offset) {
  const auto whole = std::make_shared<const SequenceLayout>(ctx, cu_seqlens, tokens, positions, token_sample, token_offset);
  if (share.context_ranks == 1 && share.row_ranks == 1) return whole;
  fill_in(cu_seqlens, positions, token_sample, token_offset);
  std::vector<std::int64_t> mine = tokens_of_rank(cu_seqlens, share.context_ranks, share.context_rank);
  const auto rows = static_cast<std::int64_t>(mine.size());
  if (rows % share.row_ranks != 0) {
    throw Error(ErrorCode::InvalidOffsets,
                ErrorText{"rows cannot be cut over the tensor-parallel ranks", "cu_seqlens",
                          std::to_string(rows) + " rows and " + std::to_string(share.row_ranks) + " ranks",
                          "sequence_parallel cuts the tokens of a micro-batch evenly", "pad the documents"});
  }
  const std::shared_ptr<SequenceLayout> layout(new SequenceLayout());
  layout->whole_ = whole;
  layout->tokens_ = rows;
  for (const std::int64_t offset : cu_seqlens) layout->host_.push_back(offset / share.context_ranks);
  if (share.context_ranks > 1) {
    const std::vector<std::int64_t> by_rank = tokens_by_rank(cu_seqlens, share.context_ranks);
    std::vector<std::int32_t> to_rows(by_rank.begin(), by_rank.end()), to_whole(by_rank.size());
    for (std::size_t i = 0; i < to_rows.size(); ++i) to_whole[static_cast<std::size_t>(to_rows[i])] = static_cast<std::int32_t>(i);
    layout->to_rows_ = upload(ctx, to_rows, DType::I32, "to_rows");
    layout->to_whole_ = upload(ctx, to_whole, DType::I32, "to_whole");
  }
  const std::int64_t run = rows / share.row_ranks, begin = run * share.row_rank;
  mine = {mine.begin() + begin, mine.begin() + begin + run};
  layout->describe_rows(ctx, take_tokens(positions, mine), take_tokens(token_sample, mine), take_tokens(token_offset, mine));
  return layout;
}

SequenceLayout SequenceLayout::dense(Context& ctx, std::int64_t batch, std::int64_t length) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t n = 0; n <= batch; ++n) offsets.push_back(n * length);
  return SequenceLayout(ctx, std::move(offsets), batch * length);
}

kernels::Documents SequenceLayout::device_documents() const { return {documents(), offsets_.data_as<const std::int64_t>(), host_.data()}; }

const std::int32_t* SequenceLayout::positions() const { return positions_.data_as<const std::int32_t>(); }

kernels::TokenRng SequenceLayout::token_rng(const RngSite& site, double drop_probability) const {
  kernels::TokenRng rng;
  rng.key = rng_key(site);
  rng.token_sample = token_sample_.data_as<const std::int64_t>();
  rng.token_offset = token_offset_.data_as<const std::int32_t>();
  rng.drop_probability = drop_probability;
  return rng;
}

}  // namespace deltron
