// Processes in pid namespaces within that of the first one. A process is in one from its birth, as its first process or
// as a child of somebody who has entered it for that: what is born there comes once everything further out stands in
// its sessions and groups, which have no number there.
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "lib/state/namespaces/pids.h"
#include "lib/state/tree/restore.h"

namespace ckpt::restore {

using store::ProcessImage;

namespace {

int innermost(const store::TreeImage& tree, size_t process) {
  const std::vector<int> all = state::pid_namespaces_of(tree, process);
  return all.empty() ? -1 : all.back();
}

}  // namespace

Numbers Tree::numbers_of(size_t process) const {
  const store::Thread& leader = image_.processes[process].threads[0];
  return {leader.tid, leader.inner_tids};
}

/// That its parent is not in.
bool Tree::enters(size_t process) const {
  const int parent = parent_index(process);
  return parent >= 0 && image_.processes[process].threads[0].inner_tids.size() !=
                            image_.processes[static_cast<size_t>(parent)].threads[0].inner_tids.size();
}

bool Tree::is_there(int pid_namespace) const { return children_[state::first_in(image_, pid_namespace)].has_value(); }

/// The first processes, and those that others have put there, once those are there.
Result<void> Tree::create_inner() {
  std::vector<size_t> pending;
  pending.swap(entries_);
  while (!pending.empty()) {
    const size_t before = pending.size();
    std::vector<size_t> later;
    for (const size_t process : pending) {
      const bool can_be = state::is_first_inside(image_.processes[process]) || is_there(innermost(image_, process));
      if (!can_be) later.push_back(process);
      else CKPT_TRY(create(process, static_cast<size_t>(parent_index(process)), false));
    }
    pending.swap(later);
    if (pending.size() != before) continue;
    // Its pid namespace lies in one that comes in the next turn.
    entries_.insert(entries_.end(), pending.begin(), pending.end());
    return entries_.size() > before ? Result<void>()
                                    : fail(Code::kBug, "process " + std::to_string(image_.processes[pending[0]].pid),
                                           "is in a pid namespace that nobody makes");
  }
  return {};
}

/// The kernel gives out numbers above all that the tree has there, to threads of its own before these are made, too.
Result<void> Tree::step_over_inner(Child& first) const {
  const size_t level = first.numbers().size() - 2;
  int highest = 1;
  auto look = [&](const std::vector<int>& inner) {
    if (level < inner.size()) highest = std::max(highest, inner[level]);
  };
  for (const ProcessImage& process : image_.processes) {
    look(process.inner_groups), look(process.inner_sessions);
    for (const store::Thread& thread : process.threads) look(thread.inner_tids);
  }
  const std::string number = std::to_string(highest);
  SyscallBatch open;
  open.try_add("open the last number", SYS_open, first.area().put_string("/proc/sys/kernel/ns_last_pid"),
               O_WRONLY | O_CLOEXEC, 0);
  CKPT_TRY(first.run(open));
  const int64_t file = open.calls()[0].result;
  if (file < 0) return {};  // a kernel without CONFIG_CHECKPOINT_RESTORE
  SyscallBatch write;
  write.try_add("set the last number", SYS_write, file, first.area().put_string(number), number.size());
  write.add("close the last number", SYS_close, file);
  return first.run(write);
}

Result<Child> Tree::fork_into(size_t process, size_t creator, uint64_t flags, int exit_signal) {
  Child& maker = *children_[creator];
  const Numbers numbers = numbers_of(process);
  const int where = innermost(image_, process);
  if (where == innermost(image_, creator)) return maker.fork(numbers, flags, exit_signal);
  if (state::is_first_inside(image_.processes[process])) {
    CKPT_TRY_ASSIGN(Child made, maker.fork(numbers, flags | CLONE_NEWPID, exit_signal));
    CKPT_TRY(step_over_inner(made));
    return made;
  }
  const int first = image_.processes[state::first_in(image_, where)].pid;
  CKPT_TRY(maker.enter_pid_namespace(seen_by(creator, first)));
  CKPT_TRY_ASSIGN(Child made, maker.fork(numbers, flags, exit_signal));
  CKPT_TRY(maker.enter_pid_namespace(maker.numbers().back()));
  return made;
}

/// Whose next children are born further in.
Result<void> Tree::leave_to_inner() {
  for (size_t i = 0; i < image_.processes.size(); ++i) {
    const int where = image_.processes[i].pid_for_children;
    if (where < 0 || !children_[i]) continue;
    const int first = image_.processes[state::first_in(image_, where)].pid;
    CKPT_TRY(children_[i]->enter_pid_namespace(seen_by(i, first)));
  }
  return {};
}

/// Below the number that ckpt knows it by, which is any: numbers that nobody of the tree has or will want.
Numbers Tree::spare_inner_numbers(size_t process) const {
  const std::vector<int>& like = image_.processes[process].threads[0].inner_tids;
  if (like.empty()) return 0;
  std::set<int> taken;
  for (const ProcessImage& p : image_.processes) {
    for (const store::Thread& thread : p.threads) taken.insert(thread.inner_tids.begin(), thread.inner_tids.end());
    taken.insert(p.inner_groups.begin(), p.inner_groups.end());
    taken.insert(p.inner_sessions.begin(), p.inner_sessions.end());
  }
  int spare = 2;
  while (taken.contains(spare)) ++spare;
  return Numbers::innermost(std::vector<int>(like.size(), spare));
}

int Tree::seen_by(size_t viewer, int number) const {
  const auto helper = helpers_.find(number);
  if (helper == helpers_.end()) return state::number_seen_by(image_, viewer, number);
  const std::vector<int>& numbers = helper->second.child.numbers();
  const size_t level = children_[viewer]->numbers().size() - 1;
  return level < numbers.size() ? numbers[level] : 0;
}

/// Children before their parents. The first process of a pid namespace ends last, once all in it have been waited for:
/// by another first process, too, which does so only when it ends itself. So all of these are killed before any is
/// waited for.
void Tree::end_all() {
  std::vector<size_t> firsts;
  for (size_t i = children_.size(); i-- > 0;) {
    if (!children_[i]) continue;
    if (state::is_first_inside(image_.processes[i])) firsts.push_back(i);
    else children_[i].reset();
  }
  for (const ProcessImage& process : image_.processes) {
    if (!firsts.empty()) ::waitpid(process.pid, nullptr, WNOHANG | __WALL);
  }
  std::stable_sort(firsts.begin(), firsts.end(), [&](size_t a, size_t b) {
    return image_.processes[a].threads[0].inner_tids.size() > image_.processes[b].threads[0].inner_tids.size();
  });
  for (const size_t first : firsts) {
    if (const int pid = children_[first]->pid(); pid > 1) ::kill(pid, SIGKILL);
  }
  for (const size_t first : firsts) children_[first].reset();
  children_.clear();
}

}  // namespace ckpt::restore
