// What the kinds of descriptors share while those of a tree are looked at.
#pragma once

#include <sys/stat.h>

#include <map>
#include <optional>
#include <string>

#include "lib/state/walk.h"

namespace ckpt::capture {

/// A descriptor of a process of the tree, or one of ckpt's own that was found in flight.
struct Place {
  size_t process = 0;
  int pid = 0, pidfd = -1;
  int fd = 0;
  std::string link;  ///< of /proc/PID/fd/FD
  proc::FdInfo info;
  size_t first = 0;  ///< the first place with the same open file description, as an index of the list
  std::optional<int> description;  ///< of a first one: index of image.descriptors, -1: it cannot be carried

  /// What opens the same file.
  std::string access() const;
};

class DescriptorContext {
 public:
  explicit DescriptorContext(Walk& of) : walk(of), out(of.out) {}

  Walk& walk;
  Inventory& out;

  bool frozen() const { return walk.options.frozen; }
  void block(const Place& place, std::string what, std::string flag = "") {
    out.block(place.process, "descriptor " + std::to_string(place.fd), std::move(what), std::move(flag));
  }
  /// The same for an error; what is kBusy passes, and is looked at again until --timeout.
  void block(const Place& place, const Error& error) {
    block(place, error.text());
    out.blockers.back().passes = error.code == Code::kBusy;
  }
  /// Of what is behind a descriptor: once for each file, however often it is open.
  Result<struct stat> stat_behind(const Place& place);
  /// A duplicate, in ckpt.
  static Result<UniqueFd> duplicate(const Place& place);
  static Result<std::string> fdinfo(const Place& place);

 private:
  std::map<std::string, struct stat> stats_;  ///< by link, inode and mount
};

}  // namespace ckpt::capture
