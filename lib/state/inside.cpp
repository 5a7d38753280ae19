#include "lib/state/inside.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "lib/proc/call_batch.h"
#include "lib/proc/procfs.h"
#include "lib/proc/seccomp.h"
#include "lib/state/attributes/capture.h"
#include "lib/state/io_uring/capture.h"
#include "lib/state/keyrings/capture.h"
#include "lib/state/labels/capture.h"
#include "lib/state/mappings/locks.h"
#include "lib/state/memory_policies/capture.h"
#include "lib/state/seccomp/capture.h"
#include "lib/state/signals/capture.h"
#include "lib/state/threads/stopped.h"
#include "lib/state/timers/capture.h"
#include "lib/state/tree/children.h"

namespace ckpt::capture {

namespace {

using proc::BorrowedThread;

/// 0 where threads must be led by the hand: where a filter may refuse the call that stops them.
int signal_for_batch(const std::vector<proc::Status>& threads) {
  uint64_t pending = threads[0].pending_shared;
  bool filtered = false;
  for (const proc::Status& status : threads) {
    pending |= status.pending_private;
    filtered |= status.seccomp != 0;
  }
  if (filtered && proc::suspend_seccomp_option() == 0) return 0;
  return proc::CallBatch::choose_signal(threads[0].caught, threads[0].ignored, pending);
}

/// Noted where nothing tells. What the kernel's memory says goes before what threads were answered.
Result<void> refuse_domains(const store::ProcessImage& image, const std::vector<proc::Status>& statuses,
                            const std::vector<proc::BatchedThread>& threads,
                            const std::vector<LandlockQuestion>& asked, std::vector<std::string>* notes) {
  bool free = true;
  for (size_t i = 0; i < threads.size(); ++i) free = free && asked[i].is_free(threads[i].calls);
  if (free) return {};
  CKPT_TRY_ASSIGN(const bool told, settle_landlock(image.pid));
  if (told) return {};
  const auto own = read_labels(::getpid(), ::getpid());  // of the outsiders, too
  for (size_t i = 0; i < threads.size(); ++i) {
    const bool forbids_more = statuses[i].seccomp != 0 || !image.threads[i].labels.empty() || !own || !own->empty();
    if (asked[i].is_bound(threads[i].calls, forbids_more)) return in_landlock_domain(image.pid);
  }
  if (notes != nullptr) notes->emplace_back("whether it is in a Landlock domain, which would be lost, cannot be told");
  return {};
}

}  // namespace

Result<void> describe_inside(const proc::FrozenProcess& frozen, const proc::ParasiteArea& area, const Inventory& found,
                             store::TreeImage& tree, size_t index, std::vector<std::vector<std::byte>>& xstates,
                             const Outsiders* outsiders, std::vector<std::string>* notes) {
  store::ProcessImage& image = tree.processes[index];
  const std::vector<proc::Status>& statuses = found.statuses[index];
  image.stopped = frozen.stopped_by() != 0;
  if (image.stopped) image.stop_signal = frozen.stopped_by();
  xstates.resize(image.threads.size());
  std::vector<proc::BatchedThread> threads(image.threads.size());
  std::vector<ThreadQuestions> asked;
  std::vector<UringQuestions> asked_rings;
  std::vector<LandlockQuestion> asked_domains;
  std::vector<KeyQuestions> asked_keys;
  const int table = image.descriptors_of < 0 ? static_cast<int>(index) : image.descriptors_of;
  const std::vector<RingPlace> rings = rings_of(tree, table);
  for (size_t i = 0; i < threads.size(); ++i) {
    CKPT_TRY(take_registers(image.pid, statuses[i].pending_private != 0, threads[i], image.threads[i], xstates[i]));
    if (statuses[i].ns_pids.size() > 1)
      threads[i].own_pid = statuses[0].ns_pids.back(), threads[i].own_tid = statuses[i].ns_pids.back();
    asked.emplace_back(threads[i].calls);
    asked_rings.emplace_back(threads[i].calls, rings);
    asked_domains.emplace_back(threads[i].calls, outsiders, image, image.threads[i]);
    asked_keys.emplace_back(threads[i].calls);
  }
  proc::CallList& calls = threads[0].calls;
  const ActionQuestions actions(calls, statuses[0]);
  const IntervalTimerQuestions timers(calls);
  const AttributeQuestions attributes(calls);
  const ChildQuestions children(calls, tree, index);
  const FutureLockQuestion locks(calls, area);
  const SessionKeyQuestions session_keys(calls, statuses[0]);
  proc::CallBatch batch(area, signal_for_batch(statuses));
  CKPT_TRY(batch.run(threads));
  CKPT_TRY(refuse_domains(image, statuses, threads, asked_domains, notes));
  for (size_t i = 0; i < threads.size(); ++i) {
    CKPT_TRY(asked[i].take(threads[i].calls, image.threads[i]));
    CKPT_TRY(asked_rings[i].take(threads[i].calls, threads[i].tid, tree));
    CKPT_TRY(asked_keys[i].refuse_keys(threads[i].calls, threads[i].tid));
  }
  CKPT_TRY_ASSIGN(image.actions, actions.take(calls));
  CKPT_TRY_ASSIGN(image.interval_timers, timers.take(calls));
  CKPT_TRY(attributes.take(calls, image));
  children.take(calls, tree);
  if (notes != nullptr) session_keys.take(calls, *notes);
  if (image.memory_of < 0) CKPT_TRY(locks.take(calls, image));
  CKPT_TRY_ASSIGN(image.posix_timers, ask_posix_timers(batch, threads[0], image));
  if (image.memory_of < 0 && found.placed[index]) {
    CKPT_TRY_ASSIGN(BorrowedThread leader, BorrowedThread::begin(area, image.pid));
    CKPT_TRY_ASSIGN(image.policies, read_mapping_policies(leader, image.pid));
    CKPT_TRY(leader.finish());
  }
  if (std::any_of(statuses.begin(), statuses.end(), [](const proc::Status& status) { return status.seccomp != 0; })) {
    std::vector<int> tids;
    for (const store::Thread& thread : image.threads) tids.push_back(thread.tid);
    CKPT_TRY_ASSIGN(image.seccomp, describe_seccomp(image.pid, tids));
  }
  CKPT_TRY_ASSIGN(auto queue, proc::peek_signals(image.pid, true));
  image.pending = queued_signals(queue);
  // One that has come since the stop ended it: the kernel drops waiting SIGCONTs when a process is stopped.
  if (has_signal(image.pending, SIGCONT)) image.stopped = false;
  for (const store::Thread& thread : image.threads) {
    if (has_signal(thread.pending, SIGCONT)) image.stopped = false;
  }
  return {};
}

}  // namespace ckpt::capture
