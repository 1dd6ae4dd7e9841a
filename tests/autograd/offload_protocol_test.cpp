// Who may call what when: evaluation touches nothing, reloads on the spot wait, wrong uses fail at once and say what is wrong.
#include "tests/autograd/offload_model.h"

namespace deltron {
namespace {

using test::Bits;
using test::contains;
using test::message_of;
using test::OffloadRun;
using test::offload_options;
using test::random_tensor;
using test::scaled;

TEST(OffloadProtocol, evaluation_touches_nothing_not_even_as_the_very_first_pass) {
  const Bits expected = test::plain_bits();
  OffloadRun run(offload_options({"gdn_qkv"}));
  const Bits evaluated = run.model.evaluation(run.ctx);
  run.manager().reset(run.ctx);
  EXPECT_TRUE(run.manager().warming_up()) << "evaluation does not use up the warm-up";
  EXPECT_EQ(run.ctx.host_memory()->stats().allocations, 0);
  std::string table;
  for (int iteration = 0; iteration < 3; ++iteration) {
    EXPECT_EQ(run.iteration(), expected);
    if (iteration == 0) table = run.manager().table_text();
    const OffloadStats stats = run.manager().last_iteration();
    EXPECT_EQ(run.model.evaluation(run.ctx), evaluated);
    EXPECT_EQ(run.manager().stats().bytes_out, 0);
    EXPECT_EQ(run.manager().last_iteration().bytes_out, stats.bytes_out);
    EXPECT_EQ(run.manager().table_text(), table) << "evaluation between steps does not change the plan";
  }
}

TEST(OffloadProtocol, evaluation_in_the_middle_of_a_forward_pass_leaves_the_open_micro_batch_alone) {
  OffloadRun run(offload_options({"gdn_qkv"}));
  bool evaluated = false;
  run.model.after_commit = [&](int layer, const Tensor&) {
    if (evaluated || layer != 1) return;
    evaluated = true;
    run.model.evaluation(run.ctx);
  };
  EXPECT_EQ(run.iteration(), test::plain_bits());
  EXPECT_EQ(run.manager().last_iteration().groups_moved, 6);
}

TEST(OffloadProtocol, switched_off_it_leaves_the_graph_as_it_is) {
  OffloadRun run(offload_options({"gdn_core_attn"}));
  const Tensor x = make_leaf(random_tensor(run.ctx, {4}, DType::F32, 1), "x");
  const Tensor y = scaled(run.ctx, x, 2, "y");
  EXPECT_EQ(offload_group_start(run.ctx, y, "gdn_qkv").extension(), y.extension());
  EXPECT_EQ(offload_group_commit(run.ctx, y, "gdn_qkv", {x}).extension(), y.extension());
  const Tensor constant = random_tensor(run.ctx, {4}, DType::F32, 1);
  EXPECT_EQ(offload_group_start(run.ctx, constant, "gdn_core_attn").extension(), nullptr) << "nothing to go back to";
}

// One group around `scaled` operations on x; what it saved is asked for by `early`, whose backward runs before the commit's.
struct Small {
  Context ctx{test::small_context()};
  OffloadManager& manager = ctx.slot<OffloadManager>();
  Tensor x = make_leaf(random_tensor(ctx, {64}, DType::F32, 1), "x");
  explicit Small(double delay = 0, int cap = -1) {
    OffloadOptions options;
    options.modules = {"m"};
    options.min_offloaded_tensor_size = 64;
    options.max_inflight_offloads = cap;
    options.faults = {delay, true};
    manager.configure(ctx, options);
    manager.begin_micro_batch(ctx);
  }
  // y = 2 (2 x), with both inputs captured and the inner one freed.
  Tensor group(const Tensor& in, Tensor* kept = nullptr) {
    const Tensor start = offload_group_start(ctx, scaled(ctx, in, 1, "before"), "m");
    Tensor out;
    {
      OffloadCapture capture(ctx, "m");
      out = scaled(ctx, start, 2, "inside");
    }
    if (kept != nullptr) *kept = start;
    return offload_group_commit(ctx, out, "m", {start});
  }
};

TEST(OffloadProtocol, what_is_asked_for_before_its_prefetch_is_reloaded_on_the_spot) {
  for (int cap : {0, -1}) {  // freed at once; still draining behind a slow copy
    Small s(0.02, cap);
    const Tensor start = offload_group_start(s.ctx, scaled(s.ctx, s.x, 1, "before"), "m");
    Tensor out, beside;
    {
      OffloadCapture capture(s.ctx, "m");
      out = scaled(s.ctx, start, 2, "inside");
      beside = scaled(s.ctx, start, 3, "beside");  // captured, but its result does not pass through the commit
    }
    const std::vector<double> values = to_doubles(s.ctx, start);
    out = offload_group_commit(s.ctx, out, "m", {start});
    EXPECT_EQ(start.storage()->state(), cap == 0 ? StorageState::OnHost : StorageState::Resident);
    test::backward_of(s.ctx, test::sum_of(s.ctx, {out, beside}, "sum"));  // the commit, made last, still runs first
    EXPECT_EQ(to_doubles(s.ctx, start), values);
    EXPECT_EQ(to_doubles(s.ctx, test::gradient_of(s.x)), std::vector<double>(64, 5));
    EXPECT_EQ(s.manager.stats().duplicates, 1) << "saved twice";
    EXPECT_EQ(s.manager.stats().bytes_out, 256) << "moved once";
    EXPECT_EQ(s.manager.stats().reloads_at_once, cap == 0 ? 1 : 0);
    EXPECT_EQ(s.manager.stats().kept_while_draining, cap == 0 ? 0 : 1);
    EXPECT_EQ(s.manager.pool().in_use, 0);
  }
}

TEST(OffloadProtocol, a_backward_that_does_not_pass_the_commit_gets_its_tensors_too) {
  for (int cap : {0, -1}) {
    Small s(0.02, cap);
    const Tensor start = offload_group_start(s.ctx, scaled(s.ctx, s.x, 1, "before"), "m");
    Tensor out, beside;
    {
      OffloadCapture capture(s.ctx, "m");
      out = scaled(s.ctx, start, 2, "inside");
      beside = scaled(s.ctx, start, 3, "beside");
    }
    offload_group_commit(s.ctx, out, "m", {start});
    test::backward_of(s.ctx, beside);  // unpack itself fetches
    EXPECT_EQ(to_doubles(s.ctx, test::gradient_of(s.x)), std::vector<double>(64, 3));
    EXPECT_EQ(s.manager.pool().in_use, 0);
  }
}

TEST(OffloadProtocol, views_of_a_moved_storage_are_all_valid_again) {
  Small s(0.005, 0);
  const Tensor start = offload_group_start(s.ctx, scaled(s.ctx, s.x, 1, "before"), "m");
  const Tensor view = start.slice(0, 8, 16);
  const std::vector<double> values = to_doubles(s.ctx, view);
  Tensor out;
  {
    OffloadCapture capture(s.ctx, "m");
    out = scaled(s.ctx, start, 2, "inside");
  }
  out = offload_group_commit(s.ctx, out, "m", {start});
  EXPECT_TRUE(contains(message_of([&] { to_doubles(s.ctx, view); }), {"before", "OnHost"}));
  test::backward_of(s.ctx, out);
  EXPECT_EQ(to_doubles(s.ctx, view), values);
}

TEST(OffloadProtocol, forward_may_read_a_captured_tensor_that_the_layer_did_not_name) {
  OffloadOptions options = offload_options({"gdn_qkv"});
  options.max_inflight_offloads = 0;
  OffloadRun run(options);
  Small s(0, 0);
  const Tensor start = offload_group_start(s.ctx, scaled(s.ctx, s.x, 1, "before"), "m");
  Tensor out;
  {
    OffloadCapture capture(s.ctx, "m");
    out = scaled(s.ctx, start, 2, "inside");
  }
  out = offload_group_commit(s.ctx, out, "m", {});
  EXPECT_EQ(start.storage()->state(), StorageState::Resident) << "held by this test: somebody may read it";
  out = test::sum_of(s.ctx, {out, scaled(s.ctx, start, 7, "later reader")}, "sum");
  test::backward_of(s.ctx, out);
  EXPECT_EQ(to_doubles(s.ctx, test::gradient_of(s.x)), std::vector<double>(64, 9));
  EXPECT_EQ(s.manager.stats().bytes_out, 0);
}

TEST(OffloadProtocol, reading_a_freed_tensor_later_in_forward_fails_at_once) {
  OffloadOptions options = offload_options({"gdn_qkv"});
  options.max_inflight_offloads = 0;
  OffloadRun run(options);
  run.model.after_commit = [&](int, const Tensor& qkv) { scaled(run.ctx, qkv, 2, "too late"); };
  EXPECT_TRUE(contains(message_of([&] { run.model.iteration(run.ctx); }), {"gdn.qkv", "OnHost", "layer 0"}));
}

TEST(OffloadProtocol, writing_into_a_tensor_that_is_being_copied_is_an_error) {
  OffloadRun run(offload_options({"gdn_qkv"}));
  run.model.after_commit = [&](int layer, const Tensor& qkv) {
    if (layer == 0) qkv.storage()->bump_version();
  };
  EXPECT_TRUE(contains(message_of([&] { run.model.iteration(run.ctx); }), {"gdn.qkv", "written while it was being offloaded"}));
}

TEST(OffloadProtocol, freeing_what_no_node_saved_is_an_error) {
  Small s;
  const Tensor start = offload_group_start(s.ctx, scaled(s.ctx, s.x, 1, "before"), "m");
  Tensor out;
  {
    OffloadCapture capture(s.ctx, "m");
    out = scaled(s.ctx, start, 2, "inside");
  }
  const Tensor stranger = random_tensor(s.ctx, {64}, DType::F32, 9, 1.0, "stranger");
  EXPECT_TRUE(contains(message_of([&] { offload_group_commit(s.ctx, out, "m", {stranger}); }), {"stranger", "'m'", "nothing in the group saved it"}));
}

TEST(OffloadProtocol, recompute_and_offload_of_one_storage_exclude_each_other) {
  Small s;
  const Tensor start = offload_group_start(s.ctx, scaled(s.ctx, s.x, 1, "before"), "m");
  Tensor out;
  {
    OffloadCapture capture(s.ctx, "m");
    out = scaled(s.ctx, start, 2, "inside");
  }
  start.storage()->discard();
  EXPECT_TRUE(contains(message_of([&] { offload_group_commit(s.ctx, out, "m", {start}); }), {"before", "Discarded", "exclude each other"}));
}

TEST(OffloadProtocol, parameters_and_foreign_memory_are_saved_as_usual) {
  Small s;
  const Tensor weight = make_tensor(s.ctx, {64, 64}, DType::F32, test::random_values(4096, 4), "weight", MemoryTag::Weights);
  const Tensor w = make_leaf(weight, "w");
  const Tensor x = random_tensor(s.ctx, {2, 64}, DType::F32, 3, 1.0, "rows");
  const Tensor start = offload_group_start(s.ctx, scaled(s.ctx, make_leaf(x, "x"), 1, "before"), "m");
  Tensor out;
  {
    OffloadCapture capture(s.ctx, "m");
    out = linear(s.ctx, start, w, "proj");
  }
  out = offload_group_commit(s.ctx, out, "m", {start, w});
  s.manager.end_forward(s.ctx);
  EXPECT_EQ(weight.storage()->state(), StorageState::Resident);
  EXPECT_EQ(start.storage()->state(), StorageState::OnHost);
  EXPECT_EQ(s.manager.stats().bytes_out, 512);
  test::backward_of(s.ctx, out);
}

TEST(OffloadProtocol, groups_need_a_micro_batch_and_a_commit) {
  OffloadRun run(offload_options({"gdn_qkv"}));
  EXPECT_TRUE(contains(message_of([&] { run.model.loss(run.ctx, run.model.leaves(), 0); }), {"gdn_qkv", "begin_micro_batch"}));
  Small s;
  const Tensor before = scaled(s.ctx, s.x, 1, "before");
  offload_group_start(s.ctx, before, "m");
  EXPECT_TRUE(contains(message_of([&] { offload_group_start(s.ctx, before, "m"); }), {"'m'", "started twice"}));
  EXPECT_TRUE(contains(message_of([&] { s.manager.begin_micro_batch(s.ctx); }), {"'m'", "never committed"}));
  EXPECT_TRUE(contains(message_of([&] { s.manager.reset(s.ctx); }), {"'m'", "never committed"}));
}

TEST(OffloadProtocol, a_group_inside_a_replayed_region_is_refused) {
  Small s;
  const Region region = [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{s.group(in[0])}; };
  Tensor y = scaled(s.ctx, s.x, 1, "before");
  y = recompute(s.ctx, "layer", region, {y})[0];
  y = s.group(y);
  EXPECT_TRUE(contains(message_of([&] { test::backward_of(s.ctx, y); }), {"'m'", "during backward", "recompute"}));
}

TEST(OffloadProtocol, a_module_that_met_no_layer_is_reported_after_the_first_iteration) {
  OffloadRun run(offload_options({"gdn_qkv", "core_attn", "attn_proj"}));
  run.model.iteration(run.ctx);
  const std::string message = message_of([&] { run.manager().reset(run.ctx); }, ErrorCode::ConfigModuleNeverRan);
  EXPECT_TRUE(contains(message, {"E125", "'core_attn', 'attn_proj'", "offload.offload_modules"}));
  EXPECT_FALSE(contains(message, {"gdn_qkv"}));
}

TEST(OffloadProtocol, reset_after_an_abandoned_forward_pass_leaves_a_clean_manager) {
  for (double delay : {0.0, 0.01}) {
    OffloadOptions options = offload_options({"gdn_qkv"});
    options.faults = {delay, true};
    OffloadRun run(options);
    const std::int64_t rest = run.ctx.memory()->stats().current;
    {
      run.manager().begin_micro_batch(run.ctx);
      const Tensor dropped = run.model.loss(run.ctx, run.model.leaves(), 0);  // a step that is given up before its backward
      EXPECT_GT(run.manager().pool().in_use, 0);
    }
    run.manager().reset(run.ctx);
    EXPECT_EQ(run.manager().pool().in_use, 0);
    EXPECT_EQ(run.ctx.memory()->stats().current, rest);
    EXPECT_TRUE(run.manager().warming_up());
    EXPECT_EQ(run.iteration(), test::plain_bits());
    EXPECT_EQ(run.manager().table().size(), 6u) << "what the abandoned pass had put into the table is gone";
  }
}

TEST(OffloadProtocol, a_graph_does_not_outlive_its_iteration) {
  Small s(0, 0);
  const Tensor y = s.group(s.x);
  s.manager.reset(s.ctx);
  EXPECT_TRUE(contains(message_of([&] { test::backward_of(s.ctx, y); }), {"'m'", "after its iteration was reset"}));
}

TEST(OffloadProtocol, a_context_may_go_while_copies_are_under_way) {
  Small s(0.02);
  const Tensor y = s.group(s.x);
  SUCCEED() << "under the sanitizers";
}

TEST(OffloadPool, buffers_are_reused_by_size_and_type_and_strangers_are_refused) {
  const auto memory = std::make_shared<Allocator>(make_cpu_memory());
  OffloadPool pool(memory, true);
  HostBuffer* a = pool.acquire(1024, DType::F32);
  HostBuffer* b = pool.acquire(1024, DType::F32);
  EXPECT_NE(a, b);
  pool.release(b);
  pool.release(a);
  EXPECT_EQ(pool.acquire(1024, DType::F32), b) << "first in, first out";
  EXPECT_NE(pool.acquire(1024, DType::BF16), a);
  EXPECT_EQ(pool.acquire(1024, DType::F32), a);
  EXPECT_EQ(pool.stats().in_use, 3);
  EXPECT_EQ(pool.stats().buffers, 3);
  EXPECT_EQ(memory->stats().current, 3 * 1024);
  pool.release(a);
  EXPECT_TRUE(contains(message_of([&] { pool.release(a); }), {"had not handed out"}));
  HostBuffer stranger;
  EXPECT_TRUE(contains(message_of([&] { pool.release(&stranger); }), {"had not handed out"}));
  EXPECT_NE(static_cast<float*>(a->data)[3], static_cast<float*>(a->data)[3]) << "poisoned";
}

}  // namespace
}  // namespace deltron
