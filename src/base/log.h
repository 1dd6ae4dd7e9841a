// Log lines to stderr (and to the run's log file). spdlog stays inside log.cpp, so that .cu files may include this header.
// Results go to stdout and never through here.
#pragma once

#include <string>
#include <string_view>

namespace deltron {

enum class LogLevel { Debug, Info, Warning, Error };

void log_message(LogLevel level, std::string_view text);
inline void log_debug(std::string_view text) { log_message(LogLevel::Debug, text); }
inline void log_info(std::string_view text) { log_message(LogLevel::Info, text); }
inline void log_warning(std::string_view text) { log_message(LogLevel::Warning, text); }
inline void log_error(std::string_view text) { log_message(LogLevel::Error, text); }

void set_log_level(LogLevel level);
// Also append every line to `path` (plain, with time stamps). An empty path ends that.
void set_log_file(const std::string& path);

}  // namespace deltron
