#include "lib/migrate/connection.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>

#include "lib/base/pipe.h"
#include "lib/base/threads.h"

namespace ckpt::migrate {

namespace {

constexpr int kPipeSize = 1 << 20;  // a link is not to wait for whoever fills it

Result<PipeEnds> make_wide_pipe() {
  CKPT_TRY_ASSIGN(PipeEnds out, make_pipe());
  (void)::fcntl(out.write.get(), F_SETPIPE_SZ, kPipeSize);
  return out;
}

[[noreturn]] void become(const Remote& remote, int in, int out) {
  for (int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGUSR1}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  std::vector<char*> words;
  for (const std::string& word : remote.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  ::_exit(127);
}

bool has_ended(pid_t pid, int milliseconds) {
  constexpr int kStepMs = 5;
  for (int waited = 0;; waited += kStepMs) {
    const pid_t got = ::waitpid(pid, nullptr, WNOHANG);
    if (got == pid || (got < 0 && errno == ECHILD)) return true;
    if (waited >= milliseconds) return false;
    ::usleep(kStepMs * 1000);
  }
}

}  // namespace

Result<std::unique_ptr<Connection>> Connection::open(const Remote& remote, Link::Limits limits, const Cancel* cancel) {
  CKPT_TRY_ASSIGN(PipeEnds to, make_wide_pipe());
  CKPT_TRY_ASSIGN(PipeEnds from, make_wide_pipe());
  if (::fcntl(to.write.get(), F_SETFL, O_NONBLOCK) != 0) return sys_error("", "cannot make a pipe");
  std::unique_ptr<Connection> out(new Connection());
  out->owner_ = ::getpid();
  out->pid_ = ::fork();
  if (out->pid_ < 0) return fork_error(errno, remote.command[0], "cannot be started");
  if (out->pid_ == 0) become(remote, to.read.get(), from.write.get());
  out->link_ = std::make_unique<Link>(std::move(from.read), std::move(to.write), remote.host, limits, cancel);
  return out;
}

Connection::~Connection() {
  constexpr int kPatienceMs = 500;
  if (link_) link_->close();
  if (pid_ <= 0 || owner_ != ::getpid()) return;
  for (int signal : {SIGTERM, SIGKILL}) {
    if (has_ended(pid_, kPatienceMs)) return;
    ::kill(pid_, signal);
  }
  (void)has_ended(pid_, kPatienceMs);
}

Verdict ask_once(const Remote& remote, const std::string& id) {
  constexpr uint64_t kPatienceUs = 15'000'000;
  auto connection = Connection::open(remote, {std::min(remote.silence_us, kPatienceUs), 0}, nullptr);
  if (!connection) return Verdict::kUnknown;
  Hello hello;
  hello.id = id, hello.asks = true;
  const std::string text = to_json(hello);
  if (!(*connection)->link().send(Kind::kHello, as_bytes(text))) return Verdict::kUnknown;
  auto answer = (*connection)->link().receive();
  if (!answer || answer->kind != Kind::kReady) return Verdict::kUnknown;
  const auto doc = nlohmann::json::parse(answer->text(), nullptr, false);
  if (!doc.is_object() || !doc.contains("verdict") || !doc["verdict"].is_string()) return Verdict::kUnknown;
  return parse_verdict(doc["verdict"].get<std::string>());
}

}  // namespace ckpt::migrate
