#include "lib/state/mounts/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

#include "lib/base/io.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/mounts/attributes.h"
#include "lib/state/mounts/made.h"
#include "lib/state/mounts/memory_files_restore.h"
#include "lib/state/mounts/open_below.h"
#include "lib/state/mounts/overlay.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/run_as.h"

namespace ckpt::restore {

namespace {

using state::MountSource;
using store::Mount;
using store::MountedFilesystem;
using store::Mounts;

std::string subject_of(const Mount& mount) { return "mount " + mount.point; }

/// A mount that is nowhere yet, and that neither gets nor passes on what is mounted elsewhere, but for what its master
/// does.
Result<UniqueFd> mount_apart(int handle, bool slave, const std::string& subject) {
  UniqueFd out(::open_tree(handle, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!out) return sys_error(subject, "cannot be mounted again (open_tree, Linux 5.2)");
  mount_attr attributes{};
  attributes.propagation = slave ? MS_SLAVE : MS_PRIVATE;
  if (::mount_setattr(out.get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0)
    return sys_error(subject, "cannot be kept from other mount namespaces (mount_setattr, Linux 5.12)");
  return out;
}

/// Whoever runs ckpt has named it.
Result<UniqueFd> open_given(const std::string& path) { return io::open_file(path, O_PATH); }

/// The image has named it: it must be what the processes had, and no link leads there.
Result<UniqueFd> open_host(const Mount& mount, bool same_boot, bool is_group) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS;
  UniqueFd out(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, mount.host.c_str(), &how, sizeof how)));
  struct stat st {};
  const std::string hint = fmt::format("--external 'mnt[{}]:PATH' names what is to be mounted there", mount.point);
  if (!out || ::fstat(out.get(), &st) != 0)
    return Error(sys_error(mount.host, "is to be mounted at " + mount.point)).with_hint(hint);
  // A control group that was gone is another file, with the same name.
  struct statfs fs {};
  const bool is_there = is_group && ::fstatfs(out.get(), &fs) == 0;
  if (is_there && (fs.f_type == CGROUP2_SUPER_MAGIC || fs.f_type == CGROUP_SUPER_MAGIC)) return out;
  // Numbers of devices are given anew at a boot; those of inodes are not.
  if (st.st_ino == mount.inode && (st.st_dev == mount.device || !same_boot)) return out;
  return Error(Code::kMismatch, mount.host, "is not what was mounted at " + mount.point).with_hint(hint);
}

bool set_option(int context, const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return ::fsconfig(context, FSCONFIG_SET_FLAG, word.c_str(), nullptr, 0) == 0;
  return ::fsconfig(context, FSCONFIG_SET_STRING, word.substr(0, equals).c_str(), word.c_str() + equals + 1, 0) == 0;
}

/// A file system that belongs to the tree's user namespace is opened by one who is in it: what the kernel denies there
/// (devices, for one) it then denies in this file system. Ids in its options are those of who sets them: outside.
Result<UniqueFd> open_filesystem(const std::string& type, bool inside) {
  if (!inside) return UniqueFd(::fsopen(type.c_str(), FSOPEN_CLOEXEC));
  CKPT_TRY_ASSIGN(const int opened, run_in_user_namespace([&] {
                    if (::unshare(CLONE_NEWNS) != 0) return -errno;
                    const int context = ::fsopen(type.c_str(), FSOPEN_CLOEXEC);
                    return context < 0 ? -errno : context;
                  }));
  if (opened < 0) errno = -opened;
  return UniqueFd(std::max(opened, -1));
}

/// While files are made in a file system of the user namespace: nobody makes any who has no number there. Raw calls: of
/// this thread alone.
class FileOwner {
 public:
  explicit FileOwner(const state::TreeUser* user) {
    if (user == nullptr) return;
    const auto uid = state::id_outside(user->what.uids, 0), gid = state::id_outside(user->what.gids, 0);
    if (!uid || !gid) return;
    bits_ = ::prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
    (void)::prctl(PR_SET_SECUREBITS, bits_ | SECBIT_NO_SETUID_FIXUP, 0, 0, 0);
    uid_ = static_cast<uid_t>(::syscall(SYS_setfsuid, *uid)), gid_ = static_cast<gid_t>(::syscall(SYS_setfsgid, *gid));
  }
  FileOwner(const FileOwner&) = delete;
  FileOwner& operator=(const FileOwner&) = delete;
  ~FileOwner() {
    if (bits_ < 0) return;
    (void)::syscall(SYS_setfsuid, uid_), (void)::syscall(SYS_setfsgid, gid_);
    (void)::prctl(PR_SET_SECUREBITS, bits_, 0, 0, 0);
  }

 private:
  int bits_ = -1;
  uid_t uid_ = 0;
  gid_t gid_ = 0;
};

Result<UniqueFd> make_filesystem(const MountedFilesystem& filesystem) {
  const std::string subject = fmt::format("{} {}", filesystem.type, filesystem.source);
  const state::TreeUser* user = state::tree_user();
  const bool inside = user != nullptr && user->owns("mnt") &&
                      (state::is_in_memory(filesystem.type) || filesystem.type == "devpts");
  CKPT_TRY_ASSIGN(const UniqueFd context, open_filesystem(filesystem.type, inside));
  if (!context) return sys_error(subject, "cannot be made (fsopen, Linux 5.2)");
  (void)::fsconfig(context.get(), FSCONFIG_SET_STRING, "source", filesystem.source.c_str(), 0);
  std::string refused;
  const bool in_memory = state::is_in_memory(filesystem.type);
  state::for_each_option(filesystem.options, [&](const std::string& word) {
    if (state::is_no_option(word, in_memory)) return;
    if (refused.empty() && !set_option(context.get(), word)) refused = word;
  });
  if (!refused.empty()) return sys_error(subject, "cannot be given its option " + refused);
  if (::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
    return sys_error(subject, "cannot be made");
  UniqueFd out(::fsmount(context.get(), FSMOUNT_CLOEXEC, 0));
  if (!out) return sys_error(subject, "cannot be mounted");
  struct stat st {};
  if (::fstat(out.get(), &st) != 0) return sys_error(subject, "cannot be looked at");
  if (in_memory) {
    const FileOwner owner(inside ? user : nullptr);
    CKPT_TRY(make_memory_files(filesystem.files, out.get()));
  }
  UniqueFd root(::fcntl(out.get(), F_DUPFD_CLOEXEC, 3));
  if (!root) return sys_error(subject, "cannot be kept");
  state::add_made_filesystem(filesystem.device, st.st_dev, std::move(root));
  return out;
}

/// The number of a terminal whose slave a mount shows; -1: it does not.
int terminal_of(const Mounts& mounts, const Mount& mount, const MountSource& source) {
  int out = -1;
  const char* const end = source.path.data() + source.path.size();
  const bool is_slave = source.kind == MountSource::Kind::kNew &&
                        mounts.filesystems[static_cast<size_t>(mount.filesystem)].type == "devpts" &&
                        std::from_chars(source.path.data(), end, out).ptr == end && !source.path.empty();
  return is_slave ? out : -1;
}

/// What the helper below does, step by step, and what it makes for this process.
enum Step {
  kLeave,
  kPlaceBase,
  kLayers,
  kInUse,
  kTerminal,
  kShow,
  kAttributesOf,
  kPlace,
  kMove,
  kPivot,
  kOwner,
  kShare,
  kName
};
constexpr const char* kSteps[] = {"cannot be kept from other mount namespaces",
                                  "cannot be made ready",
                                  "cannot be made of the folders that it was made of",
                                  "has an upper folder that another mount is using still",
                                  "cannot have its terminal made",
                                  "shows something that is not there",
                                  "cannot be given its options",
                                  "has no place there",
                                  "cannot be moved to its place",
                                  "cannot become the root",
                                  "cannot be given to the user namespace",
                                  "cannot be shared",
                                  "cannot be held on to"};

/// A base is what mounts are made from: a file system that is new, or what another place shows.
struct Part {
  size_t base = 0;
  std::string below_base, point;  ///< `point`: seen from what it lies on
  int terminal = -1;
  mount_attr attributes{};
};

class MountBuilder {
 public:
  MountBuilder(const Mounts& mounts, const state::MountOptions& options, const std::vector<MadeMounts>& others)
      : mounts_(mounts), options_(options), others_(others) {}

  Result<void> prepare(const std::vector<MountSource>& sources, bool same_boot) {
    std::map<int, size_t> made;  // by file system
    parts_.resize(mounts_.mounts.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Mount& mount = mounts_.mounts[i];
      const MountSource& source = sources[i];
      Part& part = parts_[i];
      const std::string on = i == 0 ? "/" : mounts_.mounts[static_cast<size_t>(mount.parent)].point;
      (void)state::below(mount.point, on, part.point);
      part.attributes = state::attributes_of(mount);
      part.terminal = terminal_of(mounts_, mount, source);
      if (source.kind == MountSource::Kind::kOther) continue;
      if (source.kind == MountSource::Kind::kNew) {
        auto [known, is_new] = made.emplace(mount.filesystem, bases_.size());
        if (is_new) {
          const MountedFilesystem& filesystem = mounts_.filesystems[static_cast<size_t>(mount.filesystem)];
          const bool is_late = filesystem.type == "overlay";  // made by the helper, of folders that are there by then
          CKPT_TRY_ASSIGN(UniqueFd base, is_late ? Result<UniqueFd>(UniqueFd()) : make_filesystem(filesystem));
          if (is_late) overlays_.emplace(bases_.size(), &filesystem);
          bases_.push_back(std::move(base));
        }
        part.base = known->second, part.below_base = source.path;
        continue;
      }
      if (source.kind == MountSource::Kind::kElsewhere) {
        CKPT_TRY_ASSIGN(UniqueFd base, copy_elsewhere(mount, source));
        part.base = bases_.size(), part.below_base = source.path;
        bases_.push_back(std::move(base));
        continue;
      }
      const bool given = source.kind == MountSource::Kind::kGiven;
      CKPT_TRY_ASSIGN(const UniqueFd there,
                      given ? open_given(source.path) : open_host(mount, same_boot, is_of_groups(mount)));
      CKPT_TRY_ASSIGN(UniqueFd base, mount_apart(there.get(), mount.slave, subject_of(mount)));
      part.base = bases_.size();
      bases_.push_back(std::move(base));
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (sources[i].kind != MountSource::Kind::kOther) continue;
      const Part& other = parts_[static_cast<size_t>(sources[i].other)];
      parts_[i].base = other.base;
      const bool both = !other.below_base.empty() && !sources[i].path.empty();
      parts_[i].below_base = other.below_base + (both ? "/" : "") + sources[i].path;
    }
    return {};
  }

  /// A helper makes the namespace, and hands over what holds it.
  Result<state::MountNamespace> build() {
    CKPT_TRY_ASSIGN(SharedValues shared, SharedValues::create());
    values_ = shared.values();
    if (!overlays_.empty() && kFirstTerminal + parts_.size() + overlays_.size() >= SharedValues::kValues)
      return fail(Code::kNoRoom, "mount namespace", "has more mounts than can be made");
    std::fill_n(values_, SharedValues::kValues, -1);
    CKPT_TRY_ASSIGN(const CallResult done, run_as({}, [&] { return run(); }));
    UniqueFd root(values_[kRoot]), handle(values_[kHandle]);
    for (size_t i = 0; i < parts_.size() && kFirstTerminal + i < SharedValues::kValues; ++i) {
      UniqueFd master(values_[kFirstTerminal + i]);
      if (master) state::reserve_terminal(parts_[i].terminal, std::move(master));
    }
    for (const auto& overlaid : overlays_) {
      UniqueFd overlay(std::exchange(values_[value_of_overlay(overlaid.first)], -1));
      if (overlay) state::add_made_overlay(std::move(overlay));
    }
    if (done.value < 0) {
      const auto which = static_cast<size_t>(std::max(values_[kWhich], 0));
      const std::string subject = which < parts_.size() ? subject_of(mounts_.mounts[which]) : "mount namespace";
      return sys_error(-done.value, subject, kSteps[std::clamp(values_[kStep], 0, static_cast<int>(kName))]);
    }
    return state::MountNamespace{std::move(root), std::move(handle)};
  }

 private:
  enum Value : size_t { kStep, kWhich, kRoot, kHandle, kFirstTerminal };

  int fails(Step step, size_t which) {
    const int error = errno != 0 ? errno : EIO;
    values_[kStep] = step, values_[kWhich] = static_cast<int>(which);
    return -error;
  }

  /// Of a mount namespace of the tree, where nothing is mounted over what it is to show.
  Result<UniqueFd> copy_elsewhere(const Mount& mount, const MountSource& source) {
    const MadeMounts& whose = others_[source.whose];
    const std::string& point = whose.mounts->mounts[static_cast<size_t>(source.other)].point;
    CKPT_TRY_ASSIGN(const CallResult copied, run_as({}, [&] {
                      if (::setns(whose.handle, CLONE_NEWNS) != 0) return -errno;
                      const int fd = ::open_tree(AT_FDCWD, point.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
                      mount_attr attributes{};
                      attributes.propagation = MS_PRIVATE;
                      if (fd < 0 || ::mount_setattr(fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0)
                        return -errno;
                      return fd;
                    }));
    if (copied.value < 0) return sys_error(-copied.value, subject_of(mount), "cannot be copied from " + point);
    return UniqueFd(copied.value);
  }

  bool is_of_groups(const Mount& mount) const {
    const std::string& type = mounts_.filesystems[static_cast<size_t>(mount.filesystem)].type;
    return type == "cgroup" || type == "cgroup2";
  }

  /// The first that is of this base.
  size_t part_on(size_t base) const {
    const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const auto& part) { return part.base == base; });
    return static_cast<size_t>(found - parts_.begin());
  }

  /// In the helper, which shares descriptors and nothing else. The bases are mounted on /proc of a copy of this
  /// process's namespace, the new tree on its "/": what it had goes with the bases.
  int run() {
    const UniqueFd proc(::open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!proc || ::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return fails(kLeave, parts_.size());
    std::vector<bool> is_folder;
    for (size_t i = 0; i < bases_.size(); ++i) {
      struct stat st {};
      const bool is_late = overlays_.count(i) != 0;
      is_folder.push_back(is_late || (::fstat(bases_[i].get(), &st) == 0 && S_ISDIR(st.st_mode)));
      const bool is_placed = is_folder[i] && !is_late;
      if (is_placed && ::move_mount(bases_[i].get(), "", AT_FDCWD, "/proc", MOVE_MOUNT_F_EMPTY_PATH) != 0)
        return fails(kPlaceBase, part_on(i));
    }
    std::vector<UniqueFd> shown(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (const int failed = mount_one(i, is_folder[parts_[i].base], shown); failed < 0) return failed;
    }
    const state::TreeUser* user = state::tree_user();
    const bool is_users = user != nullptr && user->owns("mnt");
    for (size_t i = 0; i < parts_.size() && !is_users; ++i) {
      mount_attr shared{};
      shared.propagation = MS_SHARED;
      if (mounts_.mounts[i].shared && ::mount_setattr(shown[i].get(), "", AT_EMPTY_PATH, &shared, sizeof shared) != 0)
        return fails(kShare, i);
    }
    if (::fchdir(shown[0].get()) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0 || ::umount2(".", MNT_DETACH) != 0)
      return fails(kPivot, 0);
    if (is_users) {
      if (const int failed = give_away(*user, shown[0]); failed < 0) return failed;
    }
    const int handle = ::openat(proc.get(), "ns/mnt", O_RDONLY | O_CLOEXEC);
    if (handle < 0) return fails(kName, parts_.size());
    values_[kRoot] = shown[0].release(), values_[kHandle] = handle;
    return 0;
  }

  /// A copy belongs to the user namespace. The kernel lets nobody there take a mount of it away, and so see what lies
  /// below.
  int give_away(const state::TreeUser& user, UniqueFd& root) {
    if (::setns(user.handle.get(), CLONE_NEWUSER) != 0 || ::unshare(CLONE_NEWNS) != 0) return fails(kOwner, 0);
    root = UniqueFd(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root) return fails(kName, 0);
    for (size_t i = 0; i < parts_.size(); ++i) {
      const char* const point = mounts_.mounts[i].point.c_str();
      if (mounts_.mounts[i].shared && ::mount(nullptr, point, nullptr, MS_SHARED, nullptr) != 0)
        return fails(kShare, i);
    }
    return 0;
  }

  int mount_one(size_t i, bool of_folder, std::vector<UniqueFd>& shown) {
    Part& part = parts_[i];
    const bool is_late = overlays_.count(part.base) != 0 && !bases_[part.base];
    if (is_late && !make_overlay(part.base, shown)) return fails(errno == EBUSY ? kInUse : kLayers, i);
    const int base = bases_[part.base].get();
    if (part.terminal >= 0 && !make_terminal(i, part.terminal, shown)) return fails(kTerminal, i);
    const bool used = std::any_of(parts_.begin(), parts_.begin() + static_cast<ptrdiff_t>(i),
                                  [&](const Part& other) { return other.base == part.base; });
    if (!of_folder && !used) {
      shown[i] = UniqueFd(::fcntl(base, F_DUPFD_CLOEXEC, 3));  // nothing but a file has a file mounted on it
    } else if (!of_folder) {
      shown[i] = UniqueFd(::open_tree(base, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
    } else {
      const UniqueFd what = state::open_below(base, part.below_base, O_PATH);
      if (what) shown[i] = UniqueFd(::open_tree(what.get(), "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
    }
    if (!shown[i]) return fails(kShow, i);
    if (::mount_setattr(shown[i].get(), "", AT_EMPTY_PATH, &part.attributes, sizeof part.attributes) != 0)
      return fails(kAttributesOf, i);
    if (i == 0)
      return ::move_mount(shown[0].get(), "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) == 0 ? 0 : fails(kMove, 0);
    const auto parent = static_cast<size_t>(mounts_.mounts[i].parent);
    const UniqueFd place = state::open_below(shown[parent].get(), part.point, O_PATH);
    if (!place) return fails(kPlace, i);
    constexpr unsigned kBoth = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    return ::move_mount(shown[i].get(), "", place.get(), "", kBoth) == 0 ? 0 : fails(kMove, i);
  }

  /// From the end, where there are no terminals.
  size_t value_of_overlay(size_t base) const {
    return SharedValues::kValues - 1 - static_cast<size_t>(std::distance(overlays_.begin(), overlays_.find(base)));
  }

  /// Its folders are looked up under the new root, as they were when it was mounted. It lies on /proc then.
  bool make_overlay(size_t base, const std::vector<UniqueFd>& shown) {
    const MountedFilesystem& filesystem = *overlays_.at(base);
    bases_[base] =
        state::mount_overlay(filesystem.source, filesystem.options, options_.dry_run, shown[0].get(), "proc");
    if (bases_[base]) values_[value_of_overlay(base)] = bases_[base].get();
    return static_cast<bool>(bases_[base]);
  }

  /// Opened where the processes will find it: their names of it come from there.
  bool make_terminal(size_t i, int index, const std::vector<UniqueFd>& shown) {
    int folder = -1;
    for (size_t other = 0; other < i; ++other) {
      if (parts_[other].base == parts_[i].base && parts_[other].terminal == index) return true;
      const bool whole = parts_[other].base == parts_[i].base && parts_[other].below_base.empty();
      if (whole && folder < 0) folder = shown[other].get();
    }
    std::vector<UniqueFd> lower;
    for (int number = -1; number < index;) {
      UniqueFd master(::openat(folder, "ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
      if (!master || ::ioctl(master.get(), TIOCGPTN, &number) != 0) return false;
      if (number > index) return errno = EBUSY, false;
      lower.push_back(std::move(master));
    }
    if (kFirstTerminal + i >= SharedValues::kValues) return errno = E2BIG, false;
    values_[kFirstTerminal + i] = lower.back().release();
    return true;
  }

  const Mounts& mounts_;
  const state::MountOptions& options_;
  const std::vector<MadeMounts>& others_;
  std::vector<UniqueFd> bases_;
  std::map<size_t, const MountedFilesystem*> overlays_;  ///< by base
  std::vector<Part> parts_;
  int* values_ = nullptr;
};

bool is_this_boot(const std::string& boot_id) {
  constexpr uint64_t kLimit = 64;
  auto now = io::read_file("/proc/sys/kernel/random/boot_id", kLimit);
  return !now || now->starts_with(boot_id);
}

}  // namespace

Result<state::MountNamespace> make_mount_namespace(const store::Mounts& mounts, const std::string& boot_id,
                                                   const state::MountOptions& options,
                                                   const std::vector<MadeMounts>& others) {
  CKPT_TRY(state::validate_mounts(mounts));
  state::OtherMounts shown;
  for (const MadeMounts& other : others) shown.push_back(other.mounts);
  CKPT_TRY_ASSIGN(const std::vector<MountSource> sources, state::plan_mounts(mounts, options, shown));
  MountBuilder builder(mounts, options, others);
  CKPT_TRY(builder.prepare(sources, is_this_boot(boot_id)));
  return builder.build();
}

}  // namespace ckpt::restore
