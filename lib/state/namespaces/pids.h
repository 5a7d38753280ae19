// Pid namespaces within that of a tree's first process. Its processes are known by the numbers that the first one knows
// them by; what a process in a further one is asked, or asks itself, goes by its own numbers.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::state {

/// Whether there are any.
bool has_inner_pids(const store::TreeImage& tree);
/// Indices into Namespaces::further, the outermost first; empty: the first process's pid namespace alone.
std::vector<int> pid_namespaces_of(const store::TreeImage& tree, size_t process);
/// The same of a pid namespace, itself the last; -1: none.
std::vector<int> pid_namespaces_above(const store::Namespaces& namespaces, int index);
/// Index of the process that is number 1 there.
size_t first_in(const store::TreeImage& tree, int pid_namespace);

/// In the innermost pid namespace that it is in.
inline int own_number(const store::Thread& thread) {
  return thread.inner_tids.empty() ? thread.tid : thread.inner_tids.back();
}
inline int own_number(const store::ProcessImage& process) { return own_number(process.threads[0]); }
/// Of its thread that ckpt knows by `tid`; where it has none, that number.
int own_number_of(const store::ProcessImage& process, int tid);
/// Number 1 of a further pid namespace.
inline bool is_first_inside(const store::ProcessImage& process) {
  return !process.threads[0].inner_tids.empty() && process.threads[0].inner_tids.back() == 1;
}

/// What process `viewer` calls a process, thread, process group or session of the tree; 0: it has no number there.
int number_seen_by(const store::TreeImage& tree, size_t viewer, int number);
/// The numbers that the leader of a group or a session has, or had, below that by which ckpt knows it.
std::vector<int> inner_numbers_of_leader(const store::TreeImage& tree, int number);

/// kCorrupt: numbers that no processes can have.
Result<void> validate_pid_namespaces(const store::TreeImage& tree);

/// "123", with those inside: "123 (7, 1)".
std::string numbers_in_words(const store::Thread& thread);

}  // namespace ckpt::state

namespace ckpt::restore {

/// What cannot be made again of processes in further pid namespaces.
void check_pid_namespaces(const store::TreeImage& tree, Reasons& reasons);

}  // namespace ckpt::restore
