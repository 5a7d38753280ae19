#include "lib/base/result.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ckpt {

int exit_code(Code code) {
  switch (code) {
    case Code::kCorrupt:
    case Code::kMismatch:
      return 1;
    case Code::kUsage: return 2;
    case Code::kPartial: return 3;
    case Code::kNotFound: return 4;
    case Code::kPermission: return 5;
    case Code::kUnsupported: return 6;
    case Code::kBusy: return 7;
    case Code::kIo: return 8;
    case Code::kNoRoom: return 9;
    case Code::kTargetAltered: return 10;
    case Code::kBug: return 70;
    case Code::kInterrupted: return 130;
  }
  return 70;
}

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kCorrupt:
      return "corrupt";
    case Code::kMismatch:
      return "mismatch";
    case Code::kUsage: return "usage";
    case Code::kPartial: return "partial";
    case Code::kNotFound: return "not-found";
    case Code::kPermission: return "permission";
    case Code::kUnsupported: return "unsupported";
    case Code::kBusy: return "busy";
    case Code::kIo: return "io";
    case Code::kNoRoom: return "no-room";
    case Code::kTargetAltered: return "target-altered";
    case Code::kBug: return "bug";
    case Code::kInterrupted: return "interrupted";
  }
  return "bug";
}

std::string Error::text() const {
  std::string out;
  if (!subject.empty()) out = subject + ": ";
  out += message;
  if (sys_errno != 0) out += std::string(": ") + std::strerror(sys_errno);
  return out;
}

static Code code_of_errno(int err) {
  switch (err) {
    case ENOENT: case ESRCH: case ENOTDIR: return Code::kNotFound;
    case EPERM: case EACCES: case EROFS: return Code::kPermission;
    case ENOSPC: case EDQUOT: case ENOMEM: case EMFILE: case ENFILE: case EFBIG: return Code::kNoRoom;
    case ENOSYS: case EOPNOTSUPP: return Code::kUnsupported;
    case ENAMETOOLONG: case EISDIR: return Code::kUsage;
    case EBUSY: case ETIMEDOUT: return Code::kBusy;
    default: return Code::kIo;
  }
}

Error sys_error(int err, std::string subject, std::string message) {
  Error e(code_of_errno(err), std::move(subject), std::move(message));
  e.sys_errno = err;
  return e;
}

Error sys_error(std::string subject, std::string message) {
  return sys_error(errno, std::move(subject), std::move(message));
}

void bug(const char* what, const char* file, int line) {
  std::fprintf(stderr, "ckpt: bug: %s at %s:%d\n", what, file, line);
  std::_Exit(70);
}

}  // namespace ckpt
