// See terminal.h.
#include "src/base/terminal.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/ioctl.h>
#include <unistd.h>

namespace deltron {
namespace {

TerminalStyle style_of(int descriptor) {
  TerminalStyle style;
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::strcmp(term, "dumb") == 0;
  style.is_tty = isatty(descriptor) == 1 && !dumb;
  const char* no_color = std::getenv("NO_COLOR");
  const char* force = std::getenv("CLICOLOR_FORCE");
  const bool refused = no_color != nullptr && no_color[0] != '\0';
  const bool forced = force != nullptr && force[0] != '\0' && std::strcmp(force, "0") != 0;
  style.colour = !refused && (forced || style.is_tty);
  return style;
}

std::atomic<bool>& progress_shown() {
  static std::atomic<bool> shown{false};  // allow-listed global: state of the one terminal line
  return shown;
}

}  // namespace

TerminalStyle stderr_style() { return style_of(STDERR_FILENO); }
TerminalStyle stdout_style() { return style_of(STDOUT_FILENO); }

int terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

void show_progress_line(const std::string& text) {
  if (!stderr_style().is_tty) return;
  std::string cut = text.substr(0, static_cast<std::size_t>(terminal_width() - 1));
  std::fprintf(stderr, "\r\033[K%s", cut.c_str());
  std::fflush(stderr);
  progress_shown() = true;
}

void clear_progress_line() {
  if (!progress_shown().exchange(false)) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

std::string progress_bar(double share, int width) {
  const double clipped = share < 0 ? 0 : (share > 1 ? 1 : share);
  const int full = static_cast<int>(clipped * width + 0.5);
  return "[" + std::string(static_cast<std::size_t>(full), '#') + std::string(static_cast<std::size_t>(width - full), '.') + "]";
}

}  // namespace deltron
