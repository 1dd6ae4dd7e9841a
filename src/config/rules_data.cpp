// Rules about data, checkpoints and logs.
#include <algorithm>

#include "src/config/rules.h"

namespace deltron {
namespace {

using std::to_string;

constexpr std::int64_t kByteVocabulary = 257;  // 256 bytes and the end of a document

bool mqar(const RunConfig& config) { return config.data.synthetic == SyntheticTask::Mqar; }

void data_path_is_well_formed(RuleContext& context) {
  std::vector<BlendPart> parts;
  if (blend(context.config.data, parts)) return;
  context.report(ErrorCode::ConfigInconsistent, {"data.data_path"},
                 {"data.data_path is neither a list of prefixes nor weight, prefix, weight, prefix, ...", "",
                  value_text(field_of("data.data_path"), context.config.data.data_path), "weights are numbers > 0, and every prefix has one or none has",
                  "write [0.7, data/a, 0.3, data/b] or [data/a, data/b]"});
}

void data_path_names_are_unique(RuleContext& context) {
  std::vector<BlendPart> parts;
  if (!blend(context.config.data, parts)) return;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto same = [&](const BlendPart& other) { return other.prefix == parts[i].prefix; };
    const auto here = parts.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(parts.begin(), here, same)) {
      context.report(ErrorCode::ConfigInconsistent, {"data.data_path"},
                     {"data.data_path names a prefix twice", "", "'" + parts[i].prefix + "'", "each prefix stands once", "raise its weight instead"});
    }
  }
}

void split_is_well_formed(RuleContext& context) {
  const DataConfig& data = context.config.data;
  std::array<double, 3> weights{};
  if (!split_weights(data.split, weights)) {
    context.report(ErrorCode::ConfigInconsistent, {"data.split"},
                   {"data.split is not three weights", "", "'" + data.split + "'", "three numbers >= 0 of a positive sum: training, validation, test",
                    "write \"90,10,0\""});
    return;
  }
  if (weights[0] > 0.0) return;
  context.report(ErrorCode::ConfigInconsistent, {"data.split"},
                 {"data.split leaves nothing to train on", "", "'" + data.split + "'", "the first weight is > 0", "write \"90,10,0\""});
}

void evaluation_has_data(RuleContext& context) {
  const RunConfig& config = context.config;
  std::array<double, 3> weights{};
  if (config.training.eval_interval == 0 || config.data.data_path.empty()) return;
  if (!split_weights(config.data.split, weights) || weights[1] > 0.0) return;
  context.report(ErrorCode::ConfigInconsistent, {"training.eval_interval", "data.split", "data.data_path"},
                 {"training.eval_interval is set, but data.split leaves no validation data", "", "'" + config.data.split + "'",
                  "evaluation reads the validation part", "give split a second weight > 0 or remove eval_interval"});
}

void one_source_of_data(RuleContext& context) {
  if (!mqar(context.config) || context.config.data.data_path.empty()) return;
  context.report(ErrorCode::ConfigInconsistent, {"data.data_path", "data.synthetic"},
                 {"data.data_path and data.synthetic are both set", "", "", "training has one source of data", "remove one of them"});
}

void file_keys_need_files(RuleContext& context) {
  if (!context.config.data.data_path.empty()) return;
  const std::vector<std::string> keys = {"data.split", "data.packing", "data.path_to_cache"};
  context.without_effect(keys, "read only with data_path", {"data.data_path", "data.synthetic"}, "remove it or set data_path");
  if (mqar(context.config)) {
    context.without_effect({"data.tokenizer"}, "a synthetic task makes token ids itself", {"data.synthetic"}, "remove it");
  }
}

void byte_tokens_fit(RuleContext& context) {
  const RunConfig& config = context.config;
  if (config.data.data_path.empty() || config.data.tokenizer != TokenizerKind::Byte) return;
  if (config.model.vocab_size == 0 || config.model.vocab_size >= kByteVocabulary) return;
  context.report(ErrorCode::ConfigInconsistent, {"model.vocab_size", "data.tokenizer", "data.data_path"},
                 {"model.vocab_size is too small for the byte tokenizer", "", to_string(config.model.vocab_size),
                  "ids 0..255 are bytes and 256 ends a document", "the smallest legal value is 257; 264 is a multiple of 8"});
}

void mqar_keys_need_mqar(RuleContext& context) {
  if (mqar(context.config)) return;
  context.without_effect({"data.mqar_vocab_size", "data.mqar_num_pairs", "data.mqar_seed"}, "read only with synthetic: mqar", {"data.synthetic"},
                         "remove it or set synthetic: mqar");
}

void mqar_fits_the_sequence(RuleContext& context) {
  const RunConfig& config = context.config;
  const std::int64_t length = config.training.seq_length;
  if (!mqar(config) || length == 0 || 4 * config.data.mqar_num_pairs <= length) return;
  context.report(ErrorCode::ConfigInconsistent, {"data.mqar_num_pairs", "training.seq_length", "data.synthetic"},
                 {"data.mqar_num_pairs does not fit the sequence", "", to_string(config.data.mqar_num_pairs) + " pairs, seq_length " + to_string(length),
                  "pairs take a half, queries the other: 4 x pairs <= seq_length",
                  length >= 4 ? "the largest legal value is " + to_string(length / 4) : "seq_length of at least 4"});
}

void mqar_fits_the_vocabulary(RuleContext& context) {
  const RunConfig& config = context.config;
  const std::int64_t ids = config.data.mqar_vocab_size;
  if (!mqar(config)) return;
  if (config.model.vocab_size != 0 && ids > config.model.vocab_size) {
    context.report(ErrorCode::ConfigInconsistent, {"data.mqar_vocab_size", "model.vocab_size", "data.synthetic"},
                   {"data.mqar_vocab_size is larger than model.vocab_size", "", to_string(ids) + " and " + to_string(config.model.vocab_size),
                    "every id is in the vocabulary", "the largest legal value is " + to_string(config.model.vocab_size / 2 * 2)});
  }
  if (ids % 2 != 0) {
    context.report(ErrorCode::ConfigInconsistent, {"data.mqar_vocab_size", "data.synthetic"},
                   {"data.mqar_vocab_size is odd", "", to_string(ids), "keys and values take a half each", to_string(ids - 1) + " or " + to_string(ids + 1)});
  } else if (config.data.mqar_num_pairs > ids / 2 - 1) {
    context.report(ErrorCode::ConfigInconsistent, {"data.mqar_num_pairs", "data.mqar_vocab_size", "data.synthetic"},
                   {"data.mqar_num_pairs is more than there are keys", "", to_string(config.data.mqar_num_pairs) + " pairs, " + to_string(ids / 2 - 1) + " keys",
                    "keys of a sequence are distinct, and id 0 is none", "the largest legal value is " + to_string(ids / 2 - 1)});
  }
}

void checkpoint_keys_need_a_folder(RuleContext& context) {
  if (!context.config.checkpoint.save.empty()) return;
  context.without_effect({"checkpoint.save_interval", "checkpoint.keep_last", "checkpoint.keep_every", "checkpoint.resume",
                          "logging.tensorboard", "logging.log_per_layer_grad_norm"},
                         "read only where checkpoint.save names a run folder", {"checkpoint.save"}, "remove it or set checkpoint.save");
}

void keep_every_needs_keep_last(RuleContext& context) {
  const CheckpointConfig& checkpoint = context.config.checkpoint;
  if (checkpoint.save.empty() || checkpoint.keep_last > 0) return;
  context.without_effect({"checkpoint.keep_every"}, "without keep_last every checkpoint is kept", {"checkpoint.keep_last"},
                         "remove it or set keep_last");
}

void keep_every_meets_saves(RuleContext& context) {
  const CheckpointConfig& checkpoint = context.config.checkpoint;
  if (checkpoint.save.empty() || checkpoint.keep_last == 0 || checkpoint.keep_every == 0 || checkpoint.save_interval == 0) return;
  if (checkpoint.keep_every % checkpoint.save_interval == 0) return;
  const std::int64_t below = checkpoint.keep_every / checkpoint.save_interval * checkpoint.save_interval;
  context.report(ErrorCode::ConfigInconsistent, {"checkpoint.keep_every", "checkpoint.save_interval"},
                 {"checkpoint.keep_every is not a multiple of save_interval", "", to_string(checkpoint.keep_every) + " and " + to_string(checkpoint.save_interval),
                  "only updates that are saved can be kept", (below > 0 ? to_string(below) + " or " : "") + to_string(below + checkpoint.save_interval)});
}

void resume_is_well_formed(RuleContext& context) {
  ResumeRequest request;
  if (resume_request(context.config.checkpoint.resume, request)) return;
  context.report(ErrorCode::ConfigInconsistent, {"checkpoint.resume"},
                 {"checkpoint.resume is neither auto, never nor a step", "", "'" + context.config.checkpoint.resume + "'", "steps are integers >= 0",
                  "write auto"});
}

// Every range holds two events of the device until the recording ends.
constexpr std::int64_t kMostProfiledSteps = 100;

void profile_steps_need_profile(RuleContext& context) {
  if (context.config.logging.profile) return;
  context.without_effect({"logging.profile_step_start", "logging.profile_step_end"}, "read only with profile", {"logging.profile"},
                         "remove it or set profile: true");
}

void profile_has_a_folder(RuleContext& context) {
  if (!context.config.logging.profile || !context.config.checkpoint.save.empty()) return;
  context.report(ErrorCode::ConfigMissingKey, {"logging.profile", "checkpoint.save"},
                 {"logging.profile is true, and checkpoint.save is not set", "", "", "the trace is written into the run folder", "set checkpoint.save"});
}

void profile_steps_are_in_the_run(RuleContext& context) {
  const LoggingConfig& logging = context.config.logging;
  const std::int64_t total = context.config.training.train_iters;
  if (!logging.profile) return;
  const std::string values = to_string(logging.profile_step_start) + " to " + to_string(logging.profile_step_end);
  const std::vector<std::string> keys = {"logging.profile_step_start", "logging.profile_step_end"};
  if (logging.profile_step_start >= logging.profile_step_end) {
    context.report(ErrorCode::ConfigInconsistent, keys,
                   {"logging.profile_step_start is not before profile_step_end", "", values, "recording begins when the one is done and ends when the other is done",
                    "profile_step_end " + to_string(logging.profile_step_start + 1) + " or more"});
  } else if (logging.profile_step_end - logging.profile_step_start > kMostProfiledSteps) {
    context.report(ErrorCode::ConfigInconsistent, keys,
                   {"logging.profile records too many steps", "", values, "at most " + to_string(kMostProfiledSteps) + " steps: all their ranges are held in memory",
                    "the largest legal profile_step_end is " + to_string(logging.profile_step_start + kMostProfiledSteps)});
  }
  if (total == 0 || logging.profile_step_end <= total) return;
  context.report(ErrorCode::ConfigInconsistent, {"logging.profile_step_end", "training.train_iters"},
                 {"logging.profile_step_end lies beyond the run", "", to_string(logging.profile_step_end) + " of " + to_string(total) + " steps",
                  "the recorded steps are steps of the run", "the largest legal value is " + to_string(total)});
}

}  // namespace

const std::vector<Rule>& data_rules() {
  static const std::vector<Rule> rules = {
      {"data_path_is_well_formed", {241}, "data_path is a list of prefixes or of weights and prefixes", data_path_is_well_formed},
      {"data_path_names_are_unique", {242}, "data_path names each prefix once", data_path_names_are_unique},
      {"split_is_well_formed", {243}, "split is three weights, the first > 0", split_is_well_formed},
      {"evaluation_has_data", {244}, "eval_interval goes with a validation part of split", evaluation_has_data},
      {"one_source_of_data", {245}, "data_path and synthetic are not both set", one_source_of_data},
      {"file_keys_need_files", {246}, "split, packing, path_to_cache and tokenizer are set only where they are read", file_keys_need_files},
      {"byte_tokens_fit", {247}, "vocab_size holds the byte tokenizer's 257 ids", byte_tokens_fit},
      {"mqar_keys_need_mqar", {248}, "mqar_* are set only with synthetic: mqar", mqar_keys_need_mqar},
      {"mqar_fits_the_sequence", {249}, "4 x mqar_num_pairs is at most seq_length", mqar_fits_the_sequence},
      {"mqar_fits_the_vocabulary", {250}, "mqar_vocab_size is even, at most vocab_size, and has a key for every pair", mqar_fits_the_vocabulary},
      {"checkpoint_keys_need_a_folder", {251}, "checkpoint keys are set only with checkpoint.save", checkpoint_keys_need_a_folder},
      {"keep_every_needs_keep_last", {252}, "keep_every is set only with keep_last", keep_every_needs_keep_last},
      {"keep_every_meets_saves", {253}, "keep_every is a multiple of save_interval", keep_every_meets_saves},
      {"resume_is_well_formed", {254}, "resume is auto, never or a step", resume_is_well_formed},
      {"profile_steps_need_profile", {256}, "profile_step_* are set only with profile", profile_steps_need_profile},
      {"profile_has_a_folder", {257}, "profile goes with a run folder, checkpoint.save", profile_has_a_folder},
      {"profile_steps_are_in_the_run", {258}, "profile_step_start is before profile_step_end, by at most 100 steps, and both lie in the run", profile_steps_are_in_the_run},
  };
  return rules;
}

}  // namespace deltron
