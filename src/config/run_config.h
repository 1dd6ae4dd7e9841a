// The configuration as plain structs: section.key of the YAML file is RunConfig::section.key here, with the same name.
// Owns the default of every key and what follows from keys alone. Must not know YAML, tensors or devices.
// 0 (or an empty list) in a size that has no sensible default means "not set"; src/config/validate.h says which are then needed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/attention_backend.h"
#include "src/base/dtype.h"

namespace deltron {

enum class ExperimentalAttentionVariant { None, Gdn, Gdn2 };
enum class PositionEmbeddingType { Rope, None };
enum class LinearDtBiasInit { Ones, LogUniform };
enum class RecomputeGranularity { None, Full, Selective };
enum class RecomputeMethod { None, Uniform, Block };
enum class OptimizerKind { AdamW, Sgd };
enum class LrDecayStyle { Constant, Linear, Cosine, Wsd };
enum class LrWsdDecayStyle { Linear, Cosine, Exponential, MinusSqrt };
enum class DistributedBackend { Auto, Nccl, Gloo };
enum class TokenizerKind { Byte, None };
enum class Packing { Windows, Documents };
enum class SyntheticTask { None, Mqar };

// Which layers have a linear mixer. Either an interval f: softmax attention on layers f, 2f, ... (counted from 1), linear elsewhere,
// so 1 = softmax everywhere and 0 = linear everywhere; or a list, one entry a layer, 1 = linear, 0 = softmax.
struct LinearAttentionFreq {
  static constexpr std::int64_t kNotSet = -1;
  std::int64_t interval = kNotSet;         // used while the list is empty
  std::vector<std::int64_t> pattern = {};  // [num_layers]
  bool operator==(const LinearAttentionFreq&) const = default;
};

struct TransformerConfig {
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t vocab_size = 0;
  ExperimentalAttentionVariant experimental_attention_variant = ExperimentalAttentionVariant::None;
  LinearAttentionFreq linear_attention_freq = {};
  std::int64_t linear_num_key_heads = 0;
  std::int64_t linear_num_value_heads = 0;
  std::int64_t linear_key_head_dim = 0;
  std::int64_t linear_value_head_dim = 0;
  std::int64_t linear_conv_kernel_dim = 4;
  bool allow_neg_eigval = false;
  LinearDtBiasInit linear_dt_bias_init = LinearDtBiasInit::Ones;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_query_groups = 0;  // 0: num_attention_heads; read it with query_groups()
  std::int64_t kv_channels = 0;       // 0: hidden_size / num_attention_heads; read it with head_dim()
  bool attention_output_gate = false;
  bool qk_layernorm = false;
  PositionEmbeddingType position_embedding_type = PositionEmbeddingType::Rope;
  double rotary_percent = 1.0;
  double rotary_base = 10000.0;
  double layernorm_epsilon = 1e-6;
  bool layernorm_zero_centered_gamma = false;
  bool linear_output_norm_zero_centered_gamma = false;
  bool untie_embeddings_and_output_weights = false;
  double hidden_dropout = 0.0;
  double attention_dropout = 0.0;
  AttentionBackend attention_backend = AttentionBackend::Auto;
  double init_method_std = 0.02;
  bool gdn_pre_gated_delta_rule_fusion = false;
  bool gdn_gated_output_norm_fusion = false;
  bool operator==(const TransformerConfig&) const = default;
};

struct RecomputeConfig {
  RecomputeGranularity recompute_granularity = RecomputeGranularity::None;
  RecomputeMethod recompute_method = RecomputeMethod::None;
  std::int64_t recompute_num_layers = 0;
  std::vector<std::string> recompute_modules = {};
  bool operator==(const RecomputeConfig&) const = default;
};

struct OffloadConfig {
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules = {};
  std::int64_t min_offloaded_tensor_size = 1048576;
  double activation_offload_fraction = 1.0;
  std::int64_t fine_grained_offloading_max_inflight_offloads = -1;  // -1: no cap
  bool operator==(const OffloadConfig&) const = default;
};

struct ParallelConfig {
  std::int64_t tensor_model_parallel_size = 1;
  bool sequence_parallel = false;
  std::int64_t context_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  bool overlap_grad_reduce = true;
  std::int64_t ddp_bucket_size = 40000000;
  DistributedBackend distributed_backend = DistributedBackend::Auto;
  double distributed_timeout_minutes = 10;
  bool operator==(const ParallelConfig&) const = default;
};

struct TrainingConfig {
  DeviceKind device = DeviceKind::Cpu;
  bool bf16 = false;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 1;
  std::int64_t seq_length = 0;
  std::int64_t train_iters = 0;
  std::int64_t eval_interval = 0;  // 0: no evaluation while training
  std::int64_t eval_iters = 0;     // 0: the whole validation split
  std::int64_t seed = 1234;
  std::int64_t threads = 0;        // 0: all cores
  bool deterministic_mode = true;
  std::int64_t exit_interval = 0;
  double exit_duration_in_mins = 0;
  double memory_limit_gib = 0.0;   // 0: what the device has
  bool operator==(const TrainingConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::AdamW;
  double lr = 0.0;
  double min_lr = 0.0;
  LrDecayStyle lr_decay_style = LrDecayStyle::Cosine;
  std::int64_t lr_decay_iters = 0;  // 0: train_iters; read it with decay_iters()
  std::int64_t lr_warmup_iters = 0;
  std::int64_t lr_wsd_decay_iters = 0;
  LrWsdDecayStyle lr_wsd_decay_style = LrWsdDecayStyle::Exponential;
  double weight_decay = 0.01;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double clip_grad = 1.0;
  bool decay_all_parameters = false;
  bool use_distributed_optimizer = false;
  bool operator==(const OptimizerConfig&) const = default;
};

struct DataConfig {
  std::vector<std::string> data_path = {};  // prefixes, or weight, prefix, weight, prefix, ...; read it with blend()
  std::string split = "90,10,0";            // read it with split_weights()
  TokenizerKind tokenizer = TokenizerKind::Byte;
  Packing packing = Packing::Windows;
  std::string path_to_cache = "";           // empty: beside the data
  SyntheticTask synthetic = SyntheticTask::None;
  std::int64_t mqar_vocab_size = 64;
  std::int64_t mqar_num_pairs = 4;
  std::int64_t mqar_seed = 0;
  bool operator==(const DataConfig&) const = default;
};

struct CheckpointConfig {
  std::string save = "";            // run folder; empty: nothing is written
  std::int64_t save_interval = 0;   // 0: at the end only
  std::int64_t keep_last = 0;       // 0: all are kept
  std::int64_t keep_every = 0;
  std::string resume = "auto";      // auto, never or a step; read it with resume_request()
  bool operator==(const CheckpointConfig&) const = default;
};

struct LoggingConfig {
  std::int64_t log_interval = 10;
  bool tensorboard = false;
  bool log_per_layer_grad_norm = false;
  double loss_spike_z_score = 0.0;
  bool profile = false;
  std::int64_t profile_step_start = 10;
  std::int64_t profile_step_end = 12;
  bool operator==(const LoggingConfig&) const = default;
};

// What a machine reaches, as measured: for `deltron plan` alone.
struct PlanConfig {
  double achieved_tflops = 0;
  std::int64_t ranks_per_node = 8;
  double link_gb_s = 0;
  double network_gb_s = 0;
  bool operator==(const PlanConfig&) const = default;
};

struct RunConfig {
  TransformerConfig model;
  RecomputeConfig recompute;
  OffloadConfig offload;
  ParallelConfig parallel;
  TrainingConfig training;
  OptimizerConfig optimizer;
  DataConfig data;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  PlanConfig plan;
  bool operator==(const RunConfig&) const = default;
};

// --- what follows from the keys alone ---

// layer counts from 0.
bool is_linear_layer(const TransformerConfig& model, std::int64_t layer);
std::int64_t linear_layer_count(const TransformerConfig& model);
std::int64_t softmax_layer_count(const TransformerConfig& model);
std::int64_t query_groups(const TransformerConfig& model);
std::int64_t head_dim(const TransformerConfig& model);    // of softmax attention; 0 where there are no heads
std::int64_t rotary_dim(const TransformerConfig& model);  // leading channels that RoPE turns; 0 without RoPE
std::int64_t decay_iters(const RunConfig& config);

struct BlendPart {
  double weight = 1.0;  // as given; not normalised
  std::string prefix = {};
};
// False where `data_path` mixes the two forms or has a weight that is not positive.
bool blend(const DataConfig& data, std::vector<BlendPart>& parts);
// The three weights of training, validation and test as given, not normalised. False where `split` is not three numbers >= 0 of a
// positive sum.
bool split_weights(const std::string& split, std::array<double, 3>& weights);

struct ResumeRequest {
  enum class Kind { Auto, Never, Step } kind = Kind::Auto;
  std::int64_t step = 0;
};
bool resume_request(const std::string& resume, ResumeRequest& request);

}  // namespace deltron
