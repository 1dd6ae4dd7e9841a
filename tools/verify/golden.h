// One golden safetensors file as the checks read it: every tensor must be known and present, metadata numbers must be there, and
// our tensors are compared with its expected ones. Knows nothing of what is computed.
#pragma once

#include <string>
#include <vector>

#include "src/checkpoint/safetensors.h"
#include "src/tensor/context.h"
#include "src/tensor/tensor.h"
#include "tools/verify/report.h"

namespace deltron::tools {

// RMS(ours - expected) / RMS(expected); where everything expected is zero, the largest |ours| against 1e-6.
Comparison compare_values(const std::string& name, const std::vector<double>& ours, const std::vector<double>& expected,
                          double limit);
// |ours - expected| / |expected|.
Comparison compare_number(const std::string& name, double ours, double expected, double limit);

[[noreturn]] void golden_error(const std::string& path, const std::string& what, const std::string& values = {},
                               const std::string& rule = {});

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) : file_(path) {}
  const std::string& path() const { return file_.path(); }
  std::vector<std::string> names() const { return file_.names(); }
  // The file holds exactly these tensors; all faults in one error, each with the nearest known names.
  void require_names(const std::vector<std::string>& wanted) const;

  const std::vector<std::int64_t>& shape(const std::string& name, std::size_t rank) const;
  std::vector<double> values(const std::string& name) const { return file_.as_doubles(name); }
  std::vector<std::int64_t> integers(const std::string& name) const;
  // On the device, rounded to `dtype`; the file's values must be exact in it where `exact` says so.
  Tensor tensor(Context& ctx, const std::string& name, DType dtype, bool exact = true) const;

  const std::string& text(const std::string& key) const;  // of the metadata
  double number(const std::string& key) const;
  std::int64_t size(const std::string& key) const;
  bool flag(const std::string& key) const;                    // True or False
  std::vector<double> numbers(const std::string& key) const;  // comma separated

  // `ours` may have another shape than the expected tensor, but not another number of values.
  Comparison compare(Context& ctx, const std::string& name, const Tensor& ours, double limit) const;

 private:
  SafetensorsFile file_;
  mutable std::map<std::string, std::vector<std::int64_t>> shapes_;
};

}  // namespace deltron::tools
