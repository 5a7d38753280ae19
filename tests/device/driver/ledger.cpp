// What is in use on each GPU: a file that the processes of a GPU share, locked while it is read and written. What
// processes hold that are gone does not count. Nothing here allocates: the restore thread comes here, too.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

namespace {

struct Holder {
  int32_t pid;
  uint32_t count;
  uint64_t start;  ///< of the process, which tells it from another of that number
};
struct Process {
  Holder who;
  uint64_t used[kMaxGpus];
};
/// Memory that may be exported.
struct Piece {
  uint64_t inode;
  int64_t gpu;
  uint64_t bytes;
  Holder holders[4];
};
struct Content {
  Process processes[128];
  Piece pieces[2048];
};

/// Field 22 of /proc/PID/stat, 0: no such process.
uint64_t start_of(int pid) {
  char path[64], text[1024];
  ::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? 0 : ::read(fd, text, sizeof(text) - 1);
  if (fd >= 0) ::close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  const char* at = ::strrchr(text, ')');
  if (at == nullptr || at[1] == 0 || at[2] == 'Z' || at[2] == 'X') return 0;
  for (int field = 2; field < 22 && at != nullptr; ++field) at = ::strchr(at + 1, ' ');
  uint64_t start = 0;
  for (at = at == nullptr ? "" : at + 1; *at >= '0' && *at <= '9'; ++at)
    start = start * 10 + static_cast<uint64_t>(*at - '0');
  return start;
}

/// The file while it is locked, or this process's own account where it shares with nobody. One at a time in a process:
/// under lock(), or with the API locked.
class Ledger {
 public:
  Ledger() {
    known_ = 0;
    if (settings().folder.empty()) return;
    char path[512];
    ::snprintf(path, sizeof(path), "%s/ledger", settings().folder.c_str());
    fd_ = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) return;
    ::flock(fd_, LOCK_EX);
    ::memset(&content_, 0, sizeof(content_));
    if (::pread(fd_, &content_, sizeof(content_), 0) < 0) ::memset(&content_, 0, sizeof(content_));
    forget_the_dead();
  }
  ~Ledger() {
    if (fd_ < 0) return;
    if (::pwrite(fd_, &content_, sizeof(content_), 0) < 0) ::perror("stand-in: the ledger");
    ::close(fd_);
  }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  uint64_t used(int gpu) const {
    uint64_t sum = 0;
    for (const Process& each : content_.processes) sum += each.used[gpu];
    for (const Piece& each : content_.pieces)
      if (each.inode != 0 && each.gpu == gpu) sum += each.bytes;
    return sum;
  }
  int processes(int gpu, int* pids, uint64_t* bytes, int most) const {
    int count = 0;
    auto add = [&](int pid, uint64_t more) {
      int at = 0;
      while (at < count && pids[at] != pid) ++at;
      if (pid == 0 || more == 0 || at == most) return;
      if (at == count) pids[count] = pid, bytes[count++] = 0;
      bytes[at] += more;
    };
    for (const Process& each : content_.processes) add(each.who.pid, each.used[gpu]);
    for (const Piece& each : content_.pieces) {
      for (const Holder& who : each.holders)
        if (each.inode != 0 && each.gpu == gpu) add(who.pid, each.bytes);
    }
    return count;
  }
  bool fits(int gpu, uint64_t bytes) const { return used(gpu) + bytes <= settings().capacity[gpu]; }
  /// Null: the table is full.
  Process* own() {
    Process* empty = nullptr;
    for (Process& each : content_.processes) {
      if (each.who.pid == ::getpid()) return &each;
      if (each.who.pid == 0 && empty == nullptr) empty = &each;
    }
    if (empty != nullptr) empty->who = self();
    return empty;
  }
  Piece* piece(uint64_t inode) {
    for (Piece& each : content_.pieces)
      if (each.inode == inode) return &each;
    return nullptr;
  }
  static Holder self() { return {::getpid(), 1, start_of(::getpid())}; }

 private:
  bool lives(const Holder& who) {
    for (int i = 0; i < known_; ++i)
      if (seen_[i].pid == who.pid) return seen_[i].start == who.start;
    Holder now{who.pid, 0, start_of(who.pid)};
    if (known_ < 64) seen_[known_++] = now;
    return now.start == who.start;
  }
  void forget_the_dead() {
    for (Process& each : content_.processes)
      if (each.who.pid != 0 && !lives(each.who)) each = {};
    for (Piece& each : content_.pieces) {
      if (each.inode == 0) continue;
      bool held = false;
      for (Holder& who : each.holders) {
        if (who.pid != 0 && !lives(who)) who = {};
        held |= who.pid != 0;
      }
      if (!held) each = {};
    }
  }

  int fd_ = -1;
  static Content content_;
  static Holder seen_[64];
  static int known_;
};
Content Ledger::content_;
Holder Ledger::seen_[64];
int Ledger::known_;

}  // namespace

bool ledger_take(int gpu, uint64_t bytes) {
  Ledger ledger;
  Process* own = ledger.own();
  if (own == nullptr || !ledger.fits(gpu, bytes)) return false;
  own->used[gpu] += bytes;
  return true;
}

void ledger_give(int gpu, uint64_t bytes) {
  Ledger ledger;
  Process* own = ledger.own();
  if (own != nullptr) own->used[gpu] -= std::min(own->used[gpu], bytes);
}

uint64_t ledger_used(int gpu) {
  Ledger ledger;
  return ledger.used(gpu);
}

int ledger_processes(int gpu, int* pids, uint64_t* bytes, int most) {
  Ledger ledger;
  return ledger.processes(gpu, pids, bytes, most);
}

bool ledger_hold(int gpu, uint64_t bytes, uint64_t inode, bool taken) {
  Ledger ledger;
  if (Process* own = ledger.own(); taken && own != nullptr) own->used[gpu] -= std::min(own->used[gpu], bytes);
  Piece* piece = ledger.piece(inode);
  if (piece == nullptr) {
    if (!ledger.fits(gpu, bytes)) return false;
    piece = ledger.piece(0);
    if (piece == nullptr) return false;
    *piece = {inode, gpu, bytes, {}};
  }
  for (Holder& who : piece->holders) {
    if (who.pid == ::getpid()) return ++who.count, true;
  }
  for (Holder& who : piece->holders) {
    if (who.pid != 0) continue;
    who = Ledger::self();
    return true;
  }
  return false;
}

void ledger_drop(uint64_t inode) {
  Ledger ledger;
  Piece* piece = ledger.piece(inode);
  if (piece == nullptr) return;
  bool held = false;
  for (Holder& who : piece->holders) {
    if (who.pid == ::getpid() && --who.count == 0) who = {};
    held |= who.pid != 0;
  }
  if (!held) *piece = {};
}

}  // namespace ckpt::standin
