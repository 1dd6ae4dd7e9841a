// See file.h.
#include "src/base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace deltron {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

[[noreturn]] void fail_read(const std::string& path, int number, ErrorCode code = ErrorCode::FileNotReadable) {
  throw Error(code,
              ErrorText{"cannot be read", path, std::strerror(number), "", "check the path and its permissions"});
}

[[noreturn]] void fail_write(const std::string& what, const std::string& path, int number) {
  const char* fix = number == ENOSPC || number == EDQUOT ? "free space on that file system"
                    : number == EFBIG                    ? "raise the limit of file sizes (ulimit -f)"
                                                         : "check the path and its permissions";
  throw Error(ErrorCode::ResourceUnavailable, ErrorText{what + " failed", path, std::strerror(number), "", fix});
}

}  // namespace

std::string read_file(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_read(path, errno);
  std::string content;
  std::string chunk(kBufferBytes, '\0');
  for (;;) {
    const ssize_t got = read(descriptor, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int number = errno;
      close(descriptor);
      fail_read(path, number);
    }
    if (got == 0) break;
    content.append(chunk.data(), static_cast<std::size_t>(got));
  }
  close(descriptor);
  return content;
}

bool file_exists(const std::string& path) {
  std::error_code code;
  return fs::is_regular_file(path, code);
}

bool directory_exists(const std::string& path) {
  std::error_code code;
  return fs::is_directory(path, code);
}

std::uint64_t file_size(const std::string& path) {
  std::error_code code;
  const std::uintmax_t size = fs::file_size(path, code);
  if (code) fail_read(path, code.value());
  return size;
}

void make_directories(const std::string& path) {
  std::error_code code;
  fs::create_directories(path, code);
  if (code && !directory_exists(path)) fail_write("creating the folder", path, code.value());
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator entry(path, code), end; !code && entry != end; entry.increment(code)) {
    names.push_back(entry->path().filename().string());
  }
  if (code) fail_read(path, code.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::uint64_t free_bytes(const std::string& path) {
  struct statvfs info{};
  if (statvfs(path.c_str(), &info) != 0) fail_read(path, errno);
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

std::string join_path(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

std::string parent_folder(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string base_name(const std::string& path) { return fs::path(path).filename().string(); }

void remove_tree(const std::string& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code) fail_write("removing", path, code.value());
}

MappedFile::MappedFile(const std::string& path, ErrorCode unreadable) : path_(path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_read(path, errno, unreadable);
  struct stat info{};
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    const int number = S_ISDIR(info.st_mode) ? EISDIR : (errno != 0 ? errno : EINVAL);
    close(descriptor);
    fail_read(path, number, unreadable);
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ > 0) {
    void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int number = errno;
    close(descriptor);
    if (mapped == MAP_FAILED) fail_read(path, number, unreadable);
    data_ = static_cast<const std::uint8_t*>(mapped);
  } else {
    close(descriptor);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileWriter::FileWriter(const std::string& path, bool append) : path_(path) {
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC), 0644);
  if (descriptor_ < 0) fail_write("opening for writing", path, errno);
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);  // an unclosed writer is an abandoned one: what is buffered is dropped
}

void FileWriter::drain(const void* data, std::size_t bytes) {
  const char* place = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor_, place, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_write("writing", path_, errno);
    place += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

void FileWriter::write(const void* data, std::size_t bytes) {
  written_ += bytes;
  if (buffer_.size() + bytes > kBufferBytes) {
    flush();
    if (bytes >= kBufferBytes) {
      drain(data, bytes);
      return;
    }
  }
  buffer_.append(static_cast<const char*>(data), bytes);
}

void FileWriter::flush() {
  drain(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void FileWriter::close(bool sync) {
  flush();
  if (sync && fsync(descriptor_) != 0) fail_write("fsync", path_, errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail_write("closing", path_, errno);
}

void sync_directory(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_write("opening the folder", path, errno);
  const int result = fsync(descriptor);
  const int number = errno;
  ::close(descriptor);
  if (result != 0 && number != EINVAL) fail_write("fsync of the folder", path, number);
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_write("renaming to " + to, from, errno);
  sync_directory(parent_folder(to));
}

void write_file_atomically(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  try {
    FileWriter writer(temporary);
    writer.write(content);
    writer.close(true);
    rename_path(temporary, path);
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

}  // namespace deltron
