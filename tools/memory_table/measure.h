// Runs one GDN layer (forward, its graph alive) and reads off the allocator which storages the graph keeps for backward: once plain,
// and once for every recompute region and offload module. Which rows exist at all is the validator's answer, not this file's.
// Knows nothing of published figures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/config/run_config.h"
#include "src/tensor/memory.h"
#include "tools/memory_table/setting.h"

namespace deltron::tools {

struct Fusion {
  bool pre_rule = false;     // gdn_pre_gated_delta_rule_fusion
  bool output_norm = false;  // gdn_gated_output_norm_fusion
  std::string name() const;  // "unfused", "output-norm", "pre-rule", "both"
};
std::vector<Fusion> all_fusions();

// What a row switches on.
struct MemoryRow {
  std::vector<std::string> recompute;  // regions, or {"full"}
  std::vector<std::string> offload;    // modules
  std::string name() const;            // "baseline", "gdn_in_proj", "all three", "gdn_qkv offload"
};
std::vector<MemoryRow> all_rows();

// A storage that the graph keeps. The key, "region/storage", names the same storage in every row.
struct KeptStorage {
  std::string key;
  std::string saved_as;
  std::vector<std::int64_t> shape;
  DType dtype = DType::U8;
  std::int64_t bytes = 0;
  bool operator==(const KeptStorage&) const = default;
};

struct MeasuredRow {
  MemoryRow row;
  std::string refused;  // why it may not be combined with the fusion, or does not exist in this version; empty: it ran
  std::vector<KeptStorage> kept;  // weights left out
  std::int64_t kept_bytes = 0;
  std::int64_t kept_weight_bytes = 0;  // weights that nodes hold; they are alive anyway
  std::int64_t device_bytes = 0;       // activations alive on the device, the layer's output left out
  std::int64_t host_bytes = 0;         // in the offload pool
};

struct MeasuredTable {
  MemorySetting setting;
  Fusion fusion;
  std::string refused;            // of the fusion itself; then there are no rows
  std::vector<MeasuredRow> rows;  // the first is the baseline
  const MeasuredRow& baseline() const { return rows.front(); }
  const MeasuredRow* row(const std::string& name) const;  // null: no such row
  // Storages of the baseline that `row` does not keep, and the other way round.
  std::vector<KeptStorage> freed(const MeasuredRow& row) const;
  std::vector<KeptStorage> added(const MeasuredRow& row) const;
  // Names of the rows of one region or module that free this storage of the baseline.
  std::vector<std::string> freed_by(const KeptStorage& storage) const;
};

// Throws ConfigInvalid where the setting is no legal layer.
void check_setting(const MemorySetting& setting);
MeasuredTable measure(const MemorySetting& setting, const Fusion& fusion, DeviceKind device);

// The configuration that a row stands for (a model of this one layer), for the validator.
RunConfig config_of(const MemorySetting& setting, const Fusion& fusion, const MemoryRow& row);

}  // namespace deltron::tools
