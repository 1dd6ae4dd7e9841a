// Walks the YAML tree against the schema, then applies the overrides; see loader.h.
#include "src/config/loader.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/suggest.h"
#include "src/config/convert.h"
#include "src/config/schema.h"
#include "src/config/validate.h"
#include "src/config/yaml_tree.h"

namespace deltron {
namespace {

std::string did_you_mean_fix(const std::vector<std::string>& near, const std::string& otherwise) {
  return near.empty() ? otherwise : "did you mean '" + near.front() + "'?";
}

class Reader {
 public:
  explicit Reader(LoadedConfig& loaded) : loaded_(loaded) {}

  void read_file_text(const std::string& text) {
    const YamlPlace place{loaded_.sources.file, ""};
    const YamlTree tree = parse_yaml(text, place, loaded_.faults);
    const YamlNode& root = tree.root;
    loaded_.complete = tree.complete;
    if (root.kind == YamlNode::Kind::Null || root.kind == YamlNode::Kind::Refused) return;
    if (root.kind != YamlNode::Kind::Map) {
      loaded_.complete = false;
      fault(ErrorCode::ConfigSyntax, {"a configuration is a map of sections", place.at(root.line, root.column), "", "", "begin with 'model:'"});
      return;
    }
    for (std::size_t i = 0; i + 1 < root.items.size(); i += 2) read_section(root.items[i], root.items[i + 1], place);
  }

  void read_override(const std::string& text) {
    const YamlPlace place{"", "command line: " + text};
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const std::size_t dot = name.find('.');
    if (equals == std::string::npos || dot == std::string::npos || dot == 0 || dot + 1 == name.size()) {
      fault(ErrorCode::ConfigBadOverride, {"'" + text + "' is not of the form section.key=value", "command line", "", "", override_fix(text)});
      return;
    }
    const std::string section = name.substr(0, dot);
    const std::string key = name.substr(dot + 1);
    const Field* field = known_field(section, key, place.fixed);
    if (field == nullptr) return;
    if (!overridden_.insert(name).second) {
      fault(ErrorCode::ConfigDuplicateKey, {name + " is given twice on the command line", place.fixed, "", "", "remove one of them"});
      return;
    }
    loaded_.sources.places[name] = place.fixed;
    loaded_.sources.unreadable.erase(name);
    const std::string value = text.substr(equals + 1);
    const std::size_t before = loaded_.faults.size();
    const YamlNode node = override_node(*field, value, place);
    if (loaded_.faults.size() == before) {
      store(*field, node, place);
    } else {
      loaded_.sources.unreadable.insert(name);
    }
  }

 private:
  void fault(ErrorCode code, const ErrorText& text) { loaded_.faults.push_back(format_error(code, text)); }

  // Texts and words are taken as they stand (the shell has done its quoting), everything else as YAML.
  YamlNode override_node(const Field& field, const std::string& value, const YamlPlace& place) {
    const bool quoted = !value.empty() && (value.front() == '"' || value.front() == '\'');
    if ((field.type == FieldType::Text || field.type == FieldType::Word) && !quoted) {
      YamlNode node;
      node.kind = YamlNode::Kind::Scalar;
      node.text = value;
      return node;
    }
    return parse_yaml(value, place, loaded_.faults).root;
  }

  static std::string override_fix(const std::string& text) {
    const std::string key = text.substr(0, text.find('='));
    for (const Field& field : config_fields()) {
      if (field.key == key) return "did you mean '" + field.section + "." + text + "'?";
    }
    return "write for example optimizer.lr=1e-3";
  }

  // Null, with a fault, where the section or key does not exist. What was probably meant counts as written but unreadable.
  const Field* known_field(const std::string& section, const std::string& key, const std::string& where) {
    if (!known_section(section, where)) return nullptr;
    const Field* field = find_field(section, key);
    if (field != nullptr) return field;
    const std::vector<std::string> near = nearest_words(key, key_names(section), 1);
    std::string fix = did_you_mean_fix(near, "docs/config_reference.md lists the keys");
    if (!near.empty()) loaded_.sources.unreadable.insert(section + "." + near.front());
    for (const Field& other : config_fields()) {
      if (other.key != key) continue;
      fix = "it belongs to section '" + other.section + "'";
      loaded_.sources.unreadable.insert(other.name());
    }
    const std::string first_word = key.substr(0, key.find(' '));
    if (first_word != key && find_field(section, first_word) != nullptr) {
      fix = "a colon is missing: write '" + first_word + ": " + key.substr(first_word.size() + 1) + "'";
      loaded_.sources.unreadable.insert(section + "." + first_word);
    }
    fault(ErrorCode::ConfigUnknownKey, {"unknown key '" + key + "' in section '" + section + "'", where, "", "", fix});
    return nullptr;
  }

  bool known_section(const std::string& section, const std::string& where) {
    const std::vector<std::string> names = section_names();
    for (const std::string& name : names) {
      if (name == section) return true;
    }
    const std::vector<std::string> near = nearest_words(section, names, 1);
    std::string sections;
    for (const std::string& name : names) sections += (sections.empty() ? "" : ", ") + name;
    std::string fix = did_you_mean_fix(near, "sections are " + sections);
    for (const Field& field : config_fields()) {
      if (field.key == section) fix = "put it into section '" + field.section + "'";
      const bool meant = field.key == section || (!near.empty() && field.section == near.front());
      if (meant) loaded_.sources.unreadable.insert(field.name());
    }
    fault(ErrorCode::ConfigUnknownKey, {"unknown section '" + section + "'", where, "", "", fix});
    return false;
  }

  // False, with a fault, for keys that are no plain text and for merge keys.
  bool plain_key(const YamlNode& key, const YamlPlace& place) {
    if (key.kind == YamlNode::Kind::Refused) return false;
    const std::string where = place.at(key.line, key.column);
    if (key.kind != YamlNode::Kind::Scalar) {
      fault(ErrorCode::ConfigUnsupportedYaml, {"a key must be a word", where, "", "", "write 'key: value'"});
      return false;
    }
    if (key.text == "<<" && !key.quoted) {
      fault(ErrorCode::ConfigUnsupportedYaml, {"merge keys ('<<') are not supported", where, "", "", "write the keys out"});
      return false;
    }
    return true;
  }

  // Remembers the place; false, with a fault, the second time.
  bool first_time(const std::string& name, const std::string& where) {
    const auto [entry, inserted] = loaded_.sources.places.emplace(name, where);
    if (inserted) return true;
    fault(ErrorCode::ConfigDuplicateKey, {name + " is given twice", where, "first at " + entry->second, "", "remove one of them"});
    return false;
  }

  void read_section(const YamlNode& key, const YamlNode& body, const YamlPlace& place) {
    if (!plain_key(key, place)) return;
    const std::string where = place.at(key.line, key.column);
    const std::string& section = key.text;
    if (!known_section(section, where)) return;
    first_time(section, where);  // keys of a repeated section are still read, so that their faults show
    if (body.kind == YamlNode::Kind::Null || body.kind == YamlNode::Kind::Refused) return;
    if (body.kind != YamlNode::Kind::Map) {
      fault(ErrorCode::ConfigWrongType, {"section '" + section + "' is not a map of keys", where, "", "", "write 'key: value' lines below it"});
      return;
    }
    for (std::size_t i = 0; i + 1 < body.items.size(); i += 2) {
      if (!plain_key(body.items[i], place)) continue;
      const std::string key_where = place.at(body.items[i].line, body.items[i].column);
      const Field* field = known_field(section, body.items[i].text, key_where);
      if (field != nullptr && first_time(field->name(), key_where)) store(*field, body.items[i + 1], place);
    }
  }

  void store(const Field& field, const YamlNode& node, const YamlPlace& place) {
    FieldValue value;
    if (node.kind == YamlNode::Kind::Refused) {
      loaded_.sources.unreadable.insert(field.name());
      return;
    }
    std::string notice;
    const std::vector<ConversionFault> wrongs = convert(field, node, value, notice);
    for (const ConversionFault& wrong : wrongs) {
      const bool at_node = wrong.node->kind != YamlNode::Kind::Null && wrong.node->line > 0;
      ErrorText text = wrong.text;
      text.where = at_node ? place.at(wrong.node->line, wrong.node->column) : loaded_.sources.where(field.section, field.key);
      fault(wrong.code, text);
      loaded_.sources.unreadable.insert(field.name());
    }
    if (!wrongs.empty()) return;
    if (!notice.empty()) loaded_.notices.push_back(loaded_.sources.where(field.section, field.key) + ": " + notice);
    field.set(loaded_.config, value);
  }

  LoadedConfig& loaded_;
  std::set<std::string> overridden_;
};

LoadedConfig validated(LoadedConfig loaded) {
  std::vector<std::string> faults = loaded.faults;
  if (loaded.complete) {
    for (std::string& fault : validate(loaded.config, loaded.sources, 0)) faults.push_back(std::move(fault));
  }
  if (!faults.empty()) throw Error::together(ErrorCode::ConfigInvalid, faults);
  for (const std::string& notice : loaded.notices) log_warning(notice);
  return loaded;
}

}  // namespace

std::string ConfigSources::where(const std::string& section, const std::string& key) const {
  for (const std::string& name : {section + "." + key, section}) {
    const auto found = places.find(name);
    if (found != places.end()) return found->second;
  }
  return file;
}

LoadedConfig read_config_text(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  LoadedConfig loaded;
  loaded.sources.file = name;
  Reader reader(loaded);
  reader.read_file_text(text);
  for (const std::string& override_text : overrides) reader.read_override(override_text);
  return loaded;
}

LoadedConfig read_config_file(const std::string& path, const std::vector<std::string>& overrides) {
  return read_config_text(read_file(path), path, overrides);
}

LoadedConfig load_config_text(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  return validated(read_config_text(text, name, overrides));
}

LoadedConfig load_config(const std::string& path, const std::vector<std::string>& overrides) { return validated(read_config_file(path, overrides)); }

void require_data(const LoadedConfig& loaded) {
  const DataConfig& data = loaded.config.data;
  if (!data.data_path.empty() || data.synthetic != SyntheticTask::None) return;
  const bool given = loaded.sources.given("data", "data_path");
  throw Error::together(ErrorCode::ConfigInvalid,
                        {format_error(ErrorCode::ConfigMissingKey, ErrorText{given ? "data.data_path is empty" : "data.data_path is not set",
                                                                             loaded.sources.where("data", "data_path"), "", "training reads token files or a synthetic task",
                                                                             "name prefixes of token files in data.data_path, or set data.synthetic: mqar"})});
}

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides) { return load_config(path, overrides).config; }

}  // namespace deltron
