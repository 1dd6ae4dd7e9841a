// See parameter.h.
#include "src/nn/parameter.h"

#include <algorithm>
#include <cmath>

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
    const std::int64_t count = target.count();
    std::vector<double> values(static_cast<std::size_t>(count));
    parallel_for(ctx.pool(), count, kInitBlock, [&](std::int64_t begin, std::int64_t end) {
      RngStream stream({seed, 0, kRngSiteInit}, name_hash ^ mix64(static_cast<std::uint64_t>(begin / kInitBlock)));
      for (std::int64_t i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] = draw(stream, logical.parameter->spec);
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

std::int64_t ParameterStore::count() const {
  std::int64_t total = 0;
  for (const ParameterPtr& parameter : parameters_) total += shape_count(parameter->spec.shape);
  return total;
}

}  // namespace deltron
