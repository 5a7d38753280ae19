// pre-dump and dump: orchestration. Which steps, in which order, and what the target's state is after each.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/engine/actions.h"
#include "lib/engine/device_hold.h"
#include "lib/engine/safe_points.h"
#include "lib/engine/together.h"
#include "lib/state/inventory.h"
#include "lib/store/image.h"

namespace ckpt::engine {

struct DumpReport;

/// A tree that is frozen, and about to be ended.
struct HandOver {
  struct Process {
    int pid = 0;
    int pidfd = -1;        ///< borrowed
    bool stopped = false;  ///< as by SIGSTOP, before it was frozen
  };
  std::vector<Process> processes;  ///< zombies left out
  uint64_t frozen_at_us = 0;       ///< of CLOCK_MONOTONIC: the first stop
  uint64_t bytes_frozen = 0;       ///< memory that was copied while it was frozen
};

struct DumpOptions {
  int pid = 0;
  std::filesystem::path dir;
  std::filesystem::path prev;      ///< parent image; empty: the one whose tracking is armed, else none
  bool no_prev = false;            ///< a full image, whatever is tracked
  state::ExternalOptions external;
  uint64_t ghost_limit = uint64_t{1} << 30;  ///< bytes of a file that go with the image: deleted, or of `contents`
  state::FileContents contents;              ///< files that have a name, and go with the image, too
  capture::SocketOptions sockets;
  SafePointOptions safe_points;  ///< waited for before the tree is frozen
  Together* together = nullptr;  ///< many ckpts take the image of one job; null: this one is alone
  state::ExternalMounts external_mounts;
  bool empty_network = false;  ///< as in state/inventory.h
  GpuOptions gpu;
  Actions
      actions;  ///< "pre-dump": before anything is stopped; "post-dump": the image is durable, the tree still stands
  std::optional<unsigned> iterations;  ///< iterations of pre-copy; nothing: as many as pay
  unsigned max_iterations = 8;         ///< where they are as many as pay
  uint64_t downtime_goal_us = 5'000;  ///< no more iterations once the stop is predicted to be that short
  uint64_t max_cow = 0;            ///< bytes that copy-on-write may cost before the tree is stopped; 0: no limit
  uint64_t max_memory =
      uint64_t{256} << 20;  ///< bytes that ckpt may use: what does not fit is written while the tree is frozen
  bool force = false;              ///< replace a non-empty destination; end what this user could not restore here
  bool compress = true;
  bool rehearse =
      false;  ///< dump only: the image is kept, and the target ended, only if a rehearsal finds no difference
  bool sha256_pages = false;       ///< SHA-256 of the pages files, too
  /// This part of the pages that write tracking calls unchanged is read again and compared with the image: where one
  /// differs, a full image that relies on no tracking is taken instead (of a job's member: none, kMismatch). 0: none.
  double validate_sample = 0;
  unsigned workers = 0;            ///< 0: one a core
  uint64_t freeze_timeout_us = 10'000'000;
  /// Takes the image elsewhere once all of it is in the folder that it is given, before it has its name: where this
  /// fails there is no image, and the tree goes on.
  std::function<Result<void>(const std::filesystem::path& folder)> publish;
  /// Where `publish` takes it, as whoever asks what is tracked is told; empty: no later image can refer to this one,
  /// and a tree that goes on is not tracked.
  std::string published_as;
  /// Takes the pages over a link while they are copied: how many iterations pay follows from what it lets through where
  /// the processes stand still until all has passed.
  store::PagesSink pages;
  /// Told true before the processes are stopped, and false where they go on, or where they stand still for the image's
  /// sake alone: whoever takes the pages is not to have a process wait for him in between.
  std::function<void(bool)> in_a_hurry;
  /// dump only, of a tree that ends: called as the last thing before that, once nothing else can fail any more. Where
  /// it fails the tree is let go, and the image stays; with kTargetAltered the connections are held off
  /// further on.
  std::function<Result<void>(const HandOver&)> hand_over;
  /// Called before the first process is ended: from here on the image stays, whatever fails.
  std::function<void()> kept;
  enum class After { kEnd, kLeaveRunning, kLeaveStopped };
  After after = After::kEnd;       ///< dump only: the target once the image is durable
  /// Told how the dump went where ckpt's worker ends with the tree (state::Entered: end_init, may_end), just before.
  /// `dump` returns as well, with the same report or an error, where the worker has not ended.
  std::function<void(const DumpReport&)> before_common_end;
};

struct DumpReport {
  store::Manifest manifest;
  store::ImageWriter::Totals totals;
  std::filesystem::path dir;
  bool tracked = false;            ///< unwritten pages were known from dirty tracking
  bool armed = false;              ///< tracking is armed for the next pre-dump or dump
  uint64_t pages_validated = 0;    ///< unchanged ones, read again and compared with the image
  std::string fell_back;           ///< what validation has found, so that this is a full image; empty: nothing
  std::string target_state;        ///< "running", "stopped", "ended"
};

/// A complete image of one instant of a process and all its descendants while they go on. Every failure leaves them
/// running as they were, and no image.
Result<DumpReport> pre_dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel);

/// The image of now; the process is frozen while its memory is copied, and ends once the image is durable unless
/// told otherwise. Every failure leaves it running as it was, and no image.
Result<DumpReport> dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel);

}  // namespace ckpt::engine
