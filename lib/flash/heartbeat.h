// Whether the agents that write one checkpoint together are still there: each changes a file of its own in the folder
// that they share, and sees whether those of the others change. What counts is the change, by the clock of who looks:
// clocks of several nodes, and times of files, are compared nowhere.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::flash {

class Heartbeat {
 public:
  /// Of the agent whose lowest rank is `own`. One that is watched is lost after `silent_us` without a change, unless
  /// the folder then has a file of `done` and its number.
  Heartbeat(std::filesystem::path folder, uint32_t own, uint64_t silent_us, std::string done, const Cancel& outer);
  ~Heartbeat() { end(); }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// The first beat is there when this returns; the others are a thread's. kNoRoom: there is no room for one.
  Result<void> begin();
  void watch(const std::vector<uint32_t>& others);
  /// Requested when the outer one was, or somebody is lost.
  const Cancel& stop() const { return stop_; }
  /// kMismatch: who is lost. kInterrupted: the outer one was requested.
  Result<void> check() const;
  /// Why the others may have taken this one for lost: a beat failed, and none has been made since.
  std::optional<Error> trouble() const;
  void end();

 private:
  struct Seen {
    std::string content;
    uint64_t since_us = 0;
  };
  std::filesystem::path file_of(uint32_t number) const;
  /// In place, by a descriptor that is kept: it wants no room, and nothing of the folder, where much is being made
  /// durable.
  Result<void> beat();
  void look();
  void run();

  const std::filesystem::path folder_;
  const uint32_t own_;
  const uint64_t silent_us_;
  const std::string done_;
  const Cancel& outer_;
  Cancel stop_;
  UniqueFd file_;
  uint64_t beats_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable woken_;
  bool ended_ = false;
  std::map<uint32_t, Seen> watched_;
  std::optional<Error> lost_, trouble_;
  std::thread thread_;
};

}  // namespace ckpt::flash
