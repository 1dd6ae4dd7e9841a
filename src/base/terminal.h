// What the terminal can do, and one progress line on stderr. Honours NO_COLOR, CLICOLOR_FORCE and TERM=dumb.
#pragma once

#include <string>

namespace deltron {

struct TerminalStyle {
  bool is_tty = false;  // animation (progress line) allowed
  bool colour = false;
};

TerminalStyle stderr_style();
TerminalStyle stdout_style();
int terminal_width();

// Draws `text` over the current stderr line; does nothing unless stderr is a terminal.
void show_progress_line(const std::string& text);
void clear_progress_line();

// "[#####.....]" of `width` characters for a share in [0,1].
std::string progress_bar(double share, int width);

}  // namespace deltron
