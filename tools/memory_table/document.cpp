// See document.h.
#include "tools/memory_table/document.h"

#include <algorithm>

namespace deltron::tools {
namespace {

bool is_number(const DocumentTable& table, std::size_t column) {
  return std::find(table.numbers.begin(), table.numbers.end(), column) != table.numbers.end();
}

std::string without_backticks(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '`'), text.end());
  return text;
}

// Broken between words.
std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
  std::vector<std::string> lines(1);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (!lines.back().empty() && lines.back().size() + 1 + (end - at) > width) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += " ";
    lines.back() += text.substr(at, end - at);
    at = end + 1;
  }
  return lines;
}

constexpr std::size_t kCellWidth = 64, kParagraphWidth = 110;

std::string plain_table(const DocumentTable& table) {
  std::vector<std::vector<std::string>> rows = {table.head};
  rows.insert(rows.end(), table.rows.begin(), table.rows.end());
  std::vector<std::size_t> widths(table.head.size());
  std::string text;
  std::vector<std::vector<std::vector<std::string>>> cells;  // row, column, line
  for (const auto& row : rows) {
    cells.emplace_back();
    for (std::size_t i = 0; i < row.size(); ++i) {
      cells.back().push_back(wrapped(without_backticks(row[i]), kCellWidth));
      for (const std::string& line : cells.back().back()) widths[i] = std::max(widths[i], line.size());
    }
  }
  for (const auto& row : cells) {
    std::size_t height = 1;
    for (const auto& cell : row) height = std::max(height, cell.size());
    for (std::size_t line = 0; line < height; ++line) {
      std::string out;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string part = line < row[i].size() ? row[i][line] : "";
        const std::string space(widths[i] - part.size(), ' ');
        out += "  " + (is_number(table, i) ? space + part : part + space);
      }
      out.erase(out.find_last_not_of(' ') + 1);
      text += out + "\n";
    }
  }
  return text;
}

std::string markdown_line(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += " " + cell + " |";
  return line + "\n";
}

}  // namespace

std::string Document::text() const {
  std::string text;
  for (const Block& block : blocks_) {
    if (!text.empty()) text += "\n";
    switch (block.kind) {
      case Kind::Heading: text += without_backticks(block.text) + "\n"; break;
      case Kind::Paragraph:
        for (const std::string& line : wrapped(without_backticks(block.text), kParagraphWidth)) text += line + "\n";
        break;
      case Kind::Table: text += plain_table(block.table); break;
    }
  }
  return text;
}

std::string Document::markdown() const {
  std::string text;
  for (const Block& block : blocks_) {
    if (!text.empty()) text += "\n";
    switch (block.kind) {
      case Kind::Heading: text += std::string(static_cast<std::size_t>(block.level), '#') + " " + block.text + "\n"; break;
      case Kind::Paragraph: text += block.text + "\n"; break;
      case Kind::Table: {
        text += markdown_line(block.table.head);
        std::string rule = "|";
        for (std::size_t i = 0; i < block.table.head.size(); ++i) rule += is_number(block.table, i) ? "---:|" : "---|";
        text += rule + "\n";
        for (const auto& row : block.table.rows) text += markdown_line(row);
        break;
      }
    }
  }
  return text;
}

}  // namespace deltron::tools
