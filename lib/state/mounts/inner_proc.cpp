#include "lib/state/mounts/inner_proc.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <vector>

#include "lib/proc/ptrace.h"
#include "lib/proc/userfault.h"
#include "lib/state/mounts/attributes.h"
#include "lib/state/mounts/open_below.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/run_as.h"

namespace ckpt::restore {

namespace {

using store::Mount;
using store::MountedFilesystem;
using store::Mounts;

/// Opened by a process, which it shows with all that are in its pid namespace, and mounted nowhere yet.
Result<UniqueFd> open_proc(const MountedFilesystem& filesystem, Child& whose) {
  RestorerArea& area = whose.area();
  SyscallBatch open;
  open.add("open a /proc", SYS_fsopen, area.put_string("proc"), FSOPEN_CLOEXEC);
  CKPT_TRY(whose.run(open));
  const int64_t context = open.calls()[0].result;
  SyscallBatch make;
  make.try_add("name a /proc", SYS_fsconfig, context, FSCONFIG_SET_STRING, area.put_string("source"),
               area.put_string(filesystem.source), 0);
  state::for_each_option(filesystem.options, [&](const std::string& word) {
    const size_t equals = word.find('=');
    const bool has_value = equals != std::string::npos;
    if (!state::is_no_option(word, false))
      make.add("give a /proc its options", SYS_fsconfig, context, has_value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG,
               area.put_string(word.substr(0, equals)), has_value ? area.put_string(word.substr(equals + 1)) : 0, 0);
  });
  make.add("make a /proc", SYS_fsconfig, context, FSCONFIG_CMD_CREATE, 0, 0, 0);
  make.add("mount a /proc", SYS_fsmount, context, FSMOUNT_CLOEXEC, 0);
  CKPT_TRY(whose.run(make));
  const int64_t mounted = make.calls().back().result;
  CKPT_TRY_ASSIGN(const UniqueFd pidfd, proc::open_pidfd(whose.pid()));
  auto out = proc::get_remote_fd(pidfd.get(), static_cast<int>(mounted));
  SyscallBatch close;
  close.add("close a /proc", SYS_close, mounted);
  close.add("close a /proc", SYS_close, context);
  CKPT_TRY(whose.run(close));
  return out;
}

/// In a helper, which shares this process's descriptors and nothing else: in the mount namespace.
class Exchange {
 public:
  Exchange(const Mounts& mounts, const std::map<int, UniqueFd>& bases) : mounts_(mounts.mounts), bases_(bases) {
    for (size_t i = 0; i < mounts_.size(); ++i) {
      const auto parent = static_cast<size_t>(std::max(mounts_[i].parent, 0));
      const bool lies_on_one = i != 0 && goes_[parent];
      goes_.push_back(lies_on_one || is_inner(i));
      if (is_inner(i) && !lies_on_one) tops_.push_back(i);
    }
    again_.resize(mounts_.size());
  }

  /// 0, or -errno.
  int run() {
    if (tops_.empty()) return 0;
    if (goes_[0]) return -EINVAL;
    const bool done = copy_others() && copy_inner() && take_away() && put_back();
    return done ? 0 : -errno;
  }

 private:
  bool is_inner(size_t index) const { return bases_.count(mounts_[index].filesystem) != 0; }
  const char* point(size_t index) const { return mounts_[index].point.c_str(); }

  /// What lies on them, and goes back there.
  bool copy_others() {
    for (size_t i = 0; i < mounts_.size(); ++i) {
      if (!goes_[i] || is_inner(i)) continue;
      constexpr unsigned kAlone = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW;
      again_[i] = UniqueFd(::open_tree(AT_FDCWD, point(i), kAlone));
      if (!again_[i]) return false;
    }
    return true;
  }

  /// Only what is mounted can be copied: on top of the first of them, one upon the other.
  bool copy_inner() {
    for (const auto& [filesystem, base] : bases_) {
      if (::move_mount(base.get(), "", AT_FDCWD, point(tops_[0]), MOVE_MOUNT_F_EMPTY_PATH) != 0) return false;
    }
    for (size_t i = 0; i < mounts_.size(); ++i) {
      if (!is_inner(i)) continue;
      std::string rest;
      (void)state::below(mounts_[i].root, "/", rest);
      const UniqueFd what = state::open_below(bases_.at(mounts_[i].filesystem).get(), rest, O_PATH);
      constexpr unsigned kAlone = AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
      if (what) again_[i] = UniqueFd(::open_tree(what.get(), "", kAlone));
      if (!again_[i]) return false;
      mount_attr attributes = state::attributes_of(mounts_[i]);
      attributes.propagation = mounts_[i].shared ? MS_SHARED : MS_PRIVATE;
      if (::mount_setattr(again_[i].get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0) return false;
    }
    return true;
  }

  bool take_away() const {
    for (size_t i = 0; i < bases_.size(); ++i) {
      if (::umount2(point(tops_[0]), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) return false;
    }
    return std::all_of(tops_.begin(), tops_.end(), [this](size_t top) {
      return ::umount2(point(top), MNT_DETACH | UMOUNT_NOFOLLOW) == 0;
    });
  }

  bool put_back() const {
    for (size_t i = 0; i < mounts_.size(); ++i) {
      if (!goes_[i]) continue;
      if (::move_mount(again_[i].get(), "", AT_FDCWD, point(i), MOVE_MOUNT_F_EMPTY_PATH) != 0) return false;
    }
    return true;
  }

  const std::vector<Mount>& mounts_;
  const std::map<int, UniqueFd>& bases_;
  std::vector<bool> goes_;  ///< taken away, and put there again
  std::vector<size_t> tops_;
  std::vector<UniqueFd> again_;
};

}  // namespace

Result<void> put_inner_proc(const Mounts& mounts, int handle, const std::function<Child*(int)>& first_of) {
  std::map<int, UniqueFd> bases;  // by file system
  for (size_t i = 0; i < mounts.filesystems.size(); ++i) {
    const MountedFilesystem& filesystem = mounts.filesystems[i];
    Child* const first = filesystem.pid_namespace < 0 ? nullptr : first_of(filesystem.pid_namespace);
    if (first == nullptr) continue;
    CKPT_TRY_ASSIGN(UniqueFd base, open_proc(filesystem, *first));
    bases.emplace(static_cast<int>(i), std::move(base));
  }
  if (bases.empty()) return {};
  CKPT_TRY_ASSIGN(const CallResult done, run_as({}, [&] {
                    if (::setns(handle, CLONE_NEWNS) != 0) return -errno;
                    return Exchange(mounts, bases).run();
                  }));
  return done.value == 0 ? Result<void>()
                         : sys_error(-done.value, "mount namespace", "cannot be given a /proc of its own processes");
}

}  // namespace ckpt::restore
