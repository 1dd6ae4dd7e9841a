// See disk.h.
#include "src/checkpoint/disk.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace deltron {
namespace {

constexpr std::size_t kWriteBytes = std::size_t{64} << 20;  // one step of a long write

[[noreturn]] void fail(const std::string& what, const std::string& path, int number) {
  throw Error(ErrorCode::ResourceUnavailable, ErrorText{what + " failed", path, std::strerror(number)});
}

const std::string& announced(Disk& disk, const std::string& path) {
  disk.announce(WriteKind::Open, path);
  return path;
}

}  // namespace

const char* write_kind_name(WriteKind kind) {
  switch (kind) {
    case WriteKind::MakeFolder:
      return "make folder";
    case WriteKind::Open:
      return "open";
    case WriteKind::Write:
      return "write";
    case WriteKind::SyncFile:
      return "sync file";
    case WriteKind::SyncFolder:
      return "sync folder";
    case WriteKind::Rename:
      return "rename";
    case WriteKind::Remove:
      return "remove";
  }
  return "?";
}

void Disk::announce(WriteKind kind, const std::string& path, const std::string& target) {
  const int number = next_++;
  if (observer_ != nullptr) observer_->before(WritePoint{number, kind, path, target});
}

void Disk::make_folder(const std::string& path) {
  if (directory_exists(path)) return;
  announce(WriteKind::MakeFolder, path);
  make_directories(path);
}

void Disk::sync_folder(const std::string& path) {
  announce(WriteKind::SyncFolder, path);
  sync_directory(path);
}

void Disk::rename(const std::string& from, const std::string& to) {
  announce(WriteKind::Rename, from, to);
  if (std::rename(from.c_str(), to.c_str()) != 0) fail("renaming to " + to, from, errno);
}

void Disk::remove(const std::string& path) {
  if (directory_exists(path)) {
    for (const std::string& name : list_directory(path)) remove(join_path(path, name));
  }
  announce(WriteKind::Remove, path);
  if (std::remove(path.c_str()) != 0 && errno != ENOENT) fail("removing", path, errno);
}

void Disk::replace_file(const std::string& path, std::string_view content) {
  const std::string temporary = join_path(parent_folder(path), ".tmp-" + base_name(path));
  DiskFile file(*this, temporary);
  file.write(content.data(), content.size());
  file.finish();
  rename(temporary, path);
  sync_folder(parent_folder(path));
}

DiskFile::DiskFile(Disk& disk, const std::string& path) : disk_(disk), path_(path), writer_(announced(disk, path)) {}

void DiskFile::write(const void* data, std::size_t bytes) {
  const char* place = static_cast<const char*>(data);
  while (bytes > 0) {
    const std::size_t now = bytes < kWriteBytes ? bytes : kWriteBytes;
    disk_.announce(WriteKind::Write, path_);
    writer_.write(place, now);
    writer_.flush();
    place += now;
    bytes -= now;
  }
}

void DiskFile::finish() {
  disk_.announce(WriteKind::SyncFile, path_);
  writer_.close(true);
}

void drop_page_cache(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;  // only a hint: whoever reads the file reports what is wrong with it
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  close(descriptor);
}

}  // namespace deltron
