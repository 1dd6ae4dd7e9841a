// See gradient_norm.h.
#include "src/optim/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reduce.h"
#include "src/tensor/launch.h"

namespace deltron {

namespace {

std::vector<kernels::MultiTensorEntry> entries_of(const std::vector<Tensor>& gradients) {
  std::vector<kernels::MultiTensorEntry> entries;
  for (const Tensor& gradient : gradients) {
    DELTRON_CHECK(gradient.is_contiguous(), "gradient '", gradient.name(), "'");
    kernels::MultiTensorEntry entry;
    entry.count = gradient.count();
    entry.grad = gradient.data();
    entry.dtype = gradient.dtype();
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace

GradientNorm::GradientNorm(Context& ctx, std::vector<Tensor> gradients, std::shared_ptr<Communicator> group)
    : gradients_(std::move(gradients)), group_(std::move(group)), table_(ctx, entries_of(gradients_)) {
  const std::int64_t blocks = std::max<std::int64_t>(1, table_.chunks());  // a rank of many may count nothing
  const auto tag = MemoryTag::Workspace;
  partials_ = Tensor::zeros(ctx, {blocks}, DType::F64, "norm partials", tag);
  bad_ = Tensor::zeros(ctx, {blocks}, DType::I64, "non-finite counts", tag);
  squared_ = Tensor::zeros(ctx, {1}, DType::F64, "squared norm", tag);
  scale_ = Tensor::zeros(ctx, {1}, DType::F64, "clip scale", tag);
  norm_ = Tensor::zeros(ctx, {1}, DType::F64, "grad norm", tag);
  flag_ = Tensor::zeros(ctx, {1}, DType::I32, "non-finite flag", tag);
  watched_ = Tensor::zeros(ctx, {1}, DType::F64, "watched value", tag);
}

void GradientNorm::compute(Context& ctx, double clip) {
  kernels::MultiTensorNormArgs norm;
  norm.table = table_.table();
  norm.partials = partials_.data_as<double>();
  norm.nonfinite = bad_.data_as<std::int64_t>();
  if (table_.chunks() > 0) DELTRON_LAUNCH(ctx, multi_tensor_norm, norm);
  kernels::OrderedSumArgs sum{partials_.count(), partials_.data_as<const double>(), squared_.data_as<double>()};
  DELTRON_LAUNCH(ctx, ordered_sum, sum);
  if (group_) group_->all_reduce(ctx, squared_, "gradient norm");
  kernels::ClipScaleArgs clip_args;
  clip_args.squared_norm = squared_.data_as<const double>();
  clip_args.clip = clip;
  clip_args.scale = scale_.data_as<double>();
  clip_args.norm = norm_.data_as<double>();
  clip_args.nonfinite_flag = flag_.data_as<std::int32_t>();
  DELTRON_LAUNCH(ctx, clip_scale, clip_args);
}

double GradientNorm::norm(Context& ctx) const {
  if (ctx.is_meta()) return 0;
  double value = 0;
  copy_to_host(ctx, norm_, &value);
  return value;
}

bool GradientNorm::nonfinite(Context& ctx) const {
  if (ctx.is_meta()) return false;
  std::int32_t value = 0;
  copy_to_host(ctx, flag_, &value);
  return value != 0;
}

void GradientNorm::clear_flag(Context& ctx) {
  const std::int32_t zero = 0;
  copy_from_host(ctx, flag_, &zero);
}

GradientNorm::Culprit GradientNorm::find_nonfinite(Context& ctx) const {
  Culprit culprit;
  if (ctx.is_meta()) return culprit;
  std::vector<std::int64_t> bad(static_cast<std::size_t>(bad_.count()));
  copy_to_host(ctx, bad_, bad.data());
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    std::int64_t total = 0;
    for (std::int64_t block = table_.first_chunk(i); block < table_.first_chunk(i + 1); ++block) total += bad[static_cast<std::size_t>(block)];
    if (total > 0) return {static_cast<std::int64_t>(i), total, gradients_[i].count()};
  }
  return culprit;
}

void GradientNorm::watch(Context& ctx, const Tensor& value) {
  DELTRON_CHECK(value.dtype() == DType::F64 && value.count() == 1, "watched value '", value.name(), "'");
  kernels::SquaredNormArgs square;
  square.count = 1;
  square.x = value.data();
  square.dtype = DType::F64;
  square.partials = watched_.data_as<double>();
  DELTRON_LAUNCH(ctx, squared_norm, square);
  kernels::ClipScaleArgs flag;
  flag.squared_norm = watched_.data_as<const double>();
  flag.nonfinite_flag = flag_.data_as<std::int32_t>();
  DELTRON_LAUNCH(ctx, clip_scale, flag);
}

Event GradientNorm::read_later(Context& ctx, Reading& reading) const {
  reading.partials.assign(static_cast<std::size_t>(partials_.count()), 0);
  copy_to_host_later(ctx, norm_, &reading.norm);
  copy_to_host_later(ctx, partials_, reading.partials.data());
  return copy_to_host_later(ctx, flag_, &reading.nonfinite);  // the last of them in the stream's order
}

std::vector<double> GradientNorm::norms(const Reading& reading) const {
  std::vector<double> norms;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    double total = 0;
    for (std::int64_t block = table_.first_chunk(i); block < table_.first_chunk(i + 1); ++block) total += reading.partials[static_cast<std::size_t>(block)];
    norms.push_back(std::sqrt(total));
  }
  return norms;
}

}  // namespace deltron
