// Checkpoints in pieces: blocks of tensors that several ranks write together and any layout reads, faults on one rank, resharding.
#include <gtest/gtest.h>

#include <numeric>

#include <sys/wait.h>
#include <unistd.h>

#include "src/base/hash.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/report.h"
#include "src/checkpoint/reshard.h"
#include "src/checkpoint/resume.h"
#include "tests/checkpoint/temp_folder.h"
#include "tests/checkpoint/thread_group.h"

namespace deltron {
namespace {

using Sizes = std::vector<std::int64_t>;

// Element i of a tensor is i + seed: what is where shows in every value.
HostArray counted(const std::string& name, DType dtype, const Sizes& shape, double seed) {
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  std::iota(values.begin(), values.end(), seed);
  return from_doubles(name, dtype, shape, values);
}

// The elements of a block, picked one by one.
HostArray picked(const HostArray& whole, const Block& block) {
  const std::vector<double> all = to_doubles(whole.view());
  std::vector<double> values;
  for (std::int64_t i = 0; i < element_count(block.shape); ++i) {
    std::int64_t left = i, flat = 0, stride = 1;
    for (std::size_t d = block.shape.size(); d-- > 0;) {
      flat += (block.offset[d] + left % block.shape[d]) * stride;
      left /= block.shape[d];
      stride *= whole.shape[d];
    }
    values.push_back(all[static_cast<std::size_t>(flat)]);
  }
  return from_doubles(whole.name, whole.dtype, block.shape, values);
}

// Four ranks: `rows` is cut by rows unevenly, `columns` by columns, `grid` both ways; rank 3 alone holds `whole`; rank 2 has no row of `short`.
struct State {
  explicit State(double seed)
      : rows(counted("rows", DType::F32, {7, 3}, seed)), columns(counted("columns", DType::BF16, {2, 8}, seed)),
        grid(counted("grid", DType::F32, {4, 6}, seed)), whole(counted("exp_avg.whole", DType::F32, {5}, seed)),
        short_one(counted("exp_avg.short", DType::F32, {3, 2}, seed)), cube(counted("cube", DType::F32, {2, 4, 3}, seed)) {}
  HostArray rows, columns, grid, whole, short_one, cube;
  std::vector<const HostArray*> all() const { return {&rows, &columns, &grid, &whole, &short_one, &cube}; }

  std::vector<Block> blocks_of(const HostArray& array, int rank) const {
    if (&array == &rows) return {{{rank == 0 ? 0 : rank + 3, 0}, {rank == 0 ? 4 : 1, 3}}};
    if (&array == &columns) return {{{0, 2 * rank}, {2, 2}}};
    if (&array == &grid) return {{{2 * (rank / 2), 3 * (rank % 2)}, {2, 3}}};
    if (&array == &cube) return {{{0, rank, 0}, {2, 1, 3}}};
    if (&array == &short_one) return rank == 2 ? std::vector<Block>{} : std::vector<Block>{{{rank == 3 ? 2 : rank, 0}, {1, 2}}};
    return rank == 3 ? std::vector<Block>{whole_block(array.shape)} : std::vector<Block>{};
  }
};

CheckpointContent content_of(const State& state, int rank, std::int64_t step, std::vector<HostArray>& keep) {
  CheckpointContent content;
  content.step = step;
  content.groups = {{"model", {}}, {"optimizer", {}}};
  content.state = {{"consumed_samples", step * 8}, {"of_rank", rank}};
  for (const HostArray* array : state.all()) {
    for (const Block& block : state.blocks_of(*array, rank)) keep.push_back(picked(*array, block));
  }
  std::size_t next = 0;
  for (const HostArray* array : state.all()) {
    for (const Block& block : state.blocks_of(*array, rank)) {
      content.groups[array->name.rfind("exp_avg.", 0) == 0 ? 1 : 0].tensors.push_back(TensorPiece(keep[next++].view(), array->shape, block));
    }
  }
  return content;
}

void save_rank(SaveGroup& ranks, const std::string& run, std::int64_t step, double seed, WriteObserver* observer = nullptr) {
  const State state(seed);
  std::vector<HostArray> keep;
  const CheckpointContent content = content_of(state, ranks.rank(), step, keep);
  SaveOptions options;
  options.observer = observer;
  options.ranks = &ranks;
  options.shard_bytes = 64;
  save_checkpoint(run, content, options);
}

std::vector<std::string> save_together(const std::string& run, std::int64_t step, double seed) {
  return on_ranks(4, [&](SaveGroup& ranks) { save_rank(ranks, run, step, seed); });
}

const std::vector<std::string> kNobodyThrew(4);

TEST(Blocks, only_a_tiling_is_a_tiling) {
  const Sizes shape = {4, 6};
  const std::vector<Block> good = {{{0, 0}, {2, 6}}, {{2, 0}, {2, 3}}, {{2, 3}, {2, 3}}};
  EXPECT_EQ(why_not_tiling(shape, good), "");
  EXPECT_EQ(why_not_tiling({}, {{{}, {}}}), "");
  EXPECT_EQ(why_not_tiling({0, 3}, {}), "");
  const auto broken = [&](const std::function<void(std::vector<Block>&)>& change) {
    std::vector<Block> blocks = good;
    change(blocks);
    return why_not_tiling(shape, blocks);
  };
  EXPECT_NE(broken([](auto& b) { b.pop_back(); }).find("18 of 24"), std::string::npos);
  EXPECT_NE(broken([](auto& b) { b[2].offset[1] = 2; }).find("overlap"), std::string::npos);
  EXPECT_NE(broken([](auto& b) { b[2].offset[1] = 4; }).find("reaches beyond"), std::string::npos);
  EXPECT_NE(broken([](auto& b) { b[2].offset = {2}; }).find("another rank"), std::string::npos);
  EXPECT_NE(broken([](auto& b) { b[0].shape[0] = std::numeric_limits<std::int64_t>::max(); }).find("reaches beyond"), std::string::npos);
  EXPECT_NE(broken([](auto& b) { b.push_back(b[0]); }).find("overlap"), std::string::npos);
}

TEST(Pieces, what_four_ranks_wrote_comes_back_whole_and_in_any_block) {
  const TempFolder run;
  EXPECT_EQ(save_together(run.path(), 3, 100), kNobodyThrew);
  const std::string path = checkpoint_path(run.path(), 3);
  EXPECT_TRUE(verify_checkpoint(path).good());
  const CheckpointReader reader(path);
  EXPECT_EQ(reader.names().size(), 6u);
  EXPECT_EQ(reader.state().at("of_rank"), 0);
  const State state(100);
  for (const HostArray* array : state.all()) {
    EXPECT_EQ(reader.read(array->name).bytes, array->bytes) << array->name;
    EXPECT_EQ(reader.read(array->name).dtype, array->dtype) << array->name;
    // Every block of one and of two elements a side, at every place.
    Block block = whole_block(array->shape);
    for (std::int64_t& size : block.shape) size = std::min<std::int64_t>(size, 2);
    for (std::int64_t place = 0; place < element_count(array->shape); ++place) {
      std::int64_t left = place;
      bool fits = true;
      for (std::size_t d = array->shape.size(); d-- > 0;) {
        block.offset[d] = left % array->shape[d];
        left /= array->shape[d];
        fits = fits && block.offset[d] + block.shape[d] <= array->shape[d];
      }
      if (fits) {
        EXPECT_EQ(reader.read_block(array->name, array->shape, block).bytes, picked(*array, block).bytes) << array->name << " at " << place;
      }
    }
  }
  EXPECT_ERROR(reader.read_block("rows", {3, 7}, whole_block({3, 7})), ErrorCode::TensorShapeMismatch, "found [7,3], expected [3,7]");
}

TEST(Pieces, each_rank_has_files_of_its_own_and_the_report_shows_them) {
  const TempFolder run;
  ASSERT_EQ(save_together(run.path(), 3, 100), kNobodyThrew);
  const InspectReport report = inspect_checkpoint(checkpoint_path(run.path(), 3));
  EXPECT_EQ(report.elements, 21 + 16 + 24 + 5 + 6 + 24);
  const std::string text = to_text(report);
  for (const char* part : {"model-rank00000", "model-rank00003", "optimizer-rank00003", "4 pieces", "at [2,3]"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  const nlohmann::json json = to_json(report);
  for (const auto& tensor : json.at("tensors")) EXPECT_EQ(tensor.contains("pieces"), tensor.at("name") != "exp_avg.whole");
}

TEST(Pieces, every_flipped_bit_is_found) {
  const TempFolder run;
  ASSERT_EQ(save_together(run.path(), 3, 100), kNobodyThrew);
  const std::string path = checkpoint_path(run.path(), 3);
  int flips = 0;
  for (const std::string& name : list_directory(path)) {
    std::string content = read_file(join_path(path, name));
    for (std::size_t byte = 0; byte < content.size(); byte += 5) {
      content[byte] = static_cast<char>(content[byte] ^ 16);
      FileWriter writer(join_path(path, name));
      writer.write(content);
      writer.close(false);
      EXPECT_FALSE(verify_checkpoint(path, false).good()) << name << " byte " << byte;
      content[byte] = static_cast<char>(content[byte] ^ 16);
      ++flips;
    }
    FileWriter writer(join_path(path, name));
    writer.write(content);
    writer.close(false);
  }
  EXPECT_GT(flips, 500);
  EXPECT_TRUE(verify_checkpoint(path).good());
}

// Fails one rank at its `at`-th step of writing.
class FailingDisk : public WriteObserver {
 public:
  explicit FailingDisk(int at) : at_(at) {}
  void before(const WritePoint& point) override {
    if (seen_++ == at_) {
      failed = true;
      throw Error(ErrorCode::ResourceUnavailable, ErrorText{"writing failed", point.path, "No space left on device"});
    }
  }
  bool failed = false;

 private:
  int at_, seen_ = 0;
};

TEST(Pieces, a_disk_that_is_full_on_one_rank_ends_the_save_on_all_and_nothing_is_lost) {
  for (const int bad : {0, 2}) {
    bool failed = true;
    for (int point = 0; failed; ++point) {
      const TempFolder run;
      ASSERT_EQ(save_together(run.path(), 10, 10), kNobodyThrew);
      FailingDisk disk(point);
      const std::vector<std::string> thrown =
          on_ranks(4, [&](SaveGroup& ranks) { save_rank(ranks, run.path(), 20, 20, ranks.rank() == bad ? &disk : nullptr); });
      failed = disk.failed;
      for (int rank = 0; rank < 4; ++rank) {
        const std::string& text = thrown[static_cast<std::size_t>(rank)];
        EXPECT_EQ(text.empty(), !failed) << rank << ": " << text;
        if (!failed) continue;
        EXPECT_NE(text.find("E801"), std::string::npos) << text;
        EXPECT_NE(text.find("No space left"), std::string::npos) << text;
        EXPECT_EQ(text.find("rank " + std::to_string(bad) + " could not save") != std::string::npos, rank != bad) << text;
      }
      for (const std::string& name : list_directory(checkpoints_folder(run.path()))) EXPECT_NE(name.substr(0, 4), kTemporaryPrefix) << name;
      const ResumeChoice choice = resolve_resume(run.path(), "auto");
      ASSERT_TRUE(choice.checkpoint.has_value());
      const double seed = static_cast<double>(choice.checkpoint->step);
      EXPECT_EQ(CheckpointReader(choice.checkpoint->path).read("grid").bytes, State(seed).grid.bytes);
      EXPECT_EQ(save_together(run.path(), 30, 30), kNobodyThrew);
      EXPECT_EQ(resolve_resume(run.path(), "auto").checkpoint->step, 30);
      ASSERT_LT(point, 200);
    }
  }
}

TEST(Pieces, a_job_killed_at_any_point_leaves_a_complete_checkpoint) {
  constexpr int kKilled = 42;
  class Killer : public WriteObserver {
   public:
    explicit Killer(int at) : at_(at) {}
    void before(const WritePoint&) override {
      if (seen_++ == at_) _exit(kKilled);
    }

   private:
    int at_, seen_ = 0;
  };
  for (const int bad : {0, 1}) {
    int status = kKilled;
    for (int point = 0; status == kKilled; ++point) {
      const TempFolder run;
      ASSERT_EQ(save_together(run.path(), 10, 10), kNobodyThrew);
      const pid_t child = fork();
      if (child == 0) {
        Killer killer(point);
        const auto thrown = on_ranks(4, [&](SaveGroup& ranks) { save_rank(ranks, run.path(), 20, 20, ranks.rank() == bad ? &killer : nullptr); });
        _exit(thrown == kNobodyThrew ? 0 : 1);
      }
      int raw = 0;
      ASSERT_EQ(waitpid(child, &raw, 0), child);
      status = WIFEXITED(raw) ? WEXITSTATUS(raw) : -1;
      ASSERT_TRUE(status == kKilled || status == 0) << status;
      const ResumeChoice choice = resolve_resume(run.path(), "auto");
      ASSERT_TRUE(choice.checkpoint.has_value());
      const double seed = static_cast<double>(choice.checkpoint->step);
      EXPECT_EQ(CheckpointReader(choice.checkpoint->path).read("rows").bytes, State(seed).rows.bytes);
      EXPECT_TRUE(directory_exists(checkpoint_path(run.path(), 10)));
      EXPECT_EQ(save_together(run.path(), 30, 30), kNobodyThrew);
      ASSERT_LT(point, 200);
    }
  }
}

TEST(Pieces, a_cut_with_a_hole_is_an_internal_fault_on_every_rank) {
  const TempFolder run;
  const State state(1);
  const std::vector<std::string> thrown = on_ranks(2, [&](SaveGroup& ranks) {
    const Block block{{2 * ranks.rank(), 0}, {1, 6}};
    const HostArray part = picked(state.grid, block);
    CheckpointContent content;
    content.groups = {{"model", {TensorPiece(part.view(), state.grid.shape, block)}}};
    SaveOptions options;
    options.ranks = &ranks;
    save_checkpoint(run.path(), content, options);
  });
  for (const std::string& text : thrown) EXPECT_NE(text.find("blocks hold 12 of 24 elements"), std::string::npos) << text;
  EXPECT_TRUE(list_checkpoints(run.path()).empty());
}

TEST(Pieces, a_folder_that_the_ranks_do_not_share_is_an_error_that_says_so) {
  const TempFolder first, second;
  const std::vector<std::string> thrown =
      on_ranks(2, [&](SaveGroup& ranks) {
        const HostArray part = counted("rank" + std::to_string(ranks.rank()), DType::F32, {2}, 0);
        CheckpointContent content;
        content.groups = {{"model", {part.view()}}};
        SaveOptions options;
        options.ranks = &ranks;
        save_checkpoint(ranks.rank() == 0 ? first.path() : second.path(), content, options);
      });
  for (const std::string& text : thrown) {
    EXPECT_NE(text.find("E437"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 does not see the folder that rank 0 made"), std::string::npos) << text;
  }
  EXPECT_TRUE(list_checkpoints(first.path()).empty());
}

TEST(Manifest, pieces_that_do_not_make_up_their_tensor_are_refused_even_with_a_right_hash) {
  Manifest manifest;
  manifest.step = 3;
  manifest.files = {{"model.safetensors", 10, "0123456789abcdef"}};
  manifest.tensors = {{"a", DType::F32, {4, 2}, "", ""}};
  manifest.tensors[0].pieces = {{{{0, 0}, {3, 2}}, "model.safetensors", "0123456789abcdef"}, {{{3, 0}, {1, 2}}, "model.safetensors", "0123456789abcdef"}};
  const std::string good = compose_manifest(manifest);
  EXPECT_NE(good.find("\"version\": 2"), std::string::npos);
  EXPECT_EQ(parse_manifest(good, "m").tensors.at(0).pieces.at(1).block.offset, (Sizes{3, 0}));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    text.replace(place, from.size(), to);
    const std::size_t body = text.find('\n') + 1;
    return text.replace(19, 16, hash_text(hash64(text.data() + body, text.size() - body)));
  };
  const std::vector<std::vector<std::string>> rows = {
      {"\"offset\": [3,0]", "\"offset\": [2,0]", "overlap"},
      {"\"offset\": [3,0]", "\"offset\": [4,0]", "reaches beyond"},
      {"\"offset\": [3,0]", "\"offset\": [9223372036854775807,0]", "reaches beyond"},
      {"\"offset\": [3,0]", "\"offset\": [3]", "another rank"},
      {"\"shape\": [4,2]", "\"shape\": [5,2]", "8 of 10"},
      {"\"shape\": [4,2]", "\"shape\": [4294967296,4294967296]", "more elements than can be counted"},
      {"\"file\": \"model.safetensors\"", "\"file\": \"other.safetensors\"", "not listed"},
      {"\"version\": 2", "\"version\": 1", "'file' is missing"},
  };
  for (const std::vector<std::string>& row : rows) EXPECT_ERROR(parse_manifest(changed(row[0], row[1]), "m"), ErrorCode::ManifestInvalid, row[2]);
}

TEST(Reshard, there_and_back_gives_the_same_tensors_and_state) {
  const TempFolder run, one, five, back;
  ASSERT_EQ(save_together(run.path(), 3, 100), kNobodyThrew);
  const std::string source = checkpoint_path(run.path(), 3);
  reshard_checkpoint(source, one.path(), 1);
  reshard_checkpoint(checkpoint_path(one.path(), 3), five.path(), 5);
  reshard_checkpoint(checkpoint_path(five.path(), 3), back.path(), 1);
  const CheckpointReader first(source);
  for (const TempFolder* folder : {&one, &five, &back}) {
    const std::string path = checkpoint_path(folder->path(), 3);
    EXPECT_TRUE(verify_checkpoint(path).good());
    const CheckpointReader reader(path);
    EXPECT_EQ(reader.names(), first.names());
    EXPECT_EQ(reader.state(), first.state());
    for (const std::string& name : first.names()) EXPECT_EQ(reader.read(name).bytes, first.read(name).bytes) << name;
  }
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {  // whole tensors: the same files, byte for byte
    EXPECT_EQ(read_file(checkpoint_path(one.path(), 3) + file), read_file(checkpoint_path(back.path(), 3) + file));
  }
  const std::vector<std::string> names = list_directory(checkpoint_path(five.path(), 3));
  EXPECT_NE(std::find(names.begin(), names.end(), "model-piece00004.safetensors"), names.end());
  EXPECT_ERROR(reshard_checkpoint(source, one.path(), 2), ErrorCode::RunFolderTaken, "holds step 3 already");
}

}  // namespace
}  // namespace deltron
