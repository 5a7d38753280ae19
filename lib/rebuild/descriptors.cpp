#include "lib/rebuild/descriptors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <map>

#include "lib/base/io.h"

namespace ckpt::rebuild {

namespace {

using store::Descriptor;
using store::DescriptorKind;

std::string subject_of(const Descriptor& descriptor) { return fmt::format("descriptor {}", descriptor.fds[0].first); }

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
    default:
      return fail(Code::kBug, subject_of(descriptor), "is not of a kind that is made here");
  }
}

Result<void> set_flags(int fd, const Descriptor& descriptor) {
  constexpr int kSettable = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;
  if (::fcntl(fd, F_SETFL, descriptor.flags & kSettable) != 0)
    return sys_error(subject_of(descriptor), "cannot set its flags");
  return {};
}

/// A pipe while its ends are handed out. Every end beyond the first of a kind is another description of the same pipe,
/// which /proc/self/fd opens.
struct OpenPipe {
  UniqueFd read, write;
};

Result<OpenPipe> make_pipe(const store::Pipe& pipe, const store::ImageReader& image) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return sys_error("", "cannot make a pipe");
  OpenPipe out{UniqueFd(ends[0]), UniqueFd(ends[1])};
  if (::fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(pipe.capacity)) < 0)
    return sys_error("", fmt::format("cannot make a pipe of {} bytes", pipe.capacity));
  if (pipe.content_size == 0) return out;
  CKPT_TRY_ASSIGN(std::vector<std::byte> content, image.read_pipe(pipe.content_offset, pipe.content_size));
  CKPT_TRY(io::write_all(ends[1], content, "pipe"));
  return out;
}

Result<UniqueFd> take_end(OpenPipe& pipe, const Descriptor& descriptor) {
  int mode = descriptor.flags & O_ACCMODE;
  UniqueFd& end = mode == O_RDONLY ? pipe.read : pipe.write;
  int any = pipe.read ? pipe.read.get() : pipe.write.get();
  return io::open_file(fmt::format("/proc/self/fd/{}", end ? end.get() : any), mode | O_NONBLOCK);
}

/// What the caller of ckpt left open, as opposed to what ckpt opened itself: that closes on exec.
bool is_from_surroundings(int fd) {
  int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

class Maker {
 public:
  Maker(const store::ImageReader& image, const OpenedFiles& files, bool shell_job, Inherited& inherited,
        Reasons& reasons)
      : reader_(image),
        image_(image.manifest().process),
        files_(files),
        shell_job_(shell_job),
        inherited_(inherited),
        reasons_(reasons) {}

  DescriptorPlan run() {
    for (size_t i = 0; i < image_.descriptors.size(); ++i) {
      const Descriptor& descriptor = image_.descriptors[i];
      if (descriptor.kind == DescriptorKind::kExternal) {
        take_external(descriptor);
        continue;
      }
      auto source = make(i, descriptor);
      if (!source) {
        reasons_.add(source.error());
        continue;
      }
      if (*source < 0) continue;  // open_files gave the reason
      for (const auto& [number, close_on_exec] : descriptor.fds)
        plan_.placements.push_back({*source, number, close_on_exec});
      if (descriptor.kind == DescriptorKind::kTimerfd) plan_.timers.emplace_back(*source, &descriptor);
    }
    return std::move(plan_);
  }

 private:
  Result<int> make(size_t index, const Descriptor& descriptor) {
    if (descriptor.kind == DescriptorKind::kFile || descriptor.kind == DescriptorKind::kDevice) {
      auto opened = files_.descriptors.find(static_cast<int>(index));
      return opened == files_.descriptors.end() ? -1 : opened->second;
    }
    UniqueFd fd;
    if (descriptor.kind == DescriptorKind::kPipe) {
      auto pipe = pipes_.find(descriptor.pipe);
      if (pipe == pipes_.end()) {
        CKPT_TRY_ASSIGN(OpenPipe made, make_pipe(image_.pipes[static_cast<size_t>(descriptor.pipe)], reader_));
        pipe = pipes_.emplace(descriptor.pipe, std::move(made)).first;
      }
      CKPT_TRY_ASSIGN(fd, take_end(pipe->second, descriptor));
    } else {
      CKPT_TRY_ASSIGN(fd, make_plain(descriptor));
    }
    CKPT_TRY(set_flags(fd.get(), descriptor));
    return inherited_.keep(std::move(fd), subject_of(descriptor));
  }

  /// Each number is taken from ckpt's own; a duplicate that ckpt was not given follows the first of its group.
  void take_external(const Descriptor& descriptor) {
    if (!shell_job_) {
      reasons_.add(Code::kUsage, fmt::format("{} is {}, which belongs to the surroundings of the process",
                                             subject_of(descriptor), descriptor.external));
      return reasons_.hint(
          "--shell-job takes terminals and outer pipes from ckpt's own descriptors of the same numbers");
    }
    int first = -1;
    for (const auto& fd : descriptor.fds) {
      if (first < 0 && is_from_surroundings(fd.first)) first = fd.first;
    }
    if (first < 0) {
      return reasons_.add(Code::kUsage, fmt::format("{} was {}: ckpt has no open descriptor of that number to give",
                                                    subject_of(descriptor), descriptor.external));
    }
    for (const auto& [number, close_on_exec] : descriptor.fds) {
      auto source = inherited_.keep_copy(is_from_surroundings(number) ? number : first, subject_of(descriptor));
      if (!source) return reasons_.add(source.error());
      plan_.placements.push_back({*source, number, close_on_exec});
    }
  }

  const store::ImageReader& reader_;
  const store::ProcessImage& image_;
  const OpenedFiles& files_;
  bool shell_job_;
  Inherited& inherited_;
  Reasons& reasons_;
  std::map<int, OpenPipe> pipes_;
  DescriptorPlan plan_;
};

timespec timespec_of(uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

DescriptorPlan make_descriptors(const store::ImageReader& image, const OpenedFiles& files, bool shell_job,
                                Inherited& inherited, Reasons& reasons) {
  return Maker(image, files, shell_job, inherited, reasons).run();
}

void place_descriptors(const DescriptorPlan& plan, int base, Script& script) {
  if (base > 0) script.add("close ckpt's descriptors", SYS_close_range, 0, base - 1, 0);
  for (const auto& placement : plan.placements) {
    script.add("place a descriptor", SYS_dup3, placement.source, placement.target,
               placement.close_on_exec ? O_CLOEXEC : 0);
  }
}

void connect_descriptors(const store::ProcessImage& image, Child& child, Script& script) {
  constexpr int kSetOwnEx = 15, kSetSig = 10;
  for (const Descriptor& descriptor : image.descriptors) {
    int fd = descriptor.fds[0].first;
    for (const auto& entry : descriptor.epoll) {
      epoll_event event{};
      event.events = entry.events;
      event.data.u64 = entry.data;
      script.add("fill an epoll set", SYS_epoll_ctl, fd, EPOLL_CTL_ADD, entry.target_fd, child.scratch().put(event));
    }
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
