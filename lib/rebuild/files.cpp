#include "lib/rebuild/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/io.h"

namespace ckpt::rebuild {

namespace {

using store::DescriptorKind;
using store::FileIdentity;
using store::MappingKind;

/// What the process did with a file decides how far it may have changed since.
struct Use {
  bool needed = false;
  bool exact = false;          ///< it read the file: other bytes would be other data, or other code
  bool written = false;        ///< it wrote the file itself
  uint64_t written_up_to = 0;  ///< the furthest recorded offset of a writer
};

void add_uses(const store::ProcessImage& image, std::vector<Use>& uses) {
  for (const auto& map : image.maps) {
    if (map.file < 0) continue;
    Use& use = uses[static_cast<size_t>(map.file)];
    use.needed = true;
    (maps_for_writing(map) ? use.written : use.exact) = true;
  }
  if (image.exe >= 0) uses[static_cast<size_t>(image.exe)].needed = uses[static_cast<size_t>(image.exe)].exact = true;
  for (int folder : {image.cwd, image.root}) {
    if (folder >= 0) uses[static_cast<size_t>(folder)].needed = true;
  }
}

std::vector<Use> uses_of_files(const store::TreeImage& tree) {
  std::vector<Use> uses(tree.files.size());
  for (const auto& process : tree.processes) add_uses(process, uses);
  for (const auto& descriptor : tree.descriptors) {
    if (descriptor.file < 0) continue;
    Use& use = uses[static_cast<size_t>(descriptor.file)];
    use.needed = true;
    if (descriptor.written_by_process || (descriptor.flags & O_ACCMODE) != O_RDONLY) {
      use.written = true;
      use.written_up_to = std::max(use.written_up_to, descriptor.offset);
    } else {
      use.exact = true;
    }
  }
  return uses;
}

int64_t mtime_ns(const struct stat& st) { return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec; }

void compare_written(const FileIdentity& file, const Use& use, const struct stat& now, Reasons& reasons,
                     ProgressSink& progress) {
  uint64_t size = static_cast<uint64_t>(now.st_size);
  if (size < std::min(use.written_up_to, file.size)) {
    reasons.add(Code::kAnswerNo, fmt::format("{}: the process was writing at byte {}, and the file has only {} now",
                                             file.path, use.written_up_to, size));
  } else if (now.st_ino != file.inode || now.st_dev != file.device) {
    progress.note(fmt::format("{}: is another file than the one that the process was writing; it goes on at byte {}",
                              file.path, use.written_up_to));
  } else if (size > file.size) {
    progress.note(fmt::format("{}: has grown by {} bytes since the image was taken; the process goes on at byte {}",
                              file.path, size - file.size, use.written_up_to));
  } else if (size < file.size) {
    progress.note(fmt::format("{}: is {} bytes shorter than when the image was taken", file.path, file.size - size));
  }
}

void compare(const FileIdentity& file, const Use& use, const struct stat& now, Reasons& reasons,
             ProgressSink& progress) {
  if ((now.st_mode & S_IFMT) != (file.mode & S_IFMT)) {
    return reasons.add(Code::kAnswerNo, file.path + ": is another kind of file than when the image was taken");
  }
  if (!S_ISREG(now.st_mode)) return;  // a folder's entries come and go, a device has no bytes of its own
  if (use.written) return compare_written(file, use, now, reasons, progress);
  if (!use.exact || file.path.rfind("/proc/", 0) == 0 || file.path.rfind("/sys/", 0) == 0) return;
  if (static_cast<uint64_t>(now.st_size) != file.size) {
    reasons.add(Code::kAnswerNo, fmt::format("{}: has changed since the image was taken ({} bytes then, {} now)",
                                             file.path, file.size, now.st_size));
  } else if (mtime_ns(now) != file.mtime_ns) {
    reasons.add(Code::kAnswerNo, fmt::format("{}: has been modified since the image was taken", file.path));
  }
}

/// A deleted file while it is made again: it has the name that it had, or one beside it where that is taken, until the
/// descriptors of the processes are open.
class Ghost {
 public:
  static Result<Ghost> make(const FileIdentity& file, ProgressSink& progress) {
    Ghost out(file);
    if (S_ISREG(file.mode) && out.is_temporary()) {
      CKPT_TRY_ASSIGN(out.fd_, io::open_file(file.path.substr(0, file.path.rfind('/') + 1), O_TMPFILE | O_RDWR));
      CKPT_TRY(out.set_attributes());
      return out;
    }
    CKPT_TRY(out.create(progress));
    if (S_ISREG(file.mode)) {
      CKPT_TRY_ASSIGN(out.fd_, io::open_file(out.name_, O_RDWR));
    }
    if (file.other_name.empty()) CKPT_TRY(out.set_attributes());
    return out;
  }
  Ghost(Ghost&& other) noexcept : file_(other.file_), name_(std::exchange(other.name_, "")), fd_(std::move(other.fd_)) {}
  Ghost& operator=(Ghost&&) = delete;
  ~Ghost() {
    if (name_.empty()) return;
    if (S_ISDIR(file_->mode)) ::rmdir(name_.c_str());
    else ::unlink(name_.c_str());
  }

  /// Where it can be opened.
  std::string path() const { return name_.empty() ? fmt::format("/proc/self/fd/{}", fd_.get()) : name_; }
  bool has_name() const { return !name_.empty(); }
  /// For its content: readable and writable, of a regular file whose only name is gone.
  UniqueFd take_content() { return std::move(fd_); }

 private:
  explicit Ghost(const FileIdentity& file) : file_(&file) {}

  /// O_TMPFILE shows as "#INODE": it never had a name, and may still get one.
  bool is_temporary() const {
    return file_->path.substr(file_->path.rfind('/') + 1) == fmt::format("#{}", file_->inode);
  }
  Result<void> create(ProgressSink& progress) {
    std::string name = file_->path;
    for (int attempt = 1; !create(name); ++attempt) {
      if (errno != EEXIST || attempt == 100) return sys_error(file_->path, "was deleted while in use, and cannot be made again");
      name = fmt::format("{}.{}", file_->path, attempt);
    }
    if (name != file_->path) progress.note(fmt::format("{}: was deleted while in use; its name is taken now, it comes back as {}", file_->path, name));
    name_ = name;
    return {};
  }
  bool create(const std::string& name) const {
    if (!file_->other_name.empty()) return ::link(file_->other_name.c_str(), name.c_str()) == 0;
    if (S_ISDIR(file_->mode)) return ::mkdir(name.c_str(), 0700) == 0;
    if (S_ISFIFO(file_->mode)) return ::mkfifo(name.c_str(), 0600) == 0;
    return UniqueFd(::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600)).get() >= 0;
  }
  Result<void> set_attributes() const {
    const std::string at = path();
    if (::chown(at.c_str(), file_->uid, file_->gid) != 0) return sys_error(file_->path, "cannot be given its owner");
    if (::chmod(at.c_str(), file_->mode & 07777) != 0) return sys_error(file_->path, "cannot be given its mode");
    if (S_ISREG(file_->mode) && ::ftruncate(fd_.get(), static_cast<off_t>(file_->size)) != 0) return sys_error(file_->path, "cannot be given its size");
    return {};
  }

  const FileIdentity* file_;
  std::string name_;  ///< empty: it never had one
  UniqueFd fd_;
};

class Opener {
 public:
  Opener(const store::TreeImage& tree, const std::map<int, Ghost>& ghosts, OpenedFiles& out, Inherited& inherited,
         Reasons& reasons)
      : tree_(tree), ghosts_(ghosts), out_(out), inherited_(inherited), reasons_(reasons) {}

  /// -1 and a reason when it cannot be opened.
  int open(int file, int flags) {
    auto fd = open_again(file, flags);
    if (fd) return *fd;
    reasons_.add(fd.error());
    return -1;
  }

  void process(const store::ProcessImage& image) {
    for (const auto& map : image.maps) {
      if (map.file < 0 || (map.kind != MappingKind::kPrivateFile && map.kind != MappingKind::kSharedFile)) continue;
      bool writable = maps_for_writing(map);
      auto [place, is_new] = out_.mapped.try_emplace({map.file, writable}, -1);
      if (is_new) place->second = open(map.file, writable ? O_RDWR : O_RDONLY);
    }
    if (image.exe >= 0) once(out_.executables, image.exe, O_RDONLY);
    if (image.cwd >= 0) once(out_.folders, image.cwd, O_PATH | O_DIRECTORY);
    if (image.root >= 0) once(out_.folders, image.root, O_PATH | O_DIRECTORY);
  }

  void descriptors() {
    for (size_t i = 0; i < tree_.descriptors.size(); ++i) {
      const auto& descriptor = tree_.descriptors[i];
      if (descriptor.kind == DescriptorKind::kFifo) {
        // The pipe itself lives as long as somebody has it open: descriptors.cpp fills it, and opens the ends through this.
        auto [place, is_new] = out_.fifos.try_emplace(descriptor.pipe, -1);
        if (is_new) place->second = open(descriptor.file, O_RDWR | O_NONBLOCK);
        continue;
      }
      if (descriptor.kind != DescriptorKind::kFile && descriptor.kind != DescriptorKind::kDevice) continue;
      int fd = open(descriptor.file, descriptor.flags);
      out_.descriptors[static_cast<int>(i)] = fd;
      if (fd < 0 || descriptor.kind == DescriptorKind::kDevice || (descriptor.flags & O_PATH) != 0) continue;
      if (::lseek(fd, static_cast<off_t>(descriptor.offset), SEEK_SET) < 0) {
        reasons_.add(sys_error(tree_.files[static_cast<size_t>(descriptor.file)].path, "cannot go back to its offset"));
      }
    }
  }

 private:
  void once(std::map<int, int>& opened, int file, int flags) {
    auto [place, is_new] = opened.try_emplace(file, -1);
    if (is_new) place->second = open(file, flags);
  }

  /// O_NONBLOCK until it is open: a fifo that took the file's place must not make ckpt wait.
  Result<int> open_again(int file, int flags) {
    constexpr int kOnlyAtCreation = O_CREAT | O_EXCL | O_TRUNC | O_CLOEXEC | (O_TMPFILE & ~O_DIRECTORY);
    const FileIdentity& identity = tree_.files[static_cast<size_t>(file)];
    flags &= ~kOnlyAtCreation;
    if (S_ISREG(identity.mode)) flags &= ~O_DIRECTORY;  // a part of O_TMPFILE
    std::string name = identity.path;
    if (auto ghost = ghosts_.find(file); ghost != ghosts_.end()) {
      name = ghost->second.path();
      if (!ghost->second.has_name()) flags &= ~O_NOFOLLOW;
    }
    CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(name, flags | O_NONBLOCK | O_NOCTTY));
    if ((flags & O_PATH) == 0 && ::fcntl(fd.get(), F_SETFL, flags & ~O_ASYNC) != 0)
      return sys_error(identity.path, "cannot set its flags");
    return inherited_.keep(std::move(fd), identity.path);
  }

  const store::TreeImage& tree_;
  const std::map<int, Ghost>& ghosts_;
  OpenedFiles& out_;
  Inherited& inherited_;
  Reasons& reasons_;
};

}  // namespace

bool maps_for_writing(const store::MemoryMap& map) {
  if (map.kind != MappingKind::kSharedFile && map.kind != MappingKind::kSharedMemory) return false;
  constexpr int kWrite = 2;
  return (map.prot & kWrite) != 0 || std::find(map.flags.begin(), map.flags.end(), "mw") != map.flags.end();
}

OpenedFiles open_files(const store::TreeImage& tree, Inherited& inherited, Reasons& reasons, ProgressSink& progress) {
  OpenedFiles out;
  std::vector<Use> uses = uses_of_files(tree);
  size_t reasons_before = reasons.size();
  for (size_t i = 0; i < uses.size(); ++i) {
    if (!uses[i].needed || tree.files[i].deleted) continue;
    struct stat now {};
    const char* path = tree.files[i].path.c_str();
    if ((S_ISLNK(tree.files[i].mode) ? ::lstat(path, &now) : ::stat(path, &now)) != 0) {
      reasons.add(sys_error(tree.files[i].path, "is needed by the process"));
    } else {
      compare(tree.files[i], uses[i], now, reasons, progress);
    }
  }
  if (reasons.size() != reasons_before) return out;  // opening would only say the same again
  std::map<int, Ghost> ghosts;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (!uses[i].needed || !tree.files[i].deleted) continue;
    auto ghost = Ghost::make(tree.files[i], progress);
    if (ghost) ghosts.emplace(static_cast<int>(i), std::move(*ghost));
    else reasons.add(ghost.error());
  }
  if (reasons.size() != reasons_before) return out;
  Opener opener(tree, ghosts, out, inherited, reasons);
  for (const auto& process : tree.processes) opener.process(process);
  opener.descriptors();
  for (auto& [file, ghost] : ghosts) {
    UniqueFd content = ghost.take_content();
    if (content && tree.files[static_cast<size_t>(file)].space >= 0) out.ghosts.emplace(file, std::move(content));
  }
  return out;
}

Result<void> fill_ghosts(const store::ImageReader& image, const OpenedFiles& files, ProgressSink& progress,
                         const Cancel& cancel) {
  for (const auto& [index, fd] : files.ghosts) {
    const FileIdentity& file = image.manifest().tree.files[static_cast<size_t>(index)];
    if (file.space < 0) continue;
    CKPT_TRY(fill_file(image, file.space, file.size, fd.get(), progress, cancel));
    timespec times[2] = {{0, UTIME_OMIT}, {file.mtime_ns / 1'000'000'000, file.mtime_ns % 1'000'000'000}};
    if (::futimens(fd.get(), times) != 0) return sys_error(file.path, "cannot be given its time of change");
  }
  return {};
}

}  // namespace ckpt::rebuild
