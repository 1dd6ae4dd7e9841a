// See kernel_case.h.
#include "tools/bench/kernel_case.h"

#include <algorithm>

#include "src/base/rng.h"

namespace deltron::tools {

CaseMemory::CaseMemory(Context& ctx) : ctx_(ctx) {
  constexpr std::size_t kStretch = std::size_t{1} << 16;
  RngStream random({11, 0, kRngSiteData}, 0);
  stretch_.resize(kStretch);
  for (float& value : stretch_) value = static_cast<float>(random.normal());
}

Tensor CaseMemory::empty(const Shape& shape, DType dtype) {
  const Tensor tensor = Tensor::empty(ctx_, shape, dtype, "bench", MemoryTag::Workspace);
  bytes_ += tensor.bytes();
  return tensor;
}

Tensor CaseMemory::random(const Shape& shape, DType dtype, double scale, double shift) {
  const Tensor tensor = empty(shape, dtype);
  const auto length = static_cast<std::int64_t>(stretch_.size());
  std::vector<float> values(stretch_);
  std::rotate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(made_++ * 7919 % stretch_.size()), values.end());
  for (float& value : values) value = static_cast<float>(scale * static_cast<double>(value) + shift);
  const Tensor fp32 = Tensor::empty(ctx_, {length}, DType::F32, "bench", MemoryTag::Workspace);
  copy_from_host(ctx_, fp32, values.data());
  const Tensor flat = tensor.view({tensor.count()});
  // One stretch from the host, then what is there is doubled.
  std::int64_t done = std::min(length, flat.count());
  convert(ctx_, fp32.slice(0, 0, done), flat.slice(0, 0, done));
  while (done < flat.count()) {
    const std::int64_t part = std::min(done, flat.count() - done);
    convert(ctx_, flat.slice(0, 0, part), flat.slice(0, done, part));
    done += part;
  }
  return tensor;
}

Tensor CaseMemory::ids(std::int64_t count, std::int64_t below) {
  const Tensor tensor = empty({count}, DType::I32);
  RngStream random({13, 0, kRngSiteData}, made_++);
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::int32_t& value : values) value = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(below)));
  copy_from_host(ctx_, tensor, values.data());
  return tensor;
}

// Calls run one after the other, so that they can share it. All sets of a case ask for the same.
kernels::Workspace CaseMemory::workspace(std::int64_t bytes) {
  if (bytes == 0) return {};
  if (!workspace_.defined()) workspace_ = Tensor::empty(ctx_, {bytes}, DType::U8, "bench workspace", MemoryTag::Workspace);
  DELTRON_CHECK(bytes <= workspace_.bytes(), "a set wants more workspace than the one before it");
  return {workspace_.data(), bytes};
}

CaseSetting make_setting(Context& ctx, const KernelSizes& sizes, DType dtype) {
  CaseSetting setting;
  setting.ctx = &ctx;
  setting.sizes = sizes;
  setting.dtype = dtype;
  const auto cut = [&](std::int64_t documents, bool unequal) {
    std::vector<std::int64_t> offsets = {0};
    for (std::int64_t n = 1; n < documents; ++n) {
      // Every second document has half of its neighbour's length.
      const std::int64_t even = sizes.tokens * n / documents, length = sizes.tokens / documents;
      offsets.push_back(unequal && n % 2 == 1 ? even - length / 2 : even);
    }
    offsets.push_back(sizes.tokens);
    return std::make_shared<const SequenceLayout>(ctx, offsets, sizes.tokens);
  };
  setting.layout = cut(sizes.documents, false);
  setting.packed = cut(std::min(4 * sizes.documents, sizes.tokens), true);
  return setting;
}

CaseTable all_cases(const CaseSetting& setting) {
  CaseTable table;
  add_matmul_cases(setting, table);
  if (setting.sizes.linear()) {
    add_delta_rule_cases(setting, table);
    add_gdn_cases(setting, table);
  }
  add_block_cases(setting, table);
  if (setting.sizes.softmax()) add_softmax_cases(setting, table);
  add_vocabulary_cases(setting, table);
  add_optimizer_cases(setting, table);
  return table;
}

}  // namespace deltron::tools
