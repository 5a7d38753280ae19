// fork(3) waits while pages are held: its child would find nothing where they were, and would keep the userfaultfd.
#pragma once

namespace ckpt::flash {

class NoForks {
 public:
  /// Waits for a fork that is under way.
  NoForks();
  ~NoForks() { end(); }
  NoForks(const NoForks&) = delete;
  NoForks& operator=(const NoForks&) = delete;

  void end();

 private:
  bool ended_ = false;
};

}  // namespace ckpt::flash
