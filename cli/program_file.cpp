#include "cli/program_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "lib/base/io.h"
#include "lib/base/linkage.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxScripts = 5;  // as the kernel nests them
constexpr size_t kMaxHead = 4096, kMaxSegments = 512;

Error unsupported(const std::string& path, std::string why) { return Error(Code::kUnsupported, path, std::move(why)); }

Result<void> check_privileges(int fd, const std::string& path) {
  CKPT_TRY_ASSIGN(struct stat about, io::stat_fd(fd, path));
  const bool other_user = (about.st_mode & S_ISUID) != 0 && about.st_uid != geteuid();
  const bool other_group =
      (about.st_mode & S_ISGID) != 0 && (about.st_mode & S_IXGRP) != 0 && about.st_gid != getegid();
  const bool capabilities = geteuid() != 0 && ::fgetxattr(fd, "security.capability", nullptr, 0) > 0;
  if (other_user || other_group || capabilities) {
    return unsupported(
        path, "changes its user, group or capabilities when it starts: the loader ignores preloaded libraries there");
  }
  return {};
}

Result<void> check_elf(int fd, const std::string& head, const std::string& path) {
  Elf64_Ehdr elf;
  if (head.size() < sizeof elf) return unsupported(path, "is not a program");
  std::memcpy(&elf, head.data(), sizeof elf);
  if (elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_machine != EM_X86_64)
    return unsupported(path, "is a program for another architecture");
  if (elf.e_phentsize != sizeof(Elf64_Phdr) || elf.e_phnum > kMaxSegments)
    return unsupported(path, "has a damaged header");
  for (size_t i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr segment;
    const off_t at = static_cast<off_t>(elf.e_phoff + i * sizeof segment);
    if (::pread(fd, &segment, sizeof segment, at) != sizeof segment) return unsupported(path, "has a damaged header");
    if (segment.p_type == PT_INTERP) return check_privileges(fd, path);
  }
  return unsupported(path, "is linked statically: nothing can be preloaded into it");
}

/// The interpreter that "#!" names.
std::string interpreter_of(const std::string& head) {
  const size_t start = head.find_first_not_of(" \t", 2);
  const size_t end = head.find_first_of(" \t\n", start);
  return start == std::string::npos || end == start ? ""
                                                    : head.substr(start, end == std::string::npos ? end : end - start);
}

constexpr const char* kInterposer = "libckpt-cuda.so";

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

}  // namespace

Result<std::string> find_interposer() { return find_library(kInterposer); }

Result<std::string> find_library(const std::string& name) {
  CKPT_TRY(check_loads_libraries(name));  // what it is there for could not be loaded either
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return sys_error(error.value(), "/proc/self/exe", "cannot tell where this program is");
  if (is_file(folder / name)) return (folder / name).string();
  const fs::path prefix = folder.parent_path();
  for (fs::directory_iterator outer(prefix, error), end; !error && outer != end; outer.increment(error)) {
    if (!outer->path().filename().string().starts_with("lib")) continue;
    if (const fs::path found = outer->path() / "ckpt" / name; is_file(found)) return found.string();
    std::error_code inner_error;
    for (fs::directory_iterator inner(outer->path(), inner_error); !inner_error && inner != end;
         inner.increment(inner_error)) {
      if (const fs::path found = inner->path() / "ckpt" / name; is_file(found)) return found.string();
    }
  }
  return Error(Code::kUnsupported, name, "is not installed").with_hint("it belongs beside ckpt, or in ../lib/ckpt");
}

Result<std::string> find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  const bool direct = name.find('/') != std::string::npos;
  bool denied = false;
  for (std::string rest = direct ? "" : path == nullptr ? "/usr/bin:/bin" : path;;) {
    const size_t end = rest.find(':');
    const std::string folder = rest.substr(0, end);
    const std::string candidate = direct ? name : (folder.empty() ? "." : folder) + "/" + name;
    struct stat about;
    if (::stat(candidate.c_str(), &about) == 0) {
      if (S_ISREG(about.st_mode) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
      denied = true;
    } else if (errno == EACCES) {
      denied = true;
    }
    if (direct || end == std::string::npos) break;
    rest = rest.substr(end + 1);
  }
  if (denied) return fail(Code::kPermission, name, "may not be executed");
  return fail(Code::kNotFound, name, "no such program");
}

Result<void> check_preloadable(const std::string& path) {
  std::string at = path;
  for (int depth = 0; depth < kMaxScripts; ++depth) {
    UniqueFd fd(::open(at.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd)
      return errno == EACCES ? Result<void>{}
                             : sys_error(at, "cannot open the program");  // executable, not readable: let it try
    std::string head(kMaxHead, 0);
    const ssize_t got = ::pread(fd.get(), head.data(), head.size(), 0);
    if (got < 0) return sys_error(at, "cannot read the program");
    head.resize(got);
    if (head.starts_with(ELFMAG)) return check_elf(fd.get(), head, at);
    if (!head.starts_with("#!")) return unsupported(at, "is neither a program nor a script that names its interpreter");
    at = interpreter_of(head);
    if (at.empty()) return unsupported(path, "names no interpreter");
  }
  return unsupported(path, "is a script of a script of a script: too deep");
}

}  // namespace ckpt::cli
