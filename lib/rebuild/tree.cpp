#include "lib/rebuild/tree.h"

#include <fmt/format.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "lib/rebuild/terminals.h"

namespace ckpt::rebuild {

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
    {&ProcessImage::folders_of, CLONE_FS},
    {&ProcessImage::handlers_of, CLONE_SIGHAND},
};

int owner_of(const ProcessImage& image, size_t index, int ProcessImage::*owner) {
  return image.*owner < 0 ? static_cast<int>(index) : image.*owner;
}

}  // namespace

/// What is half built ends, children before their parents; ckpt adopts their zombies, so that no number stays taken. After
/// a release there is nothing left to end.
Tree::~Tree() {
  if (released_) return;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  helpers_.clear();
  while (!children_.empty()) children_.pop_back();
  for (const ProcessImage& process : image_.processes) ::waitpid(process.pid, nullptr, WNOHANG | __WALL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

int Tree::index_of(int pid) const {
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    if (image_.processes[i].pid == pid) return static_cast<int>(i);
  }
  return -1;
}

/// The session that a process must be born in. Its own comes later; then only its children tell what it was before.
int Tree::needed_session(size_t process) const {
  const ProcessImage& p = image_.processes[process];
  auto session_of = [](const ProcessImage& image) { return image.outside_session ? kOutside : image.session; };
  if (p.session != p.pid) return session_of(p);
  for (const ProcessImage& child : image_.processes) {
    const bool born_before = child.parent_pid == p.pid && child.session != p.pid && child.session != child.pid;
    if (born_before && index_of(child.session) < 0) return session_of(child);
  }
  return kAny;
}

Result<void> Tree::make(Scratch& scratch, Child::Parent parent_of_root) {
  CKPT_TRY_ASSIGN(Child root, Child::create(image_.root().pid, scratch, parent_of_root));
  children_[0].emplace(std::move(root));
  session_[0] = kOutside;
  CKPT_TRY(grow(0));
  CKPT_TRY(create_deferred());
  CKPT_TRY(join_groups());
  CKPT_TRY(give_terminals());
  return end_helpers();
}

/// The children that can be made by their parent: those of its old session, then, once it leads one, those of its own.
Result<void> Tree::grow(size_t process) {
  const ProcessImage& p = image_.processes[process];
  const bool leads = p.session == p.pid;
  std::vector<size_t> late;
  for (size_t i = process + 1; i < image_.processes.size(); ++i) {
    if (image_.processes[i].parent_pid != p.pid) continue;
    const int needed = needed_session(i);
    if (needed == session_[process] || (needed == kAny && !leads)) CKPT_TRY(create(i, process, false));
    else late.push_back(i);
  }
  if (leads) {
    Script script;
    script.add("begin a session", SYS_setsid);
    if (auto terminal = terminals_.find(p.pid); terminal != terminals_.end()) take_controlling_terminal(terminal->second, script);
    CKPT_TRY(children_[process]->run(script));
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
  CKPT_TRY_ASSIGN(Child child, children_[creator]->fork(p.pid, flags, as_sibling ? 0 : p.exit_signal));
  children_[process].emplace(std::move(child));
  session_[process] = session_[creator];
  return started(process);
}

Result<void> Tree::started(size_t process) {
  const ProcessImage& p = image_.processes[process];
  if (p.child_subreaper) {  // now, since orphans may be needed below it
    Script script;
    script.add("adopt orphans", SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    CKPT_TRY(children_[process]->run(script));
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
  auto in_session = [&](size_t i) { return children_[i] && session_[i] == needed; };
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

Result<Tree::Helper*> Tree::add_helper(int number, size_t parent) {
  CKPT_TRY_ASSIGN(Child child, children_[parent]->fork(number, 0, 0));
  auto [place, is_new] = helpers_.emplace(number, Helper{std::move(child), static_cast<int>(parent)});
  return &place->second;
}

/// A stand-in for the dead leader of the session, with its number, as a sibling of the process.
Result<void> Tree::create_through_helper(size_t process) {
  const ProcessImage& p = image_.processes[process];
  const int parent = parent_index(process);
  if (parent < 0 || !children_[static_cast<size_t>(parent)]) return fail(Code::kBug, fmt::format("process {}", p.pid), "has no parent");
  auto known = helpers_.find(p.session);
  Helper* helper = known != helpers_.end() ? &known->second : nullptr;
  if (helper == nullptr) {
    CKPT_TRY_ASSIGN(helper, add_helper(p.session, static_cast<size_t>(parent)));
    Script script;
    script.add("begin a session", SYS_setsid);
    CKPT_TRY(helper->child.run(script));
  }
  CKPT_TRY_ASSIGN(Child child, helper->child.fork(p.pid, CLONE_PARENT, 0));
  children_[process].emplace(std::move(child));
  session_[process] = p.session;
  return started(process);
}

/// The session's other processes are elsewhere in the tree: one of them makes the process through a child that ends, and
/// the next adopter above takes it, as it once did.
Result<void> Tree::create_through_intermediate(size_t process, size_t creator) {
  const ProcessImage& p = image_.processes[process];
  CKPT_TRY_ASSIGN(Child between, children_[creator]->fork(0, 0, 0));
  CKPT_TRY_ASSIGN(Child child, between.fork(p.pid, 0, p.exit_signal));
  children_[process].emplace(std::move(child));
  session_[process] = session_[creator];
  const int gone = between.pid();
  CKPT_TRY(between.end(SIGKILL));
  CKPT_TRY(reap(*children_[creator], gone));
  CKPT_TRY_ASSIGN(int parent, children_[process]->parent());
  if (parent != p.parent_pid) {
    return fail(Code::kUnsupported, fmt::format("process {}", p.pid),
                fmt::format("became a child of {} and not of {}, its parent", parent, p.parent_pid));
  }
  return started(process);
}

Result<void> Tree::reap(Child& parent, int pid) {
  Script script;
  script.add("reap a helper", SYS_wait4, pid, 0, __WALL, 0);
  return parent.run(script);
}

/// A group is begun by its leader, or, where that has ended, by a helper of its number in the same session.
Result<void> Tree::join_groups() {
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    const ProcessImage& p = image_.processes[i];
    if (p.group != p.pid || p.session == p.pid) continue;
    Script script;
    script.add("begin a process group", SYS_setpgid, 0, 0);
    CKPT_TRY(children_[i]->run(script));
  }
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    const ProcessImage& p = image_.processes[i];
    if (p.group == p.pid || p.outside_group) continue;
    if (index_of(p.group) < 0 && helpers_.count(p.group) == 0) {
      CKPT_TRY_ASSIGN(Helper* helper, add_helper(p.group, i));
      Script script;
      script.add("begin a process group", SYS_setpgid, 0, 0);
      CKPT_TRY(helper->child.run(script));
    }
    Script script;
    script.add("join a process group", SYS_setpgid, 0, p.group);
    CKPT_TRY(children_[i]->run(script));
  }
  return {};
}

/// Who of a session has left its terminal, and which group is in the foreground.
Result<void> Tree::give_terminals() {
  for (const auto& [session, slave] : terminals_) {
    for (size_t i = 0; i < image_.processes.size(); ++i) {
      const ProcessImage& p = image_.processes[i];
      if (session_[i] != session) continue;
      Script script;
      if (p.terminal == 0 && p.pid != session && !p.zombie) give_up_controlling_terminal(slave, script);
      if (p.pid == session) {
        for (const store::Terminal& terminal : image_.terminals) {
          if (terminal.session == session) set_foreground_group(terminal, slave, children_[i]->scratch(), script);
        }
      }
      CKPT_TRY(children_[i]->run(script));
    }
  }
  return {};
}

Result<void> Tree::end_helpers() {
  for (auto& [number, helper] : helpers_) {
    CKPT_TRY(helper.child.end(SIGKILL));
    CKPT_TRY(reap(*children_[static_cast<size_t>(helper.parent)], number));
  }
  helpers_.clear();
  return {};
}

Result<void> Tree::end_zombies() {
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    const ProcessImage& p = image_.processes[i];
    if (!p.zombie) continue;
    Child& child = *children_[i];
    Script script;
    script.add("name a process", SYS_prctl, PR_SET_NAME, child.scratch().put_string(p.threads[0].comm), 0, 0, 0);
    script.try_add("set the group ids", SYS_setresgid, p.threads[0].gid[0], p.threads[0].gid[1], p.threads[0].gid[2]);
    script.try_add("set the user ids", SYS_setresuid, p.threads[0].uid[0], p.threads[0].uid[1], p.threads[0].uid[2]);
    CKPT_TRY(child.run(script));
    CKPT_TRY(child.end(p.exit_status));
    children_[i].reset();
  }
  return {};
}

}  // namespace ckpt::rebuild
