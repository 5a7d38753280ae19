#include "lib/state/tree/restore.h"

#include <fmt/format.h>
#include <linux/keyctl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <set>

#include "lib/base/io.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/namespaces/pids.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/terminals/restore.h"

namespace ckpt::restore {

namespace {

using store::ProcessImage;

constexpr int kOutside = 0;  ///< a session that ckpt is in, and that the tree did not make
constexpr int kAny = -1;

struct Sharing {
  int ProcessImage::*owner;
  uint64_t flag;
};
constexpr Sharing kSharing[] = {
    {&ProcessImage::memory_of, CLONE_VM},
    {&ProcessImage::descriptors_of, CLONE_FILES},
    {&ProcessImage::fs_of, CLONE_FS},
    {&ProcessImage::sighand_of, CLONE_SIGHAND},
};

int owner_of(const ProcessImage& image, size_t index, int ProcessImage::*owner) {
  return image.*owner < 0 ? static_cast<int>(index) : image.*owner;
}

}  // namespace

/// What is half built ends, children before their parents; ckpt adopts their zombies, so that no number stays taken.
/// After a release there is nothing left to end.
Tree::~Tree() {
  if (released_) return;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  helpers_.clear();
  end_all();
  for (const ProcessImage& process : image_.processes) ::waitpid(process.pid, nullptr, WNOHANG | __WALL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

int Tree::index_of(int pid) const {
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    if (image_.processes[i].pid == pid) return static_cast<int>(i);
  }
  return -1;
}

/// The session of a process as it is to be made: one that ckpt is in itself, or whose leader had a terminal in the
/// tree, is that of ckpt. Number 0 is of another pid namespace.
int Tree::session_to_make(const ProcessImage& p) const {
  const bool is_ckpts = p.session == ::getsid(0) || p.terminal != 0;
  return p.session == 0 || (p.outside_session && is_ckpts) ? kOutside : p.session;
}

/// The session that a process must be born in. Its own comes later; then only its children tell what it was before.
int Tree::needed_session(size_t process) const {
  const ProcessImage& p = image_.processes[process];
  if (p.session != p.pid) return session_to_make(p);
  for (const ProcessImage& child : image_.processes) {
    const bool born_before = child.parent_pid == p.pid && child.session != p.pid && child.session != child.pid;
    if (born_before && index_of(child.session) < 0) return session_to_make(child);
  }
  return kAny;
}

/// A session cannot be entered, only be born into. So a root that was in one whose leader is not of the tree is made by
/// a helper that begins it, as its sibling.
Result<void> Tree::make_root(RestorerArea& area, Child::Parent parent) {
  const ProcessImage& root = image_.root();
  const int needed = needed_session(0);
  session_[0] = needed > 0 ? needed : kOutside;
  if (needed <= 0) {
    CKPT_TRY_ASSIGN(Child made, Child::create(root.pid, area, parent));
    CKPT_TRY(leave_keyring(made));
    children_[0].emplace(std::move(made));
    return {};
  }
  if (parent == Child::Parent::kCallers) {
    return fail(Code::kUnsupported, fmt::format("process {}", root.pid),
                "was in a session whose leader is not of the tree: it cannot become a child of ckpt's caller");
  }
  CKPT_TRY_ASSIGN(Helper * helper,
                  add_helper(needed, -1, [&](const Numbers& numbers) {
                    return Child::create(numbers.all.front(), area, parent);
                  }));
  CKPT_TRY(leave_keyring(helper->child));
  SyscallBatch batch;
  batch.add("begin a session", SYS_setsid);
  CKPT_TRY(helper->child.run(batch));
  CKPT_TRY_ASSIGN(Child made, helper->child.fork(root.pid, CLONE_PARENT, 0));
  made.take_stand_in(helper->child);
  children_[0].emplace(std::move(made));
  return {};
}

/// The keys in a session's keyring are at the hand of whatever is in the session, whoever it runs as: those of ckpt's
/// user are not for processes of others. All processes of the tree come from this one, and have its keyring.
Result<void> Tree::leave_keyring(Child& child) {
  const uid_t own = ::geteuid();
  auto is_others = [own](const store::Thread& t) {
    return std::any_of(t.uid.begin(), t.uid.end(), [own](uint32_t uid) { return uid != own; });
  };
  if (std::none_of(image_.processes.begin(), image_.processes.end(), [&](const ProcessImage& p) {
        return std::any_of(p.threads.begin(), p.threads.end(), is_others);
      }))
    return {};
  SyscallBatch batch;
  batch.try_add("begin a session keyring", SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0);
  CKPT_TRY(child.run(batch));
  const int64_t result = batch.calls()[0].result;
  // Kernels without keyrings, and filters that keep them away: there are no keys then.
  if (result >= 0 || result == -ENOSYS || result == -EPERM || result == -EACCES) return {};
  return batch.failure(0);
}

/// Those of the tree that ckpt itself is not in: before others are made, which are born in them. A root that was born
/// in its user namespace has been given the others there, but for mounts.
Result<void> Tree::enter_namespaces() {
  const state::TreeUser* user = state::tree_user();
  const bool by_birth = user != nullptr && user->birth;
  SyscallBatch batch;
  if (state::tree_mount_namespace() >= 0 && (!by_birth || user->owns("mnt")))
    batch.add("enter the mount namespace", SYS_setns, state::tree_mount_namespace(), CLONE_NEWNS);
  if (state::tree_cgroup_namespace() >= 0 && !by_birth)
    batch.add("enter the control group namespace", SYS_setns, state::tree_cgroup_namespace(), CLONE_NEWCGROUP);
  return children_[0]->run(batch);
}

namespace {

/// Without CAP_SYS_ADMIN the kernel takes one such write in 100 ms, of all users.
Result<void> write_autogroup(int pid, const std::string& nice) {
  constexpr int kTries = 50;
  constexpr timespec kPause{0, 20'000'000};
  auto written = io::write_file(fmt::format("/proc/{}/autogroup", pid), nice);
  for (int i = 1; i < kTries && !written && written.error().sys_errno == EAGAIN; ++i) {
    ::nanosleep(&kPause, nullptr);
    written = io::write_file(fmt::format("/proc/{}/autogroup", pid), nice);
  }
  return written;
}

}  // namespace

/// The kernel makes a group of its own for the scheduler of each session that begins.
void Tree::weigh_sessions() {
  std::set<int> done;
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    const ProcessImage& p = image_.processes[i];
    if (!children_[i] || session_[i] <= 0 || !done.insert(session_[i]).second || p.autogroup_nice == 0) continue;
    const std::string nice = std::to_string(p.autogroup_nice);
    if (auto written = write_autogroup(p.pid, nice); !written)
      progress_.note(fmt::format("process {}: the nice value of its session's autogroup stays 0, not {}: {}", p.pid,
                                 nice, written.error().text()));
  }
}

Result<void> Tree::make(RestorerArea& area, Child::Parent parent_of_root) {
  CKPT_TRY(make_root(area, parent_of_root));
  CKPT_TRY(enter_namespaces());
  CKPT_TRY(started(0));
  for (;;) {
    CKPT_TRY(create_deferred());
    CKPT_TRY(join_groups());
    if (entries_.empty()) break;
    CKPT_TRY(create_inner());
  }
  CKPT_TRY(leave_to_inner());
  weigh_sessions();
  CKPT_TRY(give_terminals());
  return end_helpers();
}

/// The children that can be made by their parent: those of its old session, then, once it leads one, those of its own.
Result<void> Tree::grow(size_t process) {
  const ProcessImage& p = image_.processes[process];
  const bool leads = p.session == p.pid;
  const bool has_children = std::any_of(image_.processes.begin(), image_.processes.end(),
                                        [&](const ProcessImage& other) { return other.parent_pid == p.pid; });
  if (has_children && before_children_) CKPT_TRY(before_children_(process, *children_[process]));
  std::vector<size_t> late;
  for (size_t i = process + 1; i < image_.processes.size(); ++i) {
    if (image_.processes[i].parent_pid != p.pid) continue;
    if (enters(i)) {
      entries_.push_back(i);
      continue;
    }
    const int needed = needed_session(i);
    if (needed == session_[process] || (needed == kAny && !leads)) CKPT_TRY(create(i, process, false));
    else late.push_back(i);
  }
  if (leads) {
    SyscallBatch batch;
    batch.add("begin a session", SYS_setsid);
    if (auto terminal = terminals_.find(p.pid); terminal != terminals_.end())
      take_controlling_terminal(terminal->second, batch);
    CKPT_TRY(children_[process]->run(batch));
    session_[process] = p.pid;
  }
  for (size_t i : late) {
    const int needed = needed_session(i);
    if (needed == session_[process] || needed == kAny) CKPT_TRY(create(i, process, false));
    else deferred_.push_back(i);
  }
  return {};
}

/// `as_sibling`: the creator is not the parent, but has the same one.
Result<void> Tree::create(size_t process, size_t creator, bool as_sibling) {
  const ProcessImage& p = image_.processes[process];
  uint64_t flags = 0;
  for (const Sharing& sharing : kSharing) {
    const int owner = p.*sharing.owner;
    if (owner < 0) continue;
    flags |= sharing.flag;
    if (owner_of(image_.processes[creator], creator, sharing.owner) == owner) continue;
    const auto sibling = static_cast<size_t>(owner);
    if (as_sibling || !children_[sibling] || image_.processes[sibling].parent_pid != p.parent_pid) {
      return fail(Code::kUnsupported, fmt::format("process {}", p.pid),
                  fmt::format("shares memory, descriptors, folders or handlers with process {}, which is neither its "
                              "parent nor its sibling",
                              image_.processes[sibling].pid));
    }
    return create(process, sibling, true);
  }
  if (as_sibling) flags |= CLONE_PARENT;
  CKPT_TRY_ASSIGN(Child child, fork_into(process, creator, flags, as_sibling ? 0 : p.exit_signal));
  children_[process].emplace(std::move(child));
  session_[process] = session_[creator];
  return started(process);
}

Result<void> Tree::started(size_t process) {
  const ProcessImage& p = image_.processes[process];
  if (p.child_subreaper) {  // now, since orphans may be needed below it
    SyscallBatch batch;
    batch.add("adopt orphans", SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    CKPT_TRY(children_[process]->run(batch));
  }
  return grow(process);
}

/// What was born in a session that its parent never was in: an orphan that the parent adopted.
Result<void> Tree::create_deferred() {
  while (!deferred_.empty()) {
    std::vector<size_t> pending;
    pending.swap(deferred_);
    bool moved = false;
    for (size_t process : pending) {
      CKPT_TRY_ASSIGN(bool made, create_by_another(process));
      if (made) moved = true;
      else deferred_.push_back(process);
    }
    if (moved || deferred_.empty()) continue;
    // Nobody of that session is left but those that wait: its leader has ended.
    const size_t process = deferred_.front();
    deferred_.erase(deferred_.begin());
    CKPT_TRY(create_through_helper(process));
  }
  return {};
}

Result<bool> Tree::create_by_another(size_t process) {
  const ProcessImage& p = image_.processes[process];
  const int needed = needed_session(process);
  const std::vector<int> where = state::pid_namespaces_of(image_, process);
  auto in_session = [&](size_t i) {
    return children_[i] && session_[i] == needed && state::pid_namespaces_of(image_, i) == where;
  };
  for (size_t i = 1; i < image_.processes.size(); ++i) {
    if (!in_session(i) || image_.processes[i].parent_pid != p.parent_pid) continue;
    CKPT_TRY(create(process, i, true));
    return true;
  }
  if (auto helper = helpers_.find(needed); helper != helpers_.end() && helper->second.parent == parent_index(process)) {
    CKPT_TRY(create_through_helper(process));
    return true;
  }
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    if (!in_session(i)) continue;
    CKPT_TRY(create_through_intermediate(process, i));
    return true;
  }
  return false;
}

/// `make` gets the numbers; where the first is taken, one from the upper end that no process of the tree will want.
Result<Child> Tree::make_helper(const Numbers& numbers, const Making& make) {
  const int number = numbers.all.front();
  auto made = make(numbers);
  if (made || made.error().code != Code::kBusy) return made;
  const std::string holder = holder_of(number);
  auto is_wanted = [&](int candidate) {
    return std::any_of(image_.processes.begin(), image_.processes.end(), [&](const ProcessImage& p) {
      return p.group == candidate || p.session == candidate ||
             std::any_of(p.threads.begin(), p.threads.end(),
                         [&](const store::Thread& thread) { return thread.tid == candidate; });
    });
  };
  auto limit = io::read_file("/proc/sys/kernel/pid_max", 64);
  constexpr int kTries = 1000;
  int other = limit ? std::atoi(limit->c_str()) : 32768;
  for (int i = 0; i < kTries; ++i) {
    for (--other; is_wanted(other);) --other;
    Numbers others = numbers;
    others.all.front() = other;
    auto again = make(others);
    if (!again && again.error().code == Code::kBusy) continue;
    if (again)
      progress_.note(
          fmt::format("session or process group {} cannot be made again, for that number is taken by {}: it is {} here",
                      number, holder, other));
    return again;
  }
  return made;
}

Result<Tree::Helper*> Tree::add_helper(int number, int parent, const Making& make) {
  CKPT_TRY_ASSIGN(Child child, make_helper({number, state::inner_numbers_of_leader(image_, number)}, make));
  auto [place, is_new] = helpers_.emplace(number, Helper{std::move(child), parent});
  return &place->second;
}

/// A stand-in for the dead leader of the session, with its number, as a sibling of the process.
Result<void> Tree::create_through_helper(size_t process) {
  const ProcessImage& p = image_.processes[process];
  const int parent = parent_index(process), needed = needed_session(process);
  if (parent < 0 || !children_[static_cast<size_t>(parent)])
    return fail(Code::kBug, fmt::format("process {}", p.pid), "has no parent");
  auto known = helpers_.find(needed);
  Helper* helper = known != helpers_.end() ? &known->second : nullptr;
  if (helper == nullptr) {
    // CLONE_PARENT below hands its exit signal on; the SIGCHLD of its own end is dropped with those of other helpers.
    const int exit_signal = p.exit_signal == SIGCHLD ? SIGCHLD : 0;
    CKPT_TRY_ASSIGN(helper, add_helper(needed, parent, [&](const Numbers& numbers) {
                      return children_[static_cast<size_t>(parent)]->fork(numbers, 0, exit_signal);
                    }));
    SyscallBatch batch;
    batch.add("begin a session", SYS_setsid);
    CKPT_TRY(helper->child.run(batch));
  }
  CKPT_TRY_ASSIGN(Child child, helper->child.fork(numbers_of(process), CLONE_PARENT, 0));
  children_[process].emplace(std::move(child));
  session_[process] = needed;
  return started(process);
}

/// The session's other processes are elsewhere in the tree: one of them makes the process through a child that ends,
/// and the next adopter above takes it, as it once did.
Result<void> Tree::create_through_intermediate(size_t process, size_t creator) {
  const ProcessImage& p = image_.processes[process];
  CKPT_TRY_ASSIGN(Child between, children_[creator]->fork(spare_inner_numbers(creator), 0, 0));
  CKPT_TRY_ASSIGN(Child child, between.fork(numbers_of(process), 0, p.exit_signal));
  children_[process].emplace(std::move(child));
  session_[process] = session_[creator];
  CKPT_TRY(between.end(SIGKILL));
  CKPT_TRY(reap(*children_[creator], between));
  CKPT_TRY_ASSIGN(int parent, children_[process]->parent());
  if (parent != p.parent_pid) {
    return fail(Code::kUnsupported, fmt::format("process {}", p.pid),
                fmt::format("became a child of {} and not of {}, its parent", parent, p.parent_pid));
  }
  return started(process);
}

Result<void> Tree::reap(Child& parent, const Child& ended) {
  SyscallBatch batch;
  batch.add("reap a helper", SYS_wait4, ended.numbers()[parent.numbers().size() - 1], 0, __WALL, 0);
  return parent.run(batch);
}

/// In ckpt's own session the groups outside the tree are left as they are, and the process stays in ckpt's.
bool is_outside_group(const ProcessImage& p, int session) { return p.outside_group && session == kOutside; }

/// A group is begun by its leader, or, where that has ended, by a helper of its number in the same session.
Result<void> Tree::join_groups() {
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    const ProcessImage& p = image_.processes[i];
    if (!children_[i] || p.group != p.pid || p.session == p.pid) continue;
    SyscallBatch batch;
    batch.add("begin a process group", SYS_setpgid, 0, 0);
    CKPT_TRY(children_[i]->run(batch));
  }
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    const ProcessImage& p = image_.processes[i];
    if (!children_[i] || p.group == p.pid || p.group == 0 || is_outside_group(p, session_[i])) continue;
    CKPT_TRY(join_group(i));
  }
  return {};
}

Result<void> Tree::join_group(size_t process) {
  const ProcessImage& p = image_.processes[process];
  Child& child = *children_[process];
  // A group without a number where the process is: it was born in it.
  if (!p.inner_groups.empty() && p.inner_groups.back() == 0) return {};
  if (index_of(p.group) < 0 && helpers_.count(p.group) == 0) {
    CKPT_TRY_ASSIGN(Helper * helper, add_helper(p.group, static_cast<int>(process),
                                                [&](const Numbers& numbers) { return child.fork(numbers, 0, 0); }));
    SyscallBatch batch;
    batch.add("begin a process group", SYS_setpgid, 0, 0);
    CKPT_TRY(helper->child.run(batch));
  }
  SyscallBatch batch;
  batch.add("join a process group", SYS_setpgid, 0, seen_by(process, p.group));
  return child.run(batch);
}

/// Who of a session has left its terminal, and which group is in the foreground.
Result<void> Tree::give_terminals() {
  for (const auto& [session, slave] : terminals_) {
    for (size_t i = 0; i < image_.processes.size(); ++i) {
      const ProcessImage& p = image_.processes[i];
      if (session_[i] != session) continue;
      SyscallBatch batch;
      if (p.terminal == 0 && p.pid != session && !p.zombie) give_up_controlling_terminal(slave, batch);
      if (p.pid == session) {
        for (const store::Terminal& terminal : image_.terminals) {
          if (terminal.session == session)
            set_foreground_group(seen_by(i, terminal.foreground), slave, children_[i]->area(), batch);
        }
      }
      CKPT_TRY(children_[i]->run(batch));
    }
  }
  return {};
}

Result<void> Tree::end_helpers() {
  for (auto& [number, helper] : helpers_) {
    CKPT_TRY(helper.child.end(SIGKILL));
    if (helper.parent >= 0) CKPT_TRY(reap(*children_[static_cast<size_t>(helper.parent)], helper.child));
  }
  helpers_.clear();
  return {};
}

namespace {

/// As numbers of where it was born.
std::pair<std::array<uint32_t, 4>, std::array<uint32_t, 4>> ids_of_zombie(const store::Thread& thread) {
  auto uid = thread.uid, gid = thread.gid;
  const state::TreeUser* user = state::tree_user();
  if (user == nullptr || !user->birth) return {uid, gid};
  constexpr uint32_t kUnchanged = ~0u;
  for (uint32_t& id : uid) id = state::id_inside(user->what.uids, id).value_or(kUnchanged);
  for (uint32_t& id : gid) id = state::id_inside(user->what.gids, id).value_or(kUnchanged);
  return {uid, gid};
}

}  // namespace

Result<void> Tree::end_zombies() {
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    const ProcessImage& p = image_.processes[i];
    if (!p.zombie) continue;
    Child& child = *children_[i];
    SyscallBatch batch;
    batch.add("name a process", SYS_prctl, PR_SET_NAME, child.area().put_string(p.threads[0].comm), 0, 0, 0);
    const auto [uid, gid] = ids_of_zombie(p.threads[0]);
    batch.try_add("set the group ids", SYS_setresgid, gid[0], gid[1], gid[2]);
    batch.try_add("set the user ids", SYS_setresuid, uid[0], uid[1], uid[2]);
    CKPT_TRY(child.run(batch));
    CKPT_TRY(child.end(p.exit_status));
    children_[i].reset();
  }
  return {};
}

}  // namespace ckpt::restore
