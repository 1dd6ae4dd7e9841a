// `deltron data prepare | index | inspect`: text to token files, sample indices ahead of training, and a look into token files.
#include <ostream>

#include "src/config/loader.h"
#include "src/data/inspect.h"
#include "src/data/prepare.h"
#include "src/train/session.h"
#include "tools/command.h"

namespace deltron::tools {
namespace {

class PrepareCommand : public Command {
 public:
  std::string name() const override { return "data prepare"; }
  std::string summary() const override { return "text or JSONL to Megatron .bin/.idx token files"; }
  std::string examples() const override {
    return "  deltron data prepare book.txt --output data/book --document-separator '\\n\\n\\n'\n"
           "  deltron data prepare corpus-*.jsonl --output data/corpus --json-key text\n";
  }
  void declare(OptionSet& options) override {
    options.rest("input", prepare_.inputs, true, "text or JSONL files");
    options.value("-o,--output", prepare_.output, "PREFIX", "writes PREFIX.bin, PREFIX.idx and PREFIX.meta.json");
    options.require("--output");
    options.choice("--format", prepare_.format, {"auto", "text", "jsonl"},
                   "auto: .jsonl and .ndjson are JSONL, the rest text [auto]");
    options.value(
        "--document-separator", prepare_.document_separator, "TEXT",
        "what stands between documents in text; \\n, \\t, \\f and \\\\ are understood; empty: one document a file [\\n\\n]");
    options.value("--json-key", prepare_.json_key, "KEY", "key of the text in JSONL [text]");
    options.choice("--tokenizer", prepare_.tokenizer, {"byte"}, "tokenizer [byte]");
    options.flag("--no-append-eod", no_eod_, "do not end documents with the end-of-document token");
    options.flag("--overwrite", prepare_.overwrite, "replace token files that are there already");
    options.flag("--json", json_, "JSON instead of text");
  }
  ExitCode run(CommandIo& io) override {
    prepare_.append_eod = !no_eod_;
    const PrepareReport report = prepare_data(prepare_);
    io.out << (json_ ? to_json(report) : to_text(report)) << "\n";
    return ExitCode::Done;
  }

 private:
  PrepareOptions prepare_;
  bool no_eod_ = false, json_ = false;
};

class IndexCommand : public Command {
 public:
  std::string name() const override { return "data index"; }
  std::string summary() const override { return "build the sample indices that training with a configuration will read"; }
  std::string examples() const override { return "  deltron data index -c configs/kjv_tiny.yaml\n"; }
  void declare(OptionSet& options) override {
    options.value("-c,--config", config_, "FILE", "configuration");
    options.require("--config");
    options.flag("--json", json_, "JSON instead of text");
    options.rest("section.key=value", overrides_, false, "overrides of single keys");
  }
  ExitCode run(CommandIo& io) override {
    const LoadedConfig loaded = load_config(config_, overrides_);
    require_data(loaded);
    const RunConfig& config = loaded.config;
    const std::int64_t samples = config.training.train_iters * config.training.global_batch_size;
    const IndexReport report = build_sample_index(data_options(config), Split::Train, samples);
    io.out << (json_ ? to_json(report) : to_text(report)) << "\n";
    return ExitCode::Done;
  }

 private:
  std::string config_;
  bool json_ = false;
  std::vector<std::string> overrides_;
};

class InspectDataCommand : public Command {
 public:
  std::string name() const override { return "data inspect"; }
  std::string summary() const override { return "what token files hold: documents, tokens, splits, a preview"; }
  std::string examples() const override {
    return "  deltron data inspect data/kjv/kjv --split 90,10,0\n"
           "  deltron data inspect data/kjv/kjv --split 90,10,0 --dump valid --dump-to held_out.txt\n"
           "  deltron data inspect data/kjv/kjv --verify --json\n";
  }
  void declare(OptionSet& options) override {
    options.positional("prefix", inspect_.prefix, true, "token files without .bin or .idx");
    options.value("--split", inspect_.split, "A,B,C", "weights of training, validation and test [90,10,0]");
    options.value("--dump", inspect_.dump_split, "SPLIT", "write the text of train, valid or test ...");
    options.value("--dump-to", inspect_.dump_path, "FILE", "... to this file");
    options.value("--documents", inspect_.documents, "N", "documents to preview [1]");
    options.value("--first", inspect_.first_document, "N", "first of them [0]");
    options.value("--characters", inspect_.characters, "N", "how much of each [200]");
    options.flag("--verify", inspect_.verify, "compare the .bin with the hash in its side file");
    options.flag("--json", json_, "JSON instead of text");
  }
  ExitCode run(CommandIo& io) override {
    const DatasetReport report = inspect_data(inspect_);
    io.out << (json_ ? to_json(report) : to_text(report)) << "\n";
    return ExitCode::Done;
  }

 private:
  DatasetInspectOptions inspect_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_data_prepare_command() { return std::make_unique<PrepareCommand>(); }
std::unique_ptr<Command> make_data_index_command() { return std::make_unique<IndexCommand>(); }
std::unique_ptr<Command> make_data_inspect_command() { return std::make_unique<InspectDataCommand>(); }

}  // namespace deltron::tools
