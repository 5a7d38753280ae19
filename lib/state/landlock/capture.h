// Landlock domains: rules that a process made for itself, which nothing tells and no restore could make again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/unique_fd.h"
#include "lib/proc/call_batch.h"
#include "lib/proc/waiting_child.h"
#include "lib/state/inventory.h"

namespace ckpt::capture {

inline constexpr const char* kLandlock =
    "is in a Landlock domain (landlock_restrict_self), whose rules nothing tells: not supported";

/// Makes such processes, in a process of its own: made early, while ckpt has little memory, for whatever was there at a
/// fork is copied when ckpt next writes to it. Does nothing where there is no Landlock.
class OutsiderMaker {
 public:
  OutsiderMaker();
  OutsiderMaker(OutsiderMaker&&) = delete;
  OutsiderMaker& operator=(OutsiderMaker&&) = delete;
  ~OutsiderMaker();
  /// A process with these ids and no capabilities, until this object ends; 0: it cannot be made. `anew`: with nothing
  /// of ckpt's in it, for whoever has these ids may look into it.
  int make(uint32_t uid, uint32_t gid, bool anew);

 private:
  std::optional<proc::WaitingChild> process_;
  UniqueFd channel_;  ///< its end is that of the process and its children
};

/// What a process that another user may look into is made of: this program, executed anew, with nothing of ckpt's in
/// its memory, environment and descriptors. False: `argv` is not that of one.
bool is_outsider(int argc, const char* const* argv);
/// Says on the descriptor that it was given that it is there, and ends with its maker.
[[noreturn]] void wait_as_outsider();

/// Processes of ckpt's, in no domain of the tree's, each with the ids of some of the tree and no capabilities. A thread
/// may look into such a one unless it is in a domain itself.
class Outsiders {
 public:
  /// For the processes of an inventory that was taken while they ran.
  Outsiders(const Inventory& running, OutsiderMaker& maker);
  /// The number of the one for a thread, which is its number to that thread, too; 0: there is none.
  int of(const store::ProcessImage& process, const store::Thread& thread) const;
  /// Whether there is anything to ask.
  bool asks() const { return asks_; }

 private:
  bool asks_ = false;
  std::map<std::pair<uint32_t, uint32_t>, int> children_;  ///< numbers, by user and group; 0: there is none
  std::vector<int> elsewhere_;  ///< processes to which ckpt's numbers mean nothing
};

/// Whether a kcmp that ended so, negative numbers being errors, was forbidden by a domain and by nothing else.
bool is_domains_answer(int64_t compared, bool forbids_more);

/// What a stopped thread is asked: to compare its memory with an outsider's.
class LandlockQuestion {
 public:
  LandlockQuestion(proc::CallList& calls, const Outsiders* outsiders, const store::ProcessImage& process,
                   const store::Thread& thread);
  /// False: it may be in one.
  bool is_free(const proc::CallList& calls) const { return !asked_ || (has_call_ && calls.result(call_) >= 0); }
  /// It is in one. `forbids_more`: a seccomp filter or another security module may have answered.
  bool is_bound(const proc::CallList& calls, bool forbids_more) const {
    return has_call_ && is_domains_answer(calls.result(call_), forbids_more);
  }

 private:
  bool asked_ = false, has_call_ = false;
  size_t call_ = 0;
};

/// kUnsupported: the process is in one.
Error in_landlock_domain(int pid);
/// Of a process of which a thread may be in one. kUnsupported: it is. False: there is no telling.
Result<bool> settle_landlock(int pid);

}  // namespace ckpt::capture
