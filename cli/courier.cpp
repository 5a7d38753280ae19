#include "cli/courier.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "plugins/mpi/transport.h"

namespace ckpt::cli {

/// In memory that forked processes share.
struct Courier::Shared {
  std::atomic<bool> overdue{false}, ended{false}, broken{false}, told{false};
};

namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 30;
constexpr char kGather = 'g', kEnd = 'e', kFailure = 'f', kAnswer = 'a';

void append_number(std::string& out, uint64_t number) { out.append(reinterpret_cast<const char*>(&number), 8); }

/// A message: its size, then its bytes.
Result<void> write_message(int fd, std::string_view bytes) {
  std::string size;
  append_number(size, bytes.size());
  CKPT_TRY(io::write_all(fd, as_bytes(size), "the courier"));
  return io::write_all(fd, as_bytes(bytes), "the courier");
}

/// False: the other end is closed. A signal that is handled interrupts neither.
bool read_exact(int fd, char* out, size_t size) {
  while (size != 0) {
    const ssize_t got = ::recv(fd, out, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got, size -= static_cast<size_t>(got);
  }
  return true;
}

bool read_message(int fd, std::string& out) {
  uint64_t size = 0;
  if (!read_exact(fd, reinterpret_cast<char*>(&size), sizeof size) || size > kMostBytes) return false;
  out.resize(size);
  return read_exact(fd, out.data(), size);
}

std::string failure(const Error& error) {
  return std::string{kFailure, static_cast<char>(error.code)} + error.subject + '\0' + error.message + '\0' +
         error.hint;
}

Error parse_failure(const std::string& text) {
  std::array<std::string, 3> parts;
  size_t at = 2;
  for (std::string& part : parts) {
    const size_t end = std::min(text.find('\0', at), text.size());
    if (at <= end) part = text.substr(at, end - at);
    at = end + 1;
  }
  return Error(text.size() > 1 ? static_cast<Code>(text[1]) : Code::kBug, parts[0], parts[1]).with_hint(parts[2]);
}

/// In the courier. An end without kEnd leaves MPI as it is: then the job has failed.
[[noreturn]] void serve(int channel, pid_t parent, const Courier::Connect& connect) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  for (int sig : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) ::signal(sig, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  auto connected = connect();
  if (!connected) {
    (void)write_message(channel, failure(connected.error()));
    ::_exit(1);
  }
  std::unique_ptr<Transport> transport = std::move(*connected);
  std::string message = {kAnswer};
  append_number(message, transport->rank());
  append_number(message, transport->size());
  while (write_message(channel, message) && read_message(channel, message) && message[0] == kGather) {
    auto answers = transport->all_gather(message.substr(1));
    if (!answers) {
      message = failure(answers.error());
      continue;
    }
    message = kAnswer;
    for (const std::string& answer : *answers) {
      append_number(message, answer.size());
      message += answer;
    }
  }
  if (message.empty() || message[0] != kEnd) ::_exit(1);
  transport.reset();
  ::_exit(0);
}

}  // namespace

Result<std::unique_ptr<Courier>> Courier::start(const Connect& connect, const Cancel& cancel) {
  std::fflush(nullptr);
  std::unique_ptr<Courier> out(new Courier());
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return sys_error("", "cannot have memory for the courier");
  out->shared_ = new (memory) Shared();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return sys_error("", "cannot make a pair of sockets");
  UniqueFd theirs(ends[1]);
  out->channel_.reset(ends[0]);
  out->owner_ = ::getpid(), out->cancel_ = &cancel;
  const pid_t pid = ::fork();
  if (pid < 0) return fork_error(errno, "", "cannot make a process");
  if (pid == 0) {
    ::close(ends[0]);
    serve(theirs.get(), out->owner_, connect);
  }
  out->pid_ = pid;
  theirs.reset();
  CKPT_TRY_ASSIGN(const std::string hello, out->receive({&cancel}));
  uint64_t numbers[2];
  if (hello.size() != 1 + sizeof numbers) return fail(Code::kBug, "the courier", "says what it should not");
  std::memcpy(numbers, hello.data() + 1, sizeof numbers);
  out->rank_ = static_cast<uint32_t>(numbers[0]), out->size_ = static_cast<uint32_t>(numbers[1]);
  return out;
}

/// What it sends next, once all of it is there.
Result<std::string> Courier::receive(const engine::Patience& patience) {
  constexpr int kTickMs = 50;
  const uint64_t until = patience.most_us == 0 ? ~uint64_t{0} : monotonic_us() + patience.most_us;
  for (;;) {
    if (patience.cancel != nullptr) CKPT_TRY(patience.cancel->check());
    if (monotonic_us() >= until) return fail(Code::kBusy, "", "the others do not answer in time");
    pollfd wait{channel_.get(), POLLIN, 0};
    if (::poll(&wait, 1, kTickMs) > 0) break;
  }
  std::string message;
  if (!read_message(channel_.get(), message) || message.empty()) {
    shared_->broken = true;
    return Error(Code::kIo, mpi::kSubject, "has ended under way: another member was killed, perhaps");
  }
  shared_->overdue = false;
  if (message[0] == kAnswer) return message;
  shared_->broken = true;
  return parse_failure(message);
}

Result<std::vector<std::string>> Courier::gather(const std::string& mine, const engine::Patience& patience) {
  if (shared_->broken || shared_->ended || shared_->overdue)
    return fail(Code::kIo, mpi::kSubject, "connects this member with the others no more");
  shared_->overdue = true;
  if (auto sent = write_message(channel_.get(), kGather + mine); !sent) {
    shared_->overdue = false, shared_->broken = true;
    return fail(Code::kIo, mpi::kSubject, "has ended under way: another member was killed, perhaps");
  }
  return overdue(patience);
}

bool Courier::is_overdue() const { return shared_->overdue && !shared_->broken; }

Result<std::vector<std::string>> Courier::overdue(const engine::Patience& patience) {
  CKPT_TRY_ASSIGN(const std::string message, receive(patience));
  std::vector<std::string> out;
  uint64_t size = 0;
  for (size_t at = 1; at + sizeof size <= message.size(); at += size) {
    std::memcpy(&size, message.data() + at, sizeof size);
    at += sizeof size;
    if (size > message.size() - at) break;
    out.push_back(message.substr(at, size));
  }
  if (out.size() != size_) return fail(Code::kBug, "the courier", "says what it should not");
  return out;
}

void Courier::end() { shared_->ended = true; }
bool Courier::has_ended() const { return shared_->ended; }

void Courier::finish() {
  if (pid_ < 0) return;
  const bool well = shared_->ended && !shared_->overdue && !shared_->broken;
  const bool in_order = well && (shared_->told.exchange(true) || write_message(channel_.get(), std::string(1, kEnd)));
  if (owner_ != ::getpid()) return;
  int status = 0;
  pid_t got = 0;
  while (in_order && (got = ::waitpid(pid_, &status, WNOHANG)) == 0 && cancel_->check()) ::usleep(1'000);
  if (got != pid_) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  channel_.reset();
}

Courier::~Courier() {
  finish();
  if (shared_ != nullptr) ::munmap(shared_, sizeof(Shared));
}

}  // namespace ckpt::cli
