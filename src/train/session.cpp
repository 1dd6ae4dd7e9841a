// See session.h.
#include "src/train/session.h"

#include "distributed/local_batch.h"
#include "src/train/activation_offload.h"
#include "src/train/attention_report.h"
#include "src/train/capacity.h"

namespace deltron {

ContextOptions context_options(const RunConfig& config) {
  ContextOptions options;
  options.device = config.training.device;
  options.threads = static_cast<int>(config.training.threads);
  options.seed = static_cast<std::uint64_t>(config.training.seed);
  return options;
}

DType model_dtype(const RunConfig& config) { return config.training.bf16 ? DType::BF16 : DType::F32; }

bool has_data(const RunConfig& config) { return !config.data.data_path.empty() || config.data.synthetic != SyntheticTask::None; }

DataOptions data_options(const RunConfig& config, std::int64_t seq_length) {
  if (!has_data(config)) {
    throw Error(ErrorCode::DataOptionInvalid, ErrorText{"no data", "data", "data_path is empty and synthetic is none",
                                                        "one of them names what to train on", "set data.data_path or data.synthetic"});
  }
  DataOptions options;
  options.data_path = config.data.data_path;
  options.split = config.data.split;
  options.tokenizer = config.data.tokenizer == TokenizerKind::Byte ? "byte" : "";
  options.packing = config.data.packing == Packing::Windows ? "windows" : "documents";
  options.vocab_size = config.model.vocab_size;
  options.seq_length = seq_length > 0 ? seq_length : config.training.seq_length;
  options.seed = static_cast<std::uint64_t>(config.training.seed);
  options.cache_folder = config.data.path_to_cache;
  if (config.data.synthetic == SyntheticTask::Mqar) {
    options.data_path = {"mqar:vocab_size=" + std::to_string(config.data.mqar_vocab_size) + ",pairs=" + std::to_string(config.data.mqar_num_pairs)};
    options.seed = static_cast<std::uint64_t>(config.data.mqar_seed);
    options.tokenizer = "";
  }
  return options;
}

Session make_session(const RunConfig& config, bool trainable, DeviceKind device) {
  Session session;
  session.config = config;
  ContextOptions options = context_options(config);
  options.planned_device = options.device == DeviceKind::Meta ? DeviceKind::Cpu : options.device;
  options.device = device;
  // A plan counts past the limit, so that it can tell by how much.
  if (device != DeviceKind::Meta) options.memory_capacity = memory_limit_bytes(config);
  session.ctx = std::make_unique<Context>(options);
  attention_report(*session.ctx, config);  // asks for what can be had, or says why not
  const auto seed = static_cast<std::uint64_t>(config.training.seed);
  session.model = std::make_unique<HybridLanguageModel>(*session.ctx, config.model, model_dtype(config), trainable, seed);
  session.model->parameters().initialise(*session.ctx, seed);
  if (!trainable) return session;
  configure_offload(session);
  std::vector<OptimizedParameter> parameters;
  for (const ParameterPtr& parameter : session.model->parameters().all()) {
    parameters.push_back({parameter->spec.name, parameter->value.detached(), parameter->main_gradient, parameter->spec.weight_decay});
  }
  session.optimizer = std::make_unique<Optimizer>(*session.ctx, config.optimizer, std::move(parameters));
  session.optimizer->masters_from_weights(*session.ctx);
  return session;
}

std::map<std::string, std::string> data_content(const RunConfig& config) {
  std::map<std::string, std::string> content;
  std::vector<BlendPart> parts;
  if (config.data.synthetic != SyntheticTask::None || !blend(config.data, parts)) return content;
  for (const BlendPart& part : parts) {
    const DatasetMeta meta = load_dataset_meta(IndexedDataset(part.prefix));
    content[part.prefix] = meta.index_hash + " " + meta.bin_hash;
  }
  return content;
}

DeviceBatch upload(Context& ctx, const HostBatch& batch) {
  DeviceBatch device;
  DELTRON_CHECK(!batch.cu_seqlens.empty() && batch.cu_seqlens.back() == batch.num_tokens(), "offsets of a micro-batch of ",
                batch.num_tokens(), " tokens");
  device.layout = local_layout(ctx, batch.cu_seqlens, batch.positions, batch.token_sample, batch.token_offset);  // refuses what cannot be cut
  const auto send = [&](const std::vector<std::int32_t>& values, const char* name) {
    const std::vector<std::int32_t> mine = local_tokens(ctx, batch.cu_seqlens, values);
    const Tensor tensor = Tensor::empty(ctx, {static_cast<std::int64_t>(mine.size())}, DType::I32, name, MemoryTag::Data);
    copy_from_host(ctx, tensor, mine.data());
    return tensor;
  };
  device.ids = send(batch.tokens, "ids");
  device.labels = send(batch.labels, "labels");
  return device;
}

}  // namespace deltron
