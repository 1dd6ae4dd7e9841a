// The memory table measured on a GPU: the same storages and bytes in every row as on the CPU and on meta, whose figures the published
// page and the plan go by.
#include <gtest/gtest.h>

#include "tools/memory_table/measure.h"

namespace deltron::tools {
namespace {

MemorySetting setting_of(bool second, DType dtype, bool small) {
  MemorySetting setting;
  setting.second = second;
  setting.dtype = dtype;
  if (!small) return setting;
  setting.hidden_size = 24;
  setting.seq_length = 70;
  setting.micro_batch_size = 2;
  setting.key_heads = 2;
  setting.value_heads = 4;
  setting.key_dim = 8;
  setting.value_dim = 16;
  setting.min_offloaded_tensor_size = 1;
  return setting;
}

void expect_same(const MemorySetting& setting, DeviceKind other) {
  for (const Fusion& fusion : all_fusions()) {
    SCOPED_TRACE(fusion.name());
    const MeasuredTable cuda = measure(setting, fusion, DeviceKind::Cuda), expected = measure(setting, fusion, other);
    ASSERT_EQ(cuda.rows.size(), expected.rows.size());
    ASSERT_GE(cuda.rows.size(), 10u);
    for (std::size_t i = 0; i < cuda.rows.size(); ++i) {
      const MeasuredRow &a = cuda.rows[i], &b = expected.rows[i];
      EXPECT_EQ(a.refused, b.refused) << a.row.name();
      EXPECT_EQ(a.kept, b.kept) << a.row.name();
      EXPECT_EQ(a.kept_weight_bytes, b.kept_weight_bytes) << a.row.name();
      EXPECT_EQ(a.device_bytes, b.device_bytes) << a.row.name();
      EXPECT_EQ(a.host_bytes, b.host_bytes) << a.row.name();
    }
  }
}

TEST(MemoryTableOnCuda, keeps_the_cpus_storages_in_every_row) {
  for (const bool second : {false, true}) {
    for (const DType dtype : {DType::F32, DType::BF16}) expect_same(setting_of(second, dtype, true), DeviceKind::Cpu);
  }
}

TEST(MemoryTableOnCuda, keeps_at_the_published_setting_what_the_page_says) {
  for (const bool second : {false, true}) expect_same(setting_of(second, DType::BF16, false), DeviceKind::Meta);
}

}  // namespace
}  // namespace deltron::tools
