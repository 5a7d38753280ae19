// Namespaces that processes of a tree are in and its first process is not.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/files/tree_root.h"
#include "lib/store/process_image.h"

namespace ckpt::state {

/// CLONE_NEW* of a kind that a process may have apart from the first one; 0: it may not.
int further_flag(const std::string& kind);

/// What holds them, parallel to Namespaces::further, until it is set again; a root for those of mounts alone. Call it
/// while no other thread looks names up.
void set_further(std::vector<MountNamespace> handles);
/// -1: there is none of this index.
int further_handle(int index);

/// Index of a process's own of a kind in Namespaces::further; -1: that of the first process.
int further_of(const store::TreeImage& tree, size_t process, const std::string& kind);

/// While it lives this thread looks names up in a further mount namespace, or, -1, in that of the first process.
class InMounts {
 public:
  explicit InMounts(int index);
  InMounts(const InMounts&) = delete;
  InMounts& operator=(const InMounts&) = delete;
  ~InMounts();

 private:
  int before_;
  UnderRoot root_;
};
/// The one of this thread, -1: none.
int looked_into();

/// While it lives this thread is in another network, IPC or UTS namespace. Needs CAP_SYS_ADMIN over both.
class Visit {
 public:
  static Result<Visit> begin(int handle, const std::string& kind);
  Visit(Visit&&) = default;
  Visit& operator=(Visit&&) = delete;
  ~Visit();

 private:
  Visit() = default;
  UniqueFd own_;
  int flag_ = 0;
};

/// kCorrupt: kinds and indices that make no sense.
Result<void> validate_further(const store::TreeImage& tree);

}  // namespace ckpt::state
