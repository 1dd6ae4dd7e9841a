// See sequence_layout.h.
#include "src/tensor/sequence_layout.h"

#include <algorithm>

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

}  // namespace

SequenceLayout::SequenceLayout(Context& ctx, std::vector<std::int64_t> cu_seqlens, std::int64_t tokens, std::vector<std::int32_t> positions,
                               std::vector<std::int64_t> token_sample, std::vector<std::int32_t> token_offset)
    : tokens_(tokens), host_(std::move(cu_seqlens)) {
  check_offsets(host_, tokens_);
  std::vector<std::int32_t> own_positions(static_cast<std::size_t>(tokens));
  std::vector<std::int64_t> own_samples(static_cast<std::size_t>(tokens));
  for (std::size_t n = 0; n + 1 < host_.size(); ++n) {
    longest_ = std::max(longest_, host_[n + 1] - host_[n]);
    for (std::int64_t t = host_[n]; t < host_[n + 1]; ++t) {
      own_positions[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t - host_[n]);
      own_samples[static_cast<std::size_t>(t)] = static_cast<std::int64_t>(n);
    }
  }
  if (positions.empty()) positions = own_positions;
  if (token_sample.empty()) token_sample = own_samples;
  if (token_offset.empty()) token_offset = own_positions;
  DELTRON_CHECK_EQ(static_cast<std::int64_t>(positions.size()), tokens, "positions");
  DELTRON_CHECK_EQ(static_cast<std::int64_t>(token_sample.size()), tokens, "token_sample");
  DELTRON_CHECK_EQ(static_cast<std::int64_t>(token_offset.size()), tokens, "token_offset");
  offsets_ = upload(ctx, host_, DType::I64, "cu_seqlens");
  positions_ = upload(ctx, positions, DType::I32, "positions");
  token_sample_ = upload(ctx, token_sample, DType::I64, "token_sample");
  token_offset_ = upload(ctx, token_offset, DType::I32, "token_offset");
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
