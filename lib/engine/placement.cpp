#include "lib/engine/placement.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>

#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/pid_namespace.h"
#include "lib/proc/procfs.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/mounts/restore.h"
#include "lib/state/namespaces/clocks.h"
#include "lib/state/namespaces/maker.h"
#include "lib/state/namespaces/restore.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/tree/seed.h"
#include "lib/state/validate.h"

namespace ckpt::engine {

namespace {

struct Kind {
  const char* name;
  int flag;
};
// The mount namespace of a container may be out of reach from another user's, and is entered by the processes alone.
constexpr Kind kKinds[] = {{"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC}, {"uts", CLONE_NEWUTS},
                           {"mnt", CLONE_NEWNS},  {"pid", CLONE_NEWPID}, {"cgroup", CLONE_NEWCGROUP},
                           {"time", CLONE_NEWTIME}, {"user", CLONE_NEWUSER}};

bool is_known(const std::string& kind) {
  return std::any_of(std::begin(kKinds), std::end(kKinds), [&](const Kind& known) { return kind == known.name; });
}

bool is_own(const std::string& path) {
  struct stat ours {
  }, theirs{};
  const std::string kind = path.substr(path.rfind('/') + 1);
  return ::stat(path.c_str(), &theirs) == 0 && ::stat(("/proc/self/ns/" + kind).c_str(), &ours) == 0 &&
         ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

Result<void> join_all_of(int pid, NamespacePlan& plan) {
  if (auto stat = proc::read_stat(pid); !stat || stat->is_zombie())
    return fail(Code::kNotFound, fmt::format("--into {}", pid), "no such process");
  if (!is_own(fmt::format("/proc/{}/ns/time", pid)))
    return fail(Code::kUnsupported, fmt::format("--into {}", pid),
                "is in a time namespace of its own, which is not supported");
  for (const Kind& kind : kKinds) {
    const std::string path = fmt::format("/proc/{}/ns/{}", pid, kind.name);
    if (kind.flag != CLONE_NEWTIME && !is_own(path)) plan.join[kind.name] = path;
  }
  return {};
}

/// Capabilities of the image are of the user namespace that its processes were in: they are given in such a one only.
Result<void> check_user(const store::Namespaces& namespaces, const NamespacePlan& plan) {
  const bool had = namespaces.has("user");
  if (!had && plan.join.count("user") != 0)
    return fail(Code::kUnsupported, "the image", "is of processes that were not in a user namespace of their own");
  if (!had) return {};
  if (!plan.has_user()) {
    return fail(Code::kUnsupported, "the image",
                "is of processes in a user namespace of their own, and where they are to go has none");
  }
  const std::vector<std::string>& owns = namespaces.user.owns;
  const bool owns_pids = std::find(owns.begin(), owns.end(), "pid") != owns.end();
  if (owns_pids && plan.make.count("pid") != 0 && !plan.makes_init) {
    return Error(Code::kUnsupported, "the image",
                 "is of a process beside process 1 in a pid namespace of its user namespace, which is not made anew")
        .with_hint("--into PID restores it into those of a running process");
  }
  const bool owns_mounts = std::find(owns.begin(), owns.end(), "mnt") != owns.end();
  if (owns_pids && plan.makes_init && (plan.join.count("mnt") != 0 || (plan.make.count("mnt") != 0 && !owns_mounts)))
    return fail(Code::kUnsupported, "the image",
                "is of process 1 of its user namespace, which may not enter a mount namespace that is not of that");
  return {};
}

}  // namespace

Result<NamespacePlan> plan_namespaces(const store::Manifest& manifest, const Placement& placement) {
  const store::TreeImage& tree = manifest.tree;
  NamespacePlan out;
  for (const auto& [kind, path] : placement.join) {
    if (!is_known(kind) || kind == "time")
      return fail(Code::kUsage, "--join-ns " + kind, "is no kind of namespace that can be joined");
    out.join[kind] = path;
  }
  if (placement.into != 0) CKPT_TRY(join_all_of(placement.into, out));
  for (const std::string& kind : tree.namespaces.own) {
    if (out.join.find(kind) != out.join.end()) continue;
    // Of clocks there is no joining: those of ckpt and of a process to join are the same, or it was refused.
    const bool is_unknown = kind == "cgroup" && tree.namespaces.cgroup_roots.empty();  // an older image
    if ((placement.into == 0 || kind == "time") && !is_unknown) out.make[kind] = true;
  }
  out.makes_init = out.make.count("pid") != 0 && tree.root().pid == 1;
  if (tree.root().pid == 1 && !out.makes_init) {
    return fail(Code::kUnsupported, "the image",
                "is of process 1 of a pid namespace, which can be restored into a new one only");
  }
  CKPT_TRY(check_user(tree.namespaces, out));
  CKPT_TRY(restore::check_namespaces(tree.namespaces, out.make.count("net") != 0, placement.network));
  if (out.make.count("mnt") != 0) {
    CKPT_TRY(state::validate_mounts(tree.namespaces.mounts));
    CKPT_TRY(state::plan_mounts(tree.namespaces.mounts, placement.mounts));
  } else if (!placement.mounts.root.empty() || !placement.mounts.external.empty()) {
    return fail(Code::kUsage, "--root, --external", "are of a mount namespace that is made, and none is");
  }
  out.boot_id = manifest.host.boot_id;
  out.makes_further = !tree.namespaces.further.empty();
  CKPT_TRY(restore::check_further(tree, out.join.count("mnt") != 0));
  return out;
}

namespace {

/// The ids of the image are those of outside: in a namespace with other maps they would be others inside.
Result<void> join_user(const std::string& path, const store::UserNamespace& wanted) {
  state::TreeUser user;
  CKPT_TRY_ASSIGN(user.handle, io::open_file(path, O_RDONLY));
  CKPT_TRY_ASSIGN(user.what, state::read_id_maps(user.handle.get()));
  if (user.what.uids != wanted.uids || user.what.gids != wanted.gids)
    return fail(Code::kMismatch, path, "has other id maps than the user namespace of the image");
  user.what.owns = wanted.owns;
  state::set_tree_user(std::move(user));
  return {};
}

Result<void> join(const NamespacePlan& plan, const store::Namespaces& namespaces, int& pid_namespace) {
  if (plan.join.count("mnt") == 0 && plan.make.count("mnt") == 0) {
    // The worker's own is a copy, which shows another /proc.
    CKPT_TRY_ASSIGN(UniqueFd root, io::open_file("/", O_PATH | O_DIRECTORY));
    CKPT_TRY_ASSIGN(UniqueFd handle, io::open_file("/proc/self/ns/mnt", O_RDONLY));
    state::set_tree_root(std::move(root), std::move(handle));
  }
  for (const auto& [kind, path] : plan.join) {
    if (kind == "user") {
      CKPT_TRY(join_user(path, namespaces.user));
      continue;
    }
    if (kind == "cgroup") {
      CKPT_TRY_ASSIGN(UniqueFd handle, io::open_file(path, O_RDONLY));
      state::set_tree_cgroup_namespace(std::move(handle));
      continue;
    }
    if (kind == "mnt") {
      CKPT_TRY_ASSIGN(state::MountNamespace mounts, state::open_mount_namespace(path));
      state::set_tree_root(std::move(mounts.root), std::move(mounts.handle));
      continue;
    }
    CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_RDONLY));
    const auto flag = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return kind == k.name; });
    if (::setns(fd.get(), flag->flag) != 0) return sys_error(path, "cannot be joined");
    if (kind == "pid") pid_namespace = 1;
  }
  return {};
}

/// Until the children are made that are to be in a new time namespace: this process is in another one then than they
/// will be, and can have no threads.
class OwnClocks {
 public:
  /// `made`: there is one already.
  static Result<OwnClocks> leave(const NamespacePlan& plan, const store::Clocks& clocks, const UniqueFd& made) {
    OwnClocks out;
    if (plan.make.count("time") == 0) return out;
    CKPT_TRY_ASSIGN(out.own_, io::open_file("/proc/self/ns/time", O_RDONLY));
    if (made) {
      if (::setns(made.get(), CLONE_NEWTIME) != 0) return sys_error("time namespace", "cannot be entered");
      return out;
    }
    if (::unshare(CLONE_NEWTIME) != 0) return sys_error("time namespace", "cannot be made");
    CKPT_TRY(state::set_clocks_of_children(clocks));
    return out;
  }
  OwnClocks(OwnClocks&&) = default;
  OwnClocks& operator=(OwnClocks&&) = delete;
  ~OwnClocks() { come_back(); }
  /// In such a child.
  void forget() { own_.reset(); }
  void come_back() {
    if (own_) (void)::setns(own_.get(), CLONE_NEWTIME);
    own_.reset();
  }

 private:
  OwnClocks() = default;
  UniqueFd own_;
};

/// Belongs to the user namespace of the image, which makes it.
bool is_users(const NamespacePlan& plan, const store::Namespaces& namespaces, const std::string& kind) {
  const std::vector<std::string>& owns = namespaces.user.owns;
  return plan.has_user() && std::find(owns.begin(), owns.end(), kind) != owns.end();
}

/// Those of ckpt's own user namespace.
Result<void> make(const NamespacePlan& plan, const store::Namespaces& namespaces) {
  constexpr int kMadeHere = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
  int flags = 0;
  for (const Kind& kind : kKinds) {
    const bool is_made = plan.make.count(kind.name) != 0 && !is_users(plan, namespaces, kind.name);
    if (is_made) flags |= kind.flag & kMadeHere;
  }
  if (flags != 0 && ::unshare(flags) != 0) return sys_error("namespaces", "cannot be made");
  return {};
}

/// What ckpt must not be in, or what is made in a user namespace. What is for the tree's processes alone is kept for
/// them.
Result<restore::MakerWork> make_apart(const NamespacePlan& plan, const Placement& placement,
                                      const store::TreeImage& tree, ProgressSink& progress) {
  restore::MakerOrders orders;
  for (const auto& [kind, yes] : plan.make) {
    const bool apart = kind == "user" || kind == "cgroup" || (kind != "mnt" && is_users(plan, tree.namespaces, kind));
    if (apart) orders.make[kind] = yes;
  }
  if (orders.make.empty()) return restore::MakerWork();
  orders.plants = plan.makes_init && orders.make.count("pid") != 0;
  if (orders.plants && placement.sibling)
    return fail(Code::kUnsupported, "the image",
                "is of process 1 of a user namespace, which cannot become a child of ckpt's caller");
  orders.moves = !placement.dry_run, orders.cgroups = placement.cgroups;
  const state::TreeUser* joined = state::tree_user();
  state::TreeUser user;
  if (joined != nullptr) {
    user.handle = UniqueFd(::fcntl(joined->handle.get(), F_DUPFD_CLOEXEC, 3));
    if (!user.handle) return sys_error("user namespace", "cannot be held on to");
    orders.user = user.handle.get();
  }
  CKPT_TRY_ASSIGN(restore::MakerWork made, restore::make_by_helper(tree, orders, progress));
  if (made.cgroup) state::set_tree_cgroup_namespace(std::move(made.cgroup));
  if (joined == nullptr) user.handle = std::move(made.user);
  if (!user.handle) return made;  // a control group namespace alone
  user.what = tree.namespaces.user;
  const store::Thread& first = tree.root().threads[0];
  if (orders.plants) user.birth = state::Birth{user.what.owner, first.gid[0], first.groups};
  state::set_tree_user(std::move(user));
  return made;
}

/// Where the other ends of veths are made: for a dry run where nobody sees them.
Result<std::optional<state::Outside>> outside_of(const NamespacePlan& plan, const Placement& placement) {
  const bool elsewhere = placement.dry_run && plan.make.count("net") != 0;
  if (elsewhere && ::unshare(CLONE_NEWNET) != 0) return sys_error("network namespace", "cannot be made");
  CKPT_TRY_ASSIGN(state::Outside out, state::Outside::here());
  return std::optional<state::Outside>(std::move(out));
}

int highest_number(const store::TreeImage& tree) {
  int out = 0;
  for (const auto& process : tree.processes) {
    for (const auto& thread : process.threads) out = std::max(out, thread.tid);
  }
  return out;
}

/// In a child, which is the first to be where its numbers count: ckpt's own processes leave the image's free.
void step_over(const store::TreeImage& tree) {
  const pid_t scout = ::fork();
  if (scout == 0) ::_exit(number_processes_above(highest_number(tree)) ? 0 : 1);
  if (scout > 0) ::waitpid(scout, nullptr, 0);
}

int tell(const Error& error) {
  std::fprintf(stderr, "ckpt: %s\n", error.text().c_str());
  if (!error.hint.empty()) std::fprintf(stderr, "hint: %s\n", error.hint.c_str());
  return exit_code(error.code);
}

/// In the worker, which nobody inside may trace without CAP_SYS_PTRACE: its root is not that of the container.
Result<void> settle_in(const NamespacePlan& plan, const store::TreeImage& tree, const Placement& placement,
                       state::Outside& outside) {
  ::prctl(PR_SET_DUMPABLE, 0);
  // While /proc and what lies on it are still those of ckpt's caller.
  state::MountOptions mounts = placement.mounts;
  mounts.dry_run = placement.dry_run;
  if (plan.make.count("mnt") != 0) {
    CKPT_TRY_ASSIGN(state::MountNamespace made,
                    restore::make_mount_namespace(tree.namespaces.mounts, plan.boot_id, mounts));
    state::set_tree_root(std::move(made.root), std::move(made.handle));
  }
  CKPT_TRY(restore::make_further(tree, plan.boot_id, placement.dry_run));
  CKPT_TRY(mount_own_proc());
  if (plan.makes_init) CKPT_TRY(number_processes_above(highest_number(tree)));
  state::NetworkOptions network = placement.network;
  for (auto& [inside, end] : network.ends) {
    if (placement.dry_run) end.bridge.clear();  // which is not where the other end is made then
  }
  CKPT_TRY(restore::fill_namespaces(tree, plan.make, network, &outside));
  return restore::fill_further(tree);
}

/// Process 1 of a new pid namespace, there before the worker that makes the others. Held by a pidfd: its number is
/// another's once its parent, who need not be ckpt, has reaped it. It ends with this, unless it is released.
class PlantedInit {
 public:
  PlantedInit() = default;
  PlantedInit(PlantedInit&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)), sibling_(other.sibling_), held_(std::move(other.held_)) {}
  PlantedInit& operator=(PlantedInit&& other) noexcept {
    end();
    pid_ = std::exchange(other.pid_, 0), sibling_ = other.sibling_, held_ = std::move(other.held_);
    return *this;
  }
  ~PlantedInit() { end(); }
  static Result<PlantedInit> plant(bool sibling) {
    CKPT_TRY_ASSIGN(UniqueFd channel, restore::open_seed_channel());
    if (::unshare(CLONE_NEWPID) != 0) return sys_error("pid namespace", "cannot be made");
    CKPT_TRY_ASSIGN(const pid_t seed, restore::plant_seed(std::move(channel), sibling));
    return hold(seed, sibling);
  }
  static Result<PlantedInit> hold(pid_t seed, bool sibling) {
    PlantedInit out;
    out.pid_ = seed, out.sibling_ = sibling;
    out.held_.reset(static_cast<int>(::syscall(SYS_pidfd_open, out.pid_, 0)));
    if (out.held_) return out;
    const Error error = sys_error("process 1", "cannot be held on to");
    ::kill(out.pid_, SIGKILL);
    return error;
  }
  /// 0: there is none.
  int pid() const { return pid_; }
  /// In a child that is not to hold it.
  void forget() { held_.reset(), pid_ = 0; }
  int release() { return std::exchange(pid_, 0); }
  void end() {
    if (pid_ == 0) return;
    if (held_) (void)::syscall(SYS_pidfd_send_signal, held_.get(), SIGKILL, nullptr, 0);
    if (!sibling_) ::waitpid(pid_, nullptr, __WALL);
    pid_ = 0;
  }

 private:
  int pid_ = 0;
  bool sibling_ = false;
  UniqueFd held_;
};

/// Runs `inside` in a child and gives its exit code; `made` is called once there is one. What `inside` leaves where it
/// does not return 0 ends.
Result<Placed> run_worker(PlantedInit init, bool detach, const std::function<int()>& inside,
                          const std::function<void()>& made) {
  const sigset_t old = block_relayed_signals();
  const pid_t worker = ::fork();
  if (worker < 0) {
    Error error = fork_error(errno, "", "cannot make a process");
    sigprocmask(SIG_SETMASK, &old, nullptr);
    return error;
  }
  if (worker == 0) {
    init.forget();
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigprocmask(SIG_SETMASK, &old, nullptr);
    const int code = inside();
    std::fflush(nullptr);
    ::_exit(code);
  }
  made();
  const int code = relay_signals(worker);
  sigprocmask(SIG_SETMASK, &old, nullptr);
  constexpr int kEndedBySignal = 128;
  // One that was killed may have let go of it; otherwise it ends with its tracer, or as a seed with this process.
  const bool was_killed = detach && code == kEndedBySignal + SIGKILL;
  if (code != 0 && !was_killed) init.end();
  return Placed{code, init.release()};
}

}  // namespace

Result<Placed> run_placed(const NamespacePlan& plan, const Placement& placement, const store::TreeImage& tree,
                          const std::function<int()>& work, ProgressSink& progress) {
  std::fflush(nullptr);
  CKPT_TRY(restore::validate(tree));  // id maps, too: namespaces are made by what it says
  CKPT_TRY(remember_outer_proc());
  CKPT_TRY_ASSIGN(std::optional<state::Outside> outside, outside_of(plan, placement));
  int joins_pids = 0;
  CKPT_TRY(join(plan, tree.namespaces, joins_pids));
  CKPT_TRY(make(plan, tree.namespaces));
  CKPT_TRY_ASSIGN(restore::MakerWork made, make_apart(plan, placement, tree, progress));
  PlantedInit init;
  if (made.init != 0) {
    CKPT_TRY_ASSIGN(init, PlantedInit::hold(made.init, placement.sibling));
  }
  CKPT_TRY_ASSIGN(OwnClocks own_clocks, OwnClocks::leave(plan, tree.namespaces.clocks, made.clocks));
  auto inside = [&]() -> int {
    own_clocks.forget();
    auto settled = settle_in(plan, tree, placement, *outside);
    outside.reset();  // nothing that leads out of them goes with what is made
    return settled ? work() : tell(settled.error());
  };
  if (plan.make.count("pid") != 0 && !plan.makes_init) {
    PidNamespaceOptions apart;
    apart.highest = highest_number(tree), apart.detach = placement.detach;
    CKPT_TRY_ASSIGN(const int code, run_in_pid_namespace(apart, inside));
    return Placed{code, 0};
  }
  if (plan.makes_init && init.pid() == 0) {
    CKPT_TRY_ASSIGN(init, PlantedInit::plant(placement.sibling));
  }
  if (joins_pids != 0 || plan.makes_init) step_over(tree);
  return run_worker(std::move(init), placement.detach, inside, [&] { own_clocks.come_back(); });
}

}  // namespace ckpt::engine
