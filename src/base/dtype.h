// Element types. Header only and free of heavy includes: kernels and .cu files use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltron {

enum class DType : std::uint8_t { F32, F64, BF16, F16, I32, I64, U8, U16, Bool };

constexpr std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::I64: return 8;
    case DType::F32:
    case DType::I32: return 4;
    case DType::BF16:
    case DType::F16:
    case DType::U16: return 2;
    case DType::U8:
    case DType::Bool: return 1;
  }
  return 0;
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::F32: return "fp32";
    case DType::F64: return "fp64";
    case DType::BF16: return "bf16";
    case DType::F16: return "fp16";
    case DType::I32: return "int32";
    case DType::I64: return "int64";
    case DType::U8: return "uint8";
    case DType::U16: return "uint16";
    case DType::Bool: return "bool";
  }
  return "?";
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F64 || dtype == DType::BF16 || dtype == DType::F16;
}

// The type in which products and sums of `dtype` are formed: fp64 for fp64, else fp32.
constexpr DType compute_dtype(DType dtype) { return dtype == DType::F64 ? DType::F64 : DType::F32; }

enum class DeviceKind : std::uint8_t { Cpu, Cuda, Meta };

constexpr const char* device_name(DeviceKind device) {
  switch (device) {
    case DeviceKind::Cpu: return "cpu";
    case DeviceKind::Cuda: return "cuda";
    case DeviceKind::Meta: return "meta";
  }
  return "?";
}

}  // namespace deltron
