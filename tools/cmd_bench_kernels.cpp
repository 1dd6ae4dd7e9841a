// `deltron bench kernels`: every kernel of a model at its sizes, beside what bytes and operations allow.
#include <ostream>

#include "src/config/loader.h"
#include "src/train/session.h"
#include "tools/bench/kernel_report.h"
#include "tools/command.h"

namespace deltron::tools {
namespace {

class BenchKernelsCommand : public Command {
 public:
  std::string name() const override { return "bench kernels"; }
  std::string summary() const override { return "time every kernel at a model's sizes: bytes, FLOPs, share of the measured ceiling"; }
  std::string examples() const override {
    return "  deltron bench kernels\n"
           "  deltron bench kernels -c configs/h200_gdn_500m.yaml --filter 'conv|norm' --json\n"
           "  deltron bench kernels --device cuda --dtype bf16 --filter gated_delta_rule --tokens 8192 --documents 1 --key-heads 16 --value-heads 32 --key-dim 128 --value-dim 128\n";
  }
  void declare(OptionSet& options) override {
    options.value("-c,--config", config_, "FILE", "sizes, type and device of this model's micro-batch");
    options.value("--filter", filter_, "REGEX", "kernels whose family, name or shape matches");
    options.choice("--device", device_, {"auto", "cpu", "cuda"}, "auto: of the configuration, or cpu");
    options.choice("--dtype", dtype_, {"auto", "fp32", "bf16", "fp16"}, "storage type; auto: of the configuration, or fp32; fp16: delta rules on cuda");
    for (const SizeOption& size : size_options()) options.value(std::string("--") + size.name, given_.*size.field, "N", size.help);
    options.value("--threads", threads_, "N", "threads on the CPU [of the configuration, or all cores]");
    options.value("--repeats", repeats_, "N", "samples a kernel [20]");
    options.value("--cache-mib", cache_mib_, "N", "rotate inputs past so many MiB [the last-level cache]");
    options.flag("--json", json_, "JSON instead of a table");
    options.rest("section.key=value", overrides_, false, "overrides of single keys, with --config");
  }
  ExitCode run(CommandIo& io) override {
    if (repeats_ < 1 || repeats_ > 100000) usage_error(name(), "--repeats is 1 to 100,000");
    if (cache_mib_ < -1 || cache_mib_ > 65536) usage_error(name(), "--cache-mib is 0 to 65,536");
    if (threads_ < 0 || threads_ > 4096) usage_error(name(), "--threads is 1 to 4,096");
    if (config_.empty() && !overrides_.empty()) usage_error(name(), "overrides change a configuration, and none is given", "add -c FILE");
    std::regex filter;
    try {
      filter = std::regex(filter_);
    } catch (const std::regex_error& error) {
      usage_error(name(), "--filter '" + filter_ + "' is no regular expression: " + error.what());
    }
    KernelBench bench;
    ContextOptions options;
    bench.sizes = usual_sizes();
    if (!config_.empty()) {
      const RunConfig config = load_run_config(config_, overrides_);
      bench.sizes = kernel_sizes(config);
      bench.dtype = model_dtype(config);
      options = context_options(config);
    }
    if (device_ == "cpu") options.device = DeviceKind::Cpu;
    if (device_ == "cuda") options.device = DeviceKind::Cuda;
    if (options.device == DeviceKind::Meta) usage_error(name(), "device meta computes nothing", "add --device cpu");
    if (dtype_ == "fp32") bench.dtype = DType::F32;
    if (dtype_ == "bf16") bench.dtype = DType::BF16;
    if (dtype_ == "fp16") bench.dtype = DType::F16;
    if (threads_ > 0) options.threads = static_cast<int>(threads_);
    for (const SizeOption& size : size_options()) {
      if (given_.*size.field != kNotGiven) bench.sizes.*size.field = given_.*size.field;
    }
    const std::string problem = problem_of(bench.sizes);
    if (!problem.empty()) usage_error(name(), problem);
    if (bench.dtype == DType::F16 && options.device != DeviceKind::Cuda) usage_error(name(), "fp16 has kernels on cuda alone", "add --device cuda");
    Context ctx(options);
    bench.device = device_text(ctx);
    bench.cache_bytes = cache_mib_ >= 0 ? cache_mib_ << 20 : cache_bytes(ctx);
    const CaseSetting setting = make_setting(ctx, bench.sizes, bench.dtype);
    CaseTable chosen;
    for (KernelCase& one : all_cases(setting)) {
      const bool served = bench.dtype != DType::F16 || one.family.rfind("gated_delta_rule", 0) == 0;
      if (served && std::regex_search(one.family + " " + one.name + " " + one.shape, filter)) chosen.push_back(std::move(one));
    }
    if (chosen.empty()) usage_error(name(), "no kernel of these sizes matches --filter '" + filter_ + "'");
    bench.ceilings = measure_ceilings(ctx);
    for (const KernelCase& one : chosen) bench.results.push_back(run_case(ctx, one, {repeats_, bench.cache_bytes}));
    if (json_) {
      io.out << to_json(bench).dump(2) << "\n";
    } else {
      write_table(io.out, bench);
    }
    return ExitCode::Done;
  }

 private:
  struct SizeOption {
    const char* name;
    std::int64_t KernelSizes::*field;
    const char* help;
  };
  static const std::vector<SizeOption>& size_options() {
    using S = KernelSizes;
    static const std::vector<SizeOption> options = {
        {"tokens", &S::tokens, "tokens [4096]"},
        {"documents", &S::documents, "documents that they form [8]"},
        {"hidden", &S::hidden, "hidden size [256]"},
        {"ffn", &S::ffn, "width of the MLP [512]"},
        {"vocab", &S::vocab, "vocabulary [4096]"},
        {"key-heads", &S::key_heads, "key heads of the delta rule; 0: none [2]"},
        {"value-heads", &S::value_heads, "value heads [4]"},
        {"key-dim", &S::key_dim, "channels of a key head [64]"},
        {"value-dim", &S::value_dim, "channels of a value head [64]"},
        {"conv-kernel", &S::conv_kernel, "taps of the convolution [4]"},
        {"query-heads", &S::query_heads, "query heads of softmax attention; 0: none [4]"},
        {"kv-heads", &S::kv_heads, "groups of them [2]"},
        {"head-dim", &S::head_dim, "channels of one [64]"},
        {"rotary-dim", &S::rotary_dim, "channels that rotary embedding turns [16]"},
    };
    return options;
  }
  static KernelSizes usual_sizes() {
    KernelSizes sizes;
    sizes.tokens = 4096, sizes.documents = 8;
    sizes.hidden = 256, sizes.ffn = 512, sizes.vocab = 4096;
    sizes.key_heads = 2, sizes.value_heads = 4, sizes.key_dim = sizes.value_dim = 64, sizes.conv_kernel = 4;
    sizes.query_heads = 4, sizes.kv_heads = 2, sizes.head_dim = 64, sizes.rotary_dim = 16;
    return sizes;
  }
  static constexpr std::int64_t kNotGiven = -1;
  static KernelSizes not_given() {
    KernelSizes sizes;
    for (const SizeOption& size : size_options()) sizes.*size.field = kNotGiven;
    return sizes;
  }

  std::string config_, filter_, device_ = "auto", dtype_ = "auto";
  KernelSizes given_ = not_given();
  std::int64_t repeats_ = 20, cache_mib_ = -1, threads_ = 0;
  bool json_ = false;
  std::vector<std::string> overrides_;
};

}  // namespace

std::unique_ptr<Command> make_bench_kernels_command() { return std::make_unique<BenchKernelsCommand>(); }

}  // namespace deltron::tools
