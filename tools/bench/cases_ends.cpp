// Both ends of the model and the update: embedding, cross entropy, AdamW, the gradient norm.
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/multi_tensor.h"

#include <algorithm>

#include "src/optim/multi_tensor.h"
#include "src/tensor/launch.h"
#include "tools/bench/kernel_case.h"

namespace deltron::tools {
namespace {

using Launch = std::function<void()>;

std::string flat(std::int64_t rows, std::int64_t columns) { return std::to_string(rows) + " x " + std::to_string(columns); }

}  // namespace

void add_vocabulary_cases(const CaseSetting& setting, CaseTable& table) {
  const std::int64_t T = setting.sizes.tokens, h = setting.sizes.hidden, vocab = setting.sizes.vocab;
  const DType dtype = setting.dtype, compute = setting.compute();
  const auto rows = static_cast<double>(T * h), scores = static_cast<double>(T * vocab), wide = static_cast<double>(dtype_size(compute));
  table.push_back({"embedding", "embedding_forward", flat(T, h), stream_work(2 * rows, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor ids = memory.ids(T, vocab), weights = memory.random({vocab, h}, dtype), y = memory.empty({T, h}, dtype);
                     const kernels::EmbeddingForwardArgs a{T, vocab, h, ids.data_as<std::int32_t>(), weights.data(), dtype, y.data(), dtype};
                     const std::vector<Tensor> held = {ids, weights, y};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, embedding_forward, a); static_cast<void>(held); };
                   }});
  // Rows of the table that some token names are read and written, at most all of them.
  const double touched = static_cast<double>(std::min(T, vocab) * h);
  table.push_back({"embedding", "embedding_backward", flat(T, h), Work{rows * setting.item() + 2 * touched * wide, 0}, [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor ids = memory.ids(T, vocab), dy = memory.random({T, h}, dtype), sums = memory.random({vocab, h}, compute);
                     kernels::EmbeddingBackwardArgs a{T, vocab, h, ids.data_as<std::int32_t>(), dy.data(), dtype, sums.data(), {}};
                     a.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, embedding_backward, a));
                     const std::vector<Tensor> held = {ids, dy, sums};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, embedding_backward, a); static_cast<void>(held); };
                   }});
  table.push_back({"cross_entropy", "cross_entropy_forward", flat(T, vocab), stream_work(scores, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor logits = memory.random({T, vocab}, dtype), labels = memory.ids(T, vocab), loss = memory.empty({T}, compute), sums = memory.empty({T}, compute);
                     const kernels::CrossEntropyForwardArgs a{T, vocab, dtype, matrix_view(logits), labels.data_as<std::int32_t>(), loss.data(), sums.data()};
                     const std::vector<Tensor> held = {logits, labels, loss, sums};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, cross_entropy_forward, a); static_cast<void>(held); };
                   }});
  table.push_back({"cross_entropy", "cross_entropy_backward", flat(T, vocab), stream_work(2 * scores, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor logits = memory.random({T, vocab}, dtype), labels = memory.ids(T, vocab), dloss = memory.random({T}, compute);
                     const Tensor sums = memory.random({T}, compute, 0.1, 10), dlogits = memory.empty({T, vocab}, dtype);
                     const kernels::CrossEntropyBackwardArgs a{T,           vocab,        dtype, matrix_view(logits), labels.data_as<std::int32_t>(),
                                                               sums.data(), dloss.data(), mutable_matrix_view(dlogits)};
                     const std::vector<Tensor> held = {logits, labels, dloss, sums, dlogits};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, cross_entropy_backward, a); static_cast<void>(held); };
                   }});
}

// Parameters of the size of mlp.fc1, the largest inside a layer, in one table.
void add_optimizer_cases(const CaseSetting& setting, CaseTable& table) {
  constexpr std::int64_t kTensors = 8;
  const std::int64_t count = 2 * setting.sizes.ffn * setting.sizes.hidden;
  const DType dtype = setting.dtype, compute = setting.compute();
  const bool separate = dtype != compute;
  const auto elements = static_cast<double>(kTensors * count), wide = static_cast<double>(dtype_size(compute));
  const std::string shape = std::to_string(kTensors) + " x " + std::to_string(count);
  table.push_back({"adamw", "multi_tensor_adamw", shape, Work{elements * (7 * wide + (separate ? setting.item() : 0)), 0}, [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     std::vector<Tensor> held;
                     std::vector<kernels::MultiTensorEntry> entries;
                     for (std::int64_t i = 0; i < kTensors; ++i) {
                       const Tensor master = memory.random({count}, compute), grad = memory.random({count}, compute, 0.01), first = memory.random({count}, compute, 0.01);
                       const Tensor second = memory.random({count}, compute, 1e-5, 1e-3), weight = separate ? memory.empty({count}, dtype) : Tensor();
                       kernels::MultiTensorEntry entry;
                       entry.count = count;
                       entry.dtype = compute;
                       entry.master = master.data();
                       entry.grad = grad.data();
                       entry.exp_avg = first.data();
                       entry.exp_avg_sq = second.data();
                       entry.weight = separate ? weight.data() : nullptr;
                       entry.weight_dtype = dtype;
                       entries.push_back(entry);
                       held.insert(held.end(), {master, grad, first, second, weight});
                     }
                     const auto tensors = std::make_shared<MultiTensor>(ctx, std::move(entries));
                     kernels::MultiTensorAdamwArgs a;
                     a.table = tensors->table();
                     a.lr = 1e-6;
                     a.weight_decay = 0.1;
                     a.step = 10;
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, multi_tensor_adamw, a); static_cast<void>(held), static_cast<void>(tensors); };
                   }});
  table.push_back({"gradient_norm", "multi_tensor_norm", shape, Work{elements * wide, 0}, [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     std::vector<Tensor> held;
                     std::vector<kernels::MultiTensorEntry> entries;
                     for (std::int64_t i = 0; i < kTensors; ++i) {
                       held.push_back(memory.random({count}, compute));
                       kernels::MultiTensorEntry entry;
                       entry.count = count;
                       entry.dtype = compute;
                       entry.grad = held.back().data();
                       entries.push_back(entry);
                     }
                     const auto tensors = std::make_shared<MultiTensor>(ctx, std::move(entries));
                     const Tensor partials = memory.empty({tensors->chunks()}, DType::F64), faults = memory.empty({tensors->chunks()}, DType::I64);
                     const kernels::MultiTensorNormArgs a{tensors->table(), partials.data_as<double>(), faults.data_as<std::int64_t>()};
                     held.insert(held.end(), {partials, faults});
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, multi_tensor_norm, a); static_cast<void>(held), static_cast<void>(tensors); };
                   }});
}

}  // namespace deltron::tools
