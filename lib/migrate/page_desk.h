// Pages that come while the processes run already: at the receiver, between what has arrived (stage.h) and those who
// need it, a restore and the lazy-pages daemon that outlives it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/task_fate.h"
#include "lib/base/unique_fd.h"
#include "lib/migrate/link.h"
#include "lib/migrate/stage.h"

namespace ckpt::migrate {

/// Memory of all of them.
struct SharedPages {
  std::atomic<uint32_t> all_in{0};  ///< there is nothing to ask for
  TaskFate fate;
};

/// A copy without FD_CLOEXEC, for a program that is started with it.
Result<UniqueFd> inheritable(int fd);

/// In `ckpt receive`.
class PageDesk {
 public:
  static Result<PageDesk> open();
  /// For the restore: its descriptors, which are inherited until `close_theirs`, as `expect_pages` wants them.
  std::string describe() const;
  void close_theirs();

  int descriptor() const { return asks_.get(); }
  /// `descriptor` is readable: takes one question, and asks the source for what is missing. Of a link that is broken
  /// the source says so.
  Result<void> hear(const Stage& stage, Link& link);
  /// Somebody waits for what has not come.
  bool owes() const { return !waiting_.empty(); }
  /// Not all of the memory has reached the processes, and it never will, whatever comes.
  bool failed() const;
  /// All of it has, as far as somebody was made for that.
  bool finished() const;
  /// A unit has come.
  void arrived(const Stage& stage);
  /// All have: nobody needs to ask any more.
  void all_in();
  /// No more come: whoever waits, or asks, hears that.
  void give_up();

 private:
  struct Question {
    std::string file;
    uint64_t offset = 0, size = 0;
    UniqueFd answer;  ///< a byte on it: it is there; its end: it never will be
  };
  PageDesk() = default;
  UniqueFd asks_, theirs_;
  UniqueFd state_theirs_;
  SharedPages* shared_ = nullptr;  ///< for as long as this process lives
  bool alone_ = false;        ///< nobody is left who could ask
  std::vector<Question> waiting_;
};

/// In the restore. From here on whoever reads the pages files of `image` with io.h waits for what has not come yet:
/// kIo where it never will. `text`: of `PageDesk::describe`. What the receiver has to hear of the lazy-pages daemon.
Result<TaskFate*> expect_pages(const std::string& text, const std::filesystem::path& image);

}  // namespace ckpt::migrate
