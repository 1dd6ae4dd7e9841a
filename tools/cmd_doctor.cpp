// `deltron doctor`: what this binary was built from, what this machine has, what it can do, and the one thing to mend.
#include <ostream>

#include <nlohmann/json.hpp>

#include "src/base/build_options.h"
#include "src/base/cpu_info.h"
#include "src/base/human.h"
#include "src/base/thread_pool.h"
#include "src/base/version.h"
#include "src/tensor/cuda_device.h"
#include "src/train/reporter.h"
#include "tools/bench/ceilings.h"
#include "tools/command.h"
#if DELTRON_HAVE_CUDA
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/products.h"
#endif

namespace deltron::tools {
namespace {

std::string version_text(int version) {
  return version == 0 ? "none" : std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

class DoctorCommand : public Command {
 public:
  std::string name() const override { return "doctor"; }
  std::string summary() const override { return "what this build and this machine have, measured, and what is missing"; }
  std::string examples() const override { return "  deltron doctor\n  deltron doctor --json --fast\n"; }
  void declare(OptionSet& options) override {
    options.flag("--fast", fast_, "look only: no measurements");
    options.flag("--json", json_, "one JSON object instead of text");
  }
  ExitCode run(CommandIo& io) override {
    const CudaStatus cuda = cuda_status();
    nlohmann::ordered_json report;
    report["version"] = DELTRON_VERSION;
    report["commit"] = DELTRON_GIT_HASH;
    report["compiler"] = DELTRON_COMPILER;
    report["cuda_toolkit"] = DELTRON_CUDA_VERSION;
    report["cuda_architectures"] = DELTRON_CUDA_ARCHITECTURES;
    report["processor"] = cpu_model_name();
    report["cores"] = available_cores();
    report["instruction_set"] = instruction_set();
    report["driver_cuda"] = version_text(cuda.driver_version);
    report["runtime_cuda"] = version_text(cuda.runtime_version);
    for (const CudaDeviceInfo& device : cuda.devices) {
      report["gpus"].push_back({{"index", device.index},
                                {"name", device.name},
                                {"compute_capability", std::to_string(device.major) + "." + std::to_string(device.minor)},
                                {"memory_bytes", device.memory_bytes},
                                {"multiprocessors", device.multiprocessors},
                                {"l2_bytes", device.l2_bytes},
                                {"pci", device.pci}});
    }
    std::string problem = cuda.problem, fix = cuda.fix;
#if DELTRON_HAVE_CUDA
    const kernels::cuda::ProductLibraryInfo library = kernels::cuda::product_library_info();
    report["cublaslt"] = library.found ? library.version + " (" + library.path + ")" : "missing: " + library.problem;
    const kernels::cuda::FusedAttentionInfo fused = kernels::cuda::fused_attention_info();
    report["cudnn"] = fused.found ? fused.version + " (" + fused.path + "): softmax attention" : "none, softmax attention by own kernels: " + fused.problem;
    if (cuda.usable && !library.found) {
      problem = library.problem;
      fix = "install the CUDA run-time libraries, or name the file in DELTRON_CUBLASLT";
    }
#endif
    const bool gpu = cuda.usable && problem.empty();
    if (!fast_) measure(DeviceKind::Cpu, report);
    if (!fast_ && gpu) measure(DeviceKind::Cuda, report);
    const std::string verdict =
        gpu ? "ready: training.device cpu and cuda" : "ready: training.device cpu; cuda not: " + problem + ". To mend: " + fix;
    report["verdict"] = verdict;
    if (json_) {
      io.out << report.dump(2) << "\n";
      return ExitCode::Done;
    }
    for (const auto& [key, value] : report.items()) {
      if (key == "verdict") continue;
      const std::string label = key + std::string(key.size() < 22 ? 22 - key.size() : 1, ' ');
      if (!value.is_array()) {
        io.out << label << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
        continue;
      }
      for (const auto& device : value) {
        io.out << label << device["index"].dump() << ": " << device["name"].get<std::string>() << ", compute capability "
               << device["compute_capability"].get<std::string>() << ", "
               << human_bytes(device["memory_bytes"].get<std::uint64_t>()) << ", " << device["multiprocessors"].dump()
               << " multiprocessors, L2 " << human_bytes(device["l2_bytes"].get<std::uint64_t>()) << ", "
               << device["pci"].get<std::string>() << "\n";
      }
    }
    io.out << verdict << "\n";
    return ExitCode::Done;
  }

 private:
  static void measure(DeviceKind device, nlohmann::ordered_json& report) {
    ContextOptions options;
    options.device = device;
    Context ctx(options);
    const std::string name = device_name(device);
    report[name + "_copy"] = human_bytes(static_cast<std::uint64_t>(measure_copy(ctx))) + "/s";
    report[name + (device == DeviceKind::Cuda ? "_product_bf16" : "_product_fp32")] =
        human_count(measure_matmul_ceiling(ctx)) + "FLOP/s";
  }

  bool fast_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_doctor_command() { return std::make_unique<DoctorCommand>(); }

}  // namespace deltron::tools
