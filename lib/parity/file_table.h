// A rank's folder as one run of bytes: a table of its files, then what they hold. What a set protects is that run, so
// names, modes, owners and times come back with the bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::parity {

struct FileEntry {
  enum class Type : uint8_t { kFolder = 1, kFile = 2, kLink = 3 };
  Type type = Type::kFile;
  uint32_t mode = 0;  ///< the lower 12 bits
  uint32_t uid = 0, gid = 0;
  int64_t mtime_ns = 0;
  uint64_t size = 0;   ///< of a file
  std::string name;    ///< from the folder on, empty: the folder itself; folders come before what is in them
  std::string target;  ///< of a symbolic link
  bool operator==(const FileEntry&) const = default;
};

struct FileTable {
  std::vector<FileEntry> entries;
  bool operator==(const FileTable&) const = default;

  /// The bytes that begin the run, and those of the whole run.
  std::string encode() const;
  uint64_t run_bytes() const;
  /// Of a stranger's bytes, which may go on behind the table. kCorrupt: names that lead out of the folder, twice the
  /// same one, something below what is no folder, lengths that are lies.
  static Result<FileTable> parse(ByteSpan bytes, const std::string& subject);
};

/// The folder's files as they are. Sockets, devices and pipes are refused (kUnsupported).
Result<FileTable> scan_folder(const std::filesystem::path& folder);

/// How an entry differs from what lies there now: "is missing", "has another size"; empty: not at all. `content_only`:
/// what does not change a byte of any file does not count.
Result<std::string> difference(const std::filesystem::path& folder, const FileEntry& entry, bool content_only);

/// Reads the run at any place: the table from memory, the rest from the files. One per thread.
class RunReader {
 public:
  RunReader(std::filesystem::path folder, const FileTable& table);
  uint64_t size() const { return size_; }
  /// Behind the end there are zeros. kCorrupt: a file is shorter than the table says.
  Result<void> read(uint64_t offset, MutableByteSpan out);
  /// Which file the byte is of, or the next one; the folder where there is none.
  std::string name_at(uint64_t offset) const;

 private:
  struct Part {
    uint64_t offset = 0, size = 0;
    std::string name;
  };
  Result<int> open(const Part& part);
  std::vector<Part>::const_iterator part_at(uint64_t offset) const;

  std::filesystem::path folder_;
  std::string head_;
  std::vector<Part> parts_;               ///< files with bytes, by offset
  std::map<std::string, UniqueFd> open_;  ///< the last ones used, not too many
  uint64_t size_ = 0;
};

/// Whether a failure to look at what is there, or to read it, says that it is lost: it is gone, something else, or the
/// disk cannot give it. Not that of somebody who lacks rights, memory or descriptors.
bool tells_loss(const Error& error);

/// Makes the files of a run in an empty folder, from behind so that `run` (which is cut off as it is used up) and they
/// together never take much more room than the run. Owners are set by root only.
Result<void> unpack(int run, const std::string& subject, const FileTable& table, const std::filesystem::path& folder);

}  // namespace ckpt::parity
