#include "lib/migrate/permit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <sstream>

#include "lib/base/hex.h"
#include "lib/proc/procfs.h"

namespace ckpt::migrate {

std::string Permit::describe(int socket, const std::string& id) {
  return fmt::format("{},{},{}", socket, id, proc::read_link(::getpid(), "ns/pid").value_or("?"));
}

Result<Permit> Permit::open(const std::string& text, bool lazily) {
  Permit out;
  out.lazily_ = lazily;
  const size_t comma = text.find(','), second = text.find(',', comma == std::string::npos ? comma : comma + 1);
  int fd = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + std::min(comma, text.size()), fd);
  const bool whole = second != std::string::npos && parsed.ec == std::errc() && parsed.ptr == text.data() + comma;
  if (!whole || fd <= STDERR_FILENO || !is_id(text.substr(comma + 1, second - comma - 1)))
    return fail(Code::kUsage, "--permit", "is for ckpt receive alone");
  out.socket_.reset(fd);
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return sys_error("--permit", "is no descriptor");
  out.id_ = text.substr(comma + 1, second - comma - 1), out.pid_namespace_ = text.substr(second + 1);
  return out;
}

Result<void> Permit::may_run(int pid, int pid_outside, const Cancel& cancel) {
  constexpr int kSliceMs = 100;
  const std::string made = fmt::format("{}{} {}", static_cast<char>(PermitWord::kMade), pid, pid_outside);
  if (::send(socket_.get(), made.data(), made.size(), MSG_NOSIGNAL) < 0)
    return fail(Code::kInterrupted, "", "the receiver has ended");
  for (pollfd word{socket_.get(), POLLIN, 0}; ::poll(&word, 1, kSliceMs) <= 0;) CKPT_TRY(cancel.check());
  std::string go(kMostGo, '\0');
  const ssize_t got = ::recv(socket_.get(), go.data(), go.size(), 0);
  if (got < 1 || go[0] != static_cast<char>(PermitWord::kGo))
    return fail(Code::kInterrupted, "", "the receiver has ended");
  std::istringstream words(go.substr(1, static_cast<size_t>(got) - 1));
  Claim::Tree tree{pid_namespace_, {}};
  Claim::Process process;
  while (words >> process.pid >> process.start_time) tree.processes.push_back(process);
  CKPT_TRY_ASSIGN(Claim claim, Claim::take(id_, tree, lazily_));
  claim_.emplace(std::move(claim));
  return {};
}

void Permit::runs() {
  claim_->runs();
  claim_.reset();
  const char byte = static_cast<char>(PermitWord::kRuns);
  (void)!::send(socket_.get(), &byte, 1, MSG_NOSIGNAL);
}

}  // namespace ckpt::migrate
