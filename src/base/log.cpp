// The process's logger: the one place that knows spdlog. Plain lines on stderr, time-stamped lines in the run's log file.
#include "src/base/log.h"

#include <memory>
#include <mutex>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "src/base/error.h"
#include "src/base/terminal.h"

namespace deltron {
namespace {

struct Logger {
  std::mutex mutex;
  std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> terminal;
  std::shared_ptr<spdlog::logger> screen;
  std::shared_ptr<spdlog::logger> file;

  Logger() {
    const auto mode = stderr_style().colour ? spdlog::color_mode::always : spdlog::color_mode::never;
    terminal = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(mode);
    screen = std::make_shared<spdlog::logger>("deltron", terminal);
    screen->set_pattern("%v");
    screen->set_level(spdlog::level::info);
    screen->flush_on(spdlog::level::trace);
  }
};

// Made by whoever logs first; several threads may come at once.
Logger& logger() {
  static Logger instance;  // allow-listed global (tests/layering): the logger
  return instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::Debug: return spdlog::level::debug;
    case LogLevel::Info: return spdlog::level::info;
    case LogLevel::Warning: return spdlog::level::warn;
    case LogLevel::Error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void log_message(LogLevel level, std::string_view text) {
  Logger& instance = logger();
  std::lock_guard<std::mutex> lock(instance.mutex);
  std::string line(text);
  if (level == LogLevel::Warning) line = "warning: " + line;
  if (level == LogLevel::Error) line = "error: " + line;
  clear_progress_line();
  instance.screen->log(to_spdlog(level), "{}", line);
  if (instance.file) instance.file->log(to_spdlog(level), "{}", std::string(text));
}

void set_log_level(LogLevel level) {
  Logger& instance = logger();
  std::lock_guard<std::mutex> lock(instance.mutex);
  instance.screen->set_level(to_spdlog(level));
}

void set_log_file(const std::string& path) {
  Logger& instance = logger();
  std::lock_guard<std::mutex> lock(instance.mutex);
  if (path.empty()) {
    instance.file.reset();
    return;
  }
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, false);
    instance.file = std::make_shared<spdlog::logger>("file", sink);
  } catch (const spdlog::spdlog_ex& failure) {
    throw Error(ErrorCode::ResourceUnavailable, ErrorText{"log file cannot be opened", path, failure.what(), "", ""});
  }
  instance.file->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  instance.file->set_level(spdlog::level::debug);
  instance.file->flush_on(spdlog::level::info);
}

}  // namespace deltron
