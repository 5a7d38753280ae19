#include "lib/state/namespaces/maker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/state/cgroups/restore.h"
#include "lib/state/namespaces/clocks.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/tree/seed.h"

namespace ckpt::restore {

namespace {

struct MadeKind {
  const char* name;
  int flag;
};
constexpr MadeKind kOwned[] = {{"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC},   {"uts", CLONE_NEWUTS},
                               {"pid", CLONE_NEWPID}, {"time", CLONE_NEWTIME}, {"cgroup", CLONE_NEWCGROUP}};
constexpr int kEnteredByCkpt = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;

/// What the helper says after each of its steps, and is then told to go on from.
struct MakerAnswer {
  int error = 0;
  pid_t init = 0;
};

class NamespaceHelper {
 public:
  NamespaceHelper(const store::TreeImage& tree, const MakerOrders& orders) : tree_(tree), orders_(orders) {}
  NamespaceHelper(const NamespaceHelper&) = delete;
  NamespaceHelper& operator=(const NamespaceHelper&) = delete;
  ~NamespaceHelper() {
    channel_.reset();  // it ends with it
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  Result<MakerWork> run(ProgressSink& progress) {
    MakerWork out;
    UniqueFd seeds_end;
    if (orders_.plants) {
      CKPT_TRY_ASSIGN(seeds_end, open_seed_channel());
    }
    CKPT_TRY(start(std::move(seeds_end)));
    if (makes("cgroup") && orders_.moves) CKPT_TRY(move_to_groups(progress));
    CKPT_TRY(await("user namespace"));
    if (makes_user()) CKPT_TRY(write_maps());
    CKPT_TRY(await("namespaces"));
    if (owns("time")) CKPT_TRY(state::set_clocks_of_children(tree_.namespaces.clocks, pid_));
    CKPT_TRY_ASSIGN(out.init, await("process 1"));
    auto held = hold(out);
    if (!held && out.init != 0) ::kill(out.init, SIGKILL);
    CKPT_TRY(std::move(held));
    return out;
  }

 private:
  bool makes(const char* kind) const { return orders_.make.count(kind) != 0; }
  bool makes_user() const { return makes("user"); }
  bool has_user() const { return makes_user() || orders_.user >= 0; }
  bool owns(const char* kind) const {
    if (!makes(kind) || !has_user()) return false;
    for (const std::string& own : tree_.namespaces.user.owns) {
      if (own == kind) return true;
    }
    return false;
  }
  int owned_flags() const {
    int out = 0;
    for (const MadeKind& kind : kOwned) out |= owns(kind.name) ? kind.flag : 0;
    return out;
  }

  Result<void> start(UniqueFd seeds_end) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      return sys_error("", "cannot make a pair of sockets");
    UniqueFd ours(ends[0]), theirs(ends[1]);
    pid_ = ::fork();
    if (pid_ < 0) return fork_error(errno, "", "cannot make a process");
    if (pid_ == 0) {
      ours.reset();
      channel_ = std::move(theirs);
      serve(seeds_end.get());
    }
    channel_ = std::move(ours);
    return {};
  }

  /// Lets the helper take its next step. Where it has planted process 1: that.
  Result<pid_t> await(const char* what) {
    MakerAnswer answer;
    if (::send(channel_.get(), "", 1, MSG_NOSIGNAL) != 1 ||
        ::recv(channel_.get(), &answer, sizeof answer, 0) != sizeof answer)
      answer.error = ECHILD;
    if (answer.error != 0) return sys_error(answer.error, what, "cannot be made");
    return answer.init;
  }

  /// So that these are "/" of the new control group namespace.
  Result<void> move_to_groups(ProgressSink& progress) {
    CKPT_TRY_ASSIGN(CgroupMounts mounts, CgroupMounts::find());
    mounts.rearrange(orders_.cgroups, tree_.root().cgroups);
    join_cgroups(mounts, pid_, tree_.namespaces.cgroup_roots, progress);
    return {};
  }

  Result<void> write_maps() const {
    const store::UserNamespace& user = tree_.namespaces.user;
    const std::string folder = fmt::format("/proc/{}/", pid_);
    auto write = [&](const char* name, const std::string& text) -> Result<void> {
      if (text.empty()) return {};
      CKPT_TRY_ASSIGN(const UniqueFd file, io::open_file(folder + name, O_WRONLY));
      return io::write_all(file.get(), as_bytes(text), name);
    };
    // The kernel takes this before the map only.
    if (user.denies_setgroups) CKPT_TRY(write("setgroups", "deny"));
    CKPT_TRY(write("uid_map", state::id_map_text(user.uids)));
    return write("gid_map", state::id_map_text(user.gids));
  }

  Result<void> hold(MakerWork& out) const {
    const std::string folder = fmt::format("/proc/{}/ns/", pid_);
    if (makes_user()) {
      CKPT_TRY_ASSIGN(out.user, io::open_file(folder + "user", O_RDONLY));
    }
    if (makes("cgroup")) {
      CKPT_TRY_ASSIGN(out.cgroup, io::open_file(folder + "cgroup", O_RDONLY));
    }
    if (owns("time")) {
      CKPT_TRY_ASSIGN(out.clocks, io::open_file(folder + "time_for_children", O_RDONLY));
    }
    CKPT_TRY(enter(pid_, owned_flags() & kEnteredByCkpt));
    return out.init != 0 ? enter(out.init, CLONE_NEWPID) : Result<void>();
  }

  static Result<void> enter(pid_t whose, int flags) {
    if (flags == 0) return {};
    const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, whose, 0)));
    if (!pidfd || ::setns(pidfd.get(), flags) != 0) return sys_error("namespaces", "cannot be entered");
    return {};
  }

  // From here on: in the helper.

  /// False: there is nothing more to do.
  bool wait_for_word() const {
    char byte;
    ssize_t got;
    while ((got = ::recv(channel_.get(), &byte, 1, 0)) < 0 && errno == EINTR) {
    }
    return got == 1;
  }
  void answer(bool done, pid_t init = 0) const {
    const MakerAnswer answer{done ? 0 : errno, init};
    (void)::send(channel_.get(), &answer, sizeof answer, MSG_NOSIGNAL);
    if (!done) ::_exit(1);
  }

  /// As who made the namespace, with all capabilities all the same. Raw calls: there are no threads.
  bool take_identity() const {
    const store::Thread& first = tree_.root().threads[0];
    const uint32_t uid = tree_.namespaces.user.owner, gid = first.gid[0];
    return ::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) == 0 &&
           ::syscall(SYS_setgroups, first.groups.size(), first.groups.data()) == 0 &&
           ::syscall(SYS_setresgid, gid, gid, gid) == 0 && ::syscall(SYS_setresuid, uid, uid, uid) == 0;
  }

  bool enter_user_namespace() const {
    if (!has_user()) return true;
    if (!take_identity()) return false;
    const bool there =
        makes_user() ? ::unshare(CLONE_NEWUSER) == 0 : ::setns(orders_.user, CLONE_NEWUSER) == 0;
    // Its memory is ckpt's, and who has its ids outside has all capabilities inside.
    return there && ::prctl(PR_SET_DUMPABLE, 0) == 0;
  }

  [[noreturn]] void serve(int seeds_end) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
    if (!wait_for_word()) ::_exit(0);
    const bool before = makes("cgroup") && !owns("cgroup");
    const int joined = state::tree_cgroup_namespace();
    answer((joined < 0 || ::setns(joined, CLONE_NEWCGROUP) == 0) && (!before || ::unshare(CLONE_NEWCGROUP) == 0) &&
           enter_user_namespace());
    if (!wait_for_word()) ::_exit(0);
    const int flags = owned_flags();
    answer(flags == 0 || ::unshare(flags) == 0);
    if (!wait_for_word()) ::_exit(0);
    if (!orders_.plants) {
      answer(true);
    } else {
      auto planted = plant_seed(UniqueFd(seeds_end), true);
      if (!planted && errno == 0) errno = EAGAIN;
      answer(planted.has_value(), planted ? *planted : 0);
    }
    (void)wait_for_word();
    ::_exit(0);
  }

  const store::TreeImage& tree_;
  const MakerOrders& orders_;
  UniqueFd channel_;
  pid_t pid_ = -1;
};

}  // namespace

Result<MakerWork> make_by_helper(const store::TreeImage& tree, const MakerOrders& orders, ProgressSink& progress) {
  return NamespaceHelper(tree, orders).run(progress);
}

}  // namespace ckpt::restore
