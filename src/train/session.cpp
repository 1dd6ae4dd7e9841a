// See session.h.
#include "src/train/session.h"

#include <unistd.h>

#include <algorithm>

#include "distributed/local_batch.h"
#include "src/data/pad_batch.h"
#include "src/tensor/cuda_device.h"
#include "src/train/activation_offload.h"
#include "src/train/attention_report.h"
#include "src/train/updates.h"
#include "src/train/capacity.h"

namespace deltron {

ContextOptions context_options(const RunConfig& config) {
  ContextOptions options;
  options.device = config.training.device;
  options.threads = static_cast<int>(config.training.threads);
  options.seed = static_cast<std::uint64_t>(config.training.seed);
  return options;
}

RankGrid rank_grid(const RunConfig& config, int ranks) {
  RankGrid grid;
  grid.tp = static_cast<int>(config.parallel.tensor_model_parallel_size);
  grid.cp = static_cast<int>(config.parallel.context_parallel_size);
  grid.dp = ranks / (grid.tp * grid.cp);
  DELTRON_CHECK_EQ(grid.size(), ranks, "ranks of the grid, of the job");
  return grid;
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

Session make_session(const RunConfig& config, bool trainable, DeviceKind device, const JobRanks& ranks) {
  Session session;
  session.config = config;
  session.ranks = ranks;
  session.channel = std::make_unique<HostChannel>(ranks.control);
  ContextOptions options = context_options(config);
  options.planned_device = options.device == DeviceKind::Meta ? DeviceKind::Cpu : options.device;
  options.device = device;
  if (ranks.local_size > 1 && device != DeviceKind::Meta) {  // processors are shared: no rank pins its threads to the same ones
    options.pin_threads = false;
    if (options.threads == 0) options.threads = std::max(1, available_cores() / ranks.local_size);
    const auto gpus = static_cast<int>(device == DeviceKind::Cuda ? cuda_status().devices.size() : 0);
    if (gpus > 0) options.device_index = ranks.local_rank % gpus;
  }
  // A plan counts past the limit, so that it can tell by how much.
  if (device != DeviceKind::Meta) options.memory_capacity = memory_limit_bytes(config);
  session.ctx = std::make_unique<Context>(options);
  if (ranks.size() > 1) {
    const RankGrid grid = rank_grid(config, ranks.size());
    if (device == DeviceKind::Meta) {
      set_meta_parallel_state(*session.ctx, grid, config.parallel.sequence_parallel);
    } else {
      set_parallel_state(*session.ctx, ranks.connect(*session.ctx), grid, config.parallel.sequence_parallel);
    }
  }
  attention_report(*session.ctx, config);  // asks for what can be had, or says why not
  const auto seed = static_cast<std::uint64_t>(config.training.seed);
  session.model = std::make_unique<HybridLanguageModel>(*session.ctx, config.model, model_dtype(config), trainable, seed);
  session.model->parameters().initialise(*session.ctx, seed);
  if (!trainable) return session;
  configure_offload(session);
  make_updates(session);
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

std::string rank_place_text(const Session& session) {
  const ParallelState& place = parallel_state(*session.ctx);
  std::string text = "tp " + std::to_string(place.tp_rank()) + " cp " + std::to_string(place.cp_rank()) + " dp " + std::to_string(place.dp_rank());
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) text += ", machine " + std::string(host);
  if (session.ctx->device() != DeviceKind::Cuda) return text + ", cpu, " + std::to_string(session.ctx->pool().threads()) + " threads";
  const auto index = static_cast<std::size_t>(session.ctx->options().device_index);
  const CudaStatus status = cuda_status();
  return text + ", cuda:" + std::to_string(index) + (index < status.devices.size() ? " " + status.devices[index].name + " " + status.devices[index].pci : "");
}

void pad_for_ranks(Context& ctx, HostBatch& batch) {
  const ParallelState& place = parallel_state(ctx);
  const std::int64_t cp = place.cp();
  pad_documents(batch, cp > 1 ? 2 * cp : 1, cp * (place.sequence_parallel ? place.tp() : 1));
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
