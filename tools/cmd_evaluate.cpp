// `deltron evaluate`: a trained run on held-out data.
#include <limits>

#include <nlohmann/json.hpp>

#include "src/train/evaluate.h"
#include "tools/command.h"
#include "tools/run_loading.h"

namespace deltron::tools {
namespace {

class EvaluateCommand : public Command {
 public:
  std::string name() const override { return "evaluate"; }
  std::string summary() const override { return "loss, perplexity, bits per character and accuracy of a run on held-out data"; }
  std::string examples() const override {
    return "  deltron evaluate runs/first\n"
           "  deltron evaluate runs/first --split valid --seq-length 1024 --json\n"
           "  deltron evaluate runs/first --ablate linear-mixers\n";
  }
  void declare(OptionSet& options) override {
    options.positional("run", run_, true, "run folder (checkpoint.save of the training)");
    options.choice("--split", split_, {"train", "valid", "test"}, "which part of the data [valid]");
    options.value("--seq-length", seq_length_, "N", "context length [the training length]");
    options.value("--max-batches", max_batches_, "N", "stop after N batches [0: the whole split]");
    options.value("--samples", samples_, "N", "samples of a synthetic task [1024]");
    options.value("--step", step_, "N", "checkpoint [the newest complete one]");
    options.choice("--ablate", ablate_, {"none", "linear-mixers"}, "leave a part of the model out, to see what it is worth [none]");
    options.flag("--json", json_, "JSON instead of text");
    options.rest("section.key=value", overrides_, false, "overrides of the run's configuration");
  }
  ExitCode run(CommandIo& io) override {
    if (seq_length_ < 0 || max_batches_ < 0) usage_error(name(), "--seq-length and --max-batches are at least 0 (0: the default)");
    if (samples_ != kNotGiven && samples_ < 1) usage_error(name(), "--samples is at least 1");
    const bool sampled = samples_ != kNotGiven;
    LoadedModel loaded = load_model(run_, step_, overrides_);
    if (sampled && loaded.session.config.data.synthetic == SyntheticTask::None) {
      usage_error(name(), "--samples counts samples of a synthetic task, and this run reads text", "limit it with --max-batches");
    }
    EvaluateOptions options;
    options.split = parse_split_name(split_);
    options.seq_length = seq_length_;
    options.max_batches = max_batches_;
    if (sampled) options.samples = samples_;
    options.without_linear_mixers = ablate_ == "linear-mixers";
    nlohmann::ordered_json lines = nlohmann::ordered_json::array();
    for (const EvaluationResult& result : evaluate(loaded.session, options)) {
      if (!json_) {
        io.out << to_text(result) << "\n";
        continue;
      }
      nlohmann::ordered_json line;
      line["name"] = result.name;
      line["step"] = loaded.step;
      line["split"] = split_;
      line["loss"] = result.loss();
      line["perplexity"] = result.perplexity();
      line["accuracy"] = result.accuracy();
      line["predictions"] = result.predictions;
      // Of a part of the split there is no count of characters to divide by.
      const bool counted = result.characters > 0;
      line["characters"] = counted ? nlohmann::ordered_json(result.characters) : nlohmann::ordered_json(nullptr);
      line["bits_per_character"] = counted ? nlohmann::ordered_json(result.bits_per_character()) : nlohmann::ordered_json(nullptr);
      line["bits_per_byte"] = result.bytes > 0 ? nlohmann::ordered_json(result.bits_per_byte()) : nlohmann::ordered_json(nullptr);
      line["seconds"] = result.seconds;
      lines.push_back(line);
    }
    if (json_) io.out << (lines.size() == 1 ? lines[0] : lines).dump(2) << "\n";
    return ExitCode::Done;
  }

 private:
  std::string run_, split_ = "valid", step_, ablate_ = "none";
  static constexpr std::int64_t kNotGiven = std::numeric_limits<std::int64_t>::min();
  std::int64_t seq_length_ = 0, max_batches_ = 0, samples_ = kNotGiven;
  bool json_ = false;
  std::vector<std::string> overrides_;
};

}  // namespace

std::unique_ptr<Command> make_evaluate_command() { return std::make_unique<EvaluateCommand>(); }

}  // namespace deltron::tools
