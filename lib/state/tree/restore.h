// The processes of a tree: created with their old numbers, each by its parent where that is possible, in the sessions
// and process groups that they were in. They stand still, with nothing else set up.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "lib/base/progress.h"
#include "lib/state/tree/child.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// A session or group whose leader has ended needs somebody of that number for as long as members join: helpers, which
/// end before `make` returns. Where the number is taken (members that are not of the tree may live on) it gets another
/// one, which is said. Dropping it at any time ends every process that was made.
class Tree {
 public:
  /// `terminals`: an inherited descriptor of the slave, by session, of those that have a terminal of the tree; filled
  /// in before `make`.
  Tree(const store::TreeImage& image, const std::map<int, int>& terminals, ProgressSink& progress)
      : image_(image), terminals_(terminals), progress_(progress), children_(image.processes.size()) {}
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  ~Tree();

  /// Called for each process that has children, before it makes the first.
  void before_children(std::function<Result<void>(size_t process, Child& child)> prepare) {
    before_children_ = std::move(prepare);
  }

  /// kBusy: a process's number is taken; kUnsupported: relations that cannot be made again.
  Result<void> make(RestorerArea& area, Child::Parent parent_of_root);
  /// Zombies end now, as they did. Their parents must not have their actions yet.
  Result<void> end_zombies();

  /// Null: a zombie that has ended.
  Child* child(size_t process) { return children_[process] ? &*children_[process] : nullptr; }
  /// The processes are on their own now: nothing here ends them any more.
  void released() { released_ = true; }

 private:
  struct Helper {
    Child child;
    int parent;  ///< index of the process that must reap it; -1: ckpt
  };
  using Making = std::function<Result<Child>(const Numbers&)>;

  Result<void> make_root(RestorerArea& area, Child::Parent parent);
  Result<void> leave_keyring(Child& child);
  Result<void> enter_namespaces();
  Result<void> grow(size_t process);
  Result<void> create(size_t process, size_t creator, bool as_sibling);
  Result<void> create_deferred();
  Result<bool> create_by_another(size_t process);
  Result<void> create_through_helper(size_t process);
  Result<void> create_through_intermediate(size_t process, size_t creator);
  Result<void> started(size_t process);
  Result<Helper*> add_helper(int number, int parent, const Making& make);
  Result<Child> make_helper(const Numbers& numbers, const Making& make);
  Result<void> join_groups();
  Result<void> join_group(size_t process);
  // Of pid namespaces within that of the first process (inner.cpp).
  bool enters(size_t process) const;
  bool is_there(int pid_namespace) const;
  Result<void> create_inner();
  Result<Child> fork_into(size_t process, size_t creator, uint64_t flags, int exit_signal);
  Result<void> step_over_inner(Child& first) const;
  Result<void> leave_to_inner();
  Numbers numbers_of(size_t process) const;
  Numbers spare_inner_numbers(size_t process) const;
  int seen_by(size_t viewer, int number) const;
  void end_all();
  void weigh_sessions();
  Result<void> give_terminals();
  Result<void> end_helpers();
  Result<void> reap(Child& parent, const Child& ended);
  int session_to_make(const store::ProcessImage& p) const;
  int needed_session(size_t process) const;
  int index_of(int pid) const;
  int parent_index(size_t process) const { return index_of(image_.processes[process].parent_pid); }

  const store::TreeImage& image_;
  const std::map<int, int>& terminals_;
  ProgressSink& progress_;
  std::vector<std::optional<Child>> children_;
  std::map<int, Helper> helpers_;   ///< by the image's number, which it may not have got
  std::map<size_t, int> session_;   ///< of what exists, as it is now
  std::vector<size_t> deferred_;
  std::vector<size_t> entries_;  ///< what is born in a pid namespace that its parent is not in
  std::function<Result<void>(size_t, Child&)> before_children_;
  bool released_ = false;
};

}  // namespace ckpt::restore
