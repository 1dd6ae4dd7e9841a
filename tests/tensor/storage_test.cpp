// The state machine of storages: every legal and illegal transition, adopt, and what counts as saved for backward.
#include "src/tensor/storage.h"

#include <functional>

#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::contains;
using test::message_of;
using test::small_context;

Tensor in_region(Context& ctx, std::int64_t count, const char* name, int layer, const char* region, MemoryTag tag = MemoryTag::Activations) {
  ScopeGuard scope(ctx, layer, region);
  return Tensor::zeros(ctx, {count}, DType::F32, name, tag);
}

// Brings a storage into a state by legal steps.
void bring_to(Storage& storage, StorageState state) {
  if (state == StorageState::Discarded) storage.discard();
  if (state == StorageState::OnHost || state == StorageState::Reloading) storage.discard(StorageState::OnHost);
  if (state == StorageState::Reloading) storage.reallocate(StorageState::Reloading);
  ASSERT_EQ(storage.state(), state);
}

constexpr StorageState kStates[] = {StorageState::Resident, StorageState::Discarded, StorageState::OnHost, StorageState::Reloading};

TEST(Storage, every_transition_is_legal_or_names_tensor_region_and_state) {
  struct Step {
    const char* name;
    std::function<void(Storage&, Storage& other)> apply;
    std::vector<StorageState> legal;
    StorageState after;
  };
  using S = StorageState;
  const std::vector<Step> steps = {
      {"data", [](Storage& s, Storage&) { s.data(); }, {S::Resident}, S::Resident},
      {"discard", [](Storage& s, Storage&) { s.discard(); }, {S::Resident}, S::Discarded},
      {"discard to host", [](Storage& s, Storage&) { s.discard(S::OnHost); }, {S::Resident}, S::OnHost},
      {"reallocate", [](Storage& s, Storage&) { s.reallocate(); }, {S::Discarded, S::OnHost}, S::Resident},
      {"reload", [](Storage& s, Storage&) { s.reallocate(S::Reloading); }, {S::Discarded, S::OnHost}, S::Reloading},
      {"set_resident", [](Storage& s, Storage&) { s.set_resident(); }, {S::Reloading}, S::Resident},
      {"adopt", [](Storage& s, Storage& other) { s.adopt(other); }, {S::Discarded}, S::Resident},
      {"be adopted", [](Storage& s, Storage& other) { other.discard(); other.adopt(s); }, {S::Resident}, S::Resident},
  };
  for (const Step& step : steps) {
    for (StorageState before : kStates) {
      Context ctx(small_context());
      const Tensor tensor = in_region(ctx, 10, "gdn.qkv", 7, "gdn_in_proj"), other = in_region(ctx, 10, "other", 8, "x");
      bring_to(*tensor.storage(), before);
      const std::string label = std::string(step.name) + " from " + storage_state_name(before);
      const bool legal = std::find(step.legal.begin(), step.legal.end(), before) != step.legal.end();
      if (legal) {
        step.apply(*tensor.storage(), *other.storage());
        EXPECT_EQ(tensor.storage()->state(), step.after) << label;
      } else {
        const std::string message = message_of([&] { step.apply(*tensor.storage(), *other.storage()); });
        EXPECT_TRUE(contains(message, {"gdn.qkv", "layer 7", "gdn_in_proj", storage_state_name(before)})) << label;
        EXPECT_EQ(tensor.storage()->state(), before) << label << ": a refused step changes nothing";
      }
    }
  }
}

TEST(Storage, steps_into_impossible_states_are_refused) {
  Context ctx(small_context());
  const Tensor tensor = in_region(ctx, 10, "t", 0, "r");
  EXPECT_TRUE(contains(message_of([&] { tensor.storage()->discard(StorageState::Reloading); }), {"'t'", "Reloading"}));
  EXPECT_TRUE(contains(message_of([&] { tensor.storage()->discard(StorageState::Resident); }), {"'t'", "Resident"}));
  tensor.storage()->discard();
  EXPECT_TRUE(contains(message_of([&] { tensor.storage()->reallocate(StorageState::OnHost); }), {"'t'", "OnHost"}));
}

TEST(Storage, data_of_a_discarded_tensor_throws_through_every_view) {
  Context ctx(small_context());
  const Tensor tensor = in_region(ctx, 12, "mlp.fc1", 3, "mlp");
  const Tensor view = tensor.view({3, 4}).slice(1, 1, 2);
  tensor.storage()->discard();
  EXPECT_TRUE(contains(message_of([&] { view.data(); }), {"mlp.fc1", "Discarded", "layer 3", "mlp"}));
  EXPECT_TRUE(contains(message_of([&] { to_doubles(ctx, view); }), {"Discarded"}));
}

TEST(Storage, discard_frees_bytes_and_reallocate_takes_them_again) {
  Context ctx(small_context());
  const std::int64_t before = ctx.memory()->stats().current;
  const Tensor tensor = in_region(ctx, 1000, "t", 0, "r");
  const std::int64_t held = ctx.memory()->stats().current - before;
  EXPECT_EQ(held, Allocator::rounded(4000));
  for (StorageState state : {StorageState::Discarded, StorageState::OnHost}) {
    tensor.storage()->discard(state);
    EXPECT_EQ(ctx.memory()->stats().current, before);
    tensor.storage()->reallocate();
    EXPECT_EQ(ctx.memory()->stats().current, before + held);
  }
}

TEST(Storage, a_storage_destroyed_in_any_state_leaves_no_bytes_behind) {
  for (StorageState state : kStates) {
    for (bool saved : {false, true}) {
      Context ctx(small_context());
      {
        const Tensor tensor = in_region(ctx, 1000, "t", 0, "r");
        if (saved) tensor.storage()->add_saved("node.x");
        bring_to(*tensor.storage(), state);
      }
      const MemoryStats stats = ctx.memory()->stats();
      EXPECT_EQ(stats.current, 0) << storage_state_name(state);
      EXPECT_EQ(stats.saved, 0) << storage_state_name(state) << (saved ? " saved" : "");
      EXPECT_TRUE(ctx.memory()->saved_storages().empty()) << storage_state_name(state);
    }
  }
}

TEST(Storage, adopt_makes_every_view_valid_again_with_the_new_content_and_no_version_bump) {
  Context ctx(small_context());
  const Tensor tensor = in_region(ctx, 12, "gdn.qkv", 1, "gdn_qkv");
  const Tensor view = tensor.view({3, 4}).slice(1, 1, 2);
  tensor.storage()->bump_version();
  const std::uint64_t version = tensor.storage()->version();
  tensor.storage()->discard();
  const Tensor replay = in_region(ctx, 12, "replay", 1, "replay");
  replay.storage()->bump_version();
  replay.storage()->bump_version();
  std::vector<double> values;
  for (int i = 0; i < 12; ++i) values.push_back(i);
  from_doubles(ctx, replay, values);
  const void* address = replay.data();
  tensor.storage()->adopt(*replay.storage());
  EXPECT_EQ(tensor.data(), address) << "memory is taken over, not copied";
  EXPECT_EQ(to_doubles(ctx, view), (std::vector<double>{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(tensor.storage()->version(), version);
  EXPECT_EQ(replay.data(), address) << "what the replayed graph saved stays valid: both refer to one memory";
}

TEST(Storage, adopt_moves_bytes_between_tags_and_scopes_at_an_unchanged_sum) {
  Context ctx(small_context());
  const Tensor tensor = in_region(ctx, 1000, "t", 1, "gdn_qkv");
  tensor.storage()->discard();
  const Tensor other = in_region(ctx, 1000, "landing", 5, "offload", MemoryTag::Communication);
  const MemoryStats before = ctx.memory()->stats();
  tensor.storage()->adopt(*other.storage());
  const MemoryStats after = ctx.memory()->stats();
  const std::int64_t bytes = Allocator::rounded(4000);
  const auto by_tag = [](const MemoryStats& stats, MemoryTag tag) { return stats.by_tag[static_cast<std::size_t>(tag)]; };
  EXPECT_EQ(by_tag(before, MemoryTag::Communication), bytes);
  EXPECT_EQ(by_tag(after, MemoryTag::Communication), 0);
  EXPECT_EQ(by_tag(after, MemoryTag::Activations), bytes);
  EXPECT_EQ(after.current, before.current);
  EXPECT_EQ(after.peak, before.peak);
  ASSERT_EQ(ctx.memory()->activations_by_scope().size(), 1u);
  EXPECT_EQ(ctx.memory()->activations_by_scope()[0].region, "gdn_qkv");
}

TEST(Storage, adopt_refuses_another_size_and_another_allocator) {
  Context ctx(small_context());
  const Tensor tensor = in_region(ctx, 10, "t", 0, "r"), longer = in_region(ctx, 11, "longer", 0, "r");
  tensor.storage()->discard();
  EXPECT_TRUE(contains(message_of([&] { tensor.storage()->adopt(*longer.storage()); }), {"longer", "'t'", "44", "40"}));
  Storage host(ctx.host_memory(), DeviceKind::Cpu, 40, MemoryTag::Activations, {}, "pinned");
  EXPECT_TRUE(contains(message_of([&] { tensor.storage()->adopt(host); }), {"one allocator"}));
}

TEST(Saved, two_saved_tensors_of_one_storage_count_once) {
  Context ctx(small_context());
  const Tensor tensor = in_region(ctx, 1000, "t", 2, "mlp");
  Storage& storage = *tensor.storage();
  storage.add_saved("first.x");
  storage.add_saved("second.x");
  EXPECT_EQ(ctx.memory()->stats().saved, 4000);
  ASSERT_EQ(ctx.memory()->saved_storages().size(), 1u);
  const SavedStorage row = ctx.memory()->saved_storages()[0];
  EXPECT_EQ(row.name, "first.x");
  EXPECT_EQ(row.bytes, 4000);
  EXPECT_EQ(row.scope.layer, 2);
  EXPECT_STREQ(row.scope.region, "mlp");
  storage.remove_saved();
  EXPECT_EQ(ctx.memory()->stats().saved, 4000);
  storage.remove_saved();
  EXPECT_EQ(ctx.memory()->stats().saved, 0);
  EXPECT_EQ(ctx.memory()->stats().peak_saved, 4000);
  EXPECT_TRUE(contains(message_of([&] { storage.remove_saved(); }), {"'t'", "not saved"}));
}

TEST(Saved, weights_are_listed_but_not_summed) {
  Context ctx(small_context());
  const Tensor weight = in_region(ctx, 1000, "w", 0, "r", MemoryTag::Weights), x = in_region(ctx, 10, "x", 0, "r");
  weight.storage()->add_saved("linear.weight");
  x.storage()->add_saved("linear.x");
  EXPECT_EQ(ctx.memory()->stats().saved, 40);
  EXPECT_EQ(ctx.memory()->saved_storages().size(), 2u);
}

TEST(Saved, the_list_is_in_the_order_of_saving) {
  Context ctx(small_context());
  std::vector<Tensor> tensors;
  for (int i = 0; i < 20; ++i) tensors.push_back(in_region(ctx, 8, "t", 0, "r"));
  for (int i = 19; i >= 0; --i) tensors[static_cast<std::size_t>(i)].storage()->add_saved(std::to_string(i));
  const std::vector<SavedStorage> rows = ctx.memory()->saved_storages();
  ASSERT_EQ(rows.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(rows[static_cast<std::size_t>(i)].name, std::to_string(19 - i));
}

TEST(Saved, counts_follow_discard_reallocate_and_adopt) {
  Context ctx(small_context());
  const Tensor tensor = in_region(ctx, 1000, "t", 0, "r");
  Storage& storage = *tensor.storage();
  const auto saved = [&] { return ctx.memory()->stats().saved; };
  storage.add_saved("node.x");
  storage.discard();
  EXPECT_EQ(saved(), 0) << "freed memory is not kept for backward";
  storage.reallocate();
  EXPECT_EQ(saved(), 4000);
  storage.discard(StorageState::OnHost);
  EXPECT_EQ(saved(), 0);
  storage.reallocate(StorageState::Reloading);
  EXPECT_EQ(saved(), 4000) << "memory on its way back counts";
  storage.set_resident();
  EXPECT_EQ(saved(), 4000);
  storage.discard();
  const Tensor replay = in_region(ctx, 1000, "replay", 0, "r");
  replay.storage()->add_saved("replayed.x");
  EXPECT_EQ(saved(), 4000);
  storage.adopt(*replay.storage());
  EXPECT_EQ(saved(), 4000) << "one memory, counted for its adopter";
  ASSERT_EQ(ctx.memory()->saved_storages().size(), 1u);
  EXPECT_EQ(ctx.memory()->saved_storages()[0].name, "node.x");
  replay.storage()->remove_saved();
  EXPECT_EQ(saved(), 4000);
  storage.remove_saved();
  EXPECT_EQ(saved(), 0);
}

TEST(Saved, saving_and_releasing_while_the_memory_is_away_or_on_its_way_balances) {
  for (StorageState state : {StorageState::Discarded, StorageState::OnHost, StorageState::Reloading}) {
    Context ctx(small_context());
    const Tensor tensor = in_region(ctx, 1000, "t", 0, "r");
    Storage& storage = *tensor.storage();
    bring_to(storage, state);
    storage.add_saved("late.x");
    if (state == StorageState::Reloading) {
      storage.set_resident();
    } else {
      EXPECT_EQ(ctx.memory()->stats().saved, 0);
      storage.reallocate();
    }
    EXPECT_EQ(ctx.memory()->stats().saved, 4000) << storage_state_name(state);
    storage.discard(StorageState::OnHost);
    storage.reallocate(StorageState::Reloading);
    storage.remove_saved();
    EXPECT_EQ(ctx.memory()->stats().saved, 0) << storage_state_name(state);
    EXPECT_TRUE(ctx.memory()->saved_storages().empty());
  }
}

}  // namespace
}  // namespace deltron
