#include "lib/state/namespaces/pids.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace ckpt::state {

namespace {

using store::ProcessImage;
using store::TreeImage;

constexpr size_t kMostLevels = store::kMostPidLevels;
constexpr int kMaxNumber = 1 << 22;  // PID_MAX_LIMIT

/// Of the process's list of namespaces; -1: the first process's.
int pid_namespace_of(const TreeImage& tree, size_t process) {
  for (const int index : tree.processes[process].namespaces) {
    if (tree.namespaces.further[static_cast<size_t>(index)].kind == "pid") return index;
  }
  return -1;
}

bool begins_with(const std::vector<int>& all, const std::vector<int>& first) {
  return first.size() <= all.size() && std::equal(first.begin(), first.end(), all.begin());
}

/// Without the levels at which there is none.
std::vector<int> seen_levels(const std::vector<int>& numbers) {
  return {numbers.begin(), std::find(numbers.begin(), numbers.end(), 0)};
}

int at_level(const std::vector<int>& inner, size_t level) { return level <= inner.size() ? inner[level - 1] : 0; }

}  // namespace

bool has_inner_pids(const TreeImage& tree) {
  const auto& further = tree.namespaces.further;
  return std::any_of(further.begin(), further.end(), [](const auto& one) { return one.kind == "pid"; });
}

std::vector<int> pid_namespaces_above(const store::Namespaces& namespaces, int index) {
  std::vector<int> out;
  for (; index >= 0 && out.size() <= kMostLevels; index = namespaces.further[static_cast<size_t>(index)].parent)
    out.insert(out.begin(), index);
  return out;
}

std::vector<int> pid_namespaces_of(const TreeImage& tree, size_t process) {
  return pid_namespaces_above(tree.namespaces, pid_namespace_of(tree, process));
}

size_t first_in(const TreeImage& tree, int pid_namespace) {
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    if (is_first_inside(tree.processes[i]) && pid_namespace_of(tree, i) == pid_namespace) return i;
  }
  return 0;
}

int own_number_of(const ProcessImage& process, int tid) {
  for (const store::Thread& thread : process.threads) {
    if (thread.tid == tid) return own_number(thread);
  }
  return tid;
}

std::vector<int> inner_numbers_of_leader(const TreeImage& tree, int number) {
  for (const ProcessImage& process : tree.processes) {
    for (const store::Thread& thread : process.threads) {
      if (thread.tid == number) return thread.inner_tids;
    }
  }
  std::vector<int> out;  // whoever is further out than it was knows fewer
  for (const ProcessImage& process : tree.processes) {
    for (const auto& [leader, inner] : {std::pair(process.group, &process.inner_groups),
                                        std::pair(process.session, &process.inner_sessions)}) {
      std::vector<int> levels = leader == number ? seen_levels(*inner) : std::vector<int>();
      if (levels.size() > out.size()) out = std::move(levels);
    }
  }
  return out;
}

int number_seen_by(const TreeImage& tree, size_t viewer, int number) {
  const size_t level = tree.processes[viewer].threads[0].inner_tids.size();
  if (level == 0) return number;
  const std::vector<int> own = pid_namespaces_of(tree, viewer);
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    const ProcessImage& process = tree.processes[i];
    if (!begins_with(pid_namespaces_of(tree, i), own)) continue;
    for (const store::Thread& thread : process.threads) {
      if (thread.tid == number) return at_level(thread.inner_tids, level);
    }
    if (process.group == number && at_level(process.inner_groups, level) != 0)
      return at_level(process.inner_groups, level);
    if (process.session == number && at_level(process.inner_sessions, level) != 0)
      return at_level(process.inner_sessions, level);
  }
  return 0;
}

std::string numbers_in_words(const store::Thread& thread) {
  std::string inner;
  for (const int number : thread.inner_tids) inner += (inner.empty() ? "" : ", ") + std::to_string(number);
  return std::to_string(thread.tid) + (inner.empty() ? "" : " (" + inner + ")");
}

namespace {

Unexpected damaged(const std::string& what) { return fail(Code::kCorrupt, "pid namespaces", what); }

Result<void> validate_levels(const store::Namespaces& namespaces) {
  const auto& further = namespaces.further;
  for (size_t i = 0; i < further.size(); ++i) {
    const int parent = further[i].parent;
    const bool lies_well = parent == -1 || (further[i].kind == "pid" && parent >= 0 &&
                                            static_cast<size_t>(parent) < further.size() &&
                                            further[static_cast<size_t>(parent)].kind == "pid");
    if (!lies_well) return damaged("lie within what they cannot lie within");
  }
  for (size_t i = 0; i < further.size(); ++i) {
    if (pid_namespaces_above(namespaces, static_cast<int>(i)).size() > kMostLevels) return damaged("lie too deep");
    for (const store::MountedFilesystem& filesystem : further[i].mounts.filesystems) {
      const int whose = filesystem.pid_namespace;
      const bool good = whose == -1 || (whose >= 0 && static_cast<size_t>(whose) < further.size() &&
                                        further[static_cast<size_t>(whose)].kind == "pid" && filesystem.type == "proc");
      if (!good) return damaged("have a file system that is none of theirs");
    }
  }
  const auto& own = namespaces.mounts.filesystems;
  if (std::any_of(own.begin(), own.end(), [](const auto& filesystem) { return filesystem.pid_namespace != -1; }))
    return damaged("have a file system of the first process's mounts");
  return {};
}

Result<void> validate_numbers(const ProcessImage& process, size_t levels) {
  auto in_range = [](int number) { return number >= 0 && number <= kMaxNumber; };
  auto good = [&](const std::vector<int>& numbers) {
    return numbers.size() == levels && std::all_of(numbers.begin(), numbers.end(), in_range);
  };
  // Images of trees in one pid namespace do not tell.
  if (!good(process.inner_groups) || !good(process.inner_sessions))
    return damaged("have groups or sessions that are not numbered as they are");
  for (const store::Thread& thread : process.threads) {
    if (!good(thread.inner_tids) || std::count(thread.inner_tids.begin(), thread.inner_tids.end(), 0) != 0)
      return damaged("have threads that are not numbered as they are");
  }
  return {};
}

/// A process comes after its parent, so that of an earlier one is known.
class NumberCheck {
 public:
  explicit NumberCheck(const TreeImage& tree) : tree_(tree) {}

  Result<void> run() {
    for (size_t i = 0; i < tree_.processes.size(); ++i) CKPT_TRY(process(i));
    for (size_t i = 0; i < tree_.namespaces.further.size(); ++i) {
      if (tree_.namespaces.further[i].kind == "pid" && !firsts_.contains(static_cast<int>(i)))
        return damaged("have one without a first process");
    }
    return {};
  }

 private:
  Result<void> process(size_t index) {
    const ProcessImage& image = tree_.processes[index];
    if (image.threads.empty()) return damaged("have a process without threads");
    const std::vector<int> above = pid_namespaces_of(tree_, index);
    CKPT_TRY(validate_numbers(image, above.size()));
    for (const store::Thread& thread : image.threads) {
      for (size_t level = 0; level < above.size(); ++level) {
        if (!seen_.emplace(above[level], thread.inner_tids[level]).second)
          return damaged("have two threads of one number");
      }
    }
    const auto parent = by_pid_.find(image.parent_pid);
    const std::vector<int>* whose = parent == by_pid_.end() ? nullptr : &parent->second;
    if (index != 0 && (whose == nullptr || !begins_with(above, *whose)))
      return damaged("have a process whose parent is in another one");
    if (is_first_inside(image)) {
      const bool first = !image.zombie && whose != nullptr && whose->size() + 1 == above.size();
      if (!first || !firsts_.insert(above.back()).second) return damaged("have a first process that is none");
    }
    by_pid_.emplace(image.pid, above);
    return for_children(image, above);
  }

  Result<void> for_children(const ProcessImage& image, const std::vector<int>& above) const {
    const int next = image.pid_for_children;
    if (next == -1) return {};
    const bool is_one = next >= 0 && static_cast<size_t>(next) < tree_.namespaces.further.size() &&
                        tree_.namespaces.further[static_cast<size_t>(next)].kind == "pid";
    if (!is_one) return damaged("have a process whose children are born nowhere");
    const std::vector<int> theirs = pid_namespaces_above(tree_.namespaces, next);
    const bool below = theirs.size() > above.size() && begins_with(theirs, above) && image.threads.size() == 1;
    return below ? Result<void>() : damaged("have a process whose children are born elsewhere than they can be");
  }

  const TreeImage& tree_;
  std::map<int, std::vector<int>> by_pid_;
  std::set<std::pair<int, int>> seen_;  ///< namespace and number
  std::set<int> firsts_;
};

}  // namespace

Result<void> validate_pid_namespaces(const TreeImage& tree) {
  CKPT_TRY(validate_levels(tree.namespaces));
  if (has_inner_pids(tree)) return NumberCheck(tree).run();
  for (const ProcessImage& process : tree.processes) {
    CKPT_TRY(validate_numbers(process, 0));
    if (process.pid_for_children != -1) return damaged("have a process whose children are born nowhere");
  }
  return {};
}

}  // namespace ckpt::state

namespace ckpt::restore {

namespace {

using store::ProcessImage;

/// Whether processes come to the sessions and groups that they were in: those without a number in a process's own pid
/// namespace it can only be born in (state/tree/restore.cpp).
class BirthCheck {
 public:
  BirthCheck(const store::TreeImage& tree, Reasons& reasons) : tree_(tree), reasons_(reasons) {}

  void run() {
    for (size_t i = 0; i < tree_.processes.size(); ++i) by_pid_.emplace(tree_.processes[i].pid, i);
    groups_.resize(tree_.processes.size()), born_.resize(tree_.processes.size());
    for (size_t i = 0; i < tree_.processes.size(); ++i) look_at(i);
  }

 private:
  void look_at(size_t index) {
    const ProcessImage& process = tree_.processes[index];
    const auto found = by_pid_.find(process.parent_pid);
    const ProcessImage* parent = index == 0 || found == by_pid_.end() ? nullptr : &tree_.processes[found->second];
    const size_t levels = process.threads[0].inner_tids.size();
    if (state::inner_numbers_of_leader(tree_, process.group).size() > levels)
      add(process, "is in a process group whose leader is, or was, in a further pid namespace");
    if (levels == 0 || parent == nullptr) return;
    const bool enters = parent->threads[0].inner_tids.size() != levels;
    groups_[index] = enters ? parent->group : groups_[found->second];
    born_[index] = enters ? parent->session : born_[found->second];
    const bool own_group = process.inner_groups.back() != 0;
    if (!own_group && process.group != groups_[index])
      add(process, "is in a process group of an outer pid namespace that its parent was not in");
    if (enters && process.session != process.pid && process.session != parent->session)
      add(process, "is in a session of an outer pid namespace that its parent has left");
    const bool own_session = process.inner_sessions.back() != 0;
    if (!enters && !own_session && process.session != born_[index] && !is_entered_from(process.session, index))
      add(process, "is in a session of an outer pid namespace that its parent was not in");
    if (enters && process.session == process.pid) look_at_children(process, *parent);
  }

  /// Whether somebody of a session further out is in the process's pid namespace: the process is made through that one.
  bool is_entered_from(int session, size_t process) const {
    const std::vector<int> where = state::pid_namespaces_of(tree_, process);
    for (size_t i = 1; i < tree_.processes.size(); ++i) {
      const ProcessImage& other = tree_.processes[i];
      const auto parent = by_pid_.find(other.parent_pid);
      if (i == process || other.session != session || parent == by_pid_.end()) continue;
      const ProcessImage& outer = tree_.processes[parent->second];
      if (outer.session == session && outer.threads[0].inner_tids.size() != where.size() &&
          state::pid_namespaces_of(tree_, i) == where)
        return true;
    }
    return false;
  }

  /// Those that were born before it began its session.
  void look_at_children(const ProcessImage& process, const ProcessImage& parent) {
    for (const ProcessImage& child : tree_.processes) {
      const bool before = child.parent_pid == process.pid && child.session != process.pid &&
                          child.session != child.pid && !by_pid_.contains(child.session);
      if (before && child.session != parent.session)
        add(child, "is in a session of an outer pid namespace that its parent has left");
    }
  }

  void add(const ProcessImage& process, const char* what) {
    reasons_.add(Code::kUnsupported, fmt::format("process {} {}: not supported", process.pid, what));
  }

  const store::TreeImage& tree_;
  Reasons& reasons_;
  std::map<int, size_t> by_pid_;
  std::vector<int> groups_, born_;  ///< by process: the group and the session in which it is born
};

/// What a descriptor tells of a process by a number that its holder does not have for it.
void check_descriptors(const store::TreeImage& tree, Reasons& reasons) {
  for (const store::Descriptor& descriptor : tree.descriptors) {
    if (descriptor.fds.empty()) continue;
    const auto holder = static_cast<size_t>(descriptor.fds[0].process);
    const bool is_pidfd = descriptor.kind == store::DescriptorKind::kPidfd;
    const int handle = is_pidfd ? tree.process_handles[static_cast<size_t>(descriptor.object)].pid : 0;
    const std::string who = fmt::format("process {}, descriptor {}", tree.processes[holder].pid, descriptor.fds[0].fd);
    if (handle > 0 && state::number_seen_by(tree, holder, handle) == 0)
      reasons.add(Code::kUnsupported,
                  fmt::format("{}: a pidfd of process {}, of an outer pid namespace: not supported", who, handle));
    const int owner = descriptor.owner_pid;
    const bool lives = std::any_of(tree.processes.begin(), tree.processes.end(), [&](const ProcessImage& process) {
      return process.group == owner ||
             std::any_of(process.threads.begin(), process.threads.end(), [&](const auto& t) { return t.tid == owner; });
    });
    if (lives && owner != 0 && state::number_seen_by(tree, holder, owner) == 0)
      reasons.add(Code::kUnsupported,
                  fmt::format("{}: its owner (F_SETOWN) {} is of an outer pid namespace: not supported", who, owner));
  }
}

}  // namespace

void check_pid_namespaces(const store::TreeImage& tree, Reasons& reasons) {
  if (!state::has_inner_pids(tree)) return;
  if (tree.namespaces.has("user"))
    reasons.add(Code::kUnsupported,
                "pid namespaces within the first process's, in a user namespace, are not supported");
  BirthCheck(tree, reasons).run();
  check_descriptors(tree, reasons);
}

}  // namespace ckpt::restore
