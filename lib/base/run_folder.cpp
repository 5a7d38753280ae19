#include "lib/base/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace ckpt {

namespace {

struct Candidate {
  std::string parent, name;
};

Candidate common_place() {
  if (::geteuid() == 0) return {"/run", "ckpt"};
  return {"/tmp", "ckpt-" + std::to_string(::geteuid())};
}

std::vector<Candidate> places() {
  const std::string number = std::to_string(::geteuid());
  std::vector<Candidate> out;
  const char* given = std::getenv("XDG_RUNTIME_DIR");
  if (::geteuid() == 0) {
    out.push_back({"/run", "ckpt"});
  } else {
    if (given != nullptr && *given == '/') out.push_back({given, "ckpt"});
    out.push_back({"/run/user/" + number, "ckpt"});
  }
  out.push_back({"/tmp", "ckpt-" + number});
  return out;
}

/// Nobody else can rename what lies in it.
bool is_safe(int fd) {
  struct stat st{};
  if (::fstat(fd, &st) != 0 || (st.st_uid != 0 && st.st_uid != ::geteuid())) return false;
  return (st.st_mode & (S_IWGRP | S_IWOTH)) == 0 || (st.st_mode & S_ISVTX) != 0;
}

bool is_ours_alone(int fd) {
  struct stat st{};
  return ::fstat(fd, &st) == 0 && st.st_uid == ::geteuid() && (st.st_mode & 077) == 0;
}

/// Invalid: it cannot be made ours alone.
UniqueFd open_place(const Candidate& place) {
  UniqueFd parent(::open(place.parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!parent || !is_safe(parent.get())) return {};
  (void)::mkdirat(parent.get(), place.name.c_str(), 0700);
  UniqueFd folder(::openat(parent.get(), place.name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  return folder && is_ours_alone(folder.get()) ? std::move(folder) : UniqueFd();
}

}  // namespace

Result<UniqueFd> open_run_folder() {
  for (const Candidate& place : places()) {
    if (UniqueFd folder = open_place(place)) return folder;
  }
  return Error(Code::kPermission, "", "there is no folder for sockets that only this user may write")
      .with_hint("set XDG_RUNTIME_DIR");
}

Result<UniqueFd> open_common_run_folder() {
  const Candidate place = common_place();
  if (UniqueFd folder = open_place(place)) return folder;
  return fail(Code::kPermission, place.parent + "/" + place.name, "is no folder that this user alone may write");
}

}  // namespace ckpt
