// See command_line.h. The only file that includes CLI11 (it costs seconds of compile time).
#include "tools/command_line.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <ostream>

#include <CLI/CLI.hpp>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/signals.h"
#include "src/base/suggest.h"
#include "src/base/terminal.h"
#include "src/base/version.h"
#include "tools/outcome.h"

namespace deltron::tools {
namespace {

struct GlobalFlags {
  bool quiet = false;
  bool verbose = false;
  std::string color = "auto";
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string long_name(const std::string& names) { return names.substr(names.find("--")); }

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// Options of one command over a CLI::App, with what CLI11 does not tell apart: required ones and closed sets of words.
class CliOptions : public OptionSet {
 public:
  explicit CliOptions(CLI::App& app) : app_(app) {}

  void flag(const std::string& names, bool& target, const std::string& help) override {
    app_.add_flag(names, target, help);
    note(names);
  }
  void value(const std::string& names, std::string& target, const std::string& placeholder, const std::string& help) override {
    single(names, target, placeholder, help);
  }
  void value(const std::string& names, std::int64_t& target, const std::string& placeholder, const std::string& help) override {
    single(names, target, placeholder, help);
  }
  void value(const std::string& names, double& target, const std::string& placeholder, const std::string& help) override {
    single(names, target, placeholder, help);
  }
  void values(const std::string& names, std::vector<std::string>& target, const std::string& placeholder,
              const std::string& help) override {
    CLI::Option* option = app_.add_option(names, target, help)->option_text(placeholder + " ...");
    option->type_size(1)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    note(names);
  }
  void choice(const std::string& names, std::string& target, const std::vector<std::string>& words,
              const std::string& help) override {
    single(names, target, joined(words), help);
    choices_.push_back({long_name(names), &target, words});
  }
  void hidden_value(const std::string& names, std::string& target) override { app_.add_option(names, target)->group(""); }
  void positional(const std::string& name, std::string& target, bool required, const std::string& help) override {
    place(name, app_.add_option(name, target, help)->option_text(" "), required);
  }
  void rest(const std::string& name, std::vector<std::string>& target, bool required, const std::string& help) override {
    place(name, app_.add_option(name, target, help)->option_text("..."), required);
  }
  void tail(const std::string& name, std::vector<std::string>& target, const std::string& help) override {
    app_.add_option(name, target, help)->option_text("...");  // for help alone: CLI11 never sees the words
    tail_ = &target;
  }
  void require(const std::string& name) override {
    required_.push_back({name, app_.get_option(name)});
    app_.get_option(name)->required();
  }

  const std::vector<std::string>& names() const { return names_; }
  std::vector<std::string>* tail() const { return tail_; }  // null: the command takes none

  // After parsing.
  void check(const std::string& command) const {
    for (const auto& [name, option] : required_) {
      if (option->count() == 0) usage_error(command, name + " is missing");
    }
    for (const Choice& choice : choices_) {
      if (std::find(choice.words.begin(), choice.words.end(), *choice.target) != choice.words.end()) continue;
      usage_error(command, "'" + *choice.target + "' is no " + choice.name + did_you_mean(*choice.target, choice.words),
                  "one of " + joined(choice.words));
    }
  }

 private:
  struct Choice {
    std::string name;
    const std::string* target;
    std::vector<std::string> words;
  };

  template <class T>
  void single(const std::string& names, T& target, const std::string& placeholder, const std::string& help) {
    app_.add_option(names, target, help)->option_text(placeholder);
    note(names);
  }
  void place(const std::string& name, CLI::Option* option, bool required) {
    if (!required) return;
    option->required();
    required_.push_back({upper(name), option});
  }
  void note(const std::string& names) {
    std::size_t begin = 0;
    while (begin <= names.size()) {
      const std::size_t end = std::min(names.find(',', begin), names.size());
      names_.push_back(names.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  CLI::App& app_;
  std::vector<std::string>* tail_ = nullptr;
  std::vector<std::string> names_ = {"-h", "--help"};
  std::vector<std::pair<std::string, CLI::Option*>> required_;
  std::vector<Choice> choices_;
};

void declare_globals(OptionSet& options, GlobalFlags& flags) {
  options.flag("-q,--quiet", flags.quiet, "only warnings and errors on stderr");
  options.flag("-v,--verbose", flags.verbose, "debug messages on stderr");
  options.choice("--color", flags.color, {"auto", "always", "never"}, "colour on terminals (NO_COLOR is honoured)");
}

void apply(const GlobalFlags& flags) {
  if (flags.color == "always") {
    unsetenv("NO_COLOR");
    setenv("CLICOLOR_FORCE", "1", 1);
  } else if (flags.color == "never") {
    setenv("NO_COLOR", "1", 1);
  }
  if (flags.quiet && flags.verbose) usage_error("", "--quiet and --verbose exclude each other");
  set_log_level(flags.quiet ? LogLevel::Warning : flags.verbose ? LogLevel::Debug : LogLevel::Info);
}

std::string footer(const std::string& examples) { return examples.empty() ? "" : "\nExamples:\n" + examples; }

std::string version_text() {
  return std::string("deltron ") + DELTRON_VERSION + "\ncommit    " + DELTRON_GIT_HASH + "\ncompiler  " + DELTRON_COMPILER + " (" +
         DELTRON_BUILD_TYPE + ")\nCUDA      " + DELTRON_CUDA_VERSION + "\n";
}

// The parser of one command line over the whole table.
class Parser {
 public:
  explicit Parser(const CommandTable& table)
      : root_("Deltron trains Gated DeltaNet hybrid language models: YAML in, checkpoints out.", "deltron") {
    root_.require_subcommand(0, 1);
    root_.allow_extras();
    root_.footer(
        "\nA first run (scripts/prepare_kjv.sh and 'deltron data prepare' make its data, scripts/train.sh does it all):\n"
        "  deltron plan -c configs/kjv_tiny.yaml\n"
        "  deltron train -c configs/kjv_tiny.yaml --minutes 5 checkpoint.save=runs/first\n"
        "  deltron evaluate runs/first\n"
        "\n'deltron COMMAND --help' shows the options of a command, with examples.");
    root_.add_flag("--version", version_, "version, commit and compiler of this binary");
    add_app(root_, nullptr);
    for (const CommandGroup& group : table.groups) {
      CLI::App* app = root_.add_subcommand(group.name, group.summary);
      app->require_subcommand(0, 1);
      app->allow_extras();
      app->footer("\n'deltron " + group.name + " COMMAND --help' shows the options of a command, with examples.");
      add_app(*app, nullptr);
      groups_[group.name] = app;
    }
    for (const std::unique_ptr<Command>& command : table.commands) add_command(*command);
  }

  ExitCode run(const std::vector<std::string>& arguments, std::ostream& out) {
    std::vector<std::string> ours = arguments;
    cut_tail(ours);
    std::vector<std::string> reversed(ours.rbegin(), ours.rend());  // CLI11 takes a vector from its end
    try {
      root_.parse(reversed);
    } catch (const CLI::CallForHelp&) {
      out << chosen().help();
      return ExitCode::Done;
    } catch (const CLI::RequiredError& failure) {
      check_extras(chosen());  // a misspelt option says more than what is missing because of it
      chosen().options->check(chosen().title());
      usage_error(chosen().title(), failure.what());
    } catch (const CLI::ParseError& failure) {
      usage_error(chosen().title(), failure.what());
    }
    const Entry& entry = chosen();
    check_extras(entry);
    if (version_) {
      out << version_text();
      return ExitCode::Done;
    }
    entry.options->check(entry.title());
    apply(flags_);
    if (entry.command == nullptr) {
      log_message(LogLevel::Info, entry.help());
      usage_error(entry.title(), "a command is missing");
    }
    CommandIo io{out, stdout_style().colour, flags_.quiet, flags_.verbose, arguments};
    try {
      return entry.command->run(io);
    } catch (const StopRequested& stop) {
      if (entry.command->resumable()) throw;
      log_warning(std::string("stopped: ") + stop.what() + "; nothing is saved, run the command again");
      return static_cast<ExitCode>(128 + (stop_signal() != 0 ? stop_signal() : SIGTERM));
    }
  }

 private:
  struct Entry {
    CLI::App* app = nullptr;
    Command* command = nullptr;  // null: the root or a group
    std::unique_ptr<CliOptions> options;
    std::string help() const {  // CLI11 wants the words before the app's own name
      const std::string line = "deltron " + title();
      return app->get_parent() == nullptr ? app->help() : app->help(line.substr(0, line.rfind(' ')));
    }
    std::string title() const { return command == nullptr && app->get_parent() == nullptr ? "" : path(app); }
    static std::string path(const CLI::App* app) {
      const CLI::App* parent = app->get_parent();
      return parent == nullptr || parent->get_parent() == nullptr ? app->get_name() : path(parent) + " " + app->get_name();
    }
  };

  Entry& add_app(CLI::App& app, Command* command) {
    Entry entry{&app, command, std::make_unique<CliOptions>(app)};
    if (command != nullptr) command->declare(*entry.options);
    declare_globals(*entry.options, flags_);
    entries_.push_back(std::move(entry));
    return entries_.back();
  }

  void add_command(Command& command) {
    const std::string name = command.name();
    const std::size_t space = name.find(' ');
    CLI::App* parent = &root_;
    if (space != std::string::npos) parent = groups_.at(name.substr(0, space));
    CLI::App* app = parent->add_subcommand(space == std::string::npos ? name : name.substr(space + 1), command.summary());
    app->footer(footer(command.examples()));
    app->allow_extras();
    add_app(*app, &command);
  }

  const Entry& entry_of(const CLI::App* app) const {
    return *std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.app == app; });
  }

  // Where the line names a command with a tail: moves that from the words into the command.
  void cut_tail(std::vector<std::string>& words) const {
    CLI::App* app = entries_.front().app;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i];
      std::vector<std::string>* tail = entry_of(app).options->tail();
      if (tail != nullptr && (word == "--" || word.empty() || word[0] != '-')) {
        tail->assign(words.begin() + static_cast<std::ptrdiff_t>(i + (word == "--" ? 1 : 0)), words.end());
        words.resize(i);
        return;
      }
      if (!word.empty() && word[0] == '-') {
        const CLI::Option* option = app->get_option_no_throw(word);
        if (option != nullptr && option->get_items_expected_max() > 0) ++i;  // its value
        continue;
      }
      const std::vector<CLI::App*> named = app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
      if (named.empty()) return;
      app = named.front();
    }
  }

  // The innermost command that the line names.
  const Entry& chosen() const {
    const CLI::App* app = &root_;
    while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
    return entry_of(app);
  }

  void check_extras(const Entry& entry) const {
    const std::vector<std::string> extras = root_.remaining(true);
    if (extras.empty()) return;
    const std::string& word = extras.front();
    if (word.size() > 1 && word[0] == '-') {
      const std::string name = word.substr(0, word.find('='));
      usage_error(entry.title(), "unknown option '" + name + "'" + did_you_mean(name, option_names(entry)));
    }
    std::vector<std::string> known;
    for (const CLI::App* app : entry.app->get_subcommands({})) known.push_back(app->get_name());
    if (known.empty()) usage_error(entry.title(), "one word too many: '" + word + "'");
    usage_error(entry.title(), "unknown command '" + word + "'" + did_you_mean(word, known), "one of " + joined(known));
  }

  std::vector<std::string> option_names(const Entry& entry) const {
    std::vector<std::string> names = entry.options->names();
    if (entry.app == &root_) names.push_back("--version");
    return names;
  }

  CLI::App root_;
  bool version_ = false;
  GlobalFlags flags_;
  std::map<std::string, CLI::App*> groups_;
  std::vector<Entry> entries_;
};

}  // namespace

void usage_error(const std::string& command, const std::string& what, const std::string& fix) {
  const std::string line = command.empty() ? "deltron" : "deltron " + command;
  throw Error(ErrorCode::UsageError, ErrorText{what, line, "", "", fix.empty() ? "see '" + line + " --help'" : fix});
}

int run_command_line(const CommandTable& table, const std::vector<std::string>& arguments, std::ostream& out) {
  return exit_code_of([&] {
    const ExitCode code = Parser(table).run(arguments, out);
    errno = 0;
    if (out.flush()) return code;
    const Error error(ErrorCode::ResourceUnavailable, ErrorText{"the result cannot be written", "standard output", errno != 0 ? std::strerror(errno) : "",
                                                                "", "free space, or send it elsewhere"});
    if (code == ExitCode::Done) throw error;
    log_error(error.what());
    return code;
  });
}

}  // namespace deltron::tools
