// Elementwise kernels: conversion, fill, sums, dropout on the residual branch, the sigmoid output gate of softmax attention.
#pragma once

#include "kernels/views.h"
#include "src/base/rng.h"

namespace deltron::kernels {

// y = x, with conversion between storage types; both [rows, cols].
struct ConvertArgs {
  std::int64_t rows = 0, cols = 0;
  MatrixView x;
  DType x_dtype = DType::F32;
  MutableMatrixView y;
  DType y_dtype = DType::F32;
};

// y[i] = value, contiguous.
struct FillArgs {
  std::int64_t count = 0;
  void* y = nullptr;
  DType dtype = DType::F32;
  double value = 0;
};

// y = a + b (all of `dtype`, contiguous; y may be a or b).
struct AddArgs {
  std::int64_t count = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  DType dtype = DType::F32;
};

// y += scale * x, [rows, cols]; y may be wider than x (fp32 main gradients from bf16 gradients).
struct AccumulateArgs {
  std::int64_t rows = 0, cols = 0;
  MatrixView x;
  DType x_dtype = DType::F32;
  MutableMatrixView y;
  DType y_dtype = DType::F32;
  double scale = 1;
};

// y *= scale, contiguous.
struct ScaleArgs {
  std::int64_t count = 0;
  void* y = nullptr;
  DType dtype = DType::F32;
  double scale = 1;
};

// Address of the random decisions of each token: sample and offset in it (see base/rng.h: rng_words(key, sample, position, block)).
struct TokenRng {
  std::uint64_t key = 0;                        // rng_key(site)
  const std::int64_t* token_sample = nullptr;   // [rows]
  const std::int32_t* token_offset = nullptr;   // [rows]
  double drop_probability = 0;
  std::int64_t first_head = 0;  // attention: the number, among all heads of the layer, of the first head that is here
};

// y = residual + x * mask/(1-p); p = 0 is a plain sum. [rows, cols] contiguous. Column c uses word c%4 of block c/4.
struct DropoutAddArgs {
  std::int64_t rows = 0, cols = 0;
  const void* x = nullptr;
  const void* residual = nullptr;  // may be null: y = dropout(x); also the backward (dx = dropout(dy))
  void* y = nullptr;
  DType dtype = DType::F32;
  TokenRng rng;
};

// y = x * sigmoid(gate), [rows, cols].
struct SigmoidGateForwardArgs {
  std::int64_t rows = 0, cols = 0;
  DType dtype = DType::F32;
  MatrixView x, gate;
  MutableMatrixView y;
};
// dx = dy sigmoid(gate), dgate = dy x sigmoid'(gate).
struct SigmoidGateBackwardArgs {
  std::int64_t rows = 0, cols = 0;
  DType dtype = DType::F32;
  MatrixView x, gate, dy;
  MutableMatrixView dx, dgate;
};

namespace cpu {
void convert(const ConvertArgs& args, const StreamHandle& stream);
void fill(const FillArgs& args, const StreamHandle& stream);
void add(const AddArgs& args, const StreamHandle& stream);
void accumulate(const AccumulateArgs& args, const StreamHandle& stream);
void scale(const ScaleArgs& args, const StreamHandle& stream);
void dropout_add(const DropoutAddArgs& args, const StreamHandle& stream);
void sigmoid_gate_forward(const SigmoidGateForwardArgs& args, const StreamHandle& stream);
void sigmoid_gate_backward(const SigmoidGateBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void convert(const ConvertArgs& args, const StreamHandle& stream);
void fill(const FillArgs& args, const StreamHandle& stream);
void add(const AddArgs& args, const StreamHandle& stream);
void accumulate(const AccumulateArgs& args, const StreamHandle& stream);
void scale(const ScaleArgs& args, const StreamHandle& stream);
void dropout_add(const DropoutAddArgs& args, const StreamHandle& stream);
void sigmoid_gate_forward(const SigmoidGateForwardArgs& args, const StreamHandle& stream);
void sigmoid_gate_backward(const SigmoidGateBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
