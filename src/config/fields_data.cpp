// The keys of section `data`.
#include "src/config/section_fields.h"

namespace deltron {

void add_data_fields(std::vector<Field>& table) {
  SectionFields<DataConfig> d(table, "data", &RunConfig::data);
  using D = DataConfig;
  d.add("data_path", &D::data_path,
        "prefixes of token files (without .bin/.idx) (several are mixed with equal weights), or weight, prefix, weight, prefix, ...");
  d.add("split", &D::split, "weights of training, validation and test, cut by documents in this order");
  d.add_words("tokenizer", &D::tokenizer, {"byte", "none"},
              "byte: ids 0..255 are bytes, 256 ends a document; none: ids are taken as they are and no text is made");
  d.add_words("packing", &D::packing, {"windows", "documents"},
              "windows: the shuffled token stream cut to seq_length; documents: whole documents in bins, first fit, longest first");
  d.add("path_to_cache", &D::path_to_cache, "folder of the sample indices; empty = beside the data");
  d.add_words("synthetic", &D::synthetic, {"none", "mqar"}, "a generated task instead of data_path: multi-query associative recall");
  d.add("mqar_vocab_size", &D::mqar_vocab_size, "mqar: ids used, the lower half keys, the upper half values").at_least(4).at_most(2147483646).in("tokens");
  d.add("mqar_num_pairs", &D::mqar_num_pairs, "mqar: key-value pairs a sequence").at_least(1).at_most(1000000).in("pairs");
  d.add("mqar_seed", &D::mqar_seed, "mqar: seed of the examples, apart from training.seed").at_least(0);
}

}  // namespace deltron
