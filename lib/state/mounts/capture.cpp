#include "lib/state/mounts/capture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "lib/base/io.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/files/without_links.h"
#include "lib/state/mounts/mountinfo.h"
#include "lib/state/mounts/overlay.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/run_as.h"

namespace ckpt::capture {

namespace {

using store::Mount;
using store::Mounts;

constexpr std::string_view kGone = "//deleted";

/// A mount that can be seen, and what is there.
struct Visible {
  const MountLine* line = nullptr;
  UniqueFd handle;
  struct statx st {};
};

/// Of a folder or file, as the kernel knows it: a file system whose server is gone (FUSE, NFS) is not asked.
bool knows(int folder, const char* path, struct statx& out) {
  constexpr int kFlags = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
  return ::statx(folder, path, kFlags, STATX_INO, &out) == 0;
}

Result<int> mount_id_of(int fd) {
  constexpr uint64_t kLimit = 4096;
  constexpr std::string_view kName = "mnt_id:\t";
  CKPT_TRY_ASSIGN(const std::string text, io::read_file(fmt::format("/proc/self/fdinfo/{}", fd), kLimit));
  const size_t at = text.find(kName);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + kName.size());
}

/// What paths lead to, by the table alone: a look through a file system whose server is gone would not come back.
class Walked {
 public:
  explicit Walked(const std::vector<MountLine>& lines) {
    std::set<int> ids;
    for (const MountLine& line : lines) ids.insert(line.id);
    for (const MountLine& line : lines) {
      if (ids.count(line.parent) != 0 && line.parent != line.id)
        on_[{line.parent, line.point}] = line.id;
      else if (line.point == "/")
        root_ = line.id;
    }
  }
  /// Of a mount that lies behind another one: that one's.
  int id_at(const std::string& path) const {
    int at = climb(root_, "/");
    for (size_t end = 0; end != std::string::npos && path != "/";) {
      end = path.find('/', end + 1);
      at = climb(at, path.substr(0, end));
    }
    return at;
  }

 private:
  /// Mounts that are stacked: each lies on the one before.
  int climb(int at, const std::string& point) const {
    for (size_t steps = 0; steps <= on_.size(); ++steps) {
      const auto next = on_.find({at, point});
      if (next == on_.end()) break;
      at = next->second;
    }
    return at;
  }

  std::map<std::pair<int, std::string>, int> on_;
  int root_ = 0;
};

/// Where a path leads to another mount, this one lies behind that.
Result<std::optional<Visible>> look_at(const MountLine& line) {
  Visible out{&line, UniqueFd(state::open_in_tree(line.point.c_str(), O_PATH))};
  if (!out.handle || !knows(out.handle.get(), "", out.st)) return std::optional<Visible>();
  CKPT_TRY_ASSIGN(const int id, mount_id_of(out.handle.get()));
  return id == line.id ? std::optional<Visible>(std::move(out)) : std::nullopt;
}

/// A file system that may have nobody who answers.
bool may_hang(std::string_view type) {
  constexpr std::string_view kServed[] = {"fuse", "nfs", "9p", "cifs", "smb", "ceph", "autofs", "afs"};
  return std::any_of(std::begin(kServed), std::end(kServed), [&](auto one) { return type.starts_with(one); });
}

/// What ckpt sees outside of the tree, in its own mount namespace.
class Outside {
 public:
  static Result<Outside> look() {
    constexpr uint64_t kLimit = 64 << 20;
    Outside out;
    CKPT_TRY_ASSIGN(const std::string text, io::read_file("/proc/self/mountinfo", kLimit));
    CKPT_TRY_ASSIGN(out.lines_, parse_mountinfo(text));
    return out;
  }

  /// Where the very folder or file is; empty: nowhere.
  std::string find(const MountLine& line, const struct statx& wanted) const {
    for (const MountLine& own : lines_) {
      std::string rest;
      if (own.device != line.device || !state::below(line.root, own.root, rest)) continue;
      std::string path = own.point;
      if (!rest.empty()) path += (path == "/" ? "" : "/") + rest;
      struct statx st {};
      if (knows(AT_FDCWD, path.c_str(), st) && st.stx_dev_major == wanted.stx_dev_major &&
          st.stx_dev_minor == wanted.stx_dev_minor && st.stx_ino == wanted.stx_ino)
        return path;
    }
    return "";
  }

 private:
  std::vector<MountLine> lines_;
};

class Recorder {
 public:
  using Others = std::vector<const Mounts*>;
  /// `others`: null: of the tree's first process.
  Recorder(Walk& walk, Mounts& out, const Others* others) : walk_(walk), out_(out), others_(others) {}

  Result<void> run(const std::vector<MountLine>& lines) {
    CKPT_TRY_ASSIGN(const Outside outside, Outside::look());
    const Walked walked(lines);
    walked_ = &walked;
    for (const MountLine& line : lines) {
      by_id_[line.id] = &line;
      if (walked.id_at(line.point) != line.id) continue;
      CKPT_TRY_ASSIGN(auto seen, look_at(line));
      if (seen) visible_.emplace(line.id, std::move(*seen));
    }
    for (const MountLine& line : lines) {
      if (visible_.count(line.id) != 0) add(line.id, outside);
    }
    if (out_.mounts.empty()) return fail(Code::kIo, "mountinfo", "shows no mount of the processes");
    if (others_ == nullptr) CKPT_TRY(check_external());
    return add_files();
  }

  /// In a namespace that has the mounts that it had then: only what is in file systems in memory may be something else.
  Result<void> run_again(const Mounts& then) {
    out_ = then;
    std::set<int> done;
    for (Mount& mount : out_.mounts) {
      auto& filesystem = out_.filesystems[static_cast<size_t>(mount.filesystem)];
      const bool has_files = !filesystem.files.empty() && mount.root == "/" && mount.external.empty();
      if (!has_files || !done.insert(mount.filesystem).second) continue;
      const UniqueFd there(state::open_in_tree(mount.point.c_str(), O_PATH));
      if (!there) return sys_error(-there.get(), mount.point, "cannot be looked at");
      filesystem.files.clear();
      CKPT_TRY(take_files(there.get(), mount, filesystem));
    }
    return {};
  }

 private:
  Result<void> check_external() const {
    const state::ExternalMounts& external = walk_.options.external_mounts;
    for (const auto& [point, key] : external.keys) {
      const auto is_there = [&point = point](const Mount& mount) { return mount.point == point; };
      if (!external.may_match_nothing && std::none_of(out_.mounts.begin(), out_.mounts.end(), is_there))
        return fail(Code::kUsage, fmt::format("--external 'mnt[{}]:{}'", point, key),
                    "the processes have no mount there");
    }
    return {};
  }

  /// Hidden ones are none: what lies on them lies on what they lie on.
  int parent_of(int id) const {
    for (size_t steps = 0; steps <= by_id_.size(); ++steps) {
      const auto line = by_id_.find(by_id_.at(id)->parent);
      if (line == by_id_.end()) return 0;
      id = line->first;
      if (visible_.count(id) != 0) return id;
    }
    return 0;
  }

  int filesystem_of(const MountLine& line) {
    auto [known, is_new] = filesystems_.emplace(line.device, static_cast<int>(out_.filesystems.size()));
    if (is_new) {
      out_.filesystems.push_back({line.device, line.type, line.source, line.super_options, {}});
      if (line.type == "proc") note_pids(pids_of(line.device));
    }
    return known->second;
  }

  /// Of the file system that was added last.
  void note_pids(const std::string& whose) {
    if (whose.empty()) return;
    const auto& all = walk_.out.further;  // of the first process's mounts: not known yet
    const auto found = others_ == nullptr ? all.end() : std::find(all.begin(), all.end(), whose);
    if (found != all.end()) out_.filesystems.back().pid_namespace = static_cast<int>(found - all.begin());
    else strange_.insert(static_cast<int>(out_.filesystems.size()) - 1);
  }

  /// Whose processes a "proc" shows: that of a further pid namespace, as a link; empty: the first process's, or nobody
  /// tells.
  std::string pids_of(uint64_t device) const {
    for (const auto& [id, seen] : visible_) {
      if (seen.line->device != device || seen.line->root != "/") continue;
      constexpr size_t kRoom = 64;
      char link[kRoom];
      const ssize_t length = ::readlinkat(seen.handle.get(), "1/ns/pid", link, kRoom);
      const std::string whose(link, static_cast<size_t>(std::max<ssize_t>(length, 0)));
      const bool tells = length >= 0 || (errno != EACCES && errno != EPERM);
      const auto is_pids = [](const std::string& one) { return one.starts_with("pid:"); };
      const auto has_some = [&](const Seen& one) { return std::any_of(one.apart.begin(), one.apart.end(), is_pids); };
      if (!tells) return std::any_of(walk_.seen.begin(), walk_.seen.end(), has_some) ? "unknown" : "";
      const auto has_it = [&](const Seen& one) {
        return std::find(one.apart.begin(), one.apart.end(), whose) != one.apart.end();
      };
      return std::any_of(walk_.seen.begin(), walk_.seen.end(), has_it) ? whose : "";
    }
    return "";
  }

  /// A folder of an overlay, once the mount that it is in has been added. Empty: it cannot be reached.
  UniqueFd open_layer(const std::string& folder, const MountLine& overlay, const Outside& outside) {
    const auto by_table = visible_.find(walked_->id_at(folder));
    const bool is_local = by_table != visible_.end() && !may_hang(by_table->second.line->type);
    UniqueFd out(is_local ? state::open_in_tree(folder.c_str(), O_RDONLY | O_DIRECTORY) : -ENOENT);
    const Result<int> id = out ? mount_id_of(out.get()) : Result<int>(0);
    if (!id || visible_.count(*id) == 0 || *id == overlay.id || add(*id, outside) < 0) return {};
    return out;
  }

  /// The mounts with an overlay's folders, which come before it. Why one cannot be made of them; empty: it can.
  std::string add_layers(const Visible& overlay, const Outside& outside) {
    const auto folders = state::overlay_folders(overlay.line->super_options);
    if (!folders) return "whose folders are not all known by whole paths";
    if (walk_.out.image.namespaces.has("user")) return "in a user namespace";
    if (!state::can_be_overlay_options(overlay.line->super_options)) return "whose options are too long to be given";
    std::vector<UniqueFd> layers;
    for (const auto* list : {&folders->layers, &folders->others}) {
      for (const std::string& folder : *list) {
        UniqueFd there = open_layer(folder, *overlay.line, outside);
        if (!there) return fmt::format("whose folder {} cannot be reached there", folder);
        if (list == &folders->layers) layers.push_back(std::move(there));
      }
    }
    // The paths are those of who has mounted it, under another root perhaps.
    const auto is_whole = [&](const auto& seen) {
      return seen.second.line->device == overlay.line->device && seen.second.line->root == "/";
    };
    if (overlay.line->root != "/")
      return std::any_of(visible_.begin(), visible_.end(), is_whole) ? "" : "of which nothing shows all";
    return state::shows_layers(overlay.handle.get(), layers) ? "" : "whose folders are others there";
  }

  /// After what it lies on. Its index; -1: it is being added.
  int add(int id, const Outside& outside) {
    if (auto known = indices_.find(id); known != indices_.end()) return known->second;
    indices_.emplace(id, -1);  // should the kernel's parents go round in a circle
    const Visible& seen = visible_.at(id);
    const MountLine& line = *seen.line;
    const int parent_id = parent_of(id);
    const int parent = parent_id == 0 ? -1 : add(parent_id, outside);
    Mount mount;
    mount.parent = parent, mount.filesystem = filesystem_of(line);
    mount.root = line.root, mount.point = line.point, mount.options = line.options;
    mount.shared = line.shared, mount.slave = line.slave;
    mount.device = makedev(seen.st.stx_dev_major, seen.st.stx_dev_minor), mount.inode = seen.st.stx_ino;
    if (const size_t at = mount.root.rfind(kGone); at != std::string::npos && at + kGone.size() == mount.root.size()) {
      mount.root.resize(std::max<size_t>(at, 1));
      mount.problem = "which has been deleted there";
    } else if (("," + line.options + ",").find(",idmapped,") != std::string::npos) {
      mount.problem = "whose owners are mapped (idmapped)";
    } else {
      mount.host = outside.find(line, seen.st);
      if (mount.host.empty() && !is_of_others(mount)) mount.problem = problem_of(seen, outside);
    }
    // One that is seen outside, too, shows nobody any more once the processes have ended.
    if (out_.filesystems[static_cast<size_t>(mount.filesystem)].pid_namespace >= 0) mount.host.clear();
    const bool strange = strange_.count(mount.filesystem) != 0;
    if (strange) mount.host.clear(), mount.problem = "of a further pid namespace, in the first process's mounts";
    const auto named = walk_.options.external_mounts.keys.find(line.point);
    if (others_ == nullptr && named != walk_.options.external_mounts.keys.end()) mount.external = named->second;
    // No restore has another for it: neither a new namespace nor one that is there (--into) shows those processes.
    if (strange && mount.external.empty() && walk_.options.ends)
      walk_.block(0, "namespace mnt", "mount " + mount.point + ": proc, " + mount.problem + ": not supported",
                  "--external 'mnt[MOUNTPOINT]:KEY'");
    const int index = static_cast<int>(out_.mounts.size());
    out_.mounts.push_back(std::move(mount));
    return indices_[id] = index;
  }

  /// Why what is nowhere else cannot be made anew; empty: it can, if any of its kind can.
  std::string problem_of(const Visible& seen, const Outside& outside) {
    const MountLine& line = *seen.line;
    if (line.type == "overlay") return add_layers(seen, outside);
    if (has_own_kind_of(line.type)) return "of a further network or IPC namespace";
    return is_further_terminal(line) ? "of a further mount namespace's own terminals" : "";
  }

  /// It is made in the first process's network or IPC namespace: who is in this mount namespace may be in another one.
  bool has_own_kind_of(const std::string& type) const {
    const std::string kind = type == "mqueue" ? "ipc" : type == "sysfs" ? "net" : "";
    if (others_ == nullptr || kind.empty()) return false;
    for (size_t i = 0; i < walk_.members.size(); ++i) {
      if (walk_.mounts_of(i) == state::looked_into() && state::further_of(walk_.out.image, i, kind) >= 0) return true;
    }
    return false;
  }

  /// Terminals are told apart by their numbers, which are those of the first process's devpts.
  bool is_further_terminal(const MountLine& line) const {
    return others_ != nullptr && line.type == "devpts" && line.root != "/" && line.root != "/ptmx";
  }

  /// One that was taken before has this file system, and so its files.
  bool is_of_others(const Mount& mount) const {
    const uint64_t device = out_.filesystems[static_cast<size_t>(mount.filesystem)].device;
    const auto has_it = [&](const Mounts* other) {
      return std::any_of(other->filesystems.begin(), other->filesystems.end(),
                         [&](const store::MountedFilesystem& one) { return one.device == device; });
    };
    return others_ != nullptr && std::any_of(others_->begin(), others_->end(), has_it);
  }

  /// Of each file system in memory that is nowhere outside, through a mount that shows all of it.
  Result<void> add_files() {
    std::set<int> outside;
    for (const Mount& mount : out_.mounts) {
      if (!mount.host.empty() || is_of_others(mount)) outside.insert(mount.filesystem);
    }
    for (const auto& [id, index] : indices_) {
      Mount& mount = out_.mounts[static_cast<size_t>(index)];
      auto& filesystem = out_.filesystems[static_cast<size_t>(mount.filesystem)];
      const bool is_wanted = state::is_in_memory(filesystem.type) && outside.count(mount.filesystem) == 0;
      if (!is_wanted || mount.root != "/" || !mount.external.empty() || !filesystem.files.empty()) continue;
      CKPT_TRY(take_files(visible_.at(id).handle.get(), mount, filesystem));
    }
    return {};
  }

  /// Through a mount of its own, on which no other lies.
  Result<void> take_files(int handle, Mount& mount, store::MountedFilesystem& filesystem) {
    CKPT_TRY_ASSIGN(const restore::CallResult bare, restore::run_as({}, [&] {
                      if (::setns(state::tree_mount_namespace(), CLONE_NEWNS) != 0) return -errno;
                      constexpr unsigned kAlone = AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
                      int fd = ::open_tree(handle, "", kAlone);
                      // One that was given to a user namespace is not parted from what is mounted on it.
                      if (fd < 0 && errno == EINVAL) fd = ::open_tree(handle, "", kAlone | AT_RECURSIVE);
                      return fd < 0 ? -errno : fd;
                    }));
    if (bare.value < 0) return sys_error(-bare.value, mount.point, "cannot be looked at (open_tree, Linux 5.2)");
    const UniqueFd root(bare.value);
    auto found = read_memory_files(root.get(), walk_.options.frozen);
    if (!found && found.error().code != Code::kUnsupported)
      return std::move(found.error()).with_cause("in the file system in memory that is mounted at " + mount.point);
    if (!found) return mount.problem = "which " + found.error().message, Result<void>();
    filesystem.files = std::move(found->files);
    auto& sources = walk_.out.memory_files[filesystem.device];
    for (UniqueFd& fd : found->bytes) sources.push_back({std::move(fd)});
    return {};
  }

  Walk& walk_;
  Mounts& out_;
  const Others* others_;
  const Walked* walked_ = nullptr;  ///< while it runs
  std::map<int, const MountLine*> by_id_;
  std::map<int, Visible> visible_;
  std::map<int, int> indices_;  ///< by id
  std::map<uint64_t, int> filesystems_;
  std::set<int> strange_;  ///< file systems that show the processes of a further pid namespace, and cannot be made
};

}  // namespace

namespace {

Result<void> record(Walk& walk, const std::string& text, Mounts& out, const std::vector<const Mounts*>* others) {
  CKPT_TRY_ASSIGN(const std::vector<MountLine> lines, parse_mountinfo(text));
  return Recorder(walk, out, others).run(lines);
}

}  // namespace

Result<void> inventory_mounts(Walk& walk) {
  // Of the last look at a tree that ran: what is mounted where costs some milliseconds, for which it would stand still.
  static std::optional<std::pair<std::string, Mounts>> last;
  Mounts& out = walk.out.image.namespaces.mounts;
  CKPT_TRY_ASSIGN(std::string text, state::read_tree_mountinfo());
  if (walk.options.frozen && last && last->first == text) return Recorder(walk, out, nullptr).run_again(last->second);
  CKPT_TRY(record(walk, text, out, nullptr));
  if (!walk.options.frozen) last = {std::move(text), out};
  return {};
}

Result<void> inventory_further_mounts(Walk& walk, const std::vector<const Mounts*>& others, Mounts& out) {
  CKPT_TRY_ASSIGN(const std::string text, state::read_tree_mountinfo());
  return record(walk, text, out, &others);
}

}  // namespace ckpt::capture
