#include "lib/state/descriptors/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <set>

#include "lib/base/io.h"
#include "lib/state/descriptors/kind_functions.h"
#include "lib/state/descriptors/subject.h"
#include "lib/state/epoll/restore.h"
#include "lib/state/external/restore.h"
#include "lib/state/io_uring/restore.h"
#include "lib/state/locks/restore.h"
#include "lib/state/namespaces/pids.h"
#include "lib/state/pidfds/restore.h"
#include "lib/state/pipes/restore.h"
#include "lib/state/posix_queues/restore.h"
#include "lib/state/terminals/restore.h"
#include "lib/state/timerfd/restore.h"
#include "lib/state/watches/restore.h"

namespace ckpt::restore {

namespace {

using store::Descriptor;
using store::DescriptorKind;

/// From here on every descriptor of the description is placed.
void add_source(int index, const Descriptor& descriptor, int source, DescriptorPlan& plan) {
  plan.sources[index] = source;
  for (const auto& slot : descriptor.fds) plan.placements.push_back({source, slot});
}

Result<void> set_flags(int fd, const Descriptor& descriptor) {
  constexpr int kSettable = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;
  if (::fcntl(fd, F_SETFL, descriptor.flags & kSettable) != 0)
    return sys_error(subject_of(descriptor), "cannot set its flags");
  return {};
}

class DescriptorBuilder {
 public:
  DescriptorBuilder(const store::ImageReader& image, const OpenedFiles& files, const DescriptorOptions& options,
                    Inherited& inherited, Reasons& reasons)
      : image_(image.manifest().tree),
        files_(files),
        options_(options),
        inherited_(inherited),
        reasons_(reasons),
        pipes_(image) {}

  DescriptorPlan run() {
    make_all_terminals();
    for (size_t i = 0; i < image_.descriptors.size(); ++i) {
      const Descriptor& descriptor = image_.descriptors[i];
      auto source = make(static_cast<int>(i), descriptor);
      if (!source) {
        reasons_.add(source.error());
        continue;
      }
      if (*source == kNone) continue;
      add_source(static_cast<int>(i), descriptor, *source, plan_);
      if (descriptor.kind == DescriptorKind::kTimerfd) plan_.timers.emplace_back(*source, &descriptor);
      if (!descriptor.locks.empty() || has_posix_locks(descriptor)) lock(*source, descriptor);
    }
    return std::move(plan_);
  }

 private:
  /// It is made later, or why it cannot be made is among the reasons already.
  static constexpr int kNone = -1;

  bool is_live_pidfd(const Descriptor& descriptor) const {
    return image_.process_handles[static_cast<size_t>(descriptor.object)].pid >= 0;
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
    std::vector<UniqueFd> fds = make_terminals(image_.terminals, ends, reasons_, options_.external.take_master);
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
    take_locks(fd, locks,
               descriptor.file < 0 ? subject_of(descriptor) : image_.files[static_cast<size_t>(descriptor.file)].path,
               reasons_, options_.dry_run ? LockTaking::kOnlyLook : LockTaking::kTake);
  }

  /// The inherited number.
  Result<int> make(int index, const Descriptor& descriptor) {
    switch (descriptor.kind) {
      case DescriptorKind::kFile:
      case DescriptorKind::kDevice: {
        auto opened = files_.descriptors.find(index);
        return opened == files_.descriptors.end() ? kNone : opened->second;
      }
      case DescriptorKind::kTerminal: return take_terminal(descriptor);
      case DescriptorKind::kPipe: return keep(descriptor, pipes_.open_end(descriptor));
      case DescriptorKind::kFifo:
        return options_.dry_run ? Result<int>(kNone) : keep(descriptor, open_fifo(descriptor));
#define CKPT_MAKE(Type, member, inode) \
  case DescriptorKind::k##Type:        \
    return keep(descriptor, make_##member(descriptor));
        CKPT_PLAIN_KINDS(CKPT_MAKE)
#undef CKPT_MAKE
      case DescriptorKind::kMemfd: return keep(descriptor, open_memfd(descriptor));
      case DescriptorKind::kPidfd:  // of a process that lives: by its owner, once that exists
        return is_live_pidfd(descriptor) ? Result<int>(kNone) : keep(descriptor, make_dead_pidfd(descriptor.flags));
      case DescriptorKind::kExternal:
        for (const auto& [source, slot] : take_external(descriptor, options_.external, inherited_, reasons_)) {
          plan_.placements.push_back({source, slot});
        }
        return kNone;
      case DescriptorKind::kSocket:
      case DescriptorKind::kPosixQueue:  // add_sockets_and_queues
      case DescriptorKind::kInotify:
      case DescriptorKind::kFanotify:   // add_watches
      case DescriptorKind::kIoUring:    // add_io_urings
      case DescriptorKind::kProcFile:   // open_proc_files
        return kNone;
    }
    return fail(Code::kBug, subject_of(descriptor), "is of no kind");
  }

  Result<int> keep(const Descriptor& descriptor, Result<UniqueFd> made) {
    CKPT_TRY_ASSIGN(UniqueFd fd, std::move(made));
    CKPT_TRY(set_flags(fd.get(), descriptor));
    return inherited_.keep(std::move(fd), subject_of(descriptor));
  }

  Result<int> take_terminal(const Descriptor& descriptor) {
    auto made = terminals_.find(descriptor.object);
    if (made == terminals_.end()) return kNone;
    CKPT_TRY(set_flags(made->second, descriptor));
    return made->second;
  }

  Result<UniqueFd> open_fifo(const Descriptor& descriptor) {
    auto both = files_.fifos.find(descriptor.pipe);
    if (both == files_.fifos.end() || both->second < 0)
      return fail(Code::kCorrupt, subject_of(descriptor), "has no named pipe");
    return pipes_.open_fifo(descriptor, both->second);
  }

  Result<UniqueFd> open_memfd(const Descriptor& descriptor) {
    const int memory = files_.shared_memory[static_cast<size_t>(descriptor.shared_memory)].writable;
    if (memory < 0) return fail(Code::kCorrupt, subject_of(descriptor), "has no memory");
    // What memfd_create itself opened does not stand in the way of executing it; what is opened for writing again does.
    const bool original =
        (descriptor.flags & (O_ACCMODE | O_PATH)) == O_RDWR && originals_.insert(descriptor.shared_memory).second;
    UniqueFd fd(original ? ::fcntl(memory, F_DUPFD_CLOEXEC, 0) : -1);
    if (!fd) {
      CKPT_TRY_ASSIGN(fd,
                      io::open_file(fmt::format("/proc/self/fd/{}", memory), descriptor.flags & (O_ACCMODE | O_PATH)));
    }
    if ((descriptor.flags & O_PATH) == 0 && ::lseek(fd.get(), static_cast<off_t>(descriptor.offset), SEEK_SET) < 0)
      return sys_error(subject_of(descriptor), "cannot go back to its offset");
    return fd;
  }

  const store::TreeImage& image_;
  const OpenedFiles& files_;
  DescriptorOptions options_;
  Inherited& inherited_;
  Reasons& reasons_;
  PipeBuilder pipes_;
  std::map<int, int> terminals_;  ///< inherited descriptors, by index into TreeImage::terminal_ends
  std::set<int> originals_;  ///< memfds whose first description is handed out
  DescriptorPlan plan_;
};

}  // namespace

DescriptorPlan make_descriptors(const store::ImageReader& image, const OpenedFiles& files,
                                const DescriptorOptions& options, Inherited& inherited, Reasons& reasons) {
  return DescriptorBuilder(image, files, options, inherited, reasons).run();
}

Result<void> add_sockets_and_queues(const store::ImageReader& image, Inherited& inherited, ProgressSink& progress,
                                    Sockets& sockets, DescriptorPlan& plan) {
  const store::TreeImage& tree = image.manifest().tree;
  std::vector<PosixQueueBuilder> queues;
  for (const store::PosixQueue& queue : tree.posix_queues) {
    CKPT_TRY_ASSIGN(PosixQueueBuilder builder, PosixQueueBuilder::make(queue));
    queues.push_back(std::move(builder));
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
  sources.read_content = [&](const store::Socket& socket) {
    return image.read_pipe(socket.content_offset, socket.content_size);
  };
  sources.descriptor = [&](int index) { return plan.source(index); };
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

Result<void> add_io_urings(const store::ImageReader& image, Inherited& inherited, OpenedFiles& files,
                           DescriptorPlan& plan) {
  const store::TreeImage& tree = image.manifest().tree;
  files.io_urings.assign(tree.io_urings.size(), -1);
  for (size_t i = 0; i < tree.descriptors.size(); ++i) {
    const Descriptor& descriptor = tree.descriptors[i];
    if (descriptor.kind != DescriptorKind::kIoUring) continue;
    const auto object = static_cast<size_t>(descriptor.object);
    const store::IoUring& ring = tree.io_urings[object];
    if (!ring.poller.empty()) continue;  // make_polled_rings
    CKPT_TRY_ASSIGN(std::vector<std::byte> content, image.read_pipe(ring.content_offset, ring.content_size));
    auto made = make_io_uring(ring, content, [&](int description) { return plan.source(description); });
    if (!made) {
      Error error = std::move(made).error();
      error.subject = subject_of(descriptor) + ", " + error.subject;
      return error;
    }
    CKPT_TRY(set_flags(made->get(), descriptor));
    CKPT_TRY_ASSIGN(int kept, inherited.keep(std::move(*made), subject_of(descriptor)));
    files.io_urings[object] = kept;
    add_source(static_cast<int>(i), descriptor, kept, plan);
  }
  return {};
}

namespace {

/// A flock is the description's, and yet the kernel tells who took it: ckpt, until the process does.
void take_over_flocks(const Descriptor& descriptor, int fd, SyscallBatch& batch) {
  for (const store::FileLock& lock : descriptor.locks) {
    if (lock.kind != store::LockKind::kFlock) continue;
    batch.add("give up a lock for a moment", SYS_flock, fd, LOCK_UN);
    batch.add("lock a file", SYS_flock, fd, (lock.write ? LOCK_EX : LOCK_SH) | LOCK_NB);
  }
}

void set_owner(const Descriptor& descriptor, int fd, int number, Child& child, SyscallBatch& batch) {
  constexpr int kSetOwnEx = 15, kSetSig = 10;
  if (number != 0) {
    struct {
      int type, pid;
    } owner{descriptor.owner_type, number};
    // The owner may be another process that is gone by now: then nobody is told, as it would have been.
    batch.try_add("set the owner of a descriptor", SYS_fcntl, fd, kSetOwnEx, child.area().put(owner));
  }
  if (descriptor.owner_signal != 0)
    batch.add("set the signal of a descriptor", SYS_fcntl, fd, kSetSig, descriptor.owner_signal);
  if ((descriptor.flags & O_ASYNC) != 0)
    batch.add("make a descriptor asynchronous", SYS_fcntl, fd, F_SETFL, descriptor.flags);
}

}  // namespace

void place_descriptors(const store::TreeImage& tree, const DescriptorPlan& plan, int process, int base,
                       RestorerArea& area, SyscallBatch& batch) {
  if (base > 0) batch.add("close ckpt's descriptors", SYS_close_range, 0, base - 1, 0);
  watch_replaced(tree, plan.sources, process, area, batch);
  for (const auto& placement : plan.placements) {
    if (placement.slot.process != process) continue;
    batch.add("place a descriptor", SYS_dup3, placement.source, placement.slot.fd,
              placement.slot.close_on_exec ? O_CLOEXEC : 0);
  }
}

void connect_descriptors(const store::TreeImage& tree, int process, Child& child, SyscallBatch& batch) {
  for (const Descriptor& descriptor : tree.descriptors) {
    const int fd = number_in(descriptor, process);
    if (fd < 0) continue;
    fill_epoll(descriptor, fd, process, child.area(), batch);
    if (descriptor.fds[0].process != process) continue;
    take_over_flocks(descriptor, fd, batch);
    take_leases(fd, descriptor.locks, batch);
    int owner = descriptor.owner_pid;
    if (owner > 0) owner = state::number_seen_by(tree, static_cast<size_t>(process), owner);
    set_owner(descriptor, fd, owner, child, batch);
  }
}

void drop_inherited(int base, SyscallBatch& batch) {
  batch.add("close what ckpt handed over", SYS_close_range, base, ~0u, 0);
}

Result<void> arm_timer_descriptors(const DescriptorPlan& plan, ProgressSink& progress) {
  for (const auto& [fd, descriptor] : plan.timers) CKPT_TRY(arm_timerfd(fd, *descriptor, progress));
  return {};
}

}  // namespace ckpt::restore
