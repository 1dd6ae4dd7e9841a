// See parameter.h.
#include "src/nn/parameter.h"

#include <algorithm>
#include <cmath>

#include "distributed/parallel_state.h"
#include "src/base/hash.h"
#include "src/base/rng.h"
#include "src/base/signals.h"
#include "src/tensor/ops.h"

namespace deltron {
namespace {

constexpr std::int64_t kAlignment = 128;    // elements between parameters of the gradient buffer: 512 bytes of fp32
constexpr std::int64_t kInitBlock = 16384;  // elements drawn from one stream

double draw(RngStream& stream, const ParameterSpec& spec) {
  switch (spec.init) {
    case InitKind::Normal: return spec.init_scale * stream.normal();
    case InitKind::Uniform: return spec.init_scale * (2 * stream.uniform() - 1);
    case InitKind::Constant: return spec.init_scale;
    case InitKind::ALog: return std::log(1.0 + 15.0 * stream.uniform());
    case InitKind::DtBias: {
      const double dt = std::max(1e-4, std::exp(stream.uniform() * (std::log(0.1) - std::log(0.001)) + std::log(0.001)));
      return dt + std::log(-std::expm1(-dt));
    }
  }
  return 0;
}

// Where the elements of a logical tensor lie in the part that is here.
class Part {
 public:
  explicit Part(const LogicalTensor& logical) {
    const Shape whole = logical.whole_shape(), begin = logical.offset();
    const auto cut = static_cast<std::size_t>(std::max(logical.cut.dim, 0));
    inner_ = shape_count({whole.begin() + static_cast<std::ptrdiff_t>(cut) + 1, whole.end()});
    whole_ = whole[cut] * inner_;
    here_ = logical.shape[cut] * inner_;
    begin_ = begin[cut] * inner_;
    outer_ = shape_count({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut)});
  }
  std::int64_t place(std::int64_t element) const {  // -1: not here
    const std::int64_t inside = element % whole_ - begin_;
    return inside >= 0 && inside < here_ ? element / whole_ * here_ + inside : -1;
  }
  // Is none of [begin, end) here? May say no where there is none.
  bool outside(std::int64_t begin, std::int64_t end) const { return outer_ == 1 && (end <= begin_ || begin >= begin_ + here_); }

 private:
  std::int64_t outer_, whole_, here_, begin_, inner_;
};

}  // namespace

Tensor LogicalTensor::slice(const Tensor& whole) const {
  if (parameter->spec.sections.empty()) return whole.detached();
  return whole.slice(0, row_begin, shape[0]);
}

Shape LogicalTensor::whole_shape() const {
  Shape whole = shape;
  if (cut.dim >= 0) whole[static_cast<std::size_t>(cut.dim)] = cut.whole;
  return whole;
}

Shape LogicalTensor::offset() const {
  Shape begin(shape.size(), 0);
  if (cut.dim >= 0) begin[static_cast<std::size_t>(cut.dim)] = cut.begin;
  return begin;
}

Tensor LogicalTensor::value() const { return slice(parameter->value); }

ParameterPtr ParameterStore::declare(ParameterSpec spec) {
  DELTRON_CHECK(names_.insert(spec.name).second, "parameter '", spec.name, "' declared twice");
  std::int64_t rows = 0;
  for (const ParameterSection& section : spec.sections) rows += section.rows;
  DELTRON_CHECK(spec.sections.empty() || rows == spec.shape[0], "sections of '", spec.name, "' cover ", rows, " of ", spec.shape[0], " rows");
  auto parameter = std::make_shared<Parameter>();
  parameter->spec = std::move(spec);
  parameters_.push_back(parameter);
  return parameter;
}

void ParameterStore::materialise(Context& ctx, bool trainable) {
  std::int64_t total = 0;
  DType gradient_dtype = DType::F32;
  for (const ParameterPtr& parameter : parameters_) {
    const ParameterSpec& spec = parameter->spec;
    parameter->value = Tensor::empty(ctx, spec.shape, spec.dtype, spec.name.c_str(), MemoryTag::Weights);
    total += (shape_count(spec.shape) + kAlignment - 1) / kAlignment * kAlignment;
    if (spec.dtype == DType::F64) gradient_dtype = DType::F64;
  }
  if (!trainable) return;
  gradients_ = Tensor::zeros(ctx, {total}, gradient_dtype, "main gradients", MemoryTag::MainGradients);
  std::int64_t offset = 0;
  for (const ParameterPtr& parameter : parameters_) {
    const std::int64_t count = shape_count(parameter->spec.shape);
    parameter->main_gradient = gradients_.slice(0, offset, count).view(parameter->spec.shape);
    parameter->value = make_leaf(parameter->value, parameter->spec.name, parameter->main_gradient);
    offset += (count + kAlignment - 1) / kAlignment * kAlignment;
  }
}

void ParameterStore::initialise(Context& ctx, std::uint64_t seed) {
  if (ctx.is_meta()) return;
  for (const LogicalTensor& logical : this->logical()) {
    poll_stop("initialising weights");
    const Tensor target = logical.value();
    const std::uint64_t name_hash = hash64(logical.name.data(), logical.name.size());
    const Part part(logical);
    std::vector<double> values(static_cast<std::size_t>(target.count()));
    parallel_for(ctx.pool(), shape_count(logical.whole_shape()), kInitBlock, [&](std::int64_t begin, std::int64_t end) {
      if (part.outside(begin, end)) return;
      RngStream stream({seed, 0, kRngSiteInit}, name_hash ^ mix64(static_cast<std::uint64_t>(begin / kInitBlock)));
      for (std::int64_t i = begin; i < end; ++i) {
        const double value = draw(stream, logical.parameter->spec);
        const std::int64_t place = part.place(i);
        if (place >= 0) values[static_cast<std::size_t>(place)] = value;
      }
    });
    from_doubles(ctx, target, values);
  }
}

void ParameterStore::zero_main_gradients(Context& ctx) {
  if (!gradients_.defined()) return;
  fill(ctx, gradients_, 0);
  for (const ParameterPtr& parameter : parameters_) leaf_of(parameter->value)->stale = false;
}

void ParameterStore::start_main_gradients(Context& ctx) {
  if (!gradients_.defined()) return;
  std::int64_t offset = 0, begin = 0;  // [begin, offset): neighbours to be zeroed at once
  const auto zero = [&] {
    if (offset > begin) fill(ctx, gradients_.slice(0, begin, offset - begin), 0);
  };
  for (const ParameterPtr& parameter : parameters_) {
    Leaf& leaf = *leaf_of(parameter->value);
    const std::int64_t span = (parameter->main_gradient.count() + kAlignment - 1) / kAlignment * kAlignment;
    leaf.stale = leaf.accumulations == 0 || leaf.replaced;  // before its first backward nobody knows
    if (leaf.stale) {
      zero();
      begin = offset + span;
    }
    offset += span;
  }
  zero();
}

void ParameterStore::finish_main_gradients(Context& ctx) {
  if (!gradients_.defined()) return;
  for (const ParameterPtr& parameter : parameters_) main_gradient_to_add_to(ctx, *leaf_of(parameter->value));
}

void ParameterStore::sum_partial_gradients(Context& ctx) {
  const ParallelState& ranks = parallel_state(ctx);
  if (!ranks.tensor || !gradients_.defined()) return;
  // Every partial gradient gets a place in one buffer, the same on every rank. What is cut gets room for the whole, of which a rank fills its part.
  struct Entry {
    Tensor gradient;
    std::int64_t count, offset;  // room in the buffer; where the gradient lies in it
  };
  std::vector<Entry> entries;
  std::int64_t total = 0;
  for (const LogicalTensor& logical : this->logical()) {
    const PartialGradient& partial = logical.parameter->spec.partial;
    const bool replicated = partial.tensor_parallel || (partial.sequence_parallel && ranks.sequence_parallel);
    if (!replicated && logical.cut.holders == 1) continue;
    DELTRON_CHECK(logical.cut.dim <= 0, "'", logical.name, "' is cut along columns and held by several ranks");
    const std::int64_t count = shape_count(logical.whole_shape()), rows = logical.whole_shape()[0];
    entries.push_back({logical.slice(logical.parameter->main_gradient), count, total + logical.offset()[0] * (count / rows)});
    total += count;
  }
  if (entries.empty()) return;
  const Tensor sums = Tensor::zeros(ctx, {total}, gradients_.dtype(), "partial gradients", MemoryTag::Communication);
  const auto place = [&](const Entry& entry) { return sums.slice(0, entry.offset, entry.gradient.count()).view(entry.gradient.shape()); };
  for (const Entry& entry : entries) convert(ctx, entry.gradient, place(entry));
  ranks.tensor->all_reduce(ctx, sums, "partial gradients");
  for (const Entry& entry : entries) convert(ctx, place(entry), entry.gradient);
}

std::vector<LogicalTensor> ParameterStore::logical() const {
  std::vector<LogicalTensor> tensors;
  for (const ParameterPtr& parameter : parameters_) {
    const ParameterSpec& spec = parameter->spec;
    if (spec.sections.empty()) {
      tensors.push_back({spec.name, parameter, 0, spec.shape, spec.cut});
      continue;
    }
    std::int64_t row = 0;
    for (const ParameterSection& section : spec.sections) {
      Shape shape = spec.shape;
      shape[0] = section.rows;
      tensors.push_back({spec.name.substr(0, spec.name.find('#')) + "." + section.name, parameter, row, shape, section.cut});
      row += section.rows;
    }
  }
  return tensors;
}

std::int64_t ParameterStore::whole_count() const {
  std::int64_t total = 0;
  for (const LogicalTensor& tensor : logical()) total += shape_count(tensor.whole_shape());
  return total;
}

std::int64_t ParameterStore::count() const {
  std::int64_t total = 0;
  for (const ParameterPtr& parameter : parameters_) total += shape_count(parameter->spec.shape);
  return total;
}

}  // namespace deltron
