// What tells `ckpt guard` that its job has to make way, beside signals: a file that appears, a command that succeeds.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <string>

namespace ckpt::cli {

class GuardNotice {
 public:
  /// Empty: there is none of that kind. `signals`: the mask that the command gets.
  GuardNotice(std::string file, std::string command, const sigset_t& signals)
      : file_(std::move(file)), command_(std::move(command)), signals_(signals) {}
  GuardNotice(const GuardNotice&) = delete;
  /// Ends the command, and what it has started in its group.
  ~GuardNotice();

  /// Why the job has to make way, in words; empty: nothing has told so yet. Starts the command, and again some time
  /// after it has ended otherwise than with exit code 0.
  std::string look();
  /// Whether nothing would wake whoever waits for a notice.
  bool has_to_look() const { return !file_.empty() || (!command_.empty() && pid_ == 0); }
  /// Of the command, 0 while it does not run.
  pid_t pid() const { return pid_; }

 private:
  void start();

  const std::string file_, command_;
  const sigset_t signals_;
  pid_t pid_ = 0;
  uint64_t again_us_ = 0;
};

}  // namespace ckpt::cli
