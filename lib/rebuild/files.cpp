#include "lib/rebuild/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

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

std::vector<Use> uses_of_files(const store::ProcessImage& image) {
  std::vector<Use> uses(image.files.size());
  for (const auto& map : image.maps) {
    if (map.file < 0) continue;
    Use& use = uses[static_cast<size_t>(map.file)];
    use.needed = true;
    (maps_for_writing(map) ? use.written : use.exact) = true;
  }
  for (const auto& descriptor : image.descriptors) {
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
  if (image.exe >= 0) uses[static_cast<size_t>(image.exe)].needed = uses[static_cast<size_t>(image.exe)].exact = true;
  for (int folder : {image.cwd, image.root}) {
    if (folder >= 0) uses[static_cast<size_t>(folder)].needed = true;
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
  if (!use.exact) return;
  if (static_cast<uint64_t>(now.st_size) != file.size) {
    reasons.add(Code::kAnswerNo, fmt::format("{}: has changed since the image was taken ({} bytes then, {} now)",
                                             file.path, file.size, now.st_size));
  } else if (mtime_ns(now) != file.mtime_ns) {
    reasons.add(Code::kAnswerNo, fmt::format("{}: has been modified since the image was taken", file.path));
  }
}

/// O_NONBLOCK until it is open: a fifo that took the file's place must not make ckpt wait.
Result<int> open_again(const FileIdentity& file, int flags, Inherited& inherited) {
  constexpr int kOnlyAtCreation = O_CREAT | O_EXCL | O_TRUNC | O_CLOEXEC | (O_TMPFILE & ~O_DIRECTORY);
  flags &= ~kOnlyAtCreation;
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(file.path, flags | O_NONBLOCK | O_NOCTTY));
  if ((flags & O_PATH) == 0 && ::fcntl(fd.get(), F_SETFL, flags & ~O_ASYNC) != 0)
    return sys_error(file.path, "cannot set its flags");
  return inherited.keep(std::move(fd), file.path);
}

class Opener {
 public:
  Opener(const store::ProcessImage& image, Inherited& inherited, Reasons& reasons)
      : image_(image), inherited_(inherited), reasons_(reasons) {}

  /// -1 and a reason when it cannot be opened.
  int open(int file, int flags) {
    auto fd = open_again(image_.files[static_cast<size_t>(file)], flags, inherited_);
    if (fd) return *fd;
    reasons_.add(fd.error());
    return -1;
  }

  void mapped(OpenedFiles& out) {
    for (const auto& map : image_.maps) {
      if (map.kind != MappingKind::kPrivateFile && map.kind != MappingKind::kSharedFile) continue;
      bool writable = maps_for_writing(map);
      auto [place, is_new] = out.mapped.try_emplace({map.file, writable}, -1);
      if (is_new) place->second = open(map.file, writable ? O_RDWR : O_RDONLY);
    }
  }

  void descriptors(OpenedFiles& out) {
    for (size_t i = 0; i < image_.descriptors.size(); ++i) {
      const auto& descriptor = image_.descriptors[i];
      if (descriptor.kind != DescriptorKind::kFile && descriptor.kind != DescriptorKind::kDevice) continue;
      int fd = open(descriptor.file, descriptor.flags);
      out.descriptors[static_cast<int>(i)] = fd;
      if (fd < 0 || descriptor.kind == DescriptorKind::kDevice || (descriptor.flags & O_PATH) != 0) continue;
      if (::lseek(fd, static_cast<off_t>(descriptor.offset), SEEK_SET) < 0) {
        reasons_.add(
            sys_error(image_.files[static_cast<size_t>(descriptor.file)].path, "cannot go back to its offset"));
      }
    }
  }

 private:
  const store::ProcessImage& image_;
  Inherited& inherited_;
  Reasons& reasons_;
};

}  // namespace

bool maps_for_writing(const store::MemoryMap& map) {
  if (map.kind != MappingKind::kSharedFile) return false;
  constexpr int kWrite = 2;
  return (map.prot & kWrite) != 0 || std::find(map.flags.begin(), map.flags.end(), "mw") != map.flags.end();
}

OpenedFiles open_files(const store::ProcessImage& image, Inherited& inherited, Reasons& reasons,
                       ProgressSink& progress) {
  OpenedFiles out;
  std::vector<Use> uses = uses_of_files(image);
  size_t reasons_before = reasons.size();
  for (size_t i = 0; i < uses.size(); ++i) {
    if (!uses[i].needed) continue;
    struct stat now {};
    if (::stat(image.files[i].path.c_str(), &now) != 0) {
      reasons.add(sys_error(image.files[i].path, "is needed by the process"));
    } else {
      compare(image.files[i], uses[i], now, reasons, progress);
    }
  }
  if (reasons.size() != reasons_before) return out;  // opening would only say the same again
  Opener opener(image, inherited, reasons);
  opener.mapped(out);
  opener.descriptors(out);
  if (image.exe >= 0) out.exe = opener.open(image.exe, O_RDONLY);
  if (image.cwd >= 0) out.cwd = opener.open(image.cwd, O_PATH | O_DIRECTORY);
  if (image.root >= 0) out.root = opener.open(image.root, O_PATH | O_DIRECTORY);
  return out;
}

}  // namespace ckpt::rebuild
