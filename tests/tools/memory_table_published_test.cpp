// The arithmetic of the published memory tables: every printed digit at the published setting; formulas, not constants, at any other.
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>

#include "tools/memory_table/published.h"
#include "tools/memory_table/whole_block.h"

namespace deltron::tools {
namespace {

MemorySetting published_setting(bool second) {
  MemorySetting setting;
  setting.second = second;
  return setting;
}

// Nothing divides anything here, and hidden is not twice the sequence.
MemorySetting odd_setting(bool second) {
  MemorySetting setting;
  setting.second = second;
  setting.hidden_size = 22;
  setting.seq_length = 37;
  setting.micro_batch_size = 3;
  setting.key_heads = 2;
  setting.value_heads = 6;
  setting.key_dim = 5;
  setting.value_dim = 7;
  setting.conv_kernel = 3;
  setting.dtype = DType::F32;
  setting.published_chunk = 10;
  return setting;
}

// Evaluates a printed formula: sums of products, "2C" and "2 C" alike, a division at the end of a product.
class Formula {
 public:
  Formula(const std::string& text, const std::map<std::string, std::int64_t>& names) : text_(text), names_(names) {}
  std::int64_t value() {
    const std::int64_t result = sum();
    skip();
    EXPECT_EQ(at_, text_.size()) << text_;
    return result;
  }

 private:
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  char next() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  std::int64_t sum() {
    std::int64_t result = product();
    while (next() == '+' || next() == '-') {
      const bool plus = text_[at_++] == '+';
      const std::int64_t term = product();
      result += plus ? term : -term;
    }
    return result;
  }
  std::int64_t product() {
    std::int64_t result = factor();
    while (next() == '(' || std::isalnum(static_cast<unsigned char>(next())) != 0) result *= factor();
    if (next() == '/') {
      ++at_;
      const std::int64_t divisor = factor();
      EXPECT_EQ(result % divisor, 0) << text_;
      result /= divisor;
    }
    return result;
  }
  std::int64_t factor() {
    if (next() == '(') {
      ++at_;
      const std::int64_t inner = sum();
      EXPECT_EQ(next(), ')') << text_;
      ++at_;
      return inner;
    }
    std::string word;
    const bool digits = std::isdigit(static_cast<unsigned char>(next())) != 0;
    while (at_ < text_.size() && (digits ? std::isdigit(static_cast<unsigned char>(text_[at_])) : std::isalpha(static_cast<unsigned char>(text_[at_]))) != 0)
      word += text_[at_++];
    if (digits) return std::stoll(word);
    const auto found = names_.find(word);
    EXPECT_NE(found, names_.end()) << "'" << word << "' in " << text_;
    return found == names_.end() ? 0 : found->second;
  }

  std::string text_;
  const std::map<std::string, std::int64_t>& names_;
  std::size_t at_ = 0;
};

std::int64_t sum_of_rule(const std::vector<PublishedTensor>& tensors) {
  std::int64_t sum = 0;
  for (const PublishedTensor& tensor : tensors) sum += tensor.of_the_rule ? tensor.bytes : 0;
  return sum;
}

std::int64_t sum_of_weights(const std::vector<PublishedTensor>& tensors) {
  std::int64_t sum = 0;
  for (const PublishedTensor& tensor : tensors) sum += tensor.weight ? tensor.bytes : 0;
  return sum;
}

TEST(PublishedMemory, arithmetic_gives_every_printed_digit) {
  ASSERT_EQ(printed_figures().size(), 10u);
  std::set<std::string> seen;
  for (const PrintedFigure& figure : printed_figures()) {
    const std::vector<PublishedTensor> tensors = published_tensors(published_setting(figure.second));
    const std::int64_t whole = bytes_of(tensors), freed = freed_bytes(tensors, figure.regions);
    EXPECT_EQ(mib_text(figure.regions.empty() ? whole : -freed, 1), figure.mib);
    const std::string percent = fixed(-100.0 * static_cast<double>(freed) / static_cast<double>(whole), 1);
    EXPECT_EQ(figure.percent.empty() ? "" : percent, figure.percent);
    seen.insert(figure.mib);
    EXPECT_EQ(printed_figure(published_setting(figure.second), figure.regions), &figure);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"558.9", "743.1", "-72.4", "-120.0", "-32.1", "-8.1", "-112.6", "-160.2"}));
}

TEST(PublishedMemory, its_parts_are_those_of_the_known_analysis) {
  const std::vector<PublishedTensor> first = published_tensors(published_setting(false)), second = published_tensors(published_setting(true));
  EXPECT_EQ(mebibytes(sum_of_rule(first)), 410.125);
  EXPECT_EQ(mebibytes(sum_of_rule(second)), 538.875);
  EXPECT_EQ(mebibytes(sum_of_weights(first)), 48.25 + 0.0625 + 16);
  EXPECT_EQ(mebibytes(sum_of_weights(second)), 80 + 0.0625 + 16);
  EXPECT_EQ(mebibytes(freed_bytes(first, {"gdn_in_proj"})), 72.375);
  EXPECT_EQ(mebibytes(freed_bytes(second, {"gdn_in_proj"})), 120.0);
  EXPECT_EQ(mebibytes(freed_bytes(first, {"gdn_qkv"})), 32.109375);
  EXPECT_EQ(mebibytes(freed_bytes(first, {"gdn_norm_out"})), 8.125);
}

TEST(PublishedMemory, every_printed_formula_gives_the_bytes_at_any_setting) {
  for (const bool second : {false, true}) {
    for (MemorySetting s : {published_setting(second), odd_setting(second)}) {
      for (const std::int64_t chunk : {64, 10, 1}) {
        s.published_chunk = chunk;
        const std::map<std::string, std::int64_t> names = {
            {"S", s.seq_length}, {"B", s.micro_batch_size}, {"h", s.hidden_size}, {"Hk", s.key_heads}, {"Hv", s.value_heads}, {"K", s.key_dim},
            {"V", s.value_dim},  {"kc", s.conv_kernel},     {"C", chunk},         {"N", (s.seq_length + chunk - 1) / chunk}};
        for (const PublishedTensor& tensor : published_tensors(s)) {
          EXPECT_EQ(tensor.bytes, Formula(tensor.formula, names).value() * static_cast<std::int64_t>(dtype_size(tensor.dtype)))
              << tensor.name << ": " << tensor.formula;
        }
      }
    }
  }
}

TEST(PublishedMemory, sequence_2048_tells_output_and_weight_from_three_outputs) {
  for (const bool second : {false, true}) {
    MemorySetting s = published_setting(second);
    const std::int64_t output = s.seq_length * s.projection_width() * 2, weight = s.projection_width() * s.hidden_size * 2;
    EXPECT_EQ(output + weight, 3 * output) << "the degenerate case";
    s.seq_length = 2048;
    EXPECT_EQ(freed_bytes(published_tensors(s), {"gdn_in_proj"}), 2 * output + weight);
    EXPECT_NE(2 * output + weight, 3 * 2 * output);
    EXPECT_EQ(printed_figure(s, {}), nullptr) << "nothing was printed at this length";
  }
}

TEST(PublishedMemory, an_odd_setting_agrees_with_sums_by_hand) {
  // S 37, B 3, h 22, Hk 2, Hv 6, K 5, V 7, kc 3, fp32; chunks of 10: 4 of them, 40 tokens with padding.
  const std::vector<PublishedTensor> tensors = published_tensors(odd_setting(false));
  const std::int64_t projection = 2 * 10 + 2 * 42 + 2 * 6, conv = 2 * 10 + 42;
  const std::int64_t layer = 111 * 22 + projection * 22 + 111 * projection + 3 * conv * 37 + 3 * conv * 39 + conv * 3 + 111 * 6 + 111 * 42 + 111 * 42 +
                             111 * 6 + 111 * 42 + 22 * 42;
  const std::int64_t heads = 3 * 6;
  const std::int64_t rule = heads * 40 * (5 * 5 + 2 * 7) + heads * 4 * 4 * 100 + heads * 4 * (285 + 45) + heads * 4 * 2 * 100 + heads * 40 * 7 +
                            heads * 30 * 5 + heads * 40 * 5 + 4 * heads * 5 * 7 + 4 * heads * 40;
  EXPECT_EQ(bytes_of(tensors) - sum_of_rule(tensors), 4 * layer);
  EXPECT_EQ(sum_of_rule(tensors), 4 * rule);
  const std::vector<PublishedTensor> second = published_tensors(odd_setting(true));
  const std::int64_t rule_2 = heads * 40 * (14 * 5 + 3 * 7) + heads * 4 * 100 + heads * 4 * (285 + 45) + heads * 4 * 100 + heads * 40 * 7 + 2 * heads * 40 * 5 +
                              4 * heads * 5 * 7 + heads * 4 * 5;
  EXPECT_EQ(sum_of_rule(second), 4 * rule_2);
}

TEST(WholeBlock, bytes_a_token_and_layers_are_those_of_the_known_analysis) {
  const WholeBlock block = whole_block();
  std::int64_t ordinary = 0, all = 0;
  for (const BytesPerToken& tensor : whole_block_tensors(block.setting)) {
    all += tensor.bytes;
    ordinary += tensor.output ? 0 : tensor.bytes;
  }
  EXPECT_EQ(ordinary, 57984);
  EXPECT_EQ(all, 123904);
  EXPECT_EQ(fixed(block.layers_discard, 1), "4.0");
  EXPECT_EQ(fixed(block.layers_ordinary, 1), "8.5");
  ASSERT_EQ(block.plans.size(), 4u);
  EXPECT_EQ(fixed(static_cast<double>(block.plans[0].published_ordinary) / 1e9, 3), "0.950");
  EXPECT_EQ(fixed(static_cast<double>(block.plans[0].published_discard) / 1e9, 3), "2.030");
  EXPECT_EQ(fixed(static_cast<double>(block.plans[3].published_ordinary) / 1e9, 2), "8.55");
}

TEST(WholeBlock, ours_by_the_planner_is_what_the_block_frees_in_every_layer) {
  const WholeBlock block = whole_block();
  const std::int64_t tokens = block.setting.tokens();
  // A layer: qkv and gates (bf16), the input norm's statistics, prepared q, k, v, and their norm's statistics.
  const std::int64_t qkv = 2 * 16 * 128 + 64 * 128, gates = 64 * 128 + 2 * 64;
  const std::int64_t layer = tokens * (2 * (qkv + gates) + 4 + 2 * qkv + 4 * 2 * 16);
  for (const WholeBlockPlan& plan : block.plans) {
    EXPECT_EQ(plan.ours_kept, plan.layers * layer) << plan.layers;
    EXPECT_EQ(plan.ours_peak, (plan.layers - 1) * layer) << "the replay of one layer needs its memory back";
  }
}

}  // namespace
}  // namespace deltron::tools
