// See split_text.h.
#include "src/data/split_text.h"

#include <functional>

#include <unistd.h>

#include "src/base/file.h"
#include "src/base/signals.h"
#include "src/data/utf8.h"

namespace deltron {
namespace {

SplitText walk(const IndexedDataset& dataset, const DocumentRange& range, const Tokenizer& tokenizer,
               const std::function<void(const std::string&)>& take) {
  SplitText counts;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    if (i % 256 == 0) poll_stop("decoding a split");
    const std::string text = tokenizer.decode(dataset.read_all(i));
    ++counts.documents;
    counts.tokens += dataset.length(i);
    counts.bytes += static_cast<std::int64_t>(text.size());
    counts.characters += count_characters(text);
    if (take) take(text);
  }
  return counts;
}

}  // namespace

SplitText count_split_text(const IndexedDataset& dataset, const DocumentRange& range, const Tokenizer& tokenizer) {
  return walk(dataset, range, tokenizer, {});
}

SplitText dump_split_text(const IndexedDataset& dataset, const DocumentRange& range, const Tokenizer& tokenizer,
                          const std::string& path) {
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  try {
    FileWriter writer(temporary);
    const SplitText counts = walk(dataset, range, tokenizer, [&](const std::string& text) { writer.write(text); });
    writer.close(true);
    rename_path(temporary, path);
    return counts;
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

}  // namespace deltron
