// Every change that checkpoints make to the disk, one step at a time, each announced to an observer first, so that a test can
// stop the process or fill the disk at any of them. Knows nothing of what is written.
#pragma once

#include <string>
#include <string_view>

#include "src/base/file.h"

namespace deltron {

enum class WriteKind { MakeFolder, Open, Write, SyncFile, SyncFolder, Rename, Remove };
const char* write_kind_name(WriteKind kind);

struct WritePoint {
  int number = 0;  // running, from 0
  WriteKind kind = WriteKind::Write;
  std::string path;
  std::string target = {};  // of a rename: the new name
};

class WriteObserver {
 public:
  virtual ~WriteObserver() = default;
  // Before the step happens. What it throws ends the write as an error of the system would.
  virtual void before(const WritePoint& point) = 0;
};

class Disk {
 public:
  explicit Disk(WriteObserver* observer = nullptr) : observer_(observer) {}
  void make_folder(const std::string& path);
  void sync_folder(const std::string& path);
  void rename(const std::string& from, const std::string& to);  // without a sync of the folder
  void remove(const std::string& path);                         // file or tree, entry by entry; no error if missing
  // Whole small file: temporary name beside it, fsync, rename, fsync of the folder.
  void replace_file(const std::string& path, std::string_view content);
  void announce(WriteKind kind, const std::string& path, const std::string& target = {});

 private:
  WriteObserver* observer_;
  int next_ = 0;
};

// A file that is written front to back. Without finish() nothing is promised about its content.
class DiskFile {
 public:
  DiskFile(Disk& disk, const std::string& path);
  void write(const void* data, std::size_t bytes);
  void finish();  // fsync and close
 private:
  Disk& disk_;
  std::string path_;
  FileWriter writer_;
};

// Asks the kernel to forget cached pages of a synced file, so that reading it back reads the device.
void drop_page_cache(const std::string& path);

}  // namespace deltron
