// A report as headings, paragraphs and tables, written as plain text or as Markdown. Knows nothing of what it reports.
#pragma once

#include <string>
#include <vector>

namespace deltron::tools {

struct DocumentTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> numbers = {};  // columns that are aligned to the right
};

class Document {
 public:
  void heading(int level, const std::string& text) { blocks_.push_back({Kind::Heading, level, text, {}}); }
  void paragraph(const std::string& text) { blocks_.push_back({Kind::Paragraph, 0, text, {}}); }
  void table(DocumentTable table) { blocks_.push_back({Kind::Table, 0, "", std::move(table)}); }
  void append(const Document& other) { blocks_.insert(blocks_.end(), other.blocks_.begin(), other.blocks_.end()); }

  std::string text() const;
  std::string markdown() const;

 private:
  enum class Kind { Heading, Paragraph, Table };
  struct Block {
    Kind kind;
    int level;
    std::string text;
    DocumentTable table;
  };
  std::vector<Block> blocks_;
};

}  // namespace deltron::tools
