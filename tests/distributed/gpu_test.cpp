// Groups whose tensors lie on a GPU: NCCL with one rank that makes the real calls, NCCL with two ranks (on two GPUs, or as far as one GPU allows),
// Gloo's staging with two ranks that share a GPU. Skipped, with the reason, where there is no GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>
#include <thread>

#include "distributed/gloo_communicator.h"
#include "distributed/memory_store.h"
#include "distributed/nccl_communicator.h"
#include "distributed/thread_communicator.h"
#include "src/tensor/cuda_device.h"
#include "src/tensor/ops.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::bits_of;
using test::random_values;
using test::small_context;

using Group = std::shared_ptr<Communicator>;

#define NEEDS_NCCL() \
  if (const NcclInfo info = nccl_info(); !info.found) GTEST_SKIP() << info.problem

std::vector<double> ramp(std::int64_t count, double start) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(start + static_cast<double>(i % 7));
  return values;
}

// Small whole numbers, so that sums are exact in every type and order.
void every_collective(Context& ctx, Communicator& world, DType dtype, std::int64_t count) {
  const int n = world.size(), r = world.rank();
  const auto tensor = [&](std::int64_t length, double start) { return make_tensor(ctx, {length}, dtype, ramp(length, start), "x"); };
  const double ranks = n * (n - 1) / 2.0;
  const auto summed = [&](std::int64_t begin) {
    std::vector<double> values;
    for (std::int64_t i = begin; i < begin + count; ++i) values.push_back(ranks + n * static_cast<double>(i % 7));
    return values;
  };
  const Tensor x = tensor(count, r);
  world.all_reduce(ctx, x, "sum");
  if (is_floating(dtype)) add(ctx, x, Tensor::zeros(ctx, {count}, dtype, "zero"), x);  // compute sees the result without a wait of the host
  EXPECT_EQ(to_doubles(ctx, x), summed(0));
  const Tensor most = tensor(count, r);
  world.all_reduce(ctx, most, "most", ReduceOp::Max);
  EXPECT_EQ(to_doubles(ctx, most), ramp(count, n - 1));
  const Tensor all = tensor(count * n, r), part = Tensor::zeros(ctx, {count}, dtype, "part"), other = Tensor::zeros(ctx, {count * n}, dtype, "other");
  world.reduce_scatter(ctx, all, part, "scatter");
  EXPECT_EQ(to_doubles(ctx, part), summed(r * count));
  world.all_gather(ctx, tensor(count, r), other, "gather");
  std::vector<double> expected, exchanged;
  for (int rank = 0; rank < n; ++rank) {
    for (std::int64_t i = 0; i < count; ++i) {
      expected.push_back(rank + static_cast<double>(i % 7));
      exchanged.push_back(rank + static_cast<double>((r * count + i) % 7));
    }
  }
  EXPECT_EQ(to_doubles(ctx, other), expected);
  world.all_to_all(ctx, all, other, "exchange");
  EXPECT_EQ(to_doubles(ctx, other), exchanged);
  const Tensor told = tensor(count, r);
  world.broadcast(ctx, told, n - 1, "tell");
  EXPECT_EQ(to_doubles(ctx, told), ramp(count, n - 1));
  if (n > 1 && r < 2) {
    const Tensor passed = tensor(count, 3 * r);
    r == 0 ? world.receive(ctx, passed, 1, "pass") : world.send(ctx, passed, 0, "pass");
    EXPECT_EQ(to_doubles(ctx, passed), ramp(count, 3));
  }
  world.barrier(ctx, "end");
}

void calls_beside_compute(Context& ctx, Communicator& world) {
  const std::int64_t count = 1 << 20;
  const int n = world.size();
  const Tensor gradients = make_tensor(ctx, {count}, DType::F32, ramp(count, world.rank()), "gradients");
  const Tensor own = make_tensor(ctx, {count}, DType::F32, ramp(count, 0), "own");
  const Event event = world.all_reduce_later(ctx, gradients, "gradients");
  for (int i = 0; i < 3; ++i) add(ctx, own, own, own);
  world.finish(ctx, event);
  add(ctx, gradients, own, own);
  const std::vector<double> result = to_doubles(ctx, own);
  for (std::int64_t i = 0; i < count; i += 1001) ASSERT_EQ(result[static_cast<std::size_t>(i)], n * (n - 1) / 2.0 + (n + 8) * static_cast<double>(i % 7));
}

// `body` on a thread a rank, on GPU rank % gpus. The first fault is rethrown.
void on_ranks(int size, int gpus, const std::function<void(int rank, const std::shared_ptr<MemoryStore>& store, Context& ctx)>& body) {
  const auto store = std::make_shared<MemoryStore>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        cudaSetDevice(rank % gpus);
        Context ctx(small_context(1, DeviceKind::Cuda));
        body(rank, store, ctx);
      } catch (const std::exception&) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

constexpr DType kTypes[] = {DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I64};

TEST(NcclCommunicator, OneRankMakesTheRealCalls) {
  NEEDS_NCCL();
  Context ctx(small_context(1, DeviceKind::Cuda));
  NcclOptions options;
  options.exercise_single = true;
  options.timeout_seconds = 60;
  const Group world = make_nccl_group(ctx, std::make_shared<MemoryStore>(), 0, 1, options);
  for (DType dtype : kTypes) every_collective(ctx, *world, dtype, 1003);
  calls_beside_compute(ctx, *world);
  EXPECT_EQ(world->totals().size(), 8u);  // they were calls, not copies
  const Group part = world->split(ctx, 0, "dp");
  EXPECT_EQ(part->size(), 1);
  EXPECT_EQ(part->label(), "dp");
  every_collective(ctx, *part, DType::BF16, 77);
  part->check();
  world->check();
}

TEST(NcclCommunicator, AnAbortedGroupSaysWhy) {
  NEEDS_NCCL();
  Context ctx(small_context(1, DeviceKind::Cuda));
  NcclOptions options;
  options.exercise_single = true;
  const Group world = make_nccl_group(ctx, std::make_shared<MemoryStore>(), 0, 1, options);
  const Tensor x = Tensor::zeros(ctx, {100}, DType::F32, "x");
  const Event event = world->all_reduce_later(ctx, x, "gradients");
  world->abort("too long");
  for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
           [&] { world->finish(ctx, event); }, [&] { world->all_reduce(ctx, x, "gradients"); }, [&] { world->check(); }}) {
    try {
      call();
      FAIL() << "no error";
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ErrorCode::CommunicationFailed);
      EXPECT_NE(std::string(fault.what()).find("too long"), std::string::npos) << fault.what();
    }
  }
  ctx.synchronize();
}

TEST(NcclCommunicator, ARankThatNeverStartsIsADeadline) {
  NEEDS_NCCL();
  NcclOptions options;
  options.timeout_seconds = 1;
  for (int rank : {0, 1}) {
    Context ctx(small_context(1, DeviceKind::Cuda));
    try {
      make_nccl_group(ctx, std::make_shared<MemoryStore>(), rank, 2, options);
      FAIL() << "no error";
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ErrorCode::CommunicationFailed);
      EXPECT_NE(std::string(fault.what()).find("within 1 s"), std::string::npos) << fault.what();
      EXPECT_NE(std::string(fault.what()).find("group world"), std::string::npos) << fault.what();
    }
  }
}

TEST(NcclCommunicator, TwoRanks) {
  NEEDS_NCCL();
  const int gpus = static_cast<int>(cuda_status().devices.size());
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  NcclOptions options;
  options.timeout_seconds = 60;
  const auto all_calls = [&](int rank, const std::shared_ptr<MemoryStore>& store, Context& ctx) {
    const Group world = make_nccl_group(ctx, store, rank, 2, options);
    for (DType dtype : kTypes) every_collective(ctx, *world, dtype, 1003);
    calls_beside_compute(ctx, *world);
    every_collective(ctx, *world->split(ctx, 0, "dp"), DType::F32, 501);
    EXPECT_EQ(world->split(ctx, rank, "alone")->size(), 1);
  };
  if (gpus > 1 || (shared != nullptr && std::string(shared) == "1")) return on_ranks(2, gpus, all_calls);
  try {
    on_ranks(2, 1, all_calls);
    FAIL() << "two ranks on one GPU were taken";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ErrorCode::CommunicationFailed);
    EXPECT_NE(std::string(fault.what()).find("NCCL_MULTI_RANK_GPU_ENABLE"), std::string::npos) << fault.what();
  }
}

TEST(GlooCommunicator, TwoRanksShareOneGpu) {
  std::vector<std::uint64_t> bits[2][2];
  const std::int64_t count = 10007;
  on_ranks(2, 1, [&](int rank, const std::shared_ptr<MemoryStore>& store, Context& ctx) {
    GlooOptions options;
    options.timeout_seconds = 60;
    const Group world = make_gloo_group(store, rank, 2, options);
    for (DType dtype : kTypes) every_collective(ctx, *world, dtype, 1003);
    calls_beside_compute(ctx, *world);
    const Tensor x = make_tensor(ctx, {count}, DType::BF16, random_values(count, 1 + static_cast<std::uint64_t>(rank)), "x");
    world->all_reduce(ctx, x, "sum");
    bits[0][rank] = bits_of(ctx, x);
  });
  run_thread_ranks(2, [&](int rank, const Group& world) {
    Context ctx(small_context(1, DeviceKind::Cpu));
    const Tensor x = make_tensor(ctx, {count}, DType::BF16, random_values(count, 1 + static_cast<std::uint64_t>(rank)), "x");
    world->all_reduce(ctx, x, "sum");
    bits[1][rank] = bits_of(ctx, x);
  });
  for (int rank : {0, 1}) EXPECT_EQ(bits[0][rank], bits[1][rank]);
}

}  // namespace
}  // namespace deltron
