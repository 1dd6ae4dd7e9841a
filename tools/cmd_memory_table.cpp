// `deltron memory-table`: what one GDN layer keeps for backward, storage by storage, with every recompute region, offload and fusion,
// beside the published tables.
#include <ostream>

#include "src/base/file.h"
#include "src/base/log.h"
#include "tools/command.h"
#include "tools/memory_table/report.h"

namespace deltron::tools {
namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

class MemoryTableCommand : public Command {
 public:
  std::string name() const override { return "memory-table"; }
  std::string summary() const override { return "what one GDN layer keeps for backward, beside the published memory tables"; }
  std::string examples() const override {
    return "  deltron memory-table --summary\n"
           "  deltron memory-table --variant gdn2 --seq-length 4096 --fusion unfused\n"
           "  deltron memory-table --as-published --seq-length 1024\n"
           "  deltron memory-table --whole-block\n"
           "  deltron memory-table --all --output memory_tables.md\n";
  }
  void declare(OptionSet& options) override {
    options.choice("--variant", variant_, {"gdn", "gdn2", "both"}, "[both]");
    options.values("--seq-length", lengths_, "N", "may be given several times [1024 and 2048]");
    options.value("--micro-batch-size", setting_.micro_batch_size, "N", "[1]");
    options.value("--hidden-size", setting_.hidden_size, "N", "[2048]");
    options.value("--linear-num-key-heads", setting_.key_heads, "N", "[16]");
    options.value("--linear-num-value-heads", setting_.value_heads, "N", "[32]");
    options.value("--linear-key-head-dim", setting_.key_dim, "N", "[128]");
    options.value("--linear-value-head-dim", setting_.value_dim, "N", "[128]");
    options.value("--linear-conv-kernel-dim", setting_.conv_kernel, "N", "[4]");
    options.value("--min-offloaded-tensor-size", setting_.min_offloaded_tensor_size, "N", "elements; smaller storages stay on the device [1048576]");
    options.choice("--params-dtype", dtype_, {"bf16", "fp32"}, "weights and activations [bf16]");
    options.value("--chunk-length", setting_.published_chunk, "N", "chunk of the published rule [64]");
    options.choice("--fusion", fusion_, {"unfused", "output-norm", "pre-rule", "both", "each"}, "which fused kernels the layer runs [each]");
    options.choice("--device", device_, {"meta", "cpu", "cuda"}, "meta counts storages and computes nothing; the bytes are the same [meta]");
    options.flag("--summary", summary_, "rows only: no storages, no explanations");
    options.flag("--as-published", as_published_, "instead: what the published baseline kept, tensor by tensor, by arithmetic");
    options.flag("--whole-block", whole_block_, "instead: the whole-block figure of the 397B-A17B proxy");
    options.flag("--all", all_, "all three, as docs/memory_tables.md has them");
    options.choice("--format", format_, {"auto", "text", "markdown", "json"}, "auto: by the suffix of --output, .md or .json, else text [auto]");
    options.flag("--json", json_, "the same as --format json");
    options.value("-o,--output", output_, "FILE", "write there instead of to stdout");
  }

  ExitCode run(CommandIo& io) override {
    if (json_ && format_ != "auto" && format_ != "json") usage_error(name(), "--json and --format " + format_ + " exclude each other");
    refuse_what_has_no_effect();
    if (setting_.published_chunk < 1 || setting_.published_chunk > kLongestChunk) usage_error(name(), "--chunk-length is 1 to " + std::to_string(kLongestChunk));
    if (setting_.min_offloaded_tensor_size < 1) usage_error(name(), "--min-offloaded-tensor-size is at least 1");
    setting_.dtype = dtype_ == "bf16" ? DType::BF16 : DType::F32;
    const DeviceKind device = device_ == "cpu" ? DeviceKind::Cpu : device_ == "cuda" ? DeviceKind::Cuda : DeviceKind::Meta;
    MemoryReport report;
    report.device = device_;
    report.summary = summary_;
    report.titled = all_;
    report.as_published = as_published_ || all_;
    const bool measured = all_ || (!as_published_ && !whole_block_);
    if (measured || report.as_published) {
      for (const bool second : {false, true}) {
        if (variant_ == (second ? "gdn" : "gdn2")) continue;
        for (const std::int64_t length : sequence_lengths()) report.layers.push_back(layer_report(second, length, measured, device));
      }
    }
    if (whole_block_ || all_) report.whole_block = whole_block();
    write(io, report);
    return ExitCode::Done;
  }

 private:
  void refuse_what_has_no_effect() const {
    if (all_ || (!as_published_ && !whole_block_)) return;
    if (summary_ || fusion_ != "each" || device_ != "meta") {
      usage_error(name(), "--summary, --fusion and --device are for the measured tables", "leave them out, or ask for --all");
    }
    const bool sizes = setting_ != MemorySetting() || variant_ != "both" || dtype_ != "bf16" || !lengths_.empty();
    if (sizes && !as_published_) usage_error(name(), "--whole-block has the sizes of its own model", "leave the sizes out, or ask for --all");
  }

  std::vector<std::int64_t> sequence_lengths() const {
    if (lengths_.empty()) return {1024, 2048};
    std::vector<std::int64_t> lengths;
    for (const std::string& text : lengths_) {
      const bool digits = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
      if (!digits || std::stoll(text) < 1) usage_error(name(), "'" + text + "' is no --seq-length", "a whole number of tokens, at least 1");
      lengths.push_back(std::stoll(text));
    }
    return lengths;
  }

  LayerReport layer_report(bool second, std::int64_t length, bool measured, DeviceKind device) const {
    LayerReport layer;
    layer.setting = setting_;
    layer.setting.second = second;
    layer.setting.seq_length = length;
    check_setting(layer.setting);
    layer.published = published_tensors(layer.setting);
    if (!measured) return layer;
    for (const Fusion& fusion : all_fusions()) {
      if (fusion_ == "each" || fusion_ == fusion.name()) layer.tables.push_back(measure(layer.setting, fusion, device));
    }
    return layer;
  }

  std::string format() const {
    if (json_) return "json";
    if (format_ != "auto") return format_;
    if (ends_with(output_, ".json")) return "json";
    return ends_with(output_, ".md") ? "markdown" : "text";
  }

  void write(CommandIo& io, const MemoryReport& report) const {
    const std::string as = format();
    const std::string text = as == "json" ? json_of(report) : as == "markdown" ? document_of(report).markdown() : document_of(report).text();
    if (output_.empty()) {
      io.out << text;
    } else {
      write_file_atomically(output_, text);
      log_message(LogLevel::Info, "wrote " + output_);
    }
  }

  MemorySetting setting_;
  std::string variant_ = "both", dtype_ = "bf16", fusion_ = "each", device_ = "meta", format_ = "auto", output_;
  std::vector<std::string> lengths_;
  static constexpr std::int64_t kLongestChunk = 1024;
  bool summary_ = false, as_published_ = false, whole_block_ = false, all_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_memory_table_command() { return std::make_unique<MemoryTableCommand>(); }

}  // namespace deltron::tools
