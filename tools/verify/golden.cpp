// See golden.h.
#include "tools/verify/golden.h"

#include <cmath>
#include <limits>
#include <sstream>

#include "src/base/error.h"
#include "src/base/human.h"
#include "src/checkpoint/reader.h"

namespace deltron::tools {
namespace {

constexpr double kZeroLimit = 1e-6;  // where everything expected is zero

// The whole of `text` as a number; false if it is none.
bool read_number(const std::string& text, double& value) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  stream >> value;
  return !stream.fail() && stream.peek() == std::istringstream::traits_type::eof() && std::isfinite(value);
}

}  // namespace

Comparison compare_values(const std::string& name, const std::vector<double>& ours, const std::vector<double>& expected,
                          double limit) {
  DELTRON_CHECK_EQ(ours.size(), expected.size(), "values of '", name, "'");
  double difference = 0, norm = 0, largest = 0;
  bool finite = true;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    finite = finite && std::isfinite(ours[i]) && std::isfinite(expected[i]);
    difference += (ours[i] - expected[i]) * (ours[i] - expected[i]);
    norm += expected[i] * expected[i];
    largest = std::max(largest, std::fabs(ours[i]));
  }
  Comparison result;
  result.name = name;
  result.measure = norm == 0 ? "largest" : "rms ratio";
  result.limit = norm == 0 ? kZeroLimit : limit;
  result.error = norm == 0 ? largest : std::sqrt(difference / norm);
  if (!finite) result.error = std::numeric_limits<double>::quiet_NaN();
  result.passed = finite && result.error <= result.limit;
  return result;
}

Comparison compare_number(const std::string& name, double ours, double expected, double limit) {
  Comparison result = compare_values(name, {ours}, {expected}, limit);
  if (expected != 0) result.measure = "relative";
  return result;
}

void golden_error(const std::string& path, const std::string& what, const std::string& values, const std::string& rule) {
  throw Error(ErrorCode::GoldenFileInvalid, ErrorText{what, path, values, rule, ""});
}

void GoldenFile::require_names(const std::vector<std::string>& wanted) const {
  const std::string faults = compare_names(wanted, names());
  if (!faults.empty()) golden_error(path(), "holds other tensors than its kind of golden file has", faults);
}

const std::vector<std::int64_t>& GoldenFile::shape(const std::string& name, std::size_t rank) const {
  std::vector<std::int64_t>& shape = shapes_[name];
  shape = file_.view(name).shape;
  if (shape.size() != rank)
    golden_error(path(), "tensor '" + name + "' has the wrong rank", shape_text(shape), std::to_string(rank) + " dimensions");
  return shape;
}

std::vector<std::int64_t> GoldenFile::integers(const std::string& name) const {
  std::vector<std::int64_t> result;
  for (const double value : values(name)) {
    if (value != std::floor(value) || std::fabs(value) > 9e15)
      golden_error(path(), "tensor '" + name + "' holds no whole numbers", shortest(value));
    result.push_back(static_cast<std::int64_t>(value));
  }
  return result;
}

Tensor GoldenFile::tensor(Context& ctx, const std::string& name, DType dtype, bool exact) const {
  const HostView view = file_.view(name);
  const std::vector<double> wide = deltron::to_doubles(view);
  const Tensor result = make_tensor(ctx, view.shape, dtype, wide, name.c_str());
  if (exact && deltron::to_doubles(ctx, result) != wide) {
    golden_error(path(), "tensor '" + name + "' is not exact in " + dtype_name(dtype),
                 std::string("stored as ") + dtype_name(view.dtype), "rounded inputs would count as our error");
  }
  return result;
}

const std::string& GoldenFile::text(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  if (found != file_.metadata().end()) return found->second;
  std::vector<std::string> known;
  for (const auto& entry : file_.metadata()) known.push_back(entry.first);
  golden_error(path(), "metadata lacks '" + key + "'", "nearest: " + nearest_names(key, known));
}

double GoldenFile::number(const std::string& key) const {
  const std::vector<double> all = numbers(key);
  if (all.size() != 1) golden_error(path(), "metadata '" + key + "' is not one number", text(key));
  return all[0];
}

std::int64_t GoldenFile::size(const std::string& key) const {
  const double value = number(key);
  if (value < 1 || value > 1e6 || value != std::floor(value))
    golden_error(path(), "metadata '" + key + "' is no size", text(key), "1 to 1,000,000");
  return static_cast<std::int64_t>(value);
}

bool GoldenFile::flag(const std::string& key) const {
  const std::string& word = text(key);
  if (word != "True" && word != "False") golden_error(path(), "metadata '" + key + "' is no flag", word, "True or False");
  return word == "True";
}

std::vector<double> GoldenFile::numbers(const std::string& key) const {
  std::vector<double> result;
  std::istringstream words(text(key));
  std::string word;
  while (std::getline(words, word, ',')) {
    double value = 0;
    if (!read_number(word, value)) golden_error(path(), "metadata '" + key + "' is no number", word);
    result.push_back(value);
  }
  if (result.empty()) golden_error(path(), "metadata '" + key + "' is empty");
  return result;
}

Comparison GoldenFile::compare(Context& ctx, const std::string& name, const Tensor& ours, double limit) const {
  const HostView view = file_.view(name);
  if (element_count(view.shape) != ours.count()) {
    golden_error(path(), "tensor '" + name + "' has the wrong shape", shape_text(view.shape),
                 "its inputs give " + shape_text(ours.shape()));
  }
  return compare_values(name, deltron::to_doubles(ctx, ours), deltron::to_doubles(view), limit);
}

}  // namespace deltron::tools
