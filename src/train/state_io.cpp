// See state_io.h.
#include "src/train/state_io.h"

#include <algorithm>
#include <optional>

#include "src/config/schema.h"
#include "src/tensor/ops.h"
#include "src/train/attention_report.h"

namespace deltron {
namespace {

struct NamedTensor {
  std::string name;
  Tensor tensor;         // this rank's part, a view on the device
  Shape shape, offset;   // of the whole, and where the part begins in it
  bool written_here;     // every element of the whole is written by one rank
};

// Rows [row_begin, row_begin + rows) of a parameter, as `tensor` holds them: what of `logical` lies there, and exists (a vocabulary's padding
// does not). Nothing where they do not meet.
std::optional<NamedTensor> named(const Session& session, const std::string& name, const LogicalTensor& logical, const Tensor& tensor, std::int64_t row_begin,
                                 std::int64_t rows) {
  std::int64_t begin = std::max(row_begin, logical.row_begin), end = std::min(row_begin + rows, logical.row_begin + logical.shape[0]);
  NamedTensor part{name, {}, logical.whole_shape(), logical.offset(), true};
  part.offset[0] += begin - logical.row_begin;
  end = std::min(end, begin + part.shape[0] - part.offset[0]);
  if (begin >= end) return std::nullopt;
  part.tensor = tensor.detached().slice(0, begin - row_begin, end - begin);
  const ParameterCut& cut = logical.cut;
  if (cut.dim > 0) {
    const std::int64_t there = std::min(part.tensor.size(cut.dim), cut.whole - cut.begin);
    if (there <= 0) return std::nullopt;
    if (there < part.tensor.size(cut.dim)) part.tensor = part.tensor.slice(cut.dim, 0, there);
  }
  const ParallelState& place = parallel_state(*session.ctx);
  const bool first = cut.dim < 0 ? place.tp_rank() == 0 : cut.first_holder;  // of the tensor-parallel ranks that hold it
  part.written_here = first && (session.weight_gather || (place.dp_rank() == 0 && place.cp_rank() == 0));
  return part;
}

template <class Tensors>
void add_optimized(const Session& session, const std::string& prefix, const Tensors& tensor_of, std::vector<NamedTensor>& tensors) {
  for (const LogicalTensor& logical : session.model->parameters().logical()) {
    for (std::size_t i = 0; i < session.optimized.size(); ++i) {
      const OptimizedRows& rows = session.optimized[i];
      if (rows.parameter != logical.parameter) continue;
      const Tensor tensor = tensor_of(session.optimizer->state()[i]);
      if (!tensor.defined()) return;
      if (auto part = named(session, prefix + logical.name, logical, tensor, rows.row_begin, rows.rows)) tensors.push_back(std::move(*part));
    }
  }
}

// Weights in their own type, or masters in fp32 where the model is kept in a narrower type: the master is the truth.
std::vector<NamedTensor> model_tensors(const Session& session) {
  std::vector<NamedTensor> tensors;
  if (session.optimizer) {
    add_optimized(session, "", [](const OptimizerStateTensors& state) { return state.master; }, tensors);
    return tensors;
  }
  for (const LogicalTensor& logical : session.model->parameters().logical()) {
    const Tensor& value = logical.parameter->value;
    if (auto part = named(session, logical.name, logical, value, 0, value.size(0))) tensors.push_back(std::move(*part));
  }
  return tensors;
}

std::vector<NamedTensor> optimizer_tensors(const Session& session) {
  std::vector<NamedTensor> tensors;
  add_optimized(session, "exp_avg.", [](const OptimizerStateTensors& state) { return state.exp_avg; }, tensors);
  add_optimized(session, "exp_avg_sq.", [](const OptimizerStateTensors& state) { return state.exp_avg_sq; }, tensors);
  return tensors;
}

// All that the model and, with `optimizer`, its updates keep, on whatever ranks.
std::vector<std::string> all_names(const Session& session, bool optimizer) {
  std::vector<std::string> names;
  for (const LogicalTensor& logical : session.model->parameters().logical()) {
    names.push_back(logical.name);
    if (!optimizer || session.config.optimizer.optimizer != OptimizerKind::AdamW) continue;
    names.push_back("exp_avg." + logical.name);
    names.push_back("exp_avg_sq." + logical.name);
  }
  return names;
}

// The parts that are written here, copied to the host. Parts cut along columns are no contiguous rows: gathered first.
TensorGroup to_group(Context& ctx, const std::string& name, const std::vector<NamedTensor>& tensors, std::vector<HostArray>& keep) {
  TensorGroup group;
  group.name = name;
  for (const NamedTensor& part : tensors) {
    if (!part.written_here) continue;
    const Tensor flat = contiguous(ctx, part.tensor, "saved part");
    HostArray array = make_array(part.name, flat.dtype(), flat.shape());
    copy_to_host(ctx, flat, array.bytes.data());
    keep.push_back(std::move(array));
    group.tensors.emplace_back(keep.back().view(), part.shape, Block{part.offset, flat.shape()});
  }
  return group;
}

}  // namespace

nlohmann::json update_fingerprint(const Session& session) {
  nlohmann::json print;
  print["threads"] = session.ctx->pool().threads();
  print["instruction_set"] = instruction_set();
  print["device"] = device_name(session.ctx->device());
  const ParallelState& place = parallel_state(*session.ctx);
  print["ranks"] = "tp " + std::to_string(place.tp()) + (place.sequence_parallel ? " with sequence parallelism" : "") + ", cp " + std::to_string(place.cp()) +
                   ", dp " + std::to_string(place.dp());
  const std::string attention = attention_kernels(*session.ctx, session.config);
  if (!attention.empty()) print["attention"] = attention;
  nlohmann::json keys;
  for (const Field& field : config_fields()) {
    const bool matters = field.section == "model" || field.section == "optimizer" || field.section == "data" || field.name() == "training.bf16" ||
                         field.name() == "training.micro_batch_size" || field.name() == "training.global_batch_size" ||
                         field.name() == "training.seq_length" || field.name() == "training.seed" ||
                         (field.name() == "training.train_iters" && session.config.optimizer.lr_decay_iters == 0);
    if (matters && field.name() != "data.path_to_cache") keys[field.name()] = value_text(field, field.get(session.config));
  }
  // The same prefix may hold other text now: its content counts, not its name.
  for (const auto& [prefix, hashes] : session.data_content) keys["content of " + prefix] = hashes;
  print["keys"] = keys;
  return print;
}

SaveReport save_run(Session& session, const TrainProgress& progress, const std::string& run, WriteObserver* observer) {
  Context& ctx = *session.ctx;
  std::vector<HostArray> keep;
  const std::vector<NamedTensor> model = model_tensors(session), optimizer = optimizer_tensors(session);
  keep.reserve(model.size() + optimizer.size());
  CheckpointContent content;
  content.step = progress.step;
  content.groups.push_back(to_group(ctx, "model", model, keep));
  if (!optimizer.empty()) content.groups.push_back(to_group(ctx, "optimizer", optimizer, keep));
  content.state["step"] = progress.step;
  content.state["consumed_samples"] = progress.consumed_samples;
  content.state["recent_losses"] = progress.recent_losses;  // shortest round-trip decimals: the same bits again
  content.state["source_samples"] = progress.source_samples;
  content.state["optimizer_updates"] = session.optimizer->updates();
  content.state["fingerprint"] = update_fingerprint(session);
  SaveOptions options;
  options.retention.keep_last = session.config.checkpoint.keep_last;
  options.retention.keep_every = session.config.checkpoint.keep_every;
  options.observer = observer;
  if (session.channel->size() > 1) options.ranks = session.channel.get();
  return save_checkpoint(run, content, options);
}

LoadedRun load_run(Session& session, const CheckpointReader& reader, bool weights_only) {
  Context& ctx = *session.ctx;
  std::vector<NamedTensor> wanted = model_tensors(session);
  if (!weights_only && session.optimizer) {
    const std::vector<NamedTensor> more = optimizer_tensors(session);
    wanted.insert(wanted.end(), more.begin(), more.end());
  }
  const bool all = !weights_only && session.optimizer;
  reader.require_names(all_names(session, all), !all);
  for (const NamedTensor& part : wanted) {
    const HostArray found = reader.read_block(part.name, part.shape, Block{part.offset, part.tensor.shape()});
    const HostArray array = converted(found.view(), part.tensor.dtype());
    copy_from_host(ctx, part.tensor, array.bytes.data());
  }
  if (session.optimizer) session.optimizer->weights_from_masters(ctx);
  if (session.weight_gather) session.weight_gather->run(ctx);
  LoadedRun loaded;
  if (weights_only || !session.optimizer) return loaded;
  const nlohmann::json& state = reader.state();
  try {
    loaded.progress.step = state.at("step").get<std::int64_t>();
    loaded.progress.consumed_samples = state.at("consumed_samples").get<std::int64_t>();
    if (state.contains("recent_losses")) loaded.progress.recent_losses = state.at("recent_losses").get<std::vector<double>>();
    loaded.progress.source_samples = state.value("source_samples", std::int64_t{0});
    session.optimizer->set_updates(state.at("optimizer_updates").get<std::int64_t>());
    const nlohmann::json before = state.at("fingerprint"), now = update_fingerprint(session);
    for (const char* key : {"threads", "instruction_set", "device", "ranks", "attention"}) {
      if (!before.contains(key) || !now.contains(key)) continue;  // no softmax attention, or a checkpoint from before these were recorded
      if (before.at(key) != now.at(key)) {
        loaded.differences.push_back(std::string(key) + ": " + before.at(key).dump() + " then, " + now.at(key).dump() + " now");
      }
    }
    for (const auto& [key, value] : now.at("keys").items()) {
      const std::string then = before.at("keys").contains(key) ? before.at("keys").at(key).get<std::string>() : "(default)";
      if (then != value.get<std::string>()) loaded.differences.push_back(key + ": " + then + " then, " + value.get<std::string>() + " now");
    }
  } catch (const nlohmann::json::exception& fault) {
    throw Error(ErrorCode::CheckpointInvalid, ErrorText{"the trainer's state cannot be read", reader.path(), fault.what(),
                                                        "state holds step, consumed_samples, optimizer_updates and fingerprint",
                                                        "resume from another step, or use --weights-only"});
  }
  return loaded;
}

}  // namespace deltron
