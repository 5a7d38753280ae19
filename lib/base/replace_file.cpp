#include "lib/base/replace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "lib/base/io.h"

namespace ckpt::io {

namespace fs = std::filesystem;

namespace {

struct Draft {
  UniqueFd fd;
  fs::path path;
};

/// FNV-1a: the same in every run.
uint64_t hash_of(const std::string& name) {
  uint64_t out = 0xcbf29ce484222325;
  for (const char c : name) out = (out ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return out;
}

fs::path draft_path(const fs::path& folder, uint64_t number) {
  return folder / fmt::format(".ckpt-new-{:016x}", number);
}

/// Whether it is this process's alone: locked, still under its name, and of nobody else.
bool take(int fd, const fs::path& path) {
  struct stat opened {
  }, named{};
  return ::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev && S_ISREG(opened.st_mode) &&
         opened.st_uid == ::geteuid();
}

int create(const fs::path& path, unsigned mode) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

/// Under the name that belongs to `target`, in place of what a killed run has left there. Without a descriptor: another
/// writer is at work, the name is somebody else's, or the file system knows no locks.
Draft create_by_name(const fs::path& folder, const fs::path& target, unsigned mode) {
  Draft out{UniqueFd(), draft_path(folder, hash_of(target.filename().string()))};
  if (const UniqueFd left(::open(out.path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)); left) {
    if (!take(left.get(), out.path) || ::unlink(out.path.c_str()) != 0) return out;
  }
  UniqueFd fd(create(out.path, mode));
  if (!fd) return out;
  if (take(fd.get(), out.path))
    out.fd = std::move(fd);
  else if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno != EWOULDBLOCK)
    ::unlink(out.path.c_str());  // no locks here: nobody keeps that name
  // else somebody took it, not locked yet, for one that was left, and the name is his.
  return out;
}

/// A file in `folder` that was not there.
Result<Draft> create_draft(const fs::path& folder, const fs::path& target, unsigned mode, const std::string& subject) {
  if (Draft named = create_by_name(folder, target, mode); named.fd) return named;
  for (int attempt = 0; attempt < 100; ++attempt) {
    uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) != sizeof number) return sys_error(subject, "cannot be created");
    Draft out{UniqueFd(), draft_path(folder, number)};
    out.fd = UniqueFd(create(out.path, mode));
    if (out.fd) return out;
    if (errno != EEXIST) return sys_error(subject, "cannot be created");
  }
  return sys_error(EEXIST, subject, "cannot be created");
}

}  // namespace

Result<void> replace_file(const fs::path& path, const std::function<Result<void>(int fd)>& write, NewFile how) {
  const std::string subject = path.string();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  CKPT_TRY_ASSIGN(const Draft draft, create_draft(folder, path, how.mode, subject));
  auto replace = [&]() -> Result<void> {
    CKPT_TRY(write(draft.fd.get()));
    if (how.durable) CKPT_TRY(sync_fd(draft.fd.get(), subject));
    if (::rename(draft.path.c_str(), path.c_str()) != 0) return sys_error(subject, "cannot be replaced");
    return {};
  };
  if (Result<void> done = replace(); !done) {
    ::unlink(draft.path.c_str());
    return done;
  }
  return how.durable ? sync_dir(folder) : Result<void>();
}

Result<void> replace_file(const fs::path& path, std::string_view content, NewFile how) {
  return replace_file(
      path, [&](int fd) { return write_all(fd, as_bytes(content), path.string()); }, how);
}

}  // namespace ckpt::io
