#include "lib/state/files/contents.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/state/files/file_state.h"
#include "lib/state/files/table.h"
#include "lib/state/files/tracker.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/files/without_links.h"
#include "lib/state/inventory.h"

namespace ckpt::state {

bool has_content(const store::FileIdentity& file) {
  return file.space >= 0 && !(file.deleted && file.other_name.empty());
}

}  // namespace ckpt::state

namespace ckpt::capture {

namespace {

using store::FileIdentity;

bool is_pattern(const std::string& path) { return path.find_first_of("*?[\\") != std::string::npos; }

class ContentTaker {
 public:
  ContentTaker(Inventory& out, FileTable& files, const state::FileContents& what, uint64_t limit)
      : out_(out), files_(files), what_(what), limit_(limit) {}

  Result<void> run() {
    for (const std::string& path : what_.paths) CKPT_TRY(add_named(path));
    if (what_.written) CKPT_TRY(add_tracked());
    const std::vector<restore::FileUse> uses = restore::uses_of_files(out_.image);
    for (size_t i = 0; i < out_.image.files.size(); ++i) {
      if (is_wanted(out_.image.files[i], uses[i])) CKPT_TRY(take(i));
    }
    for (const std::string& path : what_.paths) {
      if (matched_.count(path) == 0) out_.notes.push_back("--files " + path + ": names no file that could go along");
    }
    return {};
  }

 private:
  /// Whether or not anybody has it open. A pattern may be the name of a file, too. Restore goes through no link.
  Result<void> add_named(const std::string& path) {
    const UniqueFd handle(restore::open_without_links(path.c_str(), O_PATH | O_NOFOLLOW));
    struct stat st{};
    const bool is_file = path.starts_with("/") && handle && ::fstat(handle.get(), &st) == 0 && S_ISREG(st.st_mode);
    if (!is_file && is_pattern(path)) return {};
    const bool is_link = handle.get() == -ELOOP || (handle && S_ISLNK(st.st_mode));
    if (!is_file)
      return fail(Code::kUsage, "--files " + path,
                  is_link ? "leads through a symbolic link: name the file by its own path"
                          : "is no absolute path of a regular file that is there");
    auto added = files_.add(path, st, fmt::format("/proc/self/fd/{}", handle.get()));
    if (!added) return std::move(added).error();
    return {};
  }

  /// Written before, and closed. What has another file in its place is not theirs any more.
  Result<void> add_tracked() {
    std::vector<int> pids;
    for (const store::ProcessImage& process : out_.image.processes) {
      if (!process.zombie) pids.push_back(process.pid);
    }
    CKPT_TRY_ASSIGN(const state::WrittenFiles written, state::written_files(pids));
    for (const std::string& tracker : written.silent)
      out_.notes.push_back(tracker + " does not answer: what it knows of files that were written is not known here");
    for (const state::WrittenFile& file : written.files) {
      const UniqueFd handle(state::open_in_tree(file.path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      struct stat st{};
      if (!handle || ::fstat(handle.get(), &st) != 0 || st.st_dev != file.device || st.st_ino != file.inode) {
        out_.notes.push_back(file.path + ": was written, and has no name now that is known: it does not go along");
        continue;
      }
      CKPT_TRY(files_.add(file.path, st, fmt::format("/proc/self/fd/{}", handle.get())));
      tracked_.emplace(file.device, file.inode);
    }
    return {};
  }

  bool is_wanted(const FileIdentity& file, const restore::FileUse& use) {
    const std::string& path = restore::path_of(file);
    const bool is_ghost = file.deleted && file.other_name.empty();
    if (!S_ISREG(file.mode) || is_ghost || path.starts_with("/proc/") || path.starts_with("/sys/")) return false;
    const bool named = is_named(path);
    // A mount that the image makes again has its files in it.
    const auto& made = out_.image.namespaces.mounts.filesystems;
    if (std::any_of(made.begin(), made.end(), [&](const auto& one) { return one.device == file.device; })) return false;
    if ((what_.written || what_.open) && use.written) return true;
    if (what_.open && use.read) return true;
    return named || tracked_.count({file.device, file.inode}) != 0;
  }

  bool is_named(const std::string& path) {
    bool out = false;
    for (const std::string& pattern : what_.paths) {
      if (pattern != path && ::fnmatch(pattern.c_str(), path.c_str(), 0) != 0) continue;
      out = true;
      matched_.insert(pattern);
    }
    return out;
  }

  bool is_executed(size_t index) const {
    const FileIdentity& file = out_.image.files[index];
    return std::any_of(out_.image.processes.begin(), out_.image.processes.end(), [&](const auto& process) {
      if (process.exe < 0) return false;
      const FileIdentity& program = out_.image.files[static_cast<size_t>(process.exe)];
      return program.device == file.device && program.inode == file.inode;
    });
  }

  bool is_leased(size_t index) const {
    const FileIdentity& file = out_.image.files[index];
    const auto& descriptors = out_.image.descriptors;
    return std::any_of(descriptors.begin(), descriptors.end(), [&](const store::Descriptor& descriptor) {
      if (descriptor.file < 0 || descriptor.lease() == nullptr) return false;
      // It may have been taken under another name of the file.
      const FileIdentity& leased = out_.image.files[static_cast<size_t>(descriptor.file)];
      return leased.device == file.device && leased.inode == file.inode;
    });
  }

  Result<void> take(size_t index) {
    FileIdentity& file = out_.image.files[index];
    if (!taken_.emplace(file.device, file.inode).second) return {};
    const std::string path = restore::path_of(file);
    if (file.mounts >= 0) {
      out_.block(0, path, "a file of a further mount namespace: its content cannot go with the image");
      return {};
    }
    if (is_executed(index)) {
      out_.notes.push_back(path + ": is a program that runs, which nobody may write to: its content does not go along");
      return {};
    }
    if (is_leased(index)) {
      out_.block(0, path, "a file with a lease: to read its content would break that, which is not supported");
      return {};
    }
    // By name, for a descriptor of our own; opened in earnest once it is known to be that file: to open a device, or
    // what a stranger serves, has effects.
    const UniqueFd handle(state::open_in_tree(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat st{};
    if (!handle || ::fstat(handle.get(), &st) != 0)
      return sys_error(path, "cannot be read, and its content is to be taken");
    if (st.st_ino != file.inode || st.st_dev != file.device || !S_ISREG(st.st_mode))
      return fail(Code::kMismatch, path, "is being replaced while its content is taken");
    const std::string again = fmt::format("/proc/self/fd/{}", handle.get());
    // The tree may be frozen: a lease of another process, which the open breaks, is not waited for.
    constexpr int kHow = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
    UniqueFd fd(::open(again.c_str(), kHow | O_NOATIME));
    if (!fd && errno != EWOULDBLOCK) fd.reset(::open(again.c_str(), kHow));
    if (!fd && errno == EWOULDBLOCK)
      return fail(Code::kBusy, path, "has a lease of another process, which has not given it up yet");
    if (!fd) return sys_error(path, "cannot be read, and its content is to be taken");
    if (static_cast<uint64_t>(st.st_size) > state::kMostContent) {
      out_.block(0, path, "a file with more holes than an image can hold");
      return {};
    }
    if (static_cast<uint64_t>(st.st_blocks) * 512 > limit_) {
      out_.block(0, path, fmt::format("a file of {}, above --ghost-limit", human_bytes(st.st_blocks * 512)),
                 "--ghost-limit");
      return {};
    }
    file.size = static_cast<uint64_t>(st.st_size);
    file.mtime_ns = restore::mtime_ns(st);
    file.space = 0;
    out_.ghosts[index].fd = std::move(fd);
    return {};
  }

  Inventory& out_;
  FileTable& files_;
  const state::FileContents& what_;
  const uint64_t limit_;
  std::set<std::pair<uint64_t, uint64_t>> taken_, tracked_;
  std::set<std::string> matched_;  ///< those of FileContents::paths that name a file which can go along
};

}  // namespace

Result<void> take_contents(Inventory& out, FileTable& files, const state::FileContents& what, uint64_t limit) {
  return what.any() ? ContentTaker(out, files, what, limit).run() : Result<void>();
}

}  // namespace ckpt::capture
