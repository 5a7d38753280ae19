// Files of a tree, each described once.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "lib/base/result.h"

namespace ckpt::capture {

struct Inventory;

/// Interns files by path, so that each name is described once; of a deleted file with several names the first has the
/// bytes.
class FileTable {
 public:
  FileTable(Inventory& out, uint64_t ghost_limit) : out_(out), ghost_limit_(ghost_limit) {}
  /// The index of a file that was added before under this path, or -1.
  int find(const std::string& path, uint64_t inode) const;
  /// The index of a file that is still what its path names, or was deleted for good. `st` is of the open or mapped file
  /// itself, `access` a link below /proc that opens it. kMismatch: replaced, out of reach, too large; the message says
  /// which. Names are looked up where this thread looks (namespaces/further.h), then in the first process's mounts.
  Result<int> add(const std::string& path, const struct stat& st, const std::string& access);

  /// The further pid namespace whose /proc a file is of: its index, -1: of none.
  int inner_proc_of(const struct stat& st) const;

 private:
  Result<int> add_here(const std::string& path, const struct stat& st, const std::string& access);
  Result<int> add_deleted(const std::string& path, const struct stat& st, const std::string& access);
  int append(const std::string& path, const struct stat& st);

  Inventory& out_;
  uint64_t ghost_limit_;
  std::map<std::tuple<int, std::string, uint64_t>, int> by_path_;  ///< mount namespace, path and inode
  std::set<std::pair<uint64_t, uint64_t>> ghosts_;           ///< device and inode of what has no name any more
};

}  // namespace ckpt::capture
