// The layouts of parallel_exactness_test.cpp on ranks that are processes, started by a launcher: each runs every case of its world size, the first
// compares with one rank on its own device. Prints a line a case and "N passed, N failed" last; exit code 0 only without a failure.
//
//   deltron launch --nproc-per-node 2 --program test_parallel_processes [cpu|cuda] [gloo|nccl] [bf16]
#include <cstdio>
#include <cstring>

#include "distributed/process_world.h"
#include "src/tensor/cuda_device.h"
#include "src/train/host_channel.h"
#include "tests/model/parallel_run.h"

namespace deltron {
namespace {

using test::ParallelCase;
using test::ParallelResult;
using test::Ranks;

std::string text_of(const test::RankOutcome& outcome) {
  std::string text;
  const auto number = [&](double value) { text.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  number(outcome.loss);
  number(static_cast<double>(outcome.parts.size()));
  for (const test::RankPart& part : outcome.parts) {
    const LogicalTensor& logical = part.logical;
    number(static_cast<double>(logical.name.size()));
    text += logical.name;
    number(static_cast<double>(logical.shape.size()));
    for (std::int64_t size : logical.shape) number(static_cast<double>(size));
    for (std::int64_t value : {static_cast<std::int64_t>(logical.cut.dim), logical.cut.begin, logical.cut.whole}) number(static_cast<double>(value));
    for (const std::vector<double>* values : {&part.gradient, &part.weight}) {
      number(static_cast<double>(values->size()));
      text.append(reinterpret_cast<const char*>(values->data()), values->size() * sizeof(double));
    }
  }
  return text;
}

test::RankOutcome outcome_of(const std::string& text) {
  std::size_t at = 0;
  const auto number = [&] {
    double value = 0;
    std::memcpy(&value, text.data() + at, sizeof(value));
    at += sizeof(value);
    return value;
  };
  const auto whole = [&] { return static_cast<std::int64_t>(number()); };
  test::RankOutcome outcome;
  outcome.loss = number();
  for (std::int64_t parts = whole(); parts > 0; --parts) {
    test::RankPart part;
    const auto length = static_cast<std::size_t>(whole());
    part.logical.name = text.substr(at, length);
    at += length;
    for (std::int64_t dims = whole(); dims > 0; --dims) part.logical.shape.push_back(whole());
    part.logical.cut.dim = static_cast<int>(whole());
    part.logical.cut.begin = whole();
    part.logical.cut.whole = whole();
    for (std::vector<double>* values : {&part.gradient, &part.weight}) {
      values->resize(static_cast<std::size_t>(whole()));
      std::memcpy(values->data(), text.data() + at, values->size() * sizeof(double));
      at += values->size() * sizeof(double);
    }
    outcome.parts.push_back(std::move(part));
  }
  return outcome;
}

ParallelResult whole_of(const std::vector<std::string>& ranks) {
  ParallelResult result;
  for (const std::string& text : ranks) {
    const test::RankOutcome outcome = outcome_of(text);
    EXPECT_TRUE(result.loss == 0 || result.loss == outcome.loss) << "ranks disagree about the loss";
    result.loss = outcome.loss;
    for (const test::RankPart& part : outcome.parts) {
      test::put_part(result.gradients, part.logical, part.gradient);
      test::put_part(result.weights, part.logical, part.weight);
    }
  }
  return result;
}

struct Named {
  std::string name;
  ParallelCase what;
  test::Limits limits;
};

std::vector<Named> cases(bool bf16) {
  std::vector<Named> all;
  const auto add = [&](const char* name, const std::function<void(ParallelCase&)>& turn) {
    for (const bool packed : {false, true}) {
      Named one{std::string(name) + (packed ? " packed" : " dense"), {}, {}};
      one.what.lengths = packed ? std::vector<std::int64_t>{40, 56, 40} : std::vector<std::int64_t>{72, 72};
      turn(one.what);
      if (bf16) {
        one.what.dtype = DType::BF16;
        one.what.config.init_method_std = 0.02;
        // Sums over ranks flip roundings of single activations; of the decay's gradients most cancels (docs/benchmarks.md, many ranks).
        one.limits = {1e-3, 1e-2, 5e-2};
      }
      all.push_back(one);
    }
  };
  const auto gdn = [](ParallelCase& c) { c.config.linear_attention_freq.pattern = {1, 1}; };
  const auto gdn2 = [=](ParallelCase& c) {
    gdn(c);
    c.config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
  };
  add("gdn", gdn);
  add("gdn2", gdn2);
  add("softmax", [](ParallelCase& c) { c.config.linear_attention_freq.pattern = {0, 0}; });
  add("hybrid, 2 kv groups", [](ParallelCase& c) { c.config.num_query_groups = 2; });
  add("gdn fused", [=](ParallelCase& c) {
    gdn(c);
    c.config.gdn_pre_gated_delta_rule_fusion = c.config.gdn_gated_output_norm_fusion = true;
  });
  add("gdn2 fused", [=](ParallelCase& c) {
    gdn2(c);
    c.config.gdn_pre_gated_delta_rule_fusion = c.config.gdn_gated_output_norm_fusion = true;
  });
  add("gdn regions", [=](ParallelCase& c) {
    gdn(c);
    c.recompute.gdn_in_proj = c.recompute.gdn_qkv = c.recompute.gdn_norm_out = true;
  });
  add("gdn offload", [=](ParallelCase& c) {
    gdn(c);
    c.offload = {"gdn_qkv"};
  });
  return all;
}

std::vector<Ranks> layouts(int world) {
  std::vector<Ranks> all;
  for (const Ranks& ranks : std::vector<Ranks>{{2, 1, false, 1}, {2, 1, true, 1}, {1, 2, false, 1}, {1, 1, false, 2}, {2, 2, false, 1}, {2, 2, true, 1},
                                               {4, 1, false, 1}, {2, 1, true, 2}, {1, 2, false, 2}, {2, 2, true, 2}, {4, 2, true, 1}}) {
    if (ranks.tp * ranks.cp * ranks.dp == world) all.push_back(ranks);
  }
  return all;
}

int run(DeviceKind device, bool nccl, bool bf16) {
  const RankEnvironment place = read_rank_environment(process_environment());
  if (place.world_size == 1) {
    std::printf("start it with a launcher: deltron launch --nproc-per-node 2 --program test_parallel_processes\n");
    return 2;
  }
  ProcessWorld world(place, {.nccl = nccl, .timeout_seconds = 120});
  ContextOptions options = test::small_context();
  options.device = device;
  options.threads = 1;
  options.pin_threads = false;
  if (device == DeviceKind::Cuda) options.device_index = place.local_rank % static_cast<int>(cuda_status().devices.size());
  Context ctx(options);
  HostChannel channel(world.control());
  const std::shared_ptr<Communicator> group = world.connect(ctx);
  const std::vector<Named> all = cases(bf16);
  std::vector<ParallelResult> expected;
  for (const Named& one : all) {
    if (place.rank != 0) break;
    Context alone(options);
    expected.push_back(whole_of({text_of(test::run_rank(alone, one.what, 1))}));
  }
  int passed = 0, failed = 0;
  for (const Ranks& ranks : layouts(place.world_size)) {
    set_parallel_state(ctx, group, {ranks.tp, ranks.cp, ranks.dp}, ranks.sequence_parallel);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Named& one = all[i];
      ParallelResult actual[2];
      for (ParallelResult& result : actual) {
        const std::vector<std::string> parts = channel.exchange(text_of(test::run_rank(ctx, one.what, 1)));
        if (place.rank == 0) result = whole_of(parts);
      }
      if (place.rank != 0) continue;
      const test::Worst worst = test::compare(actual[0], expected[i], one.limits, one.name + " " + ranks.name());
      const bool same = actual[0].bits() == actual[1].bits();
      const bool good = worst.loss <= one.limits.loss && worst.gradient <= one.limits.gradient && worst.decay <= one.limits.decay && same;
      std::printf("%-6s %-28s %-16s loss %.1e  gradients %.1e  decay %.1e  %s\n", good ? "ok" : "FAILED", one.name.c_str(), ranks.name().c_str(), worst.loss,
                  worst.gradient, worst.decay, same ? "twice the same bits" : "OTHER BITS the second time");
      good ? ++passed : ++failed;
    }
  }
  if (place.rank == 0 && failed == 0 && ::testing::Test::HasFailure()) failed = 1;  // parts of ranks that contradict each other
  if (place.rank == 0) std::printf("%s, %s, %d ranks (%s): %d passed, %d failed\n", group->backend(), device_name(device), place.world_size, place.source.c_str(), passed, failed);
  if (place.rank == 0) std::printf("%d passed, %d failed\n", passed, failed);
  world.leave();
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace deltron

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines are there while it runs
  bool cuda = false, nccl = false, bf16 = false;
  for (int i = 1; i < argc; ++i) {
    cuda = cuda || std::strcmp(argv[i], "cuda") == 0;
    nccl = nccl || std::strcmp(argv[i], "nccl") == 0;
    bf16 = bf16 || std::strcmp(argv[i], "bf16") == 0;
  }
  try {
    return deltron::run(cuda ? deltron::DeviceKind::Cuda : deltron::DeviceKind::Cpu, nccl, bf16);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 7;
  }
}
