// See error_reference.h.
#include "src/base/error_reference.h"

#include "src/base/error.h"

namespace deltron {
namespace {

const char* group_title(int hundreds) {
  switch (hundreds) {
    case 1: return "1xx: command line and configuration";
    case 3: return "3xx: data";
    case 4: return "4xx: checkpoints and tensor files";
    case 5: return "5xx: memory";
    case 6: return "6xx: numbers";
    case 7: return "7xx: communication";
    case 8: return "8xx: internal";
    default: return "others";
  }
}

}  // namespace

std::string errors_markdown() {
  std::string text =
      "# Errors\n\n"
      "Made from `src/base/errors_*.def`; a test fails where this page differs (`DELTRON_WRITE_DOCS=1 test_errors` writes it again).\n\n"
      "A message reads: code, place, what happened, (values), rule, fix. The last message on stderr decides the exit code.\n\n"
      "| exit code | meaning |\n|---|---|\n"
      "| 0 | done |\n| 2 | command line or configuration |\n| 3 | data |\n| 4 | checkpoint |\n| 5 | out of memory |\n"
      "| 6 | a loss or gradient is not finite |\n| 7 | communication |\n| 8 | internal |\n"
      "| 75 | stopped by a signal or a limit, saved: start again to go on |\n";
  int group = 0;
  for (const ErrorEntry& entry : error_table()) {
    const int number = static_cast<int>(entry.code);
    if (number / 100 != group) {
      group = number / 100;
      text += std::string("\n## ") + group_title(group) + "\n";
    }
    text += "\n### E" + std::to_string(number) + ": " + entry.title + "\n\n" + entry.explanation + "\n\n    " + entry.example + "\n\nWhat to do: " +
            entry.fix + " Exit code " + std::to_string(static_cast<int>(entry.exit_code)) + ".\n";
  }
  return text;
}

}  // namespace deltron
