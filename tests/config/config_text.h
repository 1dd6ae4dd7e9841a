// Small legal configurations as key -> value text, to be edited by a test and written as YAML with known places.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace deltron::testing {

using Edit = std::pair<std::string, std::string>;  // "section.key" -> value as YAML; an empty value removes the key

inline std::vector<Edit> gdn_base() {
  return {{"model.num_layers", "4"},          {"model.hidden_size", "64"},           {"model.ffn_hidden_size", "128"},
          {"model.vocab_size", "264"},        {"model.experimental_attention_variant", "gdn"}, {"model.linear_attention_freq", "0"},
          {"model.linear_num_key_heads", "2"}, {"model.linear_num_value_heads", "4"}, {"model.linear_key_head_dim", "16"},
          {"model.linear_value_head_dim", "16"}, {"training.seq_length", "64"},       {"training.train_iters", "100"},
          {"optimizer.lr", "1e-3"}};
}

// The edits of `more` replace, add or (empty value) remove.
inline std::vector<Edit> edited(std::vector<Edit> base, const std::vector<Edit>& more) {
  for (const Edit& edit : more) {
    bool found = false;
    for (Edit& entry : base) {
      if (entry.first != edit.first) continue;
      entry.second = edit.second;
      found = true;
    }
    if (!found) base.push_back(edit);
  }
  return base;
}

inline std::vector<Edit> hybrid_base() {
  return edited(gdn_base(), {{"model.linear_attention_freq", "2"}, {"model.num_attention_heads", "4"}});
}

inline std::vector<Edit> softmax_base() {
  return edited(gdn_base(), {{"model.experimental_attention_variant", ""}, {"model.linear_attention_freq", ""}, {"model.linear_num_key_heads", ""},
                             {"model.linear_num_value_heads", ""}, {"model.linear_key_head_dim", ""}, {"model.linear_value_head_dim", ""},
                             {"model.num_attention_heads", "4"}});
}

inline std::vector<Edit> mqar_base() { return edited(gdn_base(), {{"data.synthetic", "mqar"}}); }

struct Written {
  std::string yaml;
  std::map<std::string, std::string> places;  // "section.key" and "section" -> "line:column"
};

inline Written write_yaml(const std::vector<Edit>& edits) {
  Written written;
  int line = 0;
  std::vector<std::string> sections;
  for (const Edit& edit : edits) {
    const std::string section = edit.first.substr(0, edit.first.find('.'));
    bool known = false;
    for (const std::string& other : sections) known = known || other == section;
    if (!known) sections.push_back(section);
  }
  for (const std::string& section : sections) {
    written.yaml += section + ":\n";
    written.places[section] = std::to_string(++line) + ":1";
    for (const Edit& edit : edits) {
      const std::size_t dot = edit.first.find('.');
      if (edit.first.substr(0, dot) != section || edit.second.empty()) continue;
      written.yaml += "  " + edit.first.substr(dot + 1) + ": " + edit.second + "\n";
      written.places[edit.first] = std::to_string(++line) + ":3";
    }
  }
  return written;
}

}  // namespace deltron::testing
