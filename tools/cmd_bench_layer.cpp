// `deltron bench layer`: forward and backward of the layers of a configuration, with and without their regions.
#include <ostream>

#include "src/config/loader.h"
#include "src/train/session.h"
#include "tools/bench/layers.h"
#include "tools/command.h"

namespace deltron::tools {
namespace {

class BenchLayerCommand : public Command {
 public:
  std::string name() const override { return "bench layer"; }
  std::string summary() const override { return "time single layers of a configuration, with each region and offload, and where it goes"; }
  std::string examples() const override {
    return "  deltron bench layer -c configs/kjv_tiny.yaml\n"
           "  deltron bench layer -c configs/h200_gdn_500m.yaml --kind gdn --json\n";
  }
  void declare(OptionSet& options) override {
    options.value("-c,--config", config_, "FILE", "configuration: sizes, type, device, micro-batch");
    options.require("--config");
    options.choice("--kind", kind_, {"all", "gdn", "gdn2", "softmax", "mlp"}, "all: those that the model has");
    options.value("--repeats", options_.repeats, "N", "samples a variant [10]");
    options.value("--layers", options_.stacked, "N", "equal layers behind each other [3]");
    options.value("--min-offloaded-tensor-size", options_.min_offloaded_tensor_size, "N", "elements of the smallest storage that offload moves [1048576]");
    options.flag("--json", json_, "JSON instead of tables");
    options.rest("section.key=value", overrides_, false, "overrides of single keys");
  }
  ExitCode run(CommandIo& io) override {
    if (options_.repeats < 1 || options_.repeats > 10000) usage_error(name(), "--repeats is 1 to 10,000");
    if (options_.stacked < 1 || options_.stacked > 100) usage_error(name(), "--layers is 1 to 100");
    if (options_.min_offloaded_tensor_size < 1) usage_error(name(), "--min-offloaded-tensor-size is at least 1");
    const RunConfig config = load_run_config(config_, overrides_);
    if (config.training.device == DeviceKind::Meta) usage_error(name(), "training.device meta computes nothing", "add training.device=cpu");
    std::vector<LayerKind> kinds;
    for (const LayerKind kind : layer_kinds(config)) {
      if (kind_ == "all" || kind_ == layer_kind_name(kind)) kinds.push_back(kind);
    }
    if (kinds.empty()) usage_error(name(), "this model has no layer of --kind " + kind_);
    Context ctx(context_options(config));
    const Ceilings ceilings = measure_ceilings(ctx);
    const HostLink link = measure_host_link(ctx);
    nlohmann::ordered_json json;
    json["device"] = device_text(ctx);
    json["tokens"] = config.training.micro_batch_size * config.training.seq_length;
    json["dtype"] = dtype_name(model_dtype(config));
    json["layers"] = nlohmann::ordered_json::array();
    if (!json_) {
      io.out << json["device"].get<std::string>() << ", " << json["dtype"].get<std::string>() << ", " << json["tokens"] << " tokens in "
             << config.training.micro_batch_size << " documents; figures of one layer\n";
    }
    for (const LayerKind kind : kinds) {
      const LayerTable table = measure_layer(ctx, config, kind, options_, ceilings, link);
      if (json_) json["layers"].push_back(to_json(table));
      if (!json_) write_table(io.out, table);
    }
    if (json_) io.out << json.dump(2) << "\n";
    return ExitCode::Done;
  }

 private:
  std::string config_, kind_ = "all";
  LayerOptions options_;
  bool json_ = false;
  std::vector<std::string> overrides_;
};

}  // namespace

std::unique_ptr<Command> make_bench_layer_command() { return std::make_unique<BenchLayerCommand>(); }

}  // namespace deltron::tools
