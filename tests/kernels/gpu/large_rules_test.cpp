// Both delta rules at sizes that need 64-bit indices, over more documents than a grid's second dimension has blocks, over sequences of one
// to 1,048,576 tokens (one pass against pieces that hand their state on), and a thousand times over with the same bits.
#include <cstdio>

#include "kernels/attention.h"
#include "kernels/causal_conv1d.h"
#include "kernels/gdn_pre_rule.h"
#include "tests/kernels/gpu/rule_on_device.h"
#include "tests/support/compare.h"

namespace deltron::test {
namespace {

class LargeRules : public LargeGpu {};

template <class Rule>
void expect_kernels(const Rule& rule, const char* part) {
  EXPECT_NE(rule.forward_kernel.find(part), std::string::npos) << rule.forward_kernel;
  EXPECT_NE(rule.backward_kernel.find(part), std::string::npos) << rule.backward_kernel;
}

void expect_repeats(const RuleOutputs& large, const RuleOutputs& small) {
  for (const auto& [name, array] : large.of_tokens) EXPECT_TRUE(repeats(array, small.of_tokens.at(name))) << name;
  if (small.final_state.count() == 0) return;
  EXPECT_TRUE(repeats(large.final_state, small.final_state)) << "final_state";
  EXPECT_TRUE(repeats(large.d_initial_state, small.d_initial_state)) << "d_initial_state";
}

template <bool kSecond>
void past_32_bits(std::int64_t key_heads) {
  constexpr std::int64_t kPeriod = 251, kDocuments = 523, kHeads = 128, kDim = 128;
  static_assert(kPeriod * kDocuments * kHeads * kDim > kPast32Bits);
  const RuleShape shape{key_heads, kHeads, kDim, kDim, DType::BF16};
  RuleOutputs small, large;
  {
    RuleOnDevice<kSecond> rule(shape, kPeriod, kPeriod);
    small = rule.outputs(1, false);
    rule.both({0, kPeriod}, small);
  }
  RuleOnDevice<kSecond> rule(shape, kPeriod * kDocuments, kPeriod);
  large = rule.outputs(kDocuments, false);
  rule.both(repeated_offsets({kPeriod}, kDocuments), large);
  expect_kernels(rule, ".mma.");
  expect_repeats(large, small);
}

TEST_F(LargeRules, rule_1_on_more_than_2_to_the_31_elements) {
  DELTRON_NEED_GIB(120);
  past_32_bits<false>(128);
}
TEST_F(LargeRules, rule_2_on_more_than_2_to_the_31_elements) {
  DELTRON_NEED_GIB(125);
  past_32_bits<true>(32);
}

constexpr std::int64_t kManyDocuments = 70005;  // a multiple of the five lengths
const std::vector<std::int64_t> kShortLengths = {1, 2, 3, 0, 5};
constexpr std::int64_t kShortTokens = 11;

template <bool kSecond>
void many_documents() {
  for (const RuleShape& shape : {RuleShape{1, 2, 64, 64, DType::BF16}, RuleShape{1, 2, 16, 16, DType::F32}}) {
    const std::int64_t kShort = static_cast<std::int64_t>(kShortLengths.size());
    RuleOnDevice<kSecond> one(shape, kShortTokens, kShortTokens, kShort, kShort);
    const RuleOutputs small = one.outputs(kShort);
    one.both(repeated_offsets(kShortLengths, kShort), small);
    RuleOnDevice<kSecond> rule(shape, kManyDocuments / kShort * kShortTokens, kShortTokens, kManyDocuments, kShort);
    const RuleOutputs large = rule.outputs(kManyDocuments);
    rule.both(repeated_offsets(kShortLengths, kManyDocuments), large);
    expect_kernels(rule, shape.dtype == DType::BF16 ? ".mma." : ".recurrent.");
    expect_repeats(large, small);
  }
}
TEST_F(LargeRules, rule_1_over_more_documents_than_65535) {
  DELTRON_NEED_GIB(16);
  many_documents<false>();
}
TEST_F(LargeRules, rule_2_over_more_documents_than_65535) {
  DELTRON_NEED_GIB(16);
  many_documents<true>();
}

// What one pass over [0, T) gives, and pieces of it, each from the state that the one before has left; gradients from the last piece to the
// first. The generic kernels give the same bits; on tensor cores the two differ by roundings.
template <bool kSecond>
void pieces_against_one_pass(const RuleShape& shape, std::int64_t tokens) {
  const std::string what = std::to_string(tokens) + " tokens";
  const std::int64_t period = std::min<std::int64_t>(tokens, 10007);
  RuleOnDevice<kSecond> rule(shape, tokens, period, 1, 1);
  const std::int64_t count = rule.state_count();
  const RuleOutputs whole = rule.outputs(1), parts = rule.outputs(1);
  rule.both({0, tokens}, whole);
  expect_kernels(rule, shape.dtype == DType::BF16 ? ".mma." : ".recurrent.");
  std::vector<std::int64_t> cuts = {0};
  const bool aligned = tokens >= 128;
  for (int i = 1; i < 4; ++i) {
    const std::int64_t cut = aligned ? tokens * i / 4 / 64 * 64 : tokens * i / 4;
    if (cut > cuts.back() && cut < tokens) cuts.push_back(cut);
  }
  cuts.push_back(tokens);
  const std::size_t pieces = cuts.size() - 1;
  DeviceArray states(DType::F32, (static_cast<std::int64_t>(pieces) + 1) * count), d_states(DType::F32, (static_cast<std::int64_t>(pieces) + 1) * count);
  require_cuda(cudaMemcpy(states.data(), rule.initial_state.data(), static_cast<std::size_t>(count) * 4, cudaMemcpyDeviceToDevice), "copy");
  require_cuda(cudaMemcpy(d_states.at(static_cast<std::int64_t>(pieces) * count), rule.d_final_state.data(), static_cast<std::size_t>(count) * 4,
                          cudaMemcpyDeviceToDevice),
               "copy");
  for (std::size_t p = 0; p < pieces; ++p) {
    const auto at = static_cast<std::int64_t>(p);
    rule.forward({0, cuts[p + 1] - cuts[p]}, parts, cuts[p], states.at(at * count), states.at((at + 1) * count));
  }
  for (std::size_t p = pieces; p-- > 0;) {
    const auto at = static_cast<std::int64_t>(p);
    rule.backward({0, cuts[p + 1] - cuts[p]}, parts, cuts[p], states.at(at * count), d_states.at((at + 1) * count), d_states.at(at * count));
  }
  const double limit = shape.dtype == DType::F32 ? 1e-4 : 0.015;
  double worst = 0;
  bool same = true;
  const auto compare = [&](const std::string& name, const std::vector<double>& ours, const std::vector<double>& expected) {
    const double error = error_ratio(ours, expected);
    EXPECT_LE(error, limit) << what << ": " << name;
    if (!(error <= worst)) worst = error;
  };
  // Whole arrays as bytes; where they differ, windows around the cuts and at both ends as numbers.
  for (const auto& [name, array] : whole.of_tokens) {
    const DeviceArray& other = parts.of_tokens.at(name);
    EXPECT_TRUE(array.untouched() && other.untouched()) << name;
    if (same_bytes(array, other)) continue;
    same = false;
    const std::int64_t row = array.count() / tokens;
    for (const std::int64_t cut : cuts) {
      const std::int64_t from = std::max<std::int64_t>(0, cut - 1000), to = std::min(tokens, cut + 1000);
      compare(name, other.values(from * row, (to - from) * row), array.values(from * row, (to - from) * row));
    }
  }
  const std::vector<double> final_state = whole.final_state.values(), d_initial = whole.d_initial_state.values();
  compare("final_state", states.values(static_cast<std::int64_t>(pieces) * count, count), final_state);
  compare("d_initial_state", d_states.values(0, count), d_initial);
  std::printf("  %s, %s: %zu pieces, worst error ratio %.2e%s\n", rule.forward_kernel.c_str(), what.c_str(), pieces, worst, same && worst == 0 ? ", the same bits" : "");
  if (pieces < 2) return;
  // The state is worth something: without it the second piece comes out otherwise.
  const std::int64_t row = shape.value_heads * shape.value_dim, first = cuts[1], some = std::min<std::int64_t>(cuts[2] - first, 16);
  const std::vector<double> with = parts.of_tokens.at("o").values(first * row, some * row);
  rule.forward({0, cuts[2] - first}, parts, first);
  EXPECT_GT(error_ratio(parts.of_tokens.at("o").values(first * row, some * row), with), 10 * limit) << what;
}

template <bool kSecond>
void every_length() {
  for (const std::int64_t tokens : {1, 2, 3, 63, 64, 65, 128, 1011, 4096, 65537, 262144, 1048576}) {
    pieces_against_one_pass<kSecond>({1, 2, 64, 64, DType::BF16, 2e-3}, tokens);
    if (tokens <= 65537) pieces_against_one_pass<kSecond>({1, 1, 16, 16, DType::F32, 2e-3}, tokens);
  }
}
TEST_F(LargeRules, rule_1_over_sequences_of_1_to_1048576_tokens_in_one_pass_and_in_pieces) {
  DELTRON_NEED_GIB(24);
  every_length<false>();
}
TEST_F(LargeRules, rule_2_over_sequences_of_1_to_1048576_tokens_in_one_pass_and_in_pieces) {
  DELTRON_NEED_GIB(24);
  every_length<true>();
}
// Token by token: slow, so apart.
TEST_F(LargeRules, generic_kernels_over_1048576_tokens_in_one_pass_and_in_pieces) {
  DELTRON_NEED_GIB(24);
  pieces_against_one_pass<false>({1, 1, 16, 16, DType::F32, 2e-3}, 1048576);
  pieces_against_one_pass<true>({1, 1, 16, 16, DType::F32, 2e-3}, 1048576);
}

template <bool kSecond>
void a_thousand_launches(DType dtype) {
  const std::vector<std::int64_t> offsets = {0, 300, 365, 365, 372};
  RuleOnDevice<kSecond> rule({2, 4, 128, 128, dtype}, 372, 372, 4, 4);
  const RuleOutputs out = rule.outputs(4);
  std::vector<const DeviceArray*> arrays = {&out.final_state, &out.d_initial_state};
  for (const auto& entry : out.of_tokens) arrays.push_back(&entry.second);
  std::size_t size = 0;
  for (const DeviceArray* array : arrays) size += array->bytes();
  const Pinned pinned(size);
  const auto launch = [&] {
    for (const DeviceArray* array : arrays) array->spoil();  // what a launch leaves unwritten shows
    rule.both(offsets, out);
    std::size_t at = 0;
    for (const DeviceArray* array : arrays) {
      require_cuda(cudaMemcpy(pinned.data + at, array->data(), array->bytes(), cudaMemcpyDeviceToHost), "download");
      at += array->bytes();
    }
  };
  launch();
  const std::vector<char> first(pinned.data, pinned.data + size);
  expect_kernels(rule, dtype == DType::F32 ? ".recurrent." : ".mma.");
  const char* asked = std::getenv("DELTRON_REPEATS");
  const int repeats = asked != nullptr ? std::atoi(asked) : 100;
  for (int i = 1; i < repeats; ++i) {
    launch();
    ASSERT_EQ(std::memcmp(pinned.data, first.data(), size), 0) << "launch " << i << ", " << dtype_name(dtype);
  }
  for (const DeviceArray* array : arrays) EXPECT_TRUE(array->untouched());
  std::printf("  %s: %d launches of forward and backward, the same bits\n", rule.backward_kernel.c_str(), repeats);
}
TEST_F(LargeRules, launches_repeat_the_bits_of_rule_1) {
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) a_thousand_launches<false>(dtype);
}
TEST_F(LargeRules, launches_repeat_the_bits_of_rule_2) {
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) a_thousand_launches<true>(dtype);
}

// What stands around the rules, over as many documents.
class ManyDocuments : public LargeGpu {
 protected:
  struct Offsets {
    std::vector<std::int64_t> host;
    DeviceArray device;
    explicit Offsets(std::int64_t documents) : host(repeated_offsets(kShortLengths, documents)), device(DType::I64, documents + 1) {
      std::vector<char> bytes(host.size() * 8);
      std::memcpy(bytes.data(), host.data(), bytes.size());
      device.repeat(bytes);
    }
    kernels::Documents get() const {
      return {static_cast<std::int64_t>(host.size()) - 1, reinterpret_cast<const std::int64_t*>(device.data()), host.data()};
    }
  };
  static DeviceArray input(DType dtype, std::int64_t tokens, std::int64_t row, std::uint64_t seed) {
    DeviceArray array(dtype, tokens * row);
    array.repeat(TestRandom(seed).values(kShortTokens * row));
    return array;
  }
  template <class Args>
  static void launch(Args& args, std::int64_t bytes, void (*kernel)(const Args&, const StreamHandle&)) {
    const DeviceArray workspace(DType::U8, std::max<std::int64_t>(bytes, 1));
    args.workspace = {workspace.data(), bytes};
    kernel(args, device_stream());
    finish("kernel");
    EXPECT_TRUE(workspace.untouched());
  }
  template <class Run>
  static void compare(const Run& run) {
    const std::vector<DeviceArray> small = run(static_cast<std::int64_t>(kShortLengths.size())), large = run(kManyDocuments);
    for (std::size_t i = 0; i < large.size(); ++i) EXPECT_TRUE(repeats(large[i], small[i])) << "output " << i;
  }
};

TEST_F(ManyDocuments, convolution_both_ways) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    compare([&](std::int64_t documents) {
      constexpr std::int64_t kChannels = 72;
      const Offsets offsets(documents);
      const std::int64_t tokens = offsets.host.back();
      const DeviceArray x = input(dtype, tokens, kChannels, 1), dy = input(dtype, tokens, kChannels, 2);
      DeviceArray weight(dtype, kChannels * 4), dweight(DType::F32, kChannels * 4);
      weight.repeat(TestRandom(3).values(kChannels * 4)), dweight.zero();
      std::vector<DeviceArray> all;
      all.emplace_back(dtype, tokens * kChannels), all.emplace_back(dtype, tokens * kChannels);
      kernels::CausalConv1dForwardArgs f;
      f.tokens = tokens, f.channels = kChannels, f.documents = offsets.get(), f.dtype = f.weight_dtype = dtype, f.x = {x.data(), kChannels};
      f.weight = weight.data(), f.y = {all[0].data(), kChannels};
      kernels::cuda::causal_conv1d_forward(f, device_stream());
      kernels::CausalConv1dBackwardArgs b;
      b.tokens = tokens, b.channels = kChannels, b.documents = f.documents, b.dtype = b.weight_dtype = dtype, b.x = f.x, b.dy = {dy.data(), kChannels};
      b.weight = weight.data(), b.dx = {all[1].data(), kChannels}, b.dweight = dweight.data();
      launch(b, kernels::cuda::causal_conv1d_backward_workspace_bytes(b, device_stream()), &kernels::cuda::causal_conv1d_backward);
      return all;
    });
  }
}

TEST_F(ManyDocuments, attention_both_ways) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    // Where a document lies among the tiles of queries and keys decides the order of its sums, so values are compared, not bits.
    constexpr std::int64_t kHeads = 2, kDim = 64, kRow = kHeads * kDim;
    const auto run = [&](std::int64_t documents) {
      const Offsets offsets(documents);
      const std::int64_t tokens = offsets.host.back();
      const DeviceArray q = input(dtype, tokens, kRow, 4), k = input(dtype, tokens, kDim, 5), v = input(dtype, tokens, kDim, 6), d_o = input(dtype, tokens, kRow, 7);
      DeviceArray lse(DType::F32, tokens * kHeads);
      std::vector<DeviceArray> all;
      for (const std::int64_t row : {kRow, kRow, kDim, kDim}) all.emplace_back(dtype, tokens * row);
      kernels::AttentionForwardArgs f;
      f.tokens = tokens, f.query_heads = kHeads, f.kv_heads = 1, f.dim = kDim, f.documents = offsets.get(), f.dtype = dtype, f.scale = 0.125;
      f.q = {q.data(), 0, kRow, kDim}, f.k = {k.data(), 0, kDim, kDim}, f.v = {v.data(), 0, kDim, kDim}, f.o = {all[0].data(), 0, kRow, kDim};
      f.log_sum_exp = lse.data();
      launch(f, kernels::cuda::attention_forward_workspace_bytes(f, device_stream()), &kernels::cuda::attention_forward);
      kernels::AttentionBackwardArgs b;
      b.tokens = tokens, b.query_heads = kHeads, b.kv_heads = 1, b.dim = kDim, b.documents = f.documents, b.dtype = dtype, b.scale = f.scale;
      b.q = f.q, b.k = f.k, b.v = f.v, b.o = {all[0].data(), 0, kRow, kDim}, b.d_o = {d_o.data(), 0, kRow, kDim}, b.log_sum_exp = lse.data();
      b.dq = {all[1].data(), 0, kRow, kDim}, b.dk = {all[2].data(), 0, kDim, kDim}, b.dv = {all[3].data(), 0, kDim, kDim};
      launch(b, kernels::cuda::attention_backward_workspace_bytes(b, device_stream()), &kernels::cuda::attention_backward);
      return all;
    };
    const std::vector<DeviceArray> small = run(static_cast<std::int64_t>(kShortLengths.size())), large = run(kManyDocuments);
    for (std::size_t i = 0; i < large.size(); ++i) {
      EXPECT_TRUE(large[i].untouched());
      const std::vector<double> expected = small[i].values(), ours = large[i].values();
      double worst = 0;
      for (std::size_t j = 0; j < ours.size(); ++j) {
        const double difference = std::fabs(ours[j] - expected[j % expected.size()]);
        if (!(difference <= worst)) worst = difference;
      }
      EXPECT_LE(worst, dtype == DType::F32 ? 1e-5 : 0.03) << "output " << i << ", " << dtype_name(dtype);
    }
  }
}

TEST_F(ManyDocuments, the_fused_preparation_forward) {
  compare([&](std::int64_t documents) {
    constexpr std::int64_t kHk = 1, kHv = 2, kDim = 32, kRow = (2 * kHk + kHv) * kDim;
    constexpr DType kType = DType::BF16;
    const Offsets offsets(documents);
    const std::int64_t tokens = offsets.host.back();
    const DeviceArray qkv = input(kType, tokens, kRow, 8), raw = input(kType, tokens, 2 * kHv, 9);
    DeviceArray weight(kType, kRow * 4), A_log(DType::F32, kHv), dt_bias(DType::F32, kHv);
    weight.repeat(TestRandom(10).values(kRow * 4)), A_log.repeat(TestRandom(11).values(kHv)), dt_bias.repeat(TestRandom(12).values(kHv));
    std::vector<DeviceArray> all;
    all.emplace_back(kType, tokens * kRow), all.emplace_back(DType::F32, tokens * kHv), all.emplace_back(kType, tokens * kHv);
    kernels::GdnPreRuleForwardArgs f;
    f.tokens = tokens, f.key_heads = kHk, f.value_heads = kHv, f.key_dim = f.value_dim = kDim, f.documents = offsets.get(), f.dtype = f.conv_weight_dtype = kType;
    f.qkv = {qkv.data(), kRow}, f.raw = {raw.data(), 2 * kHv}, f.conv_weight = weight.data(), f.A_log = A_log.data(), f.dt_bias = dt_bias.data();
    f.prepared = {all[0].data(), kRow}, f.decay = all[1].data(), f.strength = all[2].data();
    launch(f, kernels::cuda::gdn_pre_rule_forward_workspace_bytes(f, device_stream()), &kernels::cuda::gdn_pre_rule_forward);
    return all;
  });
}

}  // namespace
}  // namespace deltron::test
