// See published.h.
#include "tools/memory_table/published.h"

#include <algorithm>

namespace deltron::tools {
namespace {

const char* const kInProj = "gdn_in_proj";
const char* const kQkv = "gdn_qkv";
const char* const kNormOut = "gdn_norm_out";

// Collects tensors; shapes and formulas are told side by side, so that neither can change alone.
class List {
 public:
  explicit List(const MemorySetting& setting) : setting_(setting) {}

  PublishedTensor& add(const std::string& name, std::vector<std::int64_t> shape, DType dtype, const std::string& formula,
                       std::int64_t times = 1) {
    PublishedTensor tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.bytes = times * static_cast<std::int64_t>(dtype_size(dtype));
    for (const std::int64_t extent : shape) tensor.bytes *= extent;
    tensor.shape = (times == 1 ? "" : std::to_string(times) + " x ") + shape_text(shape);
    tensor.formula = formula;
    tensors_.push_back(std::move(tensor));
    return tensors_.back();
  }
  PublishedTensor& activation(const std::string& name, std::vector<std::int64_t> shape, const std::string& formula) {
    return add(name, std::move(shape), setting_.dtype, formula);
  }
  PublishedTensor& rule(const std::string& name, std::vector<std::int64_t> shape, const std::string& formula, std::int64_t times = 1) {
    PublishedTensor& tensor = add(name, std::move(shape), DType::F32, formula, times);
    tensor.of_the_rule = true;
    tensor.why = "the rule's backward computes it again, chunk by chunk";
    return tensor;
  }
  std::vector<PublishedTensor> take() { return std::move(tensors_); }

 private:
  const MemorySetting& setting_;
  std::vector<PublishedTensor> tensors_;
};

const char* const kWeightWhy = "a weight: alive with or without a graph, counted once, as a weight";

void add_layer(List& list, const MemorySetting& s) {
  const std::int64_t S = s.seq_length, B = s.micro_batch_size, P = s.projection_width(), C = s.conv_width();
  const std::string p = s.second ? "(4 Hk K + 3 Hv V)" : "(2 Hk K + 2 Hv V + 2 Hv)", c = "(2 Hk K + Hv V)";
  PublishedTensor* tensor = &list.activation("input of in_proj", {S, B, s.hidden_size}, "S B h");
  tensor->ours = {"layer_input/hidden_states"};
  tensor = &list.activation("in_proj weight", {P, s.hidden_size}, p + " h");
  tensor->weight = true;
  tensor->freed_by = kInProj;
  tensor->why = kWeightWhy;
  tensor = &list.activation("projection output", {S, B, P}, "S B " + p);
  tensor->freed_by = kInProj;
  tensor->ours = {"gdn_in_proj/gdn.qkv", "gdn_in_proj/gdn.gates"};
  tensor->why = "two storages, so that each can be freed alone";
  tensor = &list.activation("conv input (transposed copy)", {B, C, S}, "B " + c + " S");
  tensor->freed_by = kQkv;
  tensor->why = "the convolution reads the qkv storage where it lies";
  tensor = &list.activation("conv output before SiLU", {B, C, S + s.conv_kernel - 1}, "B " + c + " (S + kc - 1)");
  tensor->freed_by = kQkv;
  tensor->ours = {"gdn_qkv/gdn.prep", "gdn_qkv/gdn.pre_rule"};
  tensor->why = "not kept: backward computes it from its input; ours keeps q, k, v as the rule reads them, convolved and normalised, key heads not repeated";
  tensor = &list.activation("conv weight", {C, s.conv_kernel}, c + " kc");
  tensor->weight = true;
  tensor->freed_by = kQkv;
  tensor->why = kWeightWhy;
  tensor = s.second ? &list.add("decay before heads are repeated", {S, B, s.dq()}, DType::F32, "S B Hk K")
                    : &list.add("decay before heads are repeated", {S, B, s.value_heads}, DType::F32, "S B Hv");
  tensor->ours = {"gdn_qkv/gdn.decay"};
  tensor->why = "the rule reads the raw gates where they lie and takes softplus and sigmoid inside";
  tensor = &list.activation("output of the rule", {B, S, s.value_heads, s.value_dim}, "B S Hv V");
  tensor->ours = {"gdn_core_attn/gdn.rule"};
  tensor = &list.activation("copy of the output gate", {B, S, s.value_heads, s.value_dim}, "B S Hv V");
  tensor->ours = {"gdn_gate_copy/gdn.gate_copy"};
  tensor->why = "the fused norm reads z where it lies, in the gates storage";
  tensor = &list.add("statistics of the output norm", {B, S, s.value_heads}, DType::F32, "B S Hv");
  tensor->freed_by = kNormOut;
  tensor->ours = {"gdn_norm_out/rstd"};
  tensor = &list.activation("output of the gated norm", {S, B, s.dv()}, "S B Hv V");
  tensor->freed_by = kNormOut;
  tensor->ours = {"gdn_norm_out/gdn.out_norm"};
  tensor = &list.activation("out_proj weight", {s.hidden_size, s.dv()}, "h Hv V");
  tensor->weight = true;
  tensor->why = kWeightWhy;
}

// Forward substitution row by row: row i keeps itself (i numbers) and a copy of the i x i block before it.
void add_substitution(List& list, const MemorySetting& s, std::int64_t chunks, std::int64_t chunk) {
  const std::int64_t heads = s.micro_batch_size * s.value_heads;
  const std::int64_t squares = (chunk - 1) * chunk * (2 * chunk - 1) / 6, rows = (chunk - 1) * chunk / 2;
  list.rule("substitution: blocks before each row", {heads, chunks, squares}, "B Hv N (C-1) C (2C-1) / 6");
  list.rule("substitution: rows", {heads, chunks, rows}, "B Hv N (C-1) C / 2");
}

void add_rule(List& list, const MemorySetting& s) {
  const std::int64_t B = s.micro_batch_size, H = s.value_heads, K = s.key_dim, V = s.value_dim, chunk = s.published_chunk;
  const std::int64_t chunks = (s.seq_length + chunk - 1) / chunk, S = chunks * chunk;
  const std::vector<std::int64_t> wide_k = {B, H, S, K}, wide_v = {B, H, S, V}, pairs = {B, H, chunks, chunk, chunk}, one = {B, H, S};
  const std::string k = "B Hv N C K", v = "B Hv N C V", square = "B Hv N C C", gate = "B Hv N C";
  for (const char* name : {"k", "q scaled"}) list.rule(name, wide_k, k);
  list.rule("v", wide_v, v);
  if (s.second) {
    for (const char* name : {"b", "exp G", "exp G centred", "exp -G centred", "b exp G", "b exp G centred", "erase, centred", "k exp -G",
                             "erase (b k)", "W", "q exp G", "q exp G centred"}) {
      list.rule(name, wide_k, k);
    }
    for (const char* name : {"w", "write (w v)"}) list.rule(name, wide_v, v);
  } else {
    for (const char* name : {"beta k", "beta k exp G", "W"}) list.rule(name, wide_k, k);
    list.rule("beta v", wide_v, v);
    for (const char* name : {"exp of pairwise decay", "decay mask", "k k'"}) list.rule(name, pairs, square);
  }
  PublishedTensor& inverse = list.rule("T", pairs, square);
  inverse.ours = {"gdn_core_attn/t_inverse"};
  if (!s.second) inverse.why = "kept, in the activations' type; the recompute region gdn_core_attn drops it";
  add_substitution(list, s, chunks, chunk);
  if (s.second) {
    list.rule("q k' a chunk", pairs, square);
    list.rule("U a chunk", wide_v, v);
    for (const char* name : {"exp(G_C - G) a chunk", "k exp(G_C - G) a chunk"}) list.rule(name, wide_k, k);
  } else {
    for (const char* name : {"q k' a chunk", "q k' masked, a chunk"}) list.rule(name, pairs, square);
    list.rule("V new a chunk", wide_v, v);
    list.rule("q exp G a chunk", {B, H, S - chunk, K}, "B Hv (N-1) C K");  // the first chunk has no state to be differentiated
    list.rule("k exp(G_C - G) a chunk", wide_k, k);
  }
  list.rule("states, one a chunk", {B, H, K, V}, "N B Hv K V", chunks);
  if (s.second) {
    list.rule("exp G_C a chunk", {B, H, chunks, K}, "B Hv N K");
  } else {
    for (const char* name : {"beta", "exp G", "exp G a chunk", "exp(G_C - G)"}) list.rule(name, one, gate);
  }
}

}  // namespace

std::vector<PublishedTensor> published_tensors(const MemorySetting& setting) {
  List list(setting);
  add_layer(list, setting);
  add_rule(list, setting);
  std::vector<PublishedTensor> tensors = list.take();
  // Gates that our fused preparation leaves for the rule.
  for (PublishedTensor& tensor : tensors) {
    if (!tensor.of_the_rule || (tensor.name != "beta" && tensor.name != "b" && tensor.name != "w")) continue;
    tensor.ours = {"gdn_qkv/gdn." + tensor.name};
    tensor.why = "the rule reads the raw gates; the fused preparation leaves them as the rule uses them, in the activations' type, heads not repeated";
  }
  return tensors;
}

std::int64_t bytes_of(const std::vector<PublishedTensor>& tensors) {
  std::int64_t sum = 0;
  for (const PublishedTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

std::int64_t freed_bytes(const std::vector<PublishedTensor>& tensors, const std::vector<std::string>& regions) {
  std::int64_t sum = 0;
  for (const PublishedTensor& tensor : tensors) {
    if (std::find(regions.begin(), regions.end(), tensor.freed_by) != regions.end()) sum += tensor.bytes;
  }
  return sum;
}

bool is_a_published_row(const std::vector<std::string>& regions) {
  return std::all_of(regions.begin(), regions.end(),
                     [](const std::string& region) { return region == kInProj || region == kQkv || region == kNormOut; });
}

const std::vector<PrintedFigure>& printed_figures() {
  static const std::vector<PrintedFigure> figures = {
      {false, {}, "558.9", ""},
      {false, {kInProj}, "-72.4", ""},
      {false, {kQkv}, "-32.1", ""},
      {false, {kNormOut}, "-8.1", ""},
      {false, {kInProj, kQkv, kNormOut}, "-112.6", "-20.1"},
      {true, {}, "743.1", ""},
      {true, {kInProj}, "-120.0", ""},
      {true, {kQkv}, "-32.1", ""},
      {true, {kNormOut}, "-8.1", ""},
      {true, {kInProj, kQkv, kNormOut}, "-160.2", "-21.6"},
  };
  return figures;
}

const PrintedFigure* printed_figure(const MemorySetting& setting, const std::vector<std::string>& regions) {
  if (!setting.is_the_published_one()) return nullptr;
  for (const PrintedFigure& figure : printed_figures()) {
    if (figure.second == setting.second && figure.regions == regions) return &figure;
  }
  return nullptr;
}

}  // namespace deltron::tools
