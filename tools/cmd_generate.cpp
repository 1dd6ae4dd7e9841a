// `deltron generate`: text sampled from a trained run.
#include <ostream>

#include "src/base/human.h"
#include "src/base/log.h"
#include "src/data/tokenizer.h"
#include "src/train/generate.h"
#include "tools/command.h"
#include "tools/run_loading.h"

namespace deltron::tools {
namespace {

class GenerateCommand : public Command {
 public:
  std::string name() const override { return "generate"; }
  std::string summary() const override { return "sample text from a run"; }
  std::string examples() const override {
    return "  deltron generate runs/first --prompt 'And it came to pass' --max-tokens 300\n"
           "  deltron generate runs/first --temperature 0\n";
  }
  void declare(OptionSet& options) override {
    options.positional("run", run_, true, "run folder");
    options.value("--prompt", prompt_, "TEXT", "text to go on from [the beginning of a document]");
    options.value("--max-tokens", generate_.max_tokens, "N", "tokens to draw [200]");
    options.value("--temperature", generate_.temperature, "X", "below 1: safer, above: wilder, 0: always the most probable [1]");
    options.value("--top-k", generate_.top_k, "N", "draw among the N most probable [0: all]");
    options.value("--top-p", generate_.top_p, "X", "draw among the fewest tokens that reach this probability [1]");
    options.value("--seed", seed_, "N", "seed of the draws [1234]");
    options.flag("--stop-at-eod", stop_at_eod_, "end with the document [the default]");
    options.flag("--ignore-eod", ignore_eod_, "go on past the ends of documents until --max-tokens");
    options.value("--step", step_, "N", "checkpoint [the newest complete one]");
  }
  ExitCode run(CommandIo& io) override {
    if (!(generate_.temperature >= 0 && generate_.temperature < 1e6)) usage_error(name(), "--temperature must be at least 0");
    if (generate_.max_tokens < 0) usage_error(name(), "--max-tokens must be at least 0");
    if (!(generate_.top_p > 0 && generate_.top_p <= 1)) usage_error(name(), "--top-p must lie in (0, 1]");
    if (stop_at_eod_ && ignore_eod_) usage_error(name(), "--stop-at-eod and --ignore-eod exclude each other");
    if (generate_.top_k < 0) usage_error(name(), "--top-k must be at least 0");
    LoadedModel loaded = load_model(run_, step_, {});
    if (loaded.session.config.data.tokenizer != TokenizerKind::Byte)
      usage_error(name(), "this run has no tokenizer to write text with");
    const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer("byte");
    generate_.seed = static_cast<std::uint64_t>(seed_);
    generate_.end_token = ignore_eod_ ? -1 : tokenizer->eod_id();
    // Documents begin with the end-of-document token (docs/data_format.md).
    std::vector<std::int32_t> tokens = {tokenizer->eod_id()};
    tokenizer->encode_into(prompt_, tokens);
    io.out << prompt_ << std::flush;
    // Ids that only pad the vocabulary have no text and are skipped.
    const GenerateReport report = generate(loaded.session, tokens, generate_, [&](std::int32_t id) {
      if (id < tokenizer->vocab_size() && id != tokenizer->eod_id()) io.out << tokenizer->decode({id}) << std::flush;
    });
    io.out << "\n" << std::flush;
    log_info("prompt of " + thousands(report.prompt_tokens) + " tokens in " + fixed(1000 * report.prompt_seconds, 1) + " ms; " +
             thousands(report.drawn) + " tokens drawn, " +
             fixed(report.seconds > 0 ? static_cast<double>(report.drawn - 1) / report.seconds : 0.0, 0) + " a second" +
             (report.ended ? "; the document ended" : ""));
    return ExitCode::Done;
  }

 private:
  std::string run_, prompt_, step_;
  std::int64_t seed_ = 1234;
  bool stop_at_eod_ = false, ignore_eod_ = false;
  GenerateOptions generate_;
};

}  // namespace

std::unique_ptr<Command> make_generate_command() { return std::make_unique<GenerateCommand>(); }

}  // namespace deltron::tools
