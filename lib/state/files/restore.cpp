#include "lib/state/files/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <set>
#include <span>

#include "lib/base/io.h"
#include "lib/state/files/file_state.h"
#include "lib/state/files/ghosts.h"
#include "lib/state/files/put_back.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/files/without_links.h"
#include "lib/state/mounts/made.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/run_as.h"

namespace ckpt::restore {

namespace {

using store::DescriptorKind;
using store::FileIdentity;
using store::MappingKind;

/// A descriptor that is wanted, and what is to be done with it.
struct Wanted {
  int file;
  int flags;
  std::vector<int> holders;        ///< indices of processes; none: it is in flight
  std::function<void(int)> take;   ///< gets an inherited number
  uint64_t inode = 0;              ///< of a file that is not the processes' already: what may come
  dev_t device = 0;
};

/// Everything that the tree wants open, by file.
class Wishes {
 public:
  Wishes(const store::TreeImage& tree, OpenedFiles& out, Reasons& reasons) : tree_(tree), out_(out), reasons_(reasons) {
    for (size_t i = 0; i < tree.processes.size(); ++i) add_process(tree.processes[i], static_cast<int>(i));
    for (size_t i = 0; i < tree.descriptors.size(); ++i) add_descriptor(tree.descriptors[i], static_cast<int>(i));
  }
  std::vector<std::vector<Wanted>> by_file() {
    std::vector<std::vector<Wanted>> out(tree_.files.size());
    for (Wanted& wanted : list_) out[static_cast<size_t>(wanted.file)].push_back(std::move(wanted));
    return out;
  }

 private:
  void add_process(const store::ProcessImage& image, int index) {
    for (const auto& map : image.maps) {
      if (map.file < 0 || (map.kind != MappingKind::kPrivateFile && map.kind != MappingKind::kSharedFile)) continue;
      const bool writable = maps_for_writing(map);
      once(map.file, writable ? O_RDWR : O_RDONLY, index, out_.mapped[{map.file, writable}]);
    }
    if (image.exe >= 0) once(image.exe, O_RDONLY, index, out_.executables[image.exe]);
    if (image.cwd >= 0) once(image.cwd, O_PATH | O_DIRECTORY, index, out_.folders[image.cwd]);
    if (image.root >= 0) once(image.root, O_PATH | O_DIRECTORY, index, out_.folders[image.root]);
  }

  void add_descriptor(const store::Descriptor& descriptor, int index) {
    if (descriptor.kind == DescriptorKind::kFifo) {
      // The pipe itself lives as long as somebody has it open: descriptors.cpp fills it, and opens the ends through
      // this.
      int& fd = out_.fifos[descriptor.pipe];
      for (const auto& slot : descriptor.fds) once(descriptor.file, O_RDWR | O_NONBLOCK, slot.process, fd);
      if (descriptor.fds.empty()) once(descriptor.file, O_RDWR | O_NONBLOCK, -1, fd);
      return;
    }
    if (descriptor.kind != DescriptorKind::kFile && descriptor.kind != DescriptorKind::kDevice) return;
    out_.descriptors[index] = -1;
    Wanted wanted{
        descriptor.file, descriptor.flags, {}, [this, index, &descriptor](int fd) { take(descriptor, index, fd); }};
    for (const auto& slot : descriptor.fds) wanted.holders.push_back(slot.process);
    list_.push_back(std::move(wanted));
  }

  /// One for all who want it in `place`, which is an element of a map.
  void once(int file, int flags, int holder, int& place) {
    auto [known, is_new] = places_.try_emplace(&place, list_.size());
    if (is_new) {
      place = -1;
      list_.push_back({file, flags, {}, [&place](int fd) { place = fd; }});
    }
    if (holder >= 0) list_[known->second].holders.push_back(holder);
  }

  void take(const store::Descriptor& descriptor, int index, int fd) {
    out_.descriptors[index] = fd;
    if (descriptor.kind == DescriptorKind::kDevice || (descriptor.flags & O_PATH) != 0) return;
    if (descriptor.offset == 0) return;  // it is there
    if (::lseek(fd, static_cast<off_t>(descriptor.offset), SEEK_SET) < 0)
      reasons_.add(sys_error(tree_.files[static_cast<size_t>(descriptor.file)].path, "cannot go back to its offset"));
  }

  const store::TreeImage& tree_;
  OpenedFiles& out_;
  Reasons& reasons_;
  std::vector<Wanted> list_;
  std::map<int*, size_t> places_;
};

/// O_NONBLOCK until it is open: a fifo that took the file's place must not make ckpt wait.
int opening_flags(const FileIdentity& file, int flags) {
  constexpr int kOnlyAtCreation = O_CREAT | O_EXCL | O_TRUNC | O_CLOEXEC | (O_TMPFILE & ~O_DIRECTORY);
  flags &= ~kOnlyAtCreation;
  if (S_ISREG(file.mode)) flags &= ~O_DIRECTORY;  // a part of O_TMPFILE
  return flags | O_NONBLOCK | O_NOCTTY;
}

/// openat2 refuses what open ignores. What the owner alone may ask for comes with F_SETFL.
int strict_flags(int flags) {
  constexpr int kPath = O_PATH | O_DIRECTORY | O_NOFOLLOW;
  constexpr int kOther = O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC | O_NOCTTY | O_DIRECTORY | O_NOFOLLOW;
  return flags & ((flags & O_PATH) != 0 ? kPath : kOther);
}

class Opener {
 public:
  Opener(const store::TreeImage& tree, bool dry_run, Inherited& inherited, OpenedFiles& out, Reasons& reasons,
         ProgressSink& progress)
      : tree_(tree), dry_run_(dry_run), inherited_(inherited), out_(out), reasons_(reasons), progress_(progress) {}

  void open_named(const FileIdentity& file, std::vector<Wanted>& wanted, const FileNow& now) {
    if (dry_run_ && (S_ISFIFO(file.mode) || file.deleted)) return;  // an open lets others go on, a name is made
    if (dry_run_ && S_ISREG(file.mode) && state::is_on_made_overlay(now.handle.get())) {
      for (Wanted& one : wanted) one.flags &= ~O_ACCMODE;  // it is there to be read alone
    }
    if (!is_theirs_already(file, now)) {
      for (Wanted& one : wanted) {
        one.inode = now.st.stx_ino, one.device = now.device();
        others_.push_back(std::move(one));
      }
      return;
    }
    UniqueFd named;
    if (file.deleted && !wanted.empty()) named = name_again(now.handle.get(), file.path, least_rights(wanted));
    if (file.deleted && !named)
      progress_.note(fmt::format("{}: was deleted while in use; it comes back as {}", file.path, file.other_name));
    for (Wanted& one : wanted) {
      const bool by_name = (one.flags & O_NOFOLLOW) != 0 && !file.deleted && !S_ISCHR(file.mode);
      auto fd = by_name ? open_by_name(file, one.flags, now)
                        : open_behind(named ? named.get() : now.handle.get(), file, one.flags);
      give(std::move(fd), file, one);
    }
  }

  /// `names`: the entries of one deleted file, the first with what describes it.
  void open_deleted(const std::vector<int>& names, std::vector<std::vector<Wanted>>& wanted) {
    if (dry_run_) return;
    std::vector<const FileIdentity*> entries;
    std::vector<Wanted> all;
    std::vector<int> by_name;  ///< those that were opened with O_NOFOLLOW
    for (int name : names) {
      entries.push_back(&file_of(name));
      for (Wanted& one : wanted[static_cast<size_t>(name)]) {
        if (name == names[0] && (one.flags & O_NOFOLLOW) != 0) by_name.push_back(opening_flags(*entries[0], one.flags));
        all.push_back(std::move(one));
      }
    }
    const state::InMounts there(entries[0]->mounts);
    auto ghost = make_ghost(entries, by_name, least_rights(all), progress_);
    if (!ghost) return reasons_.add(ghost.error());
    size_t opened = 0;
    for (Wanted& one : all) {
      const FileIdentity& file = file_of(one.file);
      const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), one.file) - names.begin());
      int handle = ghost->file.get();
      if (at > 0 && ghost->other_names[at - 1]) handle = ghost->other_names[at - 1].get();
      UniqueFd early;
      if (at == 0 && (one.flags & O_NOFOLLOW) != 0) early = std::move(ghost->opened[opened++]);
      give(early ? Result<UniqueFd>(std::move(early)) : open_behind(handle, file, one.flags), file, one);
    }
    if (entries[0]->space >= 0) out_.ghosts.emplace(names[0], std::move(ghost->file));
  }

  /// Where its content goes: with the rights of those that have it open, or else of the first process.
  void open_for_content(const ContentNames& names, const std::vector<std::vector<Wanted>>& wanted,
                        const std::vector<FileUse>& uses) {
    if (dry_run_) return;
    std::vector<Wanted> all;
    bool written = false;
    for (int name : names) {
      written |= uses[static_cast<size_t>(name)].written;
      for (const Wanted& one : wanted[static_cast<size_t>(name)]) all.push_back(one);
    }
    const Rights rights = all.empty() ? rights_of(tree_.root().threads[0]) : least_rights(all);
    auto fd = open_content(tree_, names, written, rights, progress_);
    if (fd) out_.contents.emplace(names[0], std::move(*fd));
    else reasons_.add(fd.error());
  }

  /// Other files than the processes had: each process that gets one must be able to open it itself.
  void open_others() {
    std::map<Rights, std::vector<size_t>> by_rights;
    for (size_t i = 0; i < others_.size(); ++i) {
      for (const Rights& rights : rights_of_holders(others_[i])) by_rights[rights].push_back(i);
    }
    std::vector<UniqueFd> fds(others_.size());
    std::vector<bool> failed(others_.size());
    for (const auto& [rights, which] : by_rights) {
      for (size_t first = 0; first < which.size(); first += SharedValues::kValues) {
        const size_t count = std::min(which.size() - first, SharedValues::kValues);
        open_with(rights, std::span(which).subspan(first, count), fds, failed);
      }
    }
    for (size_t i = 0; i < others_.size(); ++i) {
      if (fds[i] && !failed[i]) give(std::move(fds[i]), file_of(others_[i].file), others_[i]);
    }
  }

 private:
  const FileIdentity& file_of(int index) const { return tree_.files[static_cast<size_t>(index)]; }

  std::set<Rights> rights_of_holders(const Wanted& wanted) const {
    std::set<Rights> out;
    for (size_t i = 0; i < tree_.processes.size(); ++i) {
      const store::ProcessImage& process = tree_.processes[i];
      const auto holds =
          std::find(wanted.holders.begin(), wanted.holders.end(), static_cast<int>(i)) != wanted.holders.end();
      if ((holds || wanted.holders.empty()) && !process.zombie && !process.threads.empty())
        out.insert(rights_of(process.threads[0]));
    }
    return out;
  }
  /// A user's rather than root's.
  Rights least_rights(const std::vector<Wanted>& wanted) const {
    std::set<Rights> all;
    for (const Wanted& one : wanted) all.merge(rights_of_holders(one));
    return all.empty() ? Rights{65534, 65534, {}, 0} : *all.rbegin();
  }

  void open_with(const Rights& rights, std::span<const size_t> which, std::vector<UniqueFd>& fds,
                 std::vector<bool>& failed) {
    auto fail_all = [&](const Error& error) {
      reasons_.add(error);
      for (size_t i : which) failed[i] = true;
    };
    auto shared = SharedValues::create();
    if (!shared) return fail_all(shared.error());
    int* values = shared->values();
    std::fill_n(values, which.size(), -EIO);
    auto done = run_with(rights, [&] {
      for (size_t i = 0; i < which.size(); ++i) {
        const Wanted& one = others_[which[i]];
        const FileIdentity& file = file_of(one.file);
        const state::InMounts there(file.mounts);
        values[i] = open_without_links(path_of(file).c_str(), strict_flags(opening_flags(file, one.flags)));
      }
      return 0;
    });
    if (!done) return fail_all(done.error());
    for (size_t i = 0; i < which.size(); ++i) {
      Wanted& one = others_[which[i]];
      fds[which[i]] = UniqueFd(values[i]);
      struct stat st{};
      const std::string& path = path_of(file_of(one.file));
      if (failed[which[i]]) continue;
      failed[which[i]] = true;
      if (values[i] < 0) {
        reasons_.add(sys_error(
            -values[i], path,
            fmt::format("is not the file that the process had open, and user {} cannot open it", rights.uid)));
      } else if (::fstat(values[i], &st) != 0 || st.st_ino != one.inode || st.st_dev != one.device) {
        reasons_.add(Code::kBusy, path + ": is being replaced while it is opened");
      } else {
        failed[which[i]] = false;
      }
    }
  }

  /// The very file that `handle` is open on.
  Result<UniqueFd> open_behind(int handle, const FileIdentity& file, int flags) {
    if (!own_fds_) own_fds_ = UniqueFd(::open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC));
    const int how = (opening_flags(file, flags) & ~O_NOFOLLOW) | O_CLOEXEC;
    UniqueFd fd(::openat(own_fds_.get(), std::to_string(handle).c_str(), how));
    if (!fd) return sys_error(path_of(file), "cannot be opened again");
    return fd;
  }

  Result<UniqueFd> open_by_name(const FileIdentity& file, int flags, const FileNow& now) {
    UniqueFd fd(open_without_links(file.path.c_str(), strict_flags(opening_flags(file, flags))));
    struct stat st{};
    if (!fd || ::fstat(fd.get(), &st) != 0 || st.st_ino != now.st.stx_ino || st.st_dev != now.device())
      return fail(Code::kBusy, file.path, "is being replaced while it is opened");
    return fd;
  }

  void give(Result<UniqueFd> fd, const FileIdentity& file, const Wanted& wanted) {
    if (!fd) return reasons_.add(fd.error());
    const int flags = opening_flags(file, wanted.flags) & ~O_NONBLOCK;
    if ((flags & O_PATH) == 0 && ::fcntl(fd->get(), F_SETFL, (flags | (wanted.flags & O_NONBLOCK)) & ~O_ASYNC) != 0)
      return reasons_.add(sys_error(file.path, "cannot set its flags"));
    auto kept = inherited_.keep(std::move(*fd), file.path);
    if (!kept) return reasons_.add(kept.error());
    wanted.take(*kept);
  }

  const store::TreeImage& tree_;
  bool dry_run_;
  Inherited& inherited_;
  OpenedFiles& out_;
  Reasons& reasons_;
  ProgressSink& progress_;
  std::vector<Wanted> others_;
  UniqueFd own_fds_;  ///< /proc/self/fd: the way there is longer than the rest of opening a file again
};

/// A file that there is no name for any more.
bool is_ghost(const FileIdentity& file) { return file.deleted && file.other_name.empty(); }

}  // namespace

bool maps_for_writing(const store::MemoryMap& map) {
  if (map.kind != MappingKind::kSharedFile && map.kind != MappingKind::kSharedMemory) return false;
  constexpr int kWrite = 2;
  return (map.prot & kWrite) != 0 || map.flags.has("mw");
}

namespace {

std::set<int> files_of(const std::vector<ContentNames>& contents) {
  std::set<int> out;
  for (const ContentNames& names : contents) out.insert(names.begin(), names.end());
  return out;
}

/// A file that was deleted is made again where it was, with the folders that it needs, unless nothing can be made
/// there.
void check_place(const FileIdentity& file, Reasons& reasons) {
  std::string folder = file.path;
  struct statfs at {};
  for (;;) {
    folder.resize(std::max<size_t>(folder.rfind('/'), 1));
    const UniqueFd there(state::open_in_tree(folder.c_str(), O_PATH));
    if (there && ::fstatfs(there.get(), &at) == 0) break;
    if (there || folder.size() == 1) break;
  }
  constexpr long kProc = 0x9fa0, kSysfs = 0x62656572, kReadOnly = 1;
  if (at.f_type == kProc || at.f_type == kSysfs || (at.f_flags & kReadOnly) != 0)
    reasons.add(Code::kUnsupported, file.path + ": was deleted while in use, and nothing can be made there");
}

}  // namespace

void check_places(const store::TreeImage& tree, Reasons& reasons) {
  const std::vector<FileUse> uses = uses_of_files(tree);
  for (size_t i = 0; i < uses.size(); ++i) {
    const state::InMounts there(tree.files[i].mounts);
    if (uses[i].needed && is_ghost(tree.files[i])) check_place(tree.files[i], reasons);
  }
}

void check_files(const store::TreeImage& tree, Reasons& reasons, ProgressSink& progress) {
  const std::vector<FileUse> uses = uses_of_files(tree);
  const std::set<int> contents = files_of(content_names(tree));
  const FileOptions options;
  FileComparison comparison(options, reasons, progress);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (!uses[i].needed || is_ghost(tree.files[i]) || contents.count(static_cast<int>(i)) != 0) continue;
    const state::InMounts there(tree.files[i].mounts);
    auto now = look_at(tree.files[i]);
    if (now) comparison.compare(tree.files[i], uses[i], *now);
    else reasons.add(now.error());
  }
}

OpenedFiles open_files(const store::TreeImage& tree, const FileOptions& options, Inherited& inherited, Reasons& reasons,
                       ProgressSink& progress) {
  OpenedFiles out;
  std::vector<FileUse> uses = uses_of_files(tree);
  Wishes wishes(tree, out, reasons);  // has what its wishes do at the end
  std::vector<std::vector<Wanted>> wanted = wishes.by_file();
  Opener opener(tree, options.dry_run, inherited, out, reasons, progress);
  // Two looks: where one file cannot be had none is opened, which would only say the same again. What is opened is what
  // the second look saw.
  const std::vector<ContentNames> contents = content_names(tree);
  const std::set<int> with_content = files_of(contents);
  for (bool opening : {false, true}) {
    // What is refused already makes no file.
    if (opening && !contents.empty() && reasons.size() != 0) return out;
    const size_t reasons_before = reasons.size();
    FileComparison comparison(options, reasons, opening ? null_progress() : progress);
    std::map<std::pair<uint64_t, uint64_t>, std::vector<int>> ghosts;  // names, by device and inode
    for (const ContentNames& names : contents) {
      if (!opening) check_content(tree, names, options.force, reasons);
      else opener.open_for_content(names, wanted, uses);
    }
    if (opening && reasons.size() != reasons_before) return out;
    for (size_t i = 0; i < uses.size(); ++i) {
      const FileIdentity& file = tree.files[i];
      const bool has_content = with_content.count(static_cast<int>(i)) != 0;
      if (has_content && (!opening || options.dry_run)) continue;
      if (is_ghost(file) && uses[i].needed) ghosts[{file.device, file.inode}].push_back(static_cast<int>(i));
      if (!uses[i].needed || is_ghost(file)) continue;
      const state::InMounts there(file.mounts);
      auto now = look_at(file);
      if (!now) {
        reasons.add(now.error());
        continue;
      }
      if (!has_content) comparison.compare(file, uses[i], *now);
      if (opening && reasons.size() == reasons_before) opener.open_named(file, wanted[i], *now);
    }
    if (reasons.size() != reasons_before) return out;
    for (auto& [file, names] : ghosts) {
      // The one with the bytes describes it.
      std::stable_partition(names.begin(), names.end(),
                            [&](int name) { return tree.files[static_cast<size_t>(name)].space >= 0; });
      if (opening) opener.open_deleted(names, wanted);
    }
  }
  opener.open_others();
  return out;
}

Result<void> fill_ghosts(const store::ImageReader& image, const OpenedFiles& files, ProgressSink& progress,
                         const Cancel& cancel) {
  for (const auto& [index, fd] : files.ghosts) {
    const FileIdentity& file = image.manifest().tree.files[static_cast<size_t>(index)];
    if (file.space < 0) continue;
    CKPT_TRY(fill_file(image, file.space, file.size, fd.get(), progress, cancel));
    CKPT_TRY(set_time_of_change(fd.get(), file));
  }
  return {};
}

}  // namespace ckpt::restore
