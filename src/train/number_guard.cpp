// See number_guard.h.
#include "src/train/number_guard.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/checkpoint/safetensors.h"

namespace deltron {
namespace {

struct BadGradient {
  std::string name;
  std::int64_t bad = 0, count = 0;
};

// Logical tensors whose main gradient holds NaN or Inf, in the order in which the model declares them.
std::vector<BadGradient> bad_gradients(Session& session) {
  std::vector<BadGradient> found;
  for (const LogicalTensor& logical : session.model->parameters().logical()) {
    const std::vector<double> values = to_doubles(*session.ctx, logical.slice(logical.parameter->main_gradient));
    BadGradient entry{logical.name, 0, static_cast<std::int64_t>(values.size())};
    for (double value : values) entry.bad += std::isfinite(value) ? 0 : 1;
    if (entry.bad > 0) found.push_back(entry);
  }
  return found;
}

std::string layer_text(const std::string& name) {
  const std::string prefix = "decoder.layers.";
  if (name.rfind(prefix, 0) != 0) return "";
  return "layer " + name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size()) + ", ";
}

std::string sample_text(const HostBatch& batch) {
  constexpr std::size_t kMost = 16;
  std::string text = "samples";
  for (std::size_t i = 0; i < batch.sample_ids.size() && i < kMost; ++i) text += (i == 0 ? " " : ", ") + std::to_string(batch.sample_ids[i]);
  return text + (batch.sample_ids.size() > kMost ? ", ..." : "");
}

template <class T>
HostArray array_of(const std::string& name, DType dtype, const std::vector<T>& values) {
  HostArray array = make_array(name, dtype, {static_cast<std::int64_t>(values.size())});
  if (!values.empty()) std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

void write_batch(const std::string& path, std::int64_t step, const HostBatch& batch) {
  const HostArray arrays[] = {array_of("tokens", DType::I32, batch.tokens),         array_of("labels", DType::I32, batch.labels),
                              array_of("cu_seqlens", DType::I64, batch.cu_seqlens), array_of("positions", DType::I32, batch.positions),
                              array_of("sample_ids", DType::I64, batch.sample_ids), array_of("token_sample", DType::I64, batch.token_sample),
                              array_of("token_offset", DType::I32, batch.token_offset)};
  std::vector<HostView> views;
  for (const HostArray& array : arrays) views.push_back(array.view());
  write_safetensors(path, views, {{"step", std::to_string(step)}});
}

[[noreturn]] void bad_injection(const std::string& text, const std::string& what) {
  throw Error(ErrorCode::UsageError, ErrorText{what, "--inject-nan", text, "step=N,param=NAME[,micro_batch=M][,rank=R]", "write it so"});
}

std::int64_t whole_number(const std::string& text, const std::string& value) {
  if (value.empty() || value.size() > 9 || value.find_first_not_of("0123456789") != std::string::npos) bad_injection(text, "'" + value + "' is no number");
  return std::stoll(value);
}

}  // namespace

NanInjection parse_nan_injection(const std::string& text) {
  NanInjection injection;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "step") {
      injection.step = whole_number(text, value);
    } else if (key == "micro_batch") {
      injection.micro_batch = whole_number(text, value);
    } else if (key == "rank") {
      injection.rank = whole_number(text, value);
    } else if (key == "param") {
      injection.param = value;
    } else {
      bad_injection(text, "unknown part '" + part + "'");
    }
    begin = end + 1;
  }
  if (!text.empty() && (injection.step < 1 || injection.param.empty())) bad_injection(text, "step (from 1) and param are needed");
  return injection;
}

MicroBatchHook NumberGuard::hook(Session& session, std::int64_t step) const {
  if (injection_.step != step || injection_.rank != session.channel->rank()) return {};
  for (const LogicalTensor& logical : session.model->parameters().logical()) {
    if (logical.name != injection_.param) continue;
    const Tensor gradient = logical.slice(logical.parameter->main_gradient);
    return [&session, gradient, wanted = injection_.micro_batch](std::int64_t micro_batch) {
      if (micro_batch != wanted) return;
      std::vector<double> values = to_doubles(*session.ctx, gradient);
      values.back() = std::numeric_limits<double>::quiet_NaN();
      from_doubles(*session.ctx, gradient, values);
    };
  }
  std::vector<std::string> names;
  for (const LogicalTensor& logical : session.model->parameters().logical()) names.push_back(logical.name);
  throw Error(ErrorCode::UsageError, ErrorText{"no parameter '" + injection_.param + "'", "--inject-nan", "", "", "nearest: " + nearest_names(injection_.param, names)});
}

MicroBatchHook NumberGuard::begin_step(Session& session, std::int64_t step, const std::vector<HostBatch>& batches,
                                      const std::optional<BatchCounts>& whole) {
  ring_.push_back({step, batches, whole});
  if (ring_.size() > kRing) ring_.pop_front();
  return hook(session, step);
}

const NumberGuard::Kept& NumberGuard::kept(std::int64_t step) const {
  const auto found = std::find_if(ring_.begin(), ring_.end(), [&](const Kept& entry) { return entry.step == step; });
  DELTRON_CHECK(found != ring_.end(), "the batches of step ", step, " are no longer kept");
  return *found;
}

// The failed step and the one before it.
std::string NumberGuard::dump(const Session& session, const std::string& run, std::int64_t step) const {
  if (run.empty()) return "";
  const ParallelState& place = parallel_state(*session.ctx);
  const std::string folder = join_path(run, "nonfinite_step_" + std::to_string(step));
  if (place.tp_rank() > 0 || place.cp_rank() > 0) return folder;  // they had the same batches as the first of them
  make_directories(folder);
  const std::string prefix = place.dp() > 1 ? "data_rank_" + std::to_string(place.dp_rank()) + "_step_" : "step_";
  for (const Kept& kept : ring_) {
    if (kept.step > step || kept.step < step - 1) continue;
    for (std::size_t m = 0; m < kept.batches.size(); ++m) {
      write_batch(join_path(folder, prefix + std::to_string(kept.step) + "_micro_batch_" + std::to_string(m) + ".safetensors"), kept.step,
                  kept.batches[m]);
    }
  }
  return folder;
}

NumberGuard::Finding NumberGuard::find(Session& session, const Kept& failed) const {
  Finding finding;
  std::vector<BadGradient> bad;
  const auto run = [&](std::int64_t only) {
    session.model->parameters().zero_main_gradients(*session.ctx);
    const StepResult part = forward_backward(session, failed.batches, hook(session, failed.step), only, failed.whole);
    if (finding.micro_batch >= 0) return;
    const std::vector<BadGradient> found = bad_gradients(session);
    if (only >= 0 && std::isfinite(part.loss) && found.empty()) return;
    bad = found;
    finding.micro_batch = only;
    finding.loss_is_finite = std::isfinite(part.loss);
  };
  // Ranks of one model run every micro-batch together, so none of them ends early.
  const bool alone = session.channel->size() == 1;
  for (std::size_t m = 0; m < failed.batches.size() && !(alone && finding.micro_batch >= 0); ++m) run(static_cast<std::int64_t>(m));
  if (!alone || finding.micro_batch < 0) run(-1);  // perhaps only their sum is not finite
  if (!bad.empty()) {
    // Backward meets the parameters declared last first: the last bad one is nearest to where it began.
    finding.parameter = bad.back().name;
    finding.values = std::to_string(bad.back().bad) + " of " + std::to_string(bad.back().count) + " values";
    if (bad.size() > 1) finding.values += ", and values of " + std::to_string(bad.size() - 1) + " more parameters";
    finding.values += "; ";
  }
  return finding;
}

Error NumberGuard::explain(Session& session, std::int64_t step, const StepResult& result, const std::string& run) {
  const Kept& failed = kept(step);
  const std::string folder = dump(session, run, step);
  const Finding mine = find(session, failed);
  ErrorText text;
  text.what = std::isfinite(result.loss) && mine.loss_is_finite ? "a gradient is not finite" : "the loss is not finite";
  text.where = "step " + std::to_string(step);
  if (session.channel->size() > 1) text.where += ", rank " + std::to_string(session.channel->rank());
  if (!mine.parameter.empty()) text.where += ", " + layer_text(mine.parameter) + mine.parameter;
  text.values = mine.values;
  if (mine.micro_batch >= 0) {
    text.values += "micro-batch " + std::to_string(mine.micro_batch) + " of " + std::to_string(failed.batches.size()) + ", " +
                   sample_text(failed.batches[static_cast<std::size_t>(mine.micro_batch)]);
  } else {
    text.values += "every micro-batch alone is finite, their sum is not; samples " + std::to_string(failed.batches.front().sample_ids.front()) +
                   " to " + std::to_string(failed.batches.back().sample_ids.back());
  }
  // The rank that found something in the earliest micro-batch speaks for all; one that found nothing only if all did.
  const std::int64_t none = static_cast<std::int64_t>(failed.batches.size()) + (mine.parameter.empty() ? 1 : 0);
  session.channel->begin_numbers({static_cast<double>(mine.micro_batch >= 0 ? mine.micro_batch : none)});
  std::size_t speaker = 0;
  const std::vector<std::vector<double>> found = session.channel->finish_numbers();
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    if (found[rank][0] < found[speaker][0]) speaker = rank;
  }
  text.what = session.channel->exchange(text.what)[speaker];
  text.where = session.channel->exchange(text.where)[speaker];
  text.values = session.channel->exchange(text.values)[speaker];
  text.rule = "an update needs finite numbers; weights, optimizer and data cursor stay as before this step";
  if (!folder.empty()) text.rule += "; the batches lie in " + folder;
  text.fix = "lower optimizer.lr or lengthen optimizer.lr_warmup_iters; look at these samples";
  return Error(ErrorCode::NonFiniteValue, text);
}

}  // namespace deltron
