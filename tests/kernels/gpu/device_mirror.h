// Host buffers of a test mirrored in device memory: pointers of kernel arguments are translated, outputs brought back. Every range
// is surrounded by 0xff bytes on the device (NaN in any floating type), checked after the call.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/gated_delta_rule.h"
#include "kernels/gated_delta_rule_2.h"
#include "tests/support/delta_rule_2_runner.h"
#include "tests/support/delta_rule_runner.h"

namespace deltron::test {

inline void require_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

class DeviceMirror {
 public:
  explicit DeviceMirror(const HostRanges& ranges) {
    for (const auto& [host, bytes] : ranges) {
      Range range{static_cast<char*>(host), bytes, nullptr};
      require_cuda(cudaMalloc(reinterpret_cast<void**>(&range.device), bytes + 2 * kGuard), "cudaMalloc");
      require_cuda(cudaMemset(range.device, 0xff, bytes + 2 * kGuard), "cudaMemset");
      range.device += kGuard;
      if (bytes > 0) require_cuda(cudaMemcpy(range.device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
      ranges_.push_back(range);
    }
  }
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;
  ~DeviceMirror() {
    for (const Range& range : ranges_) cudaFree(range.device - kGuard);
  }
  template <class T>
  void move(T*& pointer) const {
    if (pointer == nullptr) return;
    const char* at = static_cast<const char*>(static_cast<const void*>(pointer));
    for (const Range& range : ranges_) {
      if (at >= range.host && at <= range.host + range.bytes) {
        pointer = static_cast<T*>(static_cast<void*>(range.device + (at - range.host)));
        return;
      }
    }
    throw std::runtime_error("an argument points into no known buffer");
  }
  void bring_back() const {
    std::vector<char> guard(kGuard);
    for (const Range& range : ranges_) {
      if (range.bytes > 0) require_cuda(cudaMemcpy(range.host, range.device, range.bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
      for (const char* side : {range.device - kGuard, range.device + range.bytes}) {
        require_cuda(cudaMemcpy(guard.data(), side, kGuard, cudaMemcpyDeviceToHost), "cudaMemcpy");
        if (std::any_of(guard.begin(), guard.end(), [](char c) { return c != '\xff'; }))
          throw std::runtime_error("a guard was written");
      }
    }
  }

 private:
  static constexpr std::size_t kGuard = 512;
  struct Range {
    char* host;
    std::size_t bytes;
    char* device;
  };
  std::vector<Range> ranges_;
};

// Runs `function` on device copies of everything that `args` names; pointers are listed by `visit(args, move)`.
template <class Args, class Visit, class Function>
void run_mirrored(Args args, HostRanges ranges, const Visit& visit, const Function& function) {
  std::vector<std::int64_t> offsets(args.documents.cu_seqlens, args.documents.cu_seqlens + args.documents.count + 1);
  args.documents.host_cu_seqlens = offsets.data(), args.documents.cu_seqlens = offsets.data();
  ranges.emplace_back(offsets.data(), offsets.size() * sizeof(std::int64_t));
  const DeviceMirror mirror(ranges);
  const auto move = [&](auto&... pointers) { (mirror.move(pointers), ...); };
  visit(args, move);
  move(args.q.data, args.k.data, args.v.data, args.decay.data, args.A_log, args.dt_bias, args.initial_state, args.workspace.data,
       args.documents.cu_seqlens);
  StreamHandle stream;
  stream.device = DeviceKind::Cuda;
  function(args, stream);
  require_cuda(cudaDeviceSynchronize(), "kernel");
  mirror.bring_back();
}

inline const DeltaRuleBackend& gated_delta_rule_on_cuda() {
  using namespace deltron::kernels;
  static const DeltaRuleBackend backend{
      &cuda::gated_delta_rule_forward_workspace_bytes,
      &cuda::gated_delta_rule_backward_workspace_bytes,
      [](const GatedDeltaRuleForwardArgs& args, const StreamHandle&, const HostRanges& ranges) {
        run_mirrored(
            args, ranges, [](auto& a, const auto& move) { move(a.beta.data, a.o.data, a.final_state, a.t_inverse); },
            &cuda::gated_delta_rule_forward);
      },
      [](const GatedDeltaRuleBackwardArgs& args, const StreamHandle&, const HostRanges& ranges) {
        run_mirrored(
            args, ranges,
            [](auto& a, const auto& move) {
              move(a.beta.data, a.t_inverse, a.d_o.data, a.d_final_state, a.dq.data, a.dk.data, a.dv.data, a.d_decay.data,
                   a.d_beta.data, a.d_A_log, a.d_dt_bias, a.d_initial_state);
            },
            &cuda::gated_delta_rule_backward);
      },
      &cuda::gated_delta_rule_kernel_name,
      &cuda::gated_delta_rule_kernel_name};
  return backend;
}

inline const DeltaRule2Backend& gated_delta_rule_2_on_cuda() {
  using namespace deltron::kernels;
  static const DeltaRule2Backend backend{
      &cuda::gated_delta_rule_2_forward_workspace_bytes,
      &cuda::gated_delta_rule_2_backward_workspace_bytes,
      [](const GatedDeltaRule2ForwardArgs& args, const StreamHandle&, const HostRanges& ranges) {
        run_mirrored(
            args, ranges, [](auto& a, const auto& move) { move(a.erase.data, a.write.data, a.o.data, a.final_state); },
            &cuda::gated_delta_rule_2_forward);
      },
      [](const GatedDeltaRule2BackwardArgs& args, const StreamHandle&, const HostRanges& ranges) {
        run_mirrored(
            args, ranges,
            [](auto& a, const auto& move) {
              move(a.erase.data, a.write.data, a.d_o.data, a.d_final_state, a.dq.data, a.dk.data, a.dv.data, a.d_decay.data,
                   a.d_erase.data, a.d_write.data, a.d_A_log, a.d_dt_bias, a.d_initial_state);
            },
            &cuda::gated_delta_rule_2_backward);
      },
      &cuda::gated_delta_rule_2_kernel_name,
      &cuda::gated_delta_rule_2_kernel_name};
  return backend;
}

}  // namespace deltron::test
