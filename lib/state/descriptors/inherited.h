// Descriptors that the new process gets from ckpt: everything it will have open is opened before it exists.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Whether the hard limit leaves numbers above all of the tree's.
void check_descriptor_room(const store::TreeImage& tree, Reasons& reasons);

/// Holds them under numbers that are clear of every number a process of the tree uses, so that in each can be
/// duplicated to its place without overwriting another.
class Inherited {
 public:
  /// Raises ckpt's own soft limit of descriptors to the hard one where that is needed.
  static Result<Inherited> create(const store::TreeImage& tree);

  /// The first number that may be used.
  int base() const { return base_; }
  /// No number from this one on is in use here.
  int end() const { return fds_.empty() ? base_ : fds_.rbegin()->first + 1; }
  /// Moves `fd` up; returns its number, which is the same in the child.
  Result<int> keep(UniqueFd fd, const std::string& subject);
  /// Like `keep`, for a descriptor that stays ckpt's.
  Result<int> keep_copy(int fd, const std::string& subject);
  void close(int fd);

 private:
  int base_ = 0;
  std::map<int, UniqueFd> fds_;
};

}  // namespace ckpt::restore
