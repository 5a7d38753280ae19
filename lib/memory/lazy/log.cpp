#include "lib/memory/lazy/log.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/uio.h>

#include <cstring>

#include "lib/base/io.h"

namespace ckpt::restore {

namespace {

/// The system log's socket; nothing where nobody listens.
UniqueFd open_system_log() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, "/dev/log");
  if (fd && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.reset();
  return fd;
}

iovec piece(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

}  // namespace

Result<LazyPagesLog> LazyPagesLog::open(const std::filesystem::path& file, bool foreground, TaskFate* fate) {
  LazyPagesLog out;
  out.fate_ = fate;
  if (!file.empty()) {
    out.kind_ = Kind::kFile;
    CKPT_TRY_ASSIGN(out.fd_, io::open_file(file, O_WRONLY | O_APPEND | O_CREAT));
  } else if (foreground) {
    out.kind_ = Kind::kStandardError;
    out.fd_ = UniqueFd(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  } else if ((out.fd_ = open_system_log())) {
    out.kind_ = Kind::kSystem;
  }
  return out;
}

void LazyPagesLog::write(Level level, std::string_view text) const {
  if (level == Level::kProblem && fate_ != nullptr) fate_->failed.store(1, std::memory_order_release);
  if (kind_ == Kind::kNone || (level == Level::kNote && kind_ != Kind::kFile)) return;
  constexpr std::string_view kDaemonError = "<27>ckpt-lazy: ", kPlain = "ckpt-lazy: ";
  const iovec parts[] = {piece(kind_ == Kind::kSystem ? kDaemonError : kPlain), piece(text),
                         piece(kind_ == Kind::kSystem ? "" : "\n")};
  (void)!::writev(fd_.get(), parts, 3);
}

}  // namespace ckpt::restore
