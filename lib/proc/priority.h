// Standing back for the target while it runs.
#pragma once

namespace ckpt::proc {

/// ckpt's session gives way until `end`, or the end of the scope: where others want all processors they keep about nine tenths
/// of them. On a kernel that schedules by sessions (autogroup, sched(7)) a thread's niceness counts only within its own.
class StandBack {
 public:
  StandBack();
  StandBack(const StandBack&) = delete;
  StandBack& operator=(const StandBack&) = delete;
  ~StandBack() { end(); }
  void end();

 private:
  bool active_ = true;
};

/// The same for one thread among others, of its session or of a kernel that does not look at sessions; for good.
void be_nice();

}  // namespace ckpt::proc
