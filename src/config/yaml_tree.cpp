// Builds the tree of yaml_tree.h from yaml-cpp's events; the only file that includes yaml-cpp.
#include "src/config/yaml_tree.h"

#include <sstream>
#include <utility>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "src/base/error.h"

namespace deltron {
namespace {

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const YamlPlace& place, std::vector<std::string>& faults) : place_(place), faults_(faults) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (refuse_anchor(mark, anchor)) return;
    append(node(YamlNode::Kind::Null, mark));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse(mark, "aliases ('*name') are not supported"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) override {
    if (refuse_anchor(mark, anchor) || refuse_tag(mark, tag)) return;
    YamlNode scalar = node(YamlNode::Kind::Scalar, mark);
    scalar.text = value;
    scalar.quoted = tag == "!";
    append(std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::List, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::Map, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

  YamlNode finish() { return std::move(root_); }

  // After a syntax error: closes what is open. The last value read may be a part of something else, and what is open inside a value
  // (below the map of sections and a section) is incomplete.
  YamlNode finish_cut() {
    if (!open_.empty() && !open_.back().items.empty()) open_.back().items.back().kind = YamlNode::Kind::Refused;
    while (!open_.empty()) {
      if (open_.size() > 2 || open_.back().kind == YamlNode::Kind::List) open_.back().kind = YamlNode::Kind::Refused;
      close();
    }
    return finish();
  }

 private:
  static YamlNode node(YamlNode::Kind kind, const YAML::Mark& mark) {
    YamlNode result;
    result.kind = kind;
    if (!mark.is_null()) {
      result.line = mark.line + 1;
      result.column = mark.column + 1;
    }
    return result;
  }

  void append(YamlNode&& child) {
    if (open_.empty()) {
      root_ = std::move(child);
    } else {
      open_.back().items.push_back(std::move(child));
    }
  }

  void report(const YAML::Mark& mark, const std::string& what) {
    const YamlNode at = node(YamlNode::Kind::Refused, mark);
    faults_.push_back(format_error(ErrorCode::ConfigUnsupportedYaml, {what, place_.at(at.line, at.column), "", "", "write the values out"}));
  }
  void refuse(const YAML::Mark& mark, const std::string& what) {
    report(mark, what);
    append(node(YamlNode::Kind::Refused, mark));
  }
  bool refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor == 0) return false;
    refuse(mark, "anchors ('&name') are not supported");
    return true;
  }
  bool refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return false;
    refuse(mark, "explicit tags ('" + tag + "') are not supported");
    return true;
  }

  // A refused container is still built, so that its end is matched, and becomes a Refused leaf when it closes.
  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    YamlNode container = node(kind, mark);
    const bool tagged = !(tag.empty() || tag == "?" || tag == "!");
    if (anchor != 0) report(mark, "anchors ('&name') are not supported");
    if (tagged) report(mark, "explicit tags ('" + tag + "') are not supported");
    if (anchor != 0 || tagged) container.kind = YamlNode::Kind::Refused;
    open_.push_back(std::move(container));
  }
  void close() {
    YamlNode container = std::move(open_.back());
    open_.pop_back();
    if (container.kind == YamlNode::Kind::Refused) container.items.clear();
    if (container.kind == YamlNode::Kind::Map && container.items.size() % 2 != 0) container.items.pop_back();  // cut by a syntax error
    append(std::move(container));
  }

  const YamlPlace& place_;
  std::vector<std::string>& faults_;
  std::vector<YamlNode> open_;
  YamlNode root_;
};

// The indentation of a line (counted from 1) holds a tab.
bool indented_with_tab(const std::string& text, int line) {
  std::istringstream lines(text);
  std::string current;
  for (int i = 0; i < line; ++i) {
    if (!std::getline(lines, current)) return false;
  }
  return current.substr(0, current.find_first_not_of(" \t")).find('\t') != std::string::npos;
}

}  // namespace

std::string YamlPlace::at(int line, int column) const {
  if (!fixed.empty()) return fixed;
  if (line <= 0) return file;
  return file + ":" + std::to_string(line) + ":" + std::to_string(column);
}

YamlTree parse_yaml(const std::string& text, const YamlPlace& place, std::vector<std::string>& faults) {
  TreeBuilder builder(place, faults);
  bool complete = true;
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    std::vector<std::string> ignored;
    TreeBuilder second(place, ignored);
    if (parser.HandleNextDocument(second)) {
      const YamlNode next = second.finish();
      faults.push_back(format_error(ErrorCode::ConfigUnsupportedYaml, {"a second document in one file", place.at(next.line, next.column), "", "",
                                                                       "keep one document a file"}));
    }
  } catch (const YAML::Exception& error) {
    complete = false;
    const int line = error.mark.is_null() ? 0 : error.mark.line + 1;
    const int column = error.mark.is_null() ? 0 : error.mark.column + 1;
    const bool tab = indented_with_tab(text, line);
    faults.push_back(format_error(ErrorCode::ConfigSyntax, {"not valid YAML", place.at(line, column), tab ? "tab in the indentation" : error.msg, "",
                                                            tab ? "indent with spaces" : "see the named line"}));
  }
  return {complete ? builder.finish() : builder.finish_cut(), complete};
}

}  // namespace deltron
