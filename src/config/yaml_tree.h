// A YAML text as a small tree in which every node knows its place and duplicates are still visible.
// Wraps yaml-cpp's event parser, which hides neither. Must not know the schema.
#pragma once

#include <string>
#include <vector>

namespace deltron {

struct YamlNode {
  enum class Kind { Null, Scalar, List, Map, Refused };  // Refused: already reported, to be skipped
  Kind kind = Kind::Null;
  std::string text = {};  // Scalar
  bool quoted = false;    // Scalar in quotes or as a block: never a number
  int line = 0;           // counted from 1; 0 = unknown
  int column = 0;
  std::vector<YamlNode> items = {};  // List: entries; Map: key, value, key, value, ...
};

// Names the place of a line and column: "configs/a.yaml:12:3" or, for overrides, a fixed text.
struct YamlPlace {
  std::string file = {};
  std::string fixed = {};
  std::string at(int line, int column) const;
};

struct YamlTree {
  YamlNode root = {};
  bool complete = true;  // false: a syntax error cut it short
};

// The first document. Faults of form are appended to `faults`, formatted; the tree then holds what could still be read.
YamlTree parse_yaml(const std::string& text, const YamlPlace& place, std::vector<std::string>& faults);

}  // namespace deltron
