#include "lib/base/replace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "lib/base/io.h"

namespace ckpt::io {

namespace fs = std::filesystem;

namespace {

/// A file in `folder` that was not there, and its name.
Result<std::pair<UniqueFd, fs::path>> create_beside(const fs::path& folder, unsigned mode, const std::string& subject) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) != sizeof number) return sys_error(subject, "cannot be created");
    fs::path name = folder / fmt::format(".ckpt-new-{:016x}", number);
    UniqueFd fd(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (fd) return std::pair(std::move(fd), std::move(name));
    if (errno != EEXIST) return sys_error(subject, "cannot be created");
  }
  return sys_error(EEXIST, subject, "cannot be created");
}

}  // namespace

Result<void> replace_file(const fs::path& path, const std::function<Result<void>(int fd)>& write, NewFile how) {
  const std::string subject = path.string();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  CKPT_TRY_ASSIGN(auto created, create_beside(folder, how.mode, subject));
  auto& [fd, staged] = created;
  auto replace = [&, &fd = fd, &staged = staged]() -> Result<void> {
    CKPT_TRY(write(fd.get()));
    if (how.durable) CKPT_TRY(sync_fd(fd.get(), subject));
    if (::rename(staged.c_str(), path.c_str()) != 0) return sys_error(subject, "cannot be replaced");
    return {};
  };
  if (Result<void> done = replace(); !done) {
    ::unlink(staged.c_str());
    return done;
  }
  return how.durable ? sync_dir(folder) : Result<void>();
}

Result<void> replace_file(const fs::path& path, std::string_view content, NewFile how) {
  return replace_file(
      path, [&](int fd) { return write_all(fd, as_bytes(content), path.string()); }, how);
}

}  // namespace ckpt::io
