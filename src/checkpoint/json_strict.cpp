// See json_strict.h. nlohmann's own DOM builder keeps the last of two equal keys, so the tree is built here from its SAX events.
#include "src/checkpoint/json_strict.h"

#include <utility>
#include <vector>

namespace deltron {
namespace {

using nlohmann::json;

class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (stack_.back()->contains(name)) return fail("key '" + name + "' appears twice");
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& exception) override {
    std::string what = exception.what();
    const std::size_t end = what.find("] ");  // drop the library's own prefix
    if (end != std::string::npos) what.erase(0, end + 2);
    return fail("byte " + std::to_string(position) + ": " + what);
  }

  json take() { return std::move(root_); }
  const std::string& fault() const { return fault_; }

 private:
  bool fail(std::string what) {
    if (fault_.empty()) fault_ = std::move(what);
    return false;
  }
  json* place(json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
      return &stack_.back()->back();
    }
    json& slot = (*stack_.back())[key_];
    slot = std::move(value);
    return &slot;
  }
  template <class T>
  bool add(T&& value) {
    place(json(std::forward<T>(value)));
    return true;
  }
  bool open(json value) {
    if (static_cast<int>(stack_.size()) >= kJsonDepthLimit) {
      return fail("nested deeper than " + std::to_string(kJsonDepthLimit) + " levels");
    }
    stack_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> stack_;  // open containers; a parent's children do not move while a child is open
  std::string key_;
  std::string fault_;
};

}  // namespace

nlohmann::json parse_json_strict(std::string_view text, const std::string& where, ErrorCode code) {
  // nlohmann's lexer takes a zero byte for the end of the text; what stands behind it would go unread.
  const std::size_t zero = text.find('\0');
  if (zero != std::string_view::npos) {
    throw Error(code, ErrorText{"JSON is malformed", where, "byte " + std::to_string(zero + 1) + ": zero byte"});
  }
  StrictBuilder builder;
  const bool good = json::sax_parse(text.begin(), text.end(), &builder, json::input_format_t::json, true);
  if (!good) throw Error(code, ErrorText{"JSON is malformed", where, builder.fault()});
  return builder.take();
}

std::string json_quoted(const std::string& text) { return json(text).dump(); }

}  // namespace deltron
