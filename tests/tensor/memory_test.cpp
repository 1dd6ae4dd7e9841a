// Counted memory: tags, scopes, peaks, the cache, the capacity and its error, and meta counting what the CPU counts.
#include "src/tensor/memory.h"

#include "src/tensor/ops.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::contains;
using test::message_of;
using test::small_context;

constexpr std::int64_t kKiB = 1024;

std::int64_t of(const TagBytes& bytes, MemoryTag tag) { return bytes[static_cast<std::size_t>(tag)]; }

Tensor bytes_of(Context& ctx, std::int64_t bytes, MemoryTag tag) { return Tensor::empty(ctx, {bytes}, DType::U8, "t", tag); }

TEST(Allocator, counts_current_and_peaks_by_tag) {
  Context ctx(small_context());
  const Tensor weights = bytes_of(ctx, 8 * kKiB, MemoryTag::Weights);
  {
    const Tensor a = bytes_of(ctx, 4 * kKiB, MemoryTag::Activations);
    const Tensor b = bytes_of(ctx, 2 * kKiB, MemoryTag::Workspace);  // the peak: 14 KiB
  }
  const Tensor b = bytes_of(ctx, 5 * kKiB, MemoryTag::Workspace);  // a tag's own peak at a lower sum: 13 KiB
  const MemoryStats stats = ctx.memory()->stats();
  EXPECT_EQ(stats.current, 13 * kKiB);
  EXPECT_EQ(of(stats.by_tag, MemoryTag::Weights), 8 * kKiB);
  EXPECT_EQ(of(stats.by_tag, MemoryTag::Activations), 0);
  EXPECT_EQ(of(stats.by_tag, MemoryTag::Workspace), 5 * kKiB);
  EXPECT_EQ(stats.peak, 14 * kKiB);
  EXPECT_EQ(of(stats.by_tag_at_peak, MemoryTag::Weights), 8 * kKiB);
  EXPECT_EQ(of(stats.by_tag_at_peak, MemoryTag::Activations), 4 * kKiB);
  EXPECT_EQ(of(stats.by_tag_at_peak, MemoryTag::Workspace), 2 * kKiB);
  EXPECT_EQ(of(stats.peak_by_tag, MemoryTag::Workspace), 5 * kKiB);
  EXPECT_EQ(of(stats.peak_by_tag, MemoryTag::Activations), 4 * kKiB);
  EXPECT_EQ(stats.allocations, 4);
}

TEST(Allocator, reset_peak_starts_from_what_is_held) {
  Context ctx(small_context());
  const Tensor kept = bytes_of(ctx, 2 * kKiB, MemoryTag::Weights);
  bytes_of(ctx, 64 * kKiB, MemoryTag::Activations);
  ctx.memory()->reset_peak();
  MemoryStats stats = ctx.memory()->stats();
  EXPECT_EQ(stats.peak, 2 * kKiB);
  EXPECT_EQ(of(stats.by_tag_at_peak, MemoryTag::Activations), 0);
  EXPECT_EQ(of(stats.peak_by_tag, MemoryTag::Activations), 0);
  bytes_of(ctx, kKiB, MemoryTag::Activations);
  stats = ctx.memory()->stats();
  EXPECT_EQ(stats.peak, 3 * kKiB);
}

TEST(Allocator, requests_are_rounded_up_and_even_nothing_takes_one_granule) {
  EXPECT_EQ(Allocator::rounded(0), 512);
  EXPECT_EQ(Allocator::rounded(1), 512);
  EXPECT_EQ(Allocator::rounded(512), 512);
  EXPECT_EQ(Allocator::rounded(513), 1024);
  EXPECT_EQ(Allocator::rounded(std::int64_t{5} << 32), std::int64_t{5} << 32);
  Context ctx(small_context());
  const Tensor empty = Tensor::empty(ctx, {0, 7}, DType::F32, "empty");
  EXPECT_EQ(ctx.memory()->stats().current, 512);
}

TEST(Allocator, freed_memory_is_cached_and_reused_for_the_same_size_only) {
  Context ctx(small_context());
  const void* address = nullptr;
  {
    const Tensor tensor = bytes_of(ctx, 4 * kKiB, MemoryTag::Activations);
    address = tensor.data();
  }
  EXPECT_EQ(ctx.memory()->stats().cached, 4 * kKiB);
  EXPECT_EQ(ctx.memory()->stats().current, 0);
  const Tensor other = bytes_of(ctx, 3 * kKiB, MemoryTag::Activations);
  EXPECT_EQ(ctx.memory()->stats().cached, 4 * kKiB);
  const Tensor again = bytes_of(ctx, 4 * kKiB - 5, MemoryTag::Weights);  // same size once rounded, another tag
  EXPECT_EQ(again.data(), address);
  EXPECT_EQ(ctx.memory()->stats().cached, 0);
  EXPECT_EQ(ctx.memory()->stats().current, 7 * kKiB);
}

TEST(Allocator, release_cached_gives_the_cache_back) {
  Context ctx(small_context());
  for (std::int64_t size : {1, 2, 3}) bytes_of(ctx, size * kKiB, MemoryTag::Activations);
  EXPECT_EQ(ctx.memory()->stats().cached, 6 * kKiB);
  ctx.memory()->release_cached();
  EXPECT_EQ(ctx.memory()->stats().cached, 0);
  const Tensor after = bytes_of(ctx, kKiB, MemoryTag::Activations);
  std::memset(after.data(), 1, static_cast<std::size_t>(kKiB));
}

TEST(Allocator, beyond_its_capacity_it_says_what_was_asked_where_and_what_is_held) {
  ContextOptions options = small_context();
  options.memory_capacity = 64 * kKiB;
  Context ctx(options);
  const Tensor weights = bytes_of(ctx, 32 * kKiB, MemoryTag::Weights), a = bytes_of(ctx, 16 * kKiB, MemoryTag::Activations);
  const MemoryStats before = ctx.memory()->stats();
  const std::string message = message_of(
      [&] {
        ScopeGuard scope(ctx, 3, "mlp");
        bytes_of(ctx, 20 * kKiB, MemoryTag::Activations);
      },
      ErrorCode::OutOfMemory);
  EXPECT_TRUE(contains(message, {"E500", "20.00 KiB", "activations", "layer 3", "mlp", "weights 32.00 KiB", "activations 16.00 KiB", "64.00 KiB",
                                 "micro_batch_size"}));
  const MemoryStats after = ctx.memory()->stats();
  EXPECT_EQ(after.current, before.current);
  EXPECT_EQ(after.allocations, before.allocations);
  const Tensor fits = bytes_of(ctx, 16 * kKiB, MemoryTag::Activations);
  EXPECT_EQ(ctx.memory()->stats().current, 64 * kKiB);
}

TEST(Allocator, the_cache_is_given_back_before_memory_counts_as_full) {
  ContextOptions options = small_context();
  options.memory_capacity = 64 * kKiB;
  Context ctx(options);
  bytes_of(ctx, 48 * kKiB, MemoryTag::Activations);
  EXPECT_EQ(ctx.memory()->stats().cached, 48 * kKiB);
  const Tensor tensor = bytes_of(ctx, 50 * kKiB, MemoryTag::Activations);
  EXPECT_EQ(ctx.memory()->stats().cached, 0);
}

TEST(Allocator, a_plan_beyond_the_capacity_is_refused_with_the_same_code_and_facts) {
  ContextOptions options = small_context(1, DeviceKind::Meta);
  options.memory_capacity = 64 * kKiB;
  Context ctx(options);
  const Tensor weights = bytes_of(ctx, 60 * kKiB, MemoryTag::Weights);
  const std::string message = message_of(
      [&] {
        ScopeGuard scope(ctx, 3, "mlp");
        bytes_of(ctx, 20 * kKiB, MemoryTag::Activations);
      },
      ErrorCode::OutOfMemory);
  EXPECT_TRUE(contains(message, {"20.00 KiB", "activations", "layer 3", "mlp", "weights 60.00 KiB", "64.00 KiB"}));
}

TEST(Allocator, activations_are_listed_by_layer_and_region) {
  Context ctx(small_context());
  std::vector<Tensor> held;
  held.push_back(bytes_of(ctx, kKiB, MemoryTag::Activations));
  {
    ScopeGuard layer(ctx, 1, "gdn_in_proj");
    held.push_back(bytes_of(ctx, 2 * kKiB, MemoryTag::Activations));
    {
      ScopeGuard region(ctx, "gdn_qkv");
      held.push_back(bytes_of(ctx, 3 * kKiB, MemoryTag::Activations));
      held.push_back(bytes_of(ctx, 3 * kKiB, MemoryTag::Workspace));
    }
    held.push_back(bytes_of(ctx, 4 * kKiB, MemoryTag::Activations));
  }
  EXPECT_EQ(ctx.scope().layer, -1);
  EXPECT_STREQ(ctx.scope().region, "");
  const std::vector<ScopeBytes> rows = ctx.memory()->activations_by_scope();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].layer, -1);
  EXPECT_EQ(rows[0].bytes, kKiB);
  EXPECT_EQ(rows[1].region, "gdn_in_proj");
  EXPECT_EQ(rows[1].bytes, 6 * kKiB);
  EXPECT_EQ(rows[2].region, "gdn_qkv");
  EXPECT_EQ(rows[2].bytes, 3 * kKiB);
  held.clear();
  EXPECT_TRUE(ctx.memory()->activations_by_scope().empty());
}

TEST(Allocator, a_tensor_freed_in_another_scope_is_taken_off_its_own) {
  Context ctx(small_context());
  Tensor tensor;
  {
    ScopeGuard scope(ctx, 1, "mlp");
    tensor = bytes_of(ctx, kKiB, MemoryTag::Activations);
  }
  ScopeGuard scope(ctx, 2, "core_attn");
  tensor = Tensor();
  EXPECT_TRUE(ctx.memory()->activations_by_scope().empty());
}

TEST(Allocator, workspace_is_counted_for_the_time_of_its_lease) {
  Context ctx(small_context());
  {
    WorkspaceLease lease(ctx, 3 * kKiB);
    EXPECT_NE(lease.workspace().data, nullptr);
    EXPECT_EQ(lease.workspace().bytes, 3 * kKiB);
    EXPECT_EQ(of(ctx.memory()->stats().by_tag, MemoryTag::Workspace), 3 * kKiB);
    WorkspaceLease none(ctx, 0);
    EXPECT_EQ(none.workspace().data, nullptr);
    EXPECT_EQ(of(ctx.memory()->stats().by_tag, MemoryTag::Workspace), 3 * kKiB);
  }
  EXPECT_EQ(ctx.memory()->stats().current, 0);
  EXPECT_EQ(of(ctx.memory()->stats().peak_by_tag, MemoryTag::Workspace), 3 * kKiB);
}

TEST(Allocator, the_offload_pool_is_counted_apart) {
  Context ctx(small_context());
  Storage pinned(ctx.host_memory(), DeviceKind::Cpu, 4 * kKiB, MemoryTag::Activations, {}, "pinned");
  EXPECT_EQ(ctx.host_memory()->stats().current, 4 * kKiB);
  EXPECT_EQ(ctx.memory()->stats().current, 0);
}

TEST(Allocator, storages_may_outlive_their_context) {
  Tensor survivor;
  {
    Context ctx(small_context());
    survivor = Tensor::zeros(ctx, {100}, DType::F32, "t");
  }
  EXPECT_EQ(survivor.data_as<float>()[99], 0);
}

// The same program on both devices: products with workspaces, views, frees, discards and adoptions.
MemoryStats run_program(DeviceKind device) {
  Context ctx(small_context(2, device));
  const Tensor weight = Tensor::zeros(ctx, {70, 50}, DType::F32, "w", MemoryTag::Weights);
  for (int step = 0; step < 3; ++step) {
    ScopeGuard scope(ctx, step, "region");
    const Tensor x = Tensor::zeros(ctx, {33, 50}, DType::BF16, "x");
    const Tensor y = Tensor::empty(ctx, {33, 70}, DType::F32, "y");
    matmul(ctx, x, transposed(weight), y);
    y.storage()->add_saved("y");
    y.storage()->discard();
    const Tensor replay = Tensor::empty(ctx, {33, 70}, DType::F32, "replay", MemoryTag::Communication);
    matmul(ctx, x, transposed(weight), replay);
    y.storage()->adopt(*replay.storage());
    const Tensor copy = contiguous(ctx, y.slice(1, 3, 20), "copy");
    y.storage()->remove_saved();
  }
  return ctx.memory()->stats();
}

TEST(Allocator, meta_counts_what_the_cpu_counts) {
  const MemoryStats cpu = run_program(DeviceKind::Cpu), meta = run_program(DeviceKind::Meta);
  EXPECT_GT(cpu.peak, 0);
  EXPECT_EQ(meta.current, cpu.current);
  EXPECT_EQ(meta.peak, cpu.peak);
  EXPECT_EQ(meta.by_tag, cpu.by_tag);
  EXPECT_EQ(meta.by_tag_at_peak, cpu.by_tag_at_peak);
  EXPECT_EQ(meta.peak_by_tag, cpu.peak_by_tag);
  EXPECT_EQ(meta.saved, cpu.saved);
  EXPECT_EQ(meta.peak_saved, cpu.peak_saved);
  EXPECT_EQ(meta.allocations, cpu.allocations);
}

}  // namespace
}  // namespace deltron
