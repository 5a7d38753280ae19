#include "cli/criu/rpc.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>

#include "cli/criu/request_options.h"
#include "cli/criu/rpc.pb.h"
#include "cli/criu/verdict.h"
#include "cli/criu/work.h"
#include "cli/guard.h"
#include "cli/inherited_signals.h"
#include "lib/base/fd_message.h"
#include "lib/engine/pid_namespace.h"

namespace ckpt::cli::criu {

namespace {

using criu_rpc::Request;
using criu_rpc::Response;

/// The other end of the socket: whoever asks.
class Peer {
 public:
  static Result<Peer> open(int socket) {
    int type = 0;
    socklen_t size = sizeof type;
    const std::string subject = fmt::format("descriptor {}", socket);
    if (::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return sys_error(subject, "is no socket");
    if (type != SOCK_SEQPACKET) return fail(Code::kUsage, subject, "is no socket of packets (SOCK_SEQPACKET)");
    ucred who{};
    size = sizeof who;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
      return sys_error(subject, "does not tell who is at its other end");
    ::fcntl(socket, F_SETFD, FD_CLOEXEC);
    return Peer(socket, who.pid);
  }

  pid_t pid() const { return pid_; }

  /// Nothing: the peer has closed its end.
  Result<std::optional<Request>> receive() const {
    constexpr size_t kMost = 16 << 20;
    ssize_t size = 0;
    while ((size = ::recv(socket_, nullptr, 0, MSG_PEEK | MSG_TRUNC)) < 0 && errno == EINTR) {
    }
    if (size < 0 && errno != ECONNRESET) return sys_error("the request", "cannot be received");
    if (size <= 0) return std::optional<Request>();
    if (static_cast<size_t>(size) > kMost) return fail(Code::kUsage, "the request", "is too large");
    std::string data(static_cast<size_t>(size), '\0');
    if (::recv(socket_, data.data(), data.size(), 0) != size) return sys_error("the request", "cannot be received");
    Request out;
    if (!out.ParseFromString(data)) return fail(Code::kUsage, "the request", "is not in the form of criu's messages");
    return std::optional<Request>(std::move(out));
  }

  Result<void> send(const Response& response) const {
    const std::string data = response.SerializeAsString();
    if (::send(socket_, data.data(), data.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(data.size())) return {};
    return sys_error("the answer", "cannot be sent");
  }

  /// Tells it of a point of the work and waits for its word. `pid`: 0: none; `fd` goes with it; -1: none.
  Result<void> notify(const char* script, int pid, int fd = -1) const {
    Response message;
    message.set_type(criu_rpc::NOTIFY);
    message.set_success(true);
    message.mutable_notify()->set_script(script);
    if (pid > 0) message.mutable_notify()->set_pid(pid);
    const std::string data = message.SerializeAsString();
    const auto sent = send_with_fds(socket_, as_bytes(data), std::span(&fd, fd < 0 ? 0 : 1));
    if (sent != static_cast<ssize_t>(data.size())) return sys_error("a notification", "cannot be sent");
    CKPT_TRY_ASSIGN(const std::optional<Request> answer, receive());
    if (answer && answer->type() == criu_rpc::NOTIFY && answer->notify_success()) return {};
    return fail(Code::kMismatch, fmt::format("notification {}", script),
                answer ? "the caller refused it" : "the caller has gone away");
  }

 private:
  Peer(int socket, pid_t pid) : socket_(socket), pid_(pid) {}
  int socket_;
  pid_t pid_;
};

/// What a caller of criu's can tell apart.
int errno_of(const Error& error) {
  if (error.sys_errno != 0) return error.sys_errno;
  switch (error.code) {
    case Code::kNotFound:
      return ESRCH;
    case Code::kBusy:
      return EEXIST;
    case Code::kPermission:
      return EPERM;
    case Code::kNoRoom:
      return ENOSPC;
    case Code::kUsage:
    case Code::kUnsupported:
      return EBADRQC;
    case Code::kInterrupted:
      return EINTR;
    default:
      return EIO;
  }
}

void say_no(const Error& error, Response& response) {
  response.set_cr_errno(errno_of(error));
  response.set_cr_errmsg(error.text());
}

class Service {
 public:
  Service(const Peer& peer, const Options& defaults, const Cancel& cancel)
      : peer_(peer), defaults_(defaults), log_(defaults.log_level), cancel_(cancel) {
    log_.keep_off_stderr();  // what is restored may have it for its own
  }

  int run();

 private:
  /// False: there is nothing to go on with.
  bool answer(const Request& request);
  bool answer_folders(const Request& request, Response& response);
  bool capture_for(Task& task, bool pre_dump, Response& response);
  Result<void> check_request(const Request& request) const;
  Result<Task> task_of(const Request& request);

  Peer peer_;
  Options defaults_;
  Log log_;
  const Cancel& cancel_;
  std::vector<std::string> execute_;
};

Result<void> Service::check_request(const Request& request) const {
  CKPT_TRY(check_known(request.unknown_fields(), "criu_req"));
  switch (request.type()) {
    case criu_rpc::PAGE_SERVER:
    case criu_rpc::PAGE_SERVER_CHLD:
      return not_supported("a page server", "images are not sent over the network; copy the folder");
    case criu_rpc::CPUINFO_DUMP:
    case criu_rpc::CPUINFO_CHECK:
      return not_supported("cpuinfo", "a restore checks the processor's abilities");
    case criu_rpc::EMPTY:
    case criu_rpc::NOTIFY:
      return fail(Code::kUsage, "the request", "is not to come now");
    default:
      return {};
  }
}

/// The log is opened on the way, so that it has what is refused after it.
Result<Task> Service::task_of(const Request& request) {
  Task task{defaults_, log_, cancel_, {}, {}};
  CKPT_TRY(take_folders(request.opts(), peer_.pid(), task.options));
  CKPT_TRY(enter_folders(task));
  Options before = task.options;
  CKPT_TRY(take_options(request.opts(), peer_.pid(), request.type() == criu_rpc::RESTORE, task.options));
  CKPT_TRY(apply_config(request.opts().config_file(), task.options));
  const bool elsewhere = before.images_dir != task.options.images_dir || before.work_dir != task.options.work_dir ||
                         before.log_file != task.options.log_file;
  if (elsewhere) CKPT_TRY(enter_folders(task));
  log_.set_level(task.options.log_level);
  // What processes of ckpt's own say there; a job of a shell keeps its descriptors.
  if (!task.options.shell_job) log_.take_stderr();
  if (request.opts().notify_scripts())
    task.notify = [this, restores = request.type() == criu_rpc::RESTORE](const char* action, int pid) {
      return peer_.notify(action, restores ? engine::number_outside(pid) : pid);
    };
  if (task.options.orphan_terminals)
    task.take_master = [this](int master) { return peer_.notify("orphan-pts-master", 0, master); };
  return task;
}

/// In a process of its own, as at the prompt: who kills this one must not leave the target stopped.
bool Service::capture_for(Task& task, bool pre_dump, Response& response) {
  Verdict verdict;
  auto work = [&]() -> int {
    auto done = capture(task, pre_dump);
    if (done) return 0;
    task.log.error(done.error());
    verdict.set(done.error());
    return 1;
  };
  if (run_guarded(work, cancel_) == 0) return true;
  say_no(verdict.get(), response);
  return false;
}

bool Service::answer_folders(const Request& request, Response& response) {
  auto refuse = [&](const Error& error) {
    log_.error(error);
    say_no(error, response);
    return false;
  };
  if (request.type() == criu_rpc::DUMP) response.mutable_dump()->set_restored(false);
  if (request.type() == criu_rpc::RESTORE) response.mutable_restore()->set_pid(-1);
  auto task = task_of(request);
  if (!task) return refuse(task.error());
  if (request.type() != criu_rpc::RESTORE) return capture_for(*task, request.type() != criu_rpc::DUMP, response);
  auto report = restore(*task);
  if (!report) return refuse(report.error());
  response.mutable_restore()->set_pid(report->pid);
  execute_ = task->options.exec_command;
  return true;
}

bool Service::answer(const Request& request) {
  Response response;
  response.set_type(request.type());
  bool done = true;
  if (auto fit = check_request(request); !fit) {
    say_no(fit.error(), response);
    done = false;
  } else if (request.type() == criu_rpc::VERSION) {
    response.mutable_version()->set_major_number(kMajor);
    response.mutable_version()->set_minor_number(kMinor);
    response.mutable_version()->set_sublevel(kSublevel);
  } else if (request.type() == criu_rpc::FEATURE_CHECK) {
    criu_rpc::Features& features = *response.mutable_features();
    features.set_mem_track(request.features().mem_track() && check("mem_dirty_track"));
    features.set_lazy_pages(false);  // not by a second criu
    features.set_pidfd_store(request.features().pidfd_store());
  } else if (request.type() == criu_rpc::CHECK) {
    auto fit_host = check("");
    done = fit_host.has_value();
    if (!done) response.set_cr_errmsg(fit_host.error().text());
  } else if (request.type() == criu_rpc::WAIT_PID) {
    int status = 0;
    done = ::waitpid(static_cast<pid_t>(request.pid()), &status, 0) > 0;
    if (done)
      response.set_status(status);
    else
      response.set_cr_errno(errno);
  } else {
    done = answer_folders(request, response);
  }
  response.set_success(done);
  const auto sent = peer_.send(response);
  if (!sent) log_.error(sent.error());
  return done && sent;
}

/// As criu does: a connection is for one request, unless it is to be kept open, or more are to follow a pre-dump.
int Service::run() {
  for (;;) {
    auto request = peer_.receive();
    if (!request) {
      log_.error(request.error());
      return 1;
    }
    if (!*request) return 0;
    const bool done = answer(**request);
    if (!done) return 1;
    if (!execute_.empty()) break;
    if (!(*request)->keep_open() && (*request)->type() != criu_rpc::PRE_DUMP) return 0;
  }
  std::vector<char*> words;
  for (const std::string& word : execute_) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  restore_signals();
  ::execvp(words[0], words.data());
  return 1;
}

}  // namespace

int serve(int socket, const Options& defaults, const Cancel& cancel) {
  auto peer = Peer::open(socket);
  if (!peer) {
    Log(defaults.log_level).error(peer.error());
    return 1;
  }
  return Service(*peer, defaults, cancel).run();
}

}  // namespace ckpt::cli::criu
