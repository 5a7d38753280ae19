#include "lib/proc/missing_pages.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

namespace ckpt::proc {

namespace {

// What the header of an older kernel lacks.
constexpr uint64_t kFeaturePoison = uint64_t{1} << 14;  // UFFD_FEATURE_POISON, 6.6
struct PoisonArgument {                                 // struct uffdio_poison
  uffdio_range range;
  uint64_t mode;
  int64_t updated;
};
constexpr unsigned long kPoison = _IOWR(UFFDIO, 0x08, PoisonArgument);

constexpr uint64_t kEvents = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
                             UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_THREAD_ID;

Obstacle obstacle_of(int error) {
  switch (error) {
    case EEXIST: return Obstacle::kThere;
    case EAGAIN: return Obstacle::kChanging;
    case ENOENT: return Obstacle::kNotOurs;
    case ESRCH: return Obstacle::kEnded;
    default: return Obstacle::kFailed;
  }
}

/// `done`: as the kernel leaves it, bytes or -errno, or 0 where it did not get that far.
Placed outcome(int result, int64_t done, uint64_t length) {
  if (result == 0) return {length, Obstacle::kNone, 0};
  const int error = errno;
  if (done > 0)
    return {static_cast<uint64_t>(done), Obstacle::kNone, 0};  // the rest of the range tells what stopped it
  const int reason = done < 0 ? static_cast<int>(-done) : error;
  return {0, obstacle_of(reason), reason};
}

/// Goes on where the kernel stopped short without giving a reason.
template <class Once>
Placed all_of(uint64_t length, Once once) {
  uint64_t done = 0;
  while (done < length) {
    Placed step = once(done);
    done += step.bytes;
    if (step.obstacle != Obstacle::kNone) return {done, step.obstacle, step.error};
  }
  return {done, Obstacle::kNone, 0};
}

FaultMessage translate(const uffd_msg& raw) {
  FaultMessage out;
  switch (raw.event) {
    case UFFD_EVENT_PAGEFAULT:
      out.kind = FaultMessage::Kind::kFault;
      out.start = raw.arg.pagefault.address & ~uint64_t{0xfff};
      out.end = out.start + 0x1000;
      out.write = (raw.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0;
      out.thread = static_cast<int>(raw.arg.pagefault.feat.ptid);
      break;
    case UFFD_EVENT_FORK:
      out.kind = FaultMessage::Kind::kFork;
      out.child = static_cast<int>(raw.arg.fork.ufd);
      break;
    case UFFD_EVENT_REMAP:
      out.kind = FaultMessage::Kind::kMove;
      out.start = raw.arg.remap.from;
      out.end = raw.arg.remap.from + raw.arg.remap.len;
      out.to = raw.arg.remap.to;
      break;
    case UFFD_EVENT_REMOVE:
    case UFFD_EVENT_UNMAP:
      out.kind = raw.event == UFFD_EVENT_REMOVE ? FaultMessage::Kind::kRemove : FaultMessage::Kind::kUnmap;
      out.start = raw.arg.remove.start;
      out.end = raw.arg.remove.end;
      break;
    default: break;
  }
  return out;
}

}  // namespace

Result<FaultAbilities> begin_faults(int userfault, bool events) {
  for (bool poison : {true, false}) {
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = (events ? kEvents : 0) | (poison ? kFeaturePoison : 0);
    if (::ioctl(userfault, UFFDIO_API, &api) == 0) return FaultAbilities{poison};
    if (errno == EPERM) return fail(Code::kPermission, "userfaultfd", "reporting forks needs CAP_SYS_PTRACE");
  }
  return fail(Code::kUnsupported, "userfaultfd", "this kernel cannot report missing pages, forks and moved mappings");
}

Result<void> watch_missing(int userfault, uint64_t start, uint64_t end) {
  uffdio_register reg{};
  reg.range.start = start, reg.range.len = end - start;
  reg.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (::ioctl(userfault, UFFDIO_REGISTER, &reg) != 0) return sys_error("userfaultfd", "cannot watch a mapping");
  return {};
}

Result<void> unwatch_missing(int userfault, uint64_t start, uint64_t end) {
  uffdio_range range{start, end - start};
  if (::ioctl(userfault, UFFDIO_UNREGISTER, &range) != 0) return sys_error("userfaultfd", "cannot let go of a mapping");
  return {};
}

Placed copy_missing(int userfault, uint64_t to, ByteSpan pages) {
  return all_of(pages.size(), [&](uint64_t done) {
    uffdio_copy copy{};
    copy.dst = to + done;
    copy.src = reinterpret_cast<uint64_t>(pages.data()) + done;
    copy.len = pages.size() - done;
    int result = ::ioctl(userfault, UFFDIO_COPY, &copy);
    return outcome(result, copy.copy, copy.len);
  });
}

Placed zero_missing(int userfault, uint64_t at, uint64_t length) {
  return all_of(length, [&](uint64_t done) {
    uffdio_zeropage zero{};
    zero.range.start = at + done, zero.range.len = length - done;
    int result = ::ioctl(userfault, UFFDIO_ZEROPAGE, &zero);
    return outcome(result, zero.zeropage, zero.range.len);
  });
}

Placed poison_missing(int userfault, uint64_t at, uint64_t length) {
  return all_of(length, [&](uint64_t done) {
    PoisonArgument poison{};
    poison.range.start = at + done, poison.range.len = length - done;
    int result = ::ioctl(userfault, kPoison, &poison);
    return outcome(result, poison.updated, poison.range.len);
  });
}

void wake(int userfault, uint64_t at, uint64_t length) {
  uffdio_range range{at, length};
  (void)::ioctl(userfault, UFFDIO_WAKE, &range);
}

size_t read_faults(int userfault, std::array<FaultMessage, 32>& out) {
  std::array<uffd_msg, 32> raw;
  const ssize_t got = ::read(userfault, raw.data(), sizeof raw);
  if (got < 0) return 0;
  const size_t count = static_cast<size_t>(got) / sizeof(uffd_msg);
  for (size_t i = 0; i < count; ++i) out[i] = translate(raw[i]);
  return count;
}

}  // namespace ckpt::proc
