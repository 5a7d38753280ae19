// Who ends the programs of a ckpt that was killed.
#pragma once

#include <sys/types.h>

namespace ckpt::remote {

/// While it lives a process group ends with this process, however that ends: a process of its own sees to it, which all
/// of them share. As far as that can be made: without it programs go on, as they would under a shell.
class KeptGroup {
 public:
  explicit KeptGroup(pid_t group);
  ~KeptGroup();
  KeptGroup(const KeptGroup&) = delete;
  KeptGroup& operator=(const KeptGroup&) = delete;

 private:
  pid_t group_;
};

}  // namespace ckpt::remote
