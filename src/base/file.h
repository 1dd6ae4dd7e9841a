// Files: whole-file reads, memory maps, and writes that survive a crash (temporary name, fsync, rename).
// Every failure is an Error that names path and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/error.h"

namespace deltron {

// Whole file as bytes. Throws FileNotReadable.
std::string read_file(const std::string& path);
bool file_exists(const std::string& path);
bool directory_exists(const std::string& path);
std::uint64_t file_size(const std::string& path);
void make_directories(const std::string& path);
std::vector<std::string> list_directory(const std::string& path);  // names, sorted
std::uint64_t free_bytes(const std::string& path);                 // free space of the file system below an existing folder
std::string join_path(const std::string& folder, const std::string& name);
std::string parent_folder(const std::string& path);
std::string base_name(const std::string& path);
void remove_tree(const std::string& path);  // no error if it does not exist

// Read-only memory map. Empty files map to size 0.
class MappedFile {
 public:
  // `unreadable`: the code of the error where the file cannot be opened.
  explicit MappedFile(const std::string& path, ErrorCode unreadable = ErrorCode::FileNotReadable);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

// Sequential writer; write errors (disk full) throw ResourceUnavailable naming the path. close() must be called for success;
// `sync` flushes to the device before closing.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path, bool append = false);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void flush();
  void close(bool sync);
  std::uint64_t written() const { return written_; }

 private:
  void drain(const void* data, std::size_t bytes);
  std::string path_;
  std::string buffer_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
};

void sync_directory(const std::string& path);
void rename_path(const std::string& from, const std::string& to);  // and syncs the parent folder
// temporary file in the same folder, fsync, rename, fsync of the folder
void write_file_atomically(const std::string& path, std::string_view content);

}  // namespace deltron
