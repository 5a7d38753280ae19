#include "lib/rebuild/descriptors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <map>
#include <set>

#include "lib/base/io.h"
#include "lib/rebuild/locks.h"
#include "lib/rebuild/posix_queue.h"
#include "lib/rebuild/terminals.h"
#include "lib/rebuild/watches.h"

namespace ckpt::rebuild {

namespace {

using store::Descriptor;
using store::DescriptorKind;

std::string subject_of(const Descriptor& descriptor) {
  return descriptor.fds.empty() ? "an open file on its way" : fmt::format("descriptor {}", descriptor.fds[0].fd);
}

/// Made by `add_sockets_and_queues`, `add_watches`, or by the processes themselves.
bool is_made_later(DescriptorKind kind) {
  switch (kind) {
    case DescriptorKind::kSocket:
    case DescriptorKind::kPosixQueue:
    case DescriptorKind::kInotify:
    case DescriptorKind::kFanotify:
    case DescriptorKind::kProcFile: return true;
    case DescriptorKind::kFile: case DescriptorKind::kDevice: case DescriptorKind::kPipe: case DescriptorKind::kEventfd: case DescriptorKind::kEpoll:
    case DescriptorKind::kTimerfd: case DescriptorKind::kSignalfd: case DescriptorKind::kExternal: case DescriptorKind::kMemfd:
    case DescriptorKind::kFifo: case DescriptorKind::kTerminal: case DescriptorKind::kPidfd: return false;
  }
  return false;
}

/// From here on every descriptor of the description is placed.
void add_source(int index, const Descriptor& descriptor, int source, DescriptorPlan& plan) {
  plan.sources[index] = source;
  for (const auto& slot : descriptor.fds) plan.placements.push_back({source, slot});
}

Result<UniqueFd> owned(int fd, const Descriptor& descriptor, const char* what) {
  if (fd < 0) return sys_error(subject_of(descriptor), what);
  return UniqueFd(fd);
}

Result<UniqueFd> make_eventfd(const Descriptor& descriptor) {
  CKPT_TRY_ASSIGN(UniqueFd fd,
                  owned(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | (descriptor.eventfd_semaphore ? EFD_SEMAPHORE : 0)),
                        descriptor, "cannot make an eventfd"));
  uint64_t count = descriptor.eventfd_count;
  if (count != 0 && ::write(fd.get(), &count, sizeof count) != sizeof count)
    return sys_error(subject_of(descriptor), "cannot set the eventfd's count");
  return fd;
}

Result<UniqueFd> make_plain(const Descriptor& descriptor) {
  switch (descriptor.kind) {
    case DescriptorKind::kEventfd:
      return make_eventfd(descriptor);
    case DescriptorKind::kEpoll:
      return owned(::epoll_create1(EPOLL_CLOEXEC), descriptor, "cannot make an epoll set");
    case DescriptorKind::kTimerfd:
      return owned(::timerfd_create(descriptor.timerfd_clock, TFD_CLOEXEC), descriptor, "cannot make a timerfd");
    case DescriptorKind::kSignalfd: {
      uint64_t mask = descriptor.signalfd_mask;  // the kernel's set of 8 bytes, not the C library's of 128
      return owned(static_cast<int>(::syscall(SYS_signalfd4, -1, &mask, sizeof mask, SFD_CLOEXEC)), descriptor,
                   "cannot make a signalfd");
    }
    case DescriptorKind::kFile: case DescriptorKind::kDevice: case DescriptorKind::kPipe: case DescriptorKind::kExternal: case DescriptorKind::kMemfd:
    case DescriptorKind::kFifo: case DescriptorKind::kProcFile: case DescriptorKind::kSocket: case DescriptorKind::kTerminal:
    case DescriptorKind::kInotify: case DescriptorKind::kFanotify: case DescriptorKind::kPidfd: case DescriptorKind::kPosixQueue: break;
  }
  return fail(Code::kBug, subject_of(descriptor), "is not of a kind that is made here");
}

Result<void> set_flags(int fd, const Descriptor& descriptor) {
  constexpr int kSettable = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;
  if (::fcntl(fd, F_SETFL, descriptor.flags & kSettable) != 0)
    return sys_error(subject_of(descriptor), "cannot set its flags");
  return {};
}

/// A pipe while its ends are handed out. Those that pipe(2) made are told by their flags from others of the same pipe,
/// which /proc/self/fd opens.
struct OpenPipe {
  UniqueFd read, write;
  UniqueFd any;  ///< stays
};

Result<void> fill_pipe(int fd, const store::Pipe& pipe, const store::ImageReader& image) {
  if (::fcntl(fd, F_SETPIPE_SZ, static_cast<int>(pipe.capacity)) < 0)
    return sys_error("", fmt::format("cannot make a pipe of {} bytes", pipe.capacity));
  if (pipe.content_size == 0) return {};
  CKPT_TRY_ASSIGN(std::vector<std::byte> content, image.read_pipe(pipe.content_offset, pipe.content_size));
  return io::write_all(fd, content, "pipe");
}

Result<OpenPipe> make_pipe(const store::Pipe& pipe, const store::ImageReader& image) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return sys_error("", "cannot make a pipe");
  OpenPipe out{UniqueFd(ends[0]), UniqueFd(ends[1]), UniqueFd(::fcntl(ends[0], F_DUPFD_CLOEXEC, 0))};
  if (!out.any) return sys_error("", "cannot make a pipe");
  CKPT_TRY(fill_pipe(ends[1], pipe, image));
  return out;
}

Result<UniqueFd> take_end(OpenPipe& pipe, const Descriptor& descriptor) {
  constexpr int kLargeFile = 0100000;  // the kernel's: of every file that was opened, of no end that pipe(2) made
  int mode = descriptor.flags & O_ACCMODE;
  UniqueFd& end = mode == O_RDONLY ? pipe.read : pipe.write;
  if ((descriptor.flags & kLargeFile) == 0 && mode != O_RDWR && end) return std::move(end);
  return io::open_file(fmt::format("/proc/self/fd/{}", pipe.any.get()), mode | O_NONBLOCK);
}

/// What the caller of ckpt left open, as opposed to what ckpt opened itself: that closes on exec.
bool is_from_surroundings(int fd) {
  int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

class Maker {
 public:
  Maker(const store::ImageReader& image, const OpenedFiles& files, const DescriptorOptions& options, Inherited& inherited,
        Reasons& reasons)
      : reader_(image),
        image_(image.manifest().tree),
        files_(files),
        options_(options),
        inherited_(inherited),
        reasons_(reasons) {}

  DescriptorPlan run() {
    make_all_terminals();
    for (size_t i = 0; i < image_.descriptors.size(); ++i) {
      const Descriptor& descriptor = image_.descriptors[i];
      if (is_made_later(descriptor.kind) || is_live_pidfd(descriptor)) continue;
      if (descriptor.kind == DescriptorKind::kExternal) {
        take_external(descriptor);
        continue;
      }
      auto source = make(i, descriptor);
      if (!source) {
        reasons_.add(source.error());
        continue;
      }
      if (*source < 0) continue;  // open_files or make_all_terminals gave the reason
      add_source(static_cast<int>(i), descriptor, *source, plan_);
      if (descriptor.kind == DescriptorKind::kTimerfd) plan_.timers.emplace_back(*source, &descriptor);
      if (!descriptor.locks.empty() || has_posix_locks(descriptor)) lock(*source, descriptor);
    }
    return std::move(plan_);
  }

 private:
  bool is_live_pidfd(const Descriptor& descriptor) const {
    return descriptor.kind == DescriptorKind::kPidfd && image_.process_handles[static_cast<size_t>(descriptor.object)].pid >= 0;
  }

  void make_all_terminals() {
    if (options_.dry_run) return check_terminals(image_.terminals, reasons_);
    std::vector<std::pair<store::TerminalEnd, int>> ends(image_.terminal_ends.size());
    std::vector<const Descriptor*> owners(ends.size());
    for (const Descriptor& descriptor : image_.descriptors) {
      if (descriptor.kind != DescriptorKind::kTerminal) continue;
      const auto object = static_cast<size_t>(descriptor.object);
      ends[object] = {image_.terminal_ends[object], descriptor.flags};
      owners[object] = &descriptor;
    }
    std::vector<UniqueFd> fds = make_terminals(image_.terminals, ends, reasons_);
    for (size_t i = 0; i < fds.size(); ++i) {
      if (!fds[i] || owners[i] == nullptr) continue;
      auto kept = inherited_.keep(std::move(fds[i]), subject_of(*owners[i]));
      if (kept) terminals_[static_cast<int>(i)] = *kept;
      else reasons_.add(kept.error());
    }
  }

  bool has_posix_locks(const Descriptor& descriptor) const {
    for (const auto& slot : descriptor.fds) {
      for (const auto& lock : image_.processes[static_cast<size_t>(slot.process)].locks) {
        if (lock.fd == slot.fd) return true;
      }
    }
    return false;
  }

  /// Those of the description are taken; of those of processes it is found out whether they could be.
  void lock(int fd, const Descriptor& descriptor) {
    std::vector<store::FileLock> locks = descriptor.locks;
    for (const auto& slot : descriptor.fds) {
      for (const auto& own : image_.processes[static_cast<size_t>(slot.process)].locks) {
        if (own.fd == slot.fd) locks.push_back(own.lock);
      }
    }
    take_locks(fd, locks, descriptor.file < 0 ? subject_of(descriptor) : image_.files[static_cast<size_t>(descriptor.file)].path,
               reasons_, options_.dry_run ? LockTaking::kOnlyLook : LockTaking::kTake);
  }

  Result<int> make(size_t index, const Descriptor& descriptor) {
    if (descriptor.kind == DescriptorKind::kFile || descriptor.kind == DescriptorKind::kDevice) {
      auto opened = files_.descriptors.find(static_cast<int>(index));
      return opened == files_.descriptors.end() ? -1 : opened->second;
    }
    if (descriptor.kind == DescriptorKind::kTerminal) {
      auto made = terminals_.find(descriptor.object);
      if (made == terminals_.end()) return -1;
      CKPT_TRY(set_flags(made->second, descriptor));
      return made->second;
    }
    if (descriptor.kind == DescriptorKind::kFifo && options_.dry_run) return -1;
    UniqueFd fd;
    if (descriptor.kind == DescriptorKind::kPidfd) {
      CKPT_TRY_ASSIGN(fd, make_dead_pidfd(descriptor.flags));
    } else if (descriptor.kind == DescriptorKind::kPipe) {
      auto pipe = pipes_.find(descriptor.pipe);
      if (pipe == pipes_.end()) {
        CKPT_TRY_ASSIGN(OpenPipe made, make_pipe(image_.pipes[static_cast<size_t>(descriptor.pipe)], reader_));
        pipe = pipes_.emplace(descriptor.pipe, std::move(made)).first;
      }
      CKPT_TRY_ASSIGN(fd, take_end(pipe->second, descriptor));
    } else if (descriptor.kind == DescriptorKind::kFifo) {
      CKPT_TRY_ASSIGN(fd, open_fifo(descriptor));
    } else if (descriptor.kind == DescriptorKind::kMemfd) {
      CKPT_TRY_ASSIGN(fd, open_memfd(descriptor));
    } else {
      CKPT_TRY_ASSIGN(fd, make_plain(descriptor));
    }
    CKPT_TRY(set_flags(fd.get(), descriptor));
    return inherited_.keep(std::move(fd), subject_of(descriptor));
  }

  /// Both ends are held open until the processes have theirs: the content would go with the last of them.
  Result<UniqueFd> open_fifo(const Descriptor& descriptor) {
    auto both = files_.fifos.find(descriptor.pipe);
    if (both == files_.fifos.end() || both->second < 0) return fail(Code::kAnswerNo, subject_of(descriptor), "has no named pipe");
    if (filled_.insert(descriptor.pipe).second)
      CKPT_TRY(fill_pipe(both->second, image_.pipes[static_cast<size_t>(descriptor.pipe)], reader_));
    return io::open_file(fmt::format("/proc/self/fd/{}", both->second), (descriptor.flags & (O_ACCMODE | O_PATH)) | O_NONBLOCK);
  }

  Result<UniqueFd> open_memfd(const Descriptor& descriptor) {
    const int memory = files_.shared_memory[static_cast<size_t>(descriptor.shared_memory)].writable;
    if (memory < 0) return fail(Code::kAnswerNo, subject_of(descriptor), "has no memory");
    // What memfd_create itself opened does not stand in the way of executing it; what is opened for writing again does.
    const bool original = (descriptor.flags & (O_ACCMODE | O_PATH)) == O_RDWR && originals_.insert(descriptor.shared_memory).second;
    UniqueFd fd(original ? ::fcntl(memory, F_DUPFD_CLOEXEC, 0) : -1);
    if (!fd) {
      CKPT_TRY_ASSIGN(fd, io::open_file(fmt::format("/proc/self/fd/{}", memory), descriptor.flags & (O_ACCMODE | O_PATH)));
    }
    if ((descriptor.flags & O_PATH) == 0 && ::lseek(fd.get(), static_cast<off_t>(descriptor.offset), SEEK_SET) < 0)
      return sys_error(subject_of(descriptor), "cannot go back to its offset");
    return fd;
  }

  /// Each number is taken from ckpt's own; a duplicate that ckpt was not given follows the first of its group.
  void take_external(const Descriptor& descriptor) {
    if (!options_.shell_job) {
      reasons_.add(Code::kUsage, fmt::format("{} is {}, which belongs to the surroundings of the process",
                                             subject_of(descriptor), descriptor.external));
      return reasons_.hint(
          "--shell-job takes terminals and outer pipes from ckpt's own descriptors of the same numbers");
    }
    int first = -1;
    for (const auto& slot : descriptor.fds) {
      if (first < 0 && is_from_surroundings(slot.fd)) first = slot.fd;
    }
    if (first < 0) {
      return reasons_.add(Code::kUsage, fmt::format("{} was {}: ckpt has no open descriptor of that number to give",
                                                    subject_of(descriptor), descriptor.external));
    }
    for (const auto& slot : descriptor.fds) {
      auto source = inherited_.keep_copy(is_from_surroundings(slot.fd) ? slot.fd : first, subject_of(descriptor));
      if (!source) return reasons_.add(source.error());
      plan_.placements.push_back({*source, slot});
    }
  }

  const store::ImageReader& reader_;
  const store::TreeImage& image_;
  const OpenedFiles& files_;
  DescriptorOptions options_;
  Inherited& inherited_;
  Reasons& reasons_;
  std::map<int, OpenPipe> pipes_;
  std::map<int, int> terminals_;  ///< inherited descriptors, by index into TreeImage::terminal_ends
  std::set<int> filled_;  ///< named pipes that have their content
  std::set<int> originals_;  ///< memfds whose first description is handed out
  DescriptorPlan plan_;
};

timespec timespec_of(uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

DescriptorPlan make_descriptors(const store::ImageReader& image, const OpenedFiles& files, const DescriptorOptions& options,
                                Inherited& inherited, Reasons& reasons) {
  return Maker(image, files, options, inherited, reasons).run();
}

Result<void> add_sockets_and_queues(const store::ImageReader& image, Inherited& inherited, ProgressSink& progress,
                                    Sockets& sockets, DescriptorPlan& plan) {
  const store::TreeImage& tree = image.manifest().tree;
  std::vector<PosixQueueMaker> queues;
  for (const store::PosixQueue& queue : tree.posix_queues) {
    CKPT_TRY_ASSIGN(PosixQueueMaker maker, PosixQueueMaker::make(queue));
    queues.push_back(std::move(maker));
  }
  for (size_t i = 0; i < tree.descriptors.size(); ++i) {
    const Descriptor& descriptor = tree.descriptors[i];
    if (descriptor.kind != DescriptorKind::kPosixQueue) continue;
    CKPT_TRY_ASSIGN(UniqueFd fd, queues[static_cast<size_t>(descriptor.object)].open(descriptor.flags));
    CKPT_TRY_ASSIGN(int kept, inherited.keep(std::move(fd), subject_of(descriptor)));
    add_source(static_cast<int>(i), descriptor, kept, plan);
  }
  if (tree.sockets.empty()) return {};
  SocketSources sources;
  sources.read_content = [&](const store::Socket& socket) { return image.read_pipe(socket.content_offset, socket.content_size); };
  sources.descriptor = [&](int index) {
    auto found = plan.sources.find(index);
    return found == plan.sources.end() ? -1 : found->second;
  };
  sources.rights_of_user = [&](uint32_t uid) -> std::optional<Rights> {
    for (const store::ProcessImage& process : tree.processes) {
      if (!process.zombie && process.threads[0].uid[3] == uid) return rights_of(process.threads[0]);
    }
    return std::nullopt;
  };
  Reasons reasons;
  sockets = make_sockets(tree.sockets, sources, reasons, progress);
  CKPT_TRY(reasons.verdict(image.path().string()));
  for (size_t i = 0; i < tree.sockets.size(); ++i) {
    const int index = tree.sockets[i].descriptor;
    if (index < 0) continue;
    const Descriptor& descriptor = tree.descriptors[static_cast<size_t>(index)];
    CKPT_TRY(set_flags(sockets.fds[i].get(), descriptor));
    CKPT_TRY_ASSIGN(int kept, inherited.keep_copy(sockets.fds[i].get(), subject_of(descriptor)));
    add_source(index, descriptor, kept, plan);
  }
  return {};
}

Result<void> add_watches(const store::TreeImage& tree, Inherited& inherited, DescriptorPlan& plan) {
  for (size_t i = 0; i < tree.descriptors.size(); ++i) {
    const Descriptor& descriptor = tree.descriptors[i];
    UniqueFd fd;
    if (descriptor.kind == DescriptorKind::kInotify) {
      CKPT_TRY_ASSIGN(fd, make_inotify(tree.inotifies[static_cast<size_t>(descriptor.object)], descriptor.flags));
    } else if (descriptor.kind == DescriptorKind::kFanotify) {
      CKPT_TRY_ASSIGN(fd, make_fanotify(tree.fanotifies[static_cast<size_t>(descriptor.object)]));
    } else {
      continue;
    }
    CKPT_TRY(set_flags(fd.get(), descriptor));
    CKPT_TRY_ASSIGN(int kept, inherited.keep(std::move(fd), subject_of(descriptor)));
    add_source(static_cast<int>(i), descriptor, kept, plan);
  }
  return {};
}

namespace {

/// Its number in a process's table, -1: none.
int number_in(const Descriptor& descriptor, int process) {
  for (const auto& slot : descriptor.fds) {
    if (slot.process == process) return slot.fd;
  }
  return -1;
}

void watch(int set, const store::EpollEntry& entry, Scratch& scratch, Script& script) {
  epoll_event event{};
  event.events = entry.events;
  event.data.u64 = entry.data;
  script.add("fill an epoll set", SYS_epoll_ctl, set, EPOLL_CTL_ADD, entry.target_fd, scratch.put(event));
}

/// What an epoll set watches under a number that has another meaning by now gets that number for a moment.
void watch_replaced(const store::TreeImage& tree, const DescriptorPlan& plan, int process, Scratch& scratch, Script& script) {
  for (size_t i = 0; i < tree.descriptors.size(); ++i) {
    for (const auto& entry : tree.descriptors[i].epoll) {
      auto watched = plan.sources.find(entry.descriptor);
      if (entry.process != process || watched == plan.sources.end()) continue;
      script.add("place a watched descriptor", SYS_dup3, watched->second, entry.target_fd, 0);
      watch(plan.sources.at(static_cast<int>(i)), entry, scratch, script);
      script.add("close a watched descriptor", SYS_close, entry.target_fd);
    }
  }
}

/// A flock is the description's, and yet the kernel tells who took it: ckpt, until the process does.
void take_over_flocks(const Descriptor& descriptor, int fd, Script& script) {
  for (const store::FileLock& lock : descriptor.locks) {
    if (lock.kind != store::LockKind::kFlock) continue;
    script.add("give up a lock for a moment", SYS_flock, fd, LOCK_UN);
    script.add("lock a file", SYS_flock, fd, (lock.write ? LOCK_EX : LOCK_SH) | LOCK_NB);
  }
}

void set_owner(const Descriptor& descriptor, int fd, Child& child, Script& script) {
  constexpr int kSetOwnEx = 15, kSetSig = 10;
  if (descriptor.owner_pid != 0) {
    struct {
      int type, pid;
    } owner{descriptor.owner_type, descriptor.owner_pid};
    // The owner may be another process that is gone by now: then nobody is told, as it would have been.
    script.try_add("set the owner of a descriptor", SYS_fcntl, fd, kSetOwnEx, child.scratch().put(owner));
  }
  if (descriptor.owner_signal != 0)
    script.add("set the signal of a descriptor", SYS_fcntl, fd, kSetSig, descriptor.owner_signal);
  if ((descriptor.flags & O_ASYNC) != 0)
    script.add("make a descriptor asynchronous", SYS_fcntl, fd, F_SETFL, descriptor.flags);
}

}  // namespace

void place_descriptors(const store::TreeImage& tree, const DescriptorPlan& plan, int process, int base, Scratch& scratch,
                       Script& script) {
  if (base > 0) script.add("close ckpt's descriptors", SYS_close_range, 0, base - 1, 0);
  watch_replaced(tree, plan, process, scratch, script);
  for (const auto& placement : plan.placements) {
    if (placement.slot.process != process) continue;
    script.add("place a descriptor", SYS_dup3, placement.source, placement.slot.fd,
               placement.slot.close_on_exec ? O_CLOEXEC : 0);
  }
}

void connect_descriptors(const store::TreeImage& tree, int process, Child& child, Script& script) {
  for (const Descriptor& descriptor : tree.descriptors) {
    const int fd = number_in(descriptor, process);
    if (fd < 0) continue;
    for (const auto& entry : descriptor.epoll) {
      if (entry.process == process && entry.descriptor < 0) watch(fd, entry, child.scratch(), script);
    }
    if (descriptor.fds[0].process != process) continue;
    take_over_flocks(descriptor, fd, script);
    set_owner(descriptor, fd, child, script);
  }
}

Result<void> open_pidfds(const store::TreeImage& tree, int process, int spare, Child& child) {
  std::vector<PidfdPlace> places;
  for (const Descriptor& descriptor : tree.descriptors) {
    if (descriptor.kind != DescriptorKind::kPidfd || number_in(descriptor, process) < 0) continue;
    PidfdPlace place;
    place.pid = tree.process_handles[static_cast<size_t>(descriptor.object)].pid;
    place.flags = descriptor.flags;
    for (const auto& slot : descriptor.fds) place.fds.emplace_back(slot.fd, slot.close_on_exec);
    if (place.pid >= 0) places.push_back(std::move(place));
  }
  if (places.empty()) return {};
  Script open, put;
  open_pidfds(places, open);
  CKPT_TRY(child.run(open));
  place_pidfds(places, open, 0, spare, put);
  return child.run(put);
}

Result<void> open_proc_files(const store::TreeImage& tree, int process, Child& child) {
  for (const Descriptor& descriptor : tree.descriptors) {
    const int first = descriptor.kind == DescriptorKind::kProcFile ? number_in(descriptor, process) : -1;
    if (first < 0) continue;
    Script open;
    open.add("open a file of /proc", SYS_open, child.scratch().put_string(descriptor.external), descriptor.flags & ~O_CREAT, 0);
    CKPT_TRY(child.run(open));
    const int64_t opened = open.calls()[0].result;
    Script place;
    if ((descriptor.flags & O_PATH) == 0) place.add("go to the offset of a file", SYS_lseek, opened, descriptor.offset, SEEK_SET);
    bool in_place = false;
    for (const auto& slot : descriptor.fds) {
      if (slot.process != process) continue;
      in_place = in_place || slot.fd == opened;
      if (slot.fd == opened) place.add("set a descriptor's flag", SYS_fcntl, opened, F_SETFD, slot.close_on_exec ? FD_CLOEXEC : 0);
      else place.add("place a descriptor", SYS_dup3, opened, slot.fd, slot.close_on_exec ? O_CLOEXEC : 0);
    }
    if (!in_place) place.add("close a descriptor", SYS_close, opened);
    CKPT_TRY(child.run(place));
  }
  return {};
}

void drop_inherited(int base, Script& script) {
  script.add("close what ckpt handed over", SYS_close_range, base, ~0u, 0);
}

Result<void> arm_timer_descriptors(const DescriptorPlan& plan, ProgressSink& progress) {
  constexpr unsigned long kSetTicks = _IOW('T', 0, uint64_t);  // TFD_IOC_SET_TICKS, with CONFIG_CHECKPOINT_RESTORE
  for (const auto& [fd, descriptor] : plan.timers) {
    uint64_t value = descriptor->timerfd_value_ns;
    int flags = descriptor->timerfd_settime_flags & (TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET);
    if (value != 0 && descriptor->timerfd_interval_ns != 0 && (flags & TFD_TIMER_ABSTIME) != 0) {
      timespec now{};
      ::clock_gettime(descriptor->timerfd_clock, &now);
      value += static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
    }
    itimerspec setting{timespec_of(descriptor->timerfd_interval_ns), timespec_of(value)};
    if (::timerfd_settime(fd, flags, &setting, nullptr) != 0)
      return sys_error(subject_of(*descriptor), "cannot set the timerfd");
    uint64_t ticks = descriptor->timerfd_ticks;
    if (ticks != 0 && ::ioctl(fd, kSetTicks, &ticks) != 0) {
      progress.note(
          fmt::format("{}: {} expirations that the process had not read yet are lost", subject_of(*descriptor), ticks));
    }
  }
  return {};
}

}  // namespace ckpt::rebuild
