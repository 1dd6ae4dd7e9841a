// See index_cache.h.
#include "src/data/index_cache.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/hash.h"
#include "src/base/human.h"
#include "src/base/log.h"
#include "src/base/signals.h"
#include "src/base/terminal.h"
#include "src/data/gpt_index.h"

namespace deltron {
namespace {

constexpr char kMagic[8] = {'D', 'L', 'T', 'N', 'G', 'P', 'T', 'I'};
constexpr std::uint64_t kVersion = 1;

// Followed by documents (int32, padded to 8 bytes), starts (int64), shuffle (int64). Little-endian, 64 bytes.
struct Header {
  char magic[8];
  std::uint64_t version;
  std::uint64_t key;
  std::uint64_t positions;
  std::uint64_t samples;
  std::uint64_t payload_bytes;
  std::uint64_t payload_hash;
  std::uint64_t header_hash;  // of the 56 bytes before it
};
static_assert(sizeof(Header) == 64);

std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

std::uint64_t payload_size(std::uint64_t positions, std::uint64_t samples) {
  return padded(positions * 4) + (samples + 1) * 16 + samples * 8;
}

std::uint64_t request_key(const IndexedDataset& dataset, const GptIndexRequest& request) {
  const std::string description = "gpt index 1; idx " + hash_text(dataset.index_hash()) + "; documents " +
                                  std::to_string(request.range.begin) + " " + std::to_string(request.range.end) + "; T " +
                                  std::to_string(request.seq_length) + "; N " + std::to_string(request.samples_wanted) + "; seed " +
                                  std::to_string(request.seed);
  return hash64(description.data(), description.size());
}

std::vector<std::uint8_t> serialise(const GptIndex& index, std::uint64_t key) {
  const std::uint64_t samples = index.shuffle.size();
  const std::uint64_t positions = index.documents.size();
  std::vector<std::uint8_t> bytes(sizeof(Header) + payload_size(positions, samples), 0);
  std::uint8_t* at = bytes.data() + sizeof(Header);
  std::memcpy(at, index.documents.data(), positions * 4);
  at += padded(positions * 4);
  std::memcpy(at, index.sample_start.data(), (samples + 1) * 16);
  at += (samples + 1) * 16;
  if (samples > 0) std::memcpy(at, index.shuffle.data(), samples * 8);
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.key = key;
  header.positions = positions;
  header.samples = samples;
  header.payload_bytes = bytes.size() - sizeof(Header);
  header.payload_hash = hash64(bytes.data() + sizeof(Header), header.payload_bytes);
  header.header_hash = hash64(&header, sizeof(Header) - 8);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

// "" if the bytes are a sound index for `key`, else what is wrong with them.
std::string defect(const std::uint8_t* data, std::uint64_t size, std::uint64_t key) {
  if (size < sizeof(Header)) return "shorter than its header";
  Header header;
  std::memcpy(&header, data, sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return "wrong magic number";
  if (header.header_hash != hash64(&header, sizeof(Header) - 8)) return "header does not match its hash";
  if (header.version != kVersion) return "version " + std::to_string(header.version);
  if (header.key != key) return "built for another request";
  if (header.payload_bytes != size - sizeof(Header) || header.payload_bytes != payload_size(header.positions, header.samples)) {
    return "wrong size";
  }
  if (header.payload_hash != hash64(data + sizeof(Header), header.payload_bytes)) return "content does not match its hash";
  return "";
}

// Exclusive lock on PATH.lock; the system drops it when its holder dies. Waits, polling stop requests.
class BuildLock {
 public:
  explicit BuildLock(const std::string& path) : path_(path) {
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) {
      throw Error(ErrorCode::ResourceUnavailable,
                  ErrorText{"the lock file cannot be made", path, std::strerror(errno), "", "choose a writable cache folder"});
    }
    auto next_message = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        const int number = errno;
        ::close(descriptor_);
        throw Error(ErrorCode::ResourceUnavailable, ErrorText{"the lock file cannot be locked", path, std::strerror(number), "",
                                                              "choose a cache folder on a file system with locks"});
      }
      try {
        poll_stop("waiting for another process to build a sample index");
      } catch (...) {
        ::close(descriptor_);
        throw;
      }
      if (std::chrono::steady_clock::now() >= next_message) {
        log_info("waiting for another process that holds " + path);
        next_message += std::chrono::seconds(10);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  ~BuildLock() { ::close(descriptor_); }  // the file stays: removing it would let two builders in
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

 private:
  std::string path_;
  int descriptor_;
};

std::shared_ptr<const MappedFile> map_if_sound(const std::string& path, std::uint64_t key, bool warn) {
  if (!file_exists(path)) return nullptr;
  auto file = std::make_shared<const MappedFile>(path);
  const std::string problem = defect(file->data(), file->size(), key);
  if (problem.empty()) return file;
  if (warn) log_warning("sample index " + path + " is damaged (" + problem + "): building it again");
  return nullptr;
}

GptIndex build(const IndexedDataset& dataset, const GptIndexRequest& request, const std::string& name) {
  DELTRON_CHECK_LE(request.range.end, std::int64_t{0x7fffffff}, "documents of ", dataset.prefix(),
                   ": a sample index counts them in 31 bits");
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(request.range.count()));
  for (std::int64_t i = 0; i < request.range.count(); ++i) {
    lengths[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(dataset.length(request.range.begin + i));
  }
  auto next_message = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  auto progress = [&](double share) {
    show_progress_line("building sample index " + progress_bar(share, 30));
    if (std::chrono::steady_clock::now() < next_message) return;
    log_info("building sample index " + name + ": " + fixed(100 * share, 0) + " %");
    next_message += std::chrono::seconds(5);
  };
  GptIndex index = build_gpt_index(lengths, static_cast<std::int32_t>(request.range.begin), request.seq_length,
                                   request.samples_wanted, request.seed, progress);
  clear_progress_line();
  return index;
}

}  // namespace

void CachedGptIndex::point_into(const std::uint8_t* data) {
  Header header;
  std::memcpy(&header, data, sizeof(header));
  positions_ = static_cast<std::int64_t>(header.positions);
  samples_ = static_cast<std::int64_t>(header.samples);
  const std::uint8_t* at = data + sizeof(Header);  // 8-byte aligned: maps and vectors start aligned, every part is padded
  documents_ = reinterpret_cast<const std::int32_t*>(at);
  at += padded(header.positions * 4);
  starts_ = reinterpret_cast<const std::int64_t*>(at);
  at += (header.samples + 1) * 16;
  shuffle_ = reinterpret_cast<const std::int64_t*>(at);
}

CachedGptIndex CachedGptIndex::open(const IndexedDataset& dataset, const GptIndexRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t key = request_key(dataset, request);
  CachedGptIndex result;
  result.key_ = hash_text(key);
  std::shared_ptr<const MappedFile> file;
  if (!request.cache_folder.empty()) {
    make_directories(request.cache_folder);
    result.path_ = join_path(request.cache_folder, base_name(dataset.prefix()) + "_" + result.key_ + ".gptindex");
    file = map_if_sound(result.path_, key, false);
    result.was_cached_ = file != nullptr;
  }
  if (file == nullptr && request.cache_folder.empty()) {
    auto bytes = std::make_shared<const std::vector<std::uint8_t>>(serialise(build(dataset, request, result.key_), key));
    result.point_into(bytes->data());
    result.file_ = bytes;
  } else {
    if (file == nullptr) {
      const BuildLock lock(result.path_ + ".lock");
      file = map_if_sound(result.path_, key, true);  // another process may have built it meanwhile
      result.was_cached_ = file != nullptr;
      if (file == nullptr) {
        const std::vector<std::uint8_t> bytes = serialise(build(dataset, request, result.path_), key);
        write_file_atomically(result.path_, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
        file = std::make_shared<const MappedFile>(result.path_);
      }
    }
    result.point_into(file->data());
    result.file_ = file;
  }
  result.seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("sample index of " + dataset.prefix() + ": " + thousands(result.samples_) + " samples, key " + result.key_ + ", " +
           (result.path_.empty() ? "in memory" : (result.was_cached_ ? "from " : "built into ") + result.path_) + ", " +
           human_seconds(result.seconds_));
  return result;
}

}  // namespace deltron
