#include "lib/state/descriptors/capture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <linux/sockios.h>
#include <linux/un.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <list>
#include <map>
#include <set>

#include "lib/proc/userfault.h"
#include "lib/state/descriptors/kind_functions.h"
#include "lib/state/epoll/capture.h"
#include "lib/state/files/capture.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/locks/capture.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/pidfds/capture.h"

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

namespace {

constexpr const char* kInOtherMounts = "in another mount namespace than the first process's, which is not supported";

/// kcmp(2) of two open file descriptions: 0 the same, 1 the first comes before the second, 2 after it.
long compare(const Place& a, const Place& b) { return ::syscall(SYS_kcmp, a.pid, b.pid, KCMP_FILE, a.fd, b.fd); }

/// What two descriptors of one description have in common for certain. All events have one link, and a number of their
/// own.
std::string group_of(const Place& place) {
  return place.info.eventfd_id < 0 ? place.link : place.link + std::to_string(place.info.eventfd_id);
}

/// Into the first one. With a pool, what comes before the middle of the first half and what does not are merged side by
/// side; `less(i)` is for one thread.
template <class Less>
Result<void> merge_halves(WorkerPool* pool, std::array<std::list<size_t>, 2>& halves, Less less) {
  auto& [first, second] = halves;
  if (pool == nullptr) return first.merge(second, less(0)), Result<void>();
  const auto middle = std::next(first.begin(), static_cast<ptrdiff_t>(first.size() / 2));
  const auto there = std::lower_bound(second.begin(), second.end(), *middle, less(0));
  std::array<std::list<size_t>, 2> before;
  before[0].splice(before[0].end(), first, first.begin(), middle);
  before[1].splice(before[1].end(), second, second.begin(), there);
  CKPT_TRY(side_by_side(pool, 2, [&](size_t i) {
    if (i == 0) before[0].merge(before[1], less(i));
    else first.merge(second, less(i));
    return Result<void>();
  }));
  first.splice(first.begin(), before[0]);
  return {};
}

}  // namespace

DescriptorInventory::DescriptorInventory(Walk& walk)
    : context_(walk),
      out_(walk.out),
      pipes_(context_),
      posix_queues_(context_),
      watches_(context_),
      terminals_(context_),
      sockets_(context_, [this](UniqueFd fd) { return take_right(std::move(fd)); }),
      io_urings_(context_) {}

Result<void> DescriptorInventory::run() {
  list();
  CKPT_TRY(find_shared());
  for (size_t at = 0, count = places_.size(); at < count; ++at) CKPT_TRY(add(at));
  CKPT_TRY(sockets_.settle());
  CKPT_TRY(terminals_.settle());
  CKPT_TRY(pipes_.settle(sockets_.may_hold_descriptors()));
  CKPT_TRY(io_urings_.settle(places_));
  find_epoll_targets(out_);
  return {};
}

void DescriptorInventory::list() {
  for (size_t i = 0; i < context_.walk.members.size(); ++i) {
    const Member& member = context_.walk.members[i];
    for (proc::OpenFd& open : context_.walk.seen[i].fds) {
      places_.push_back({i, member.entry.pid, member.pidfd.get(), open.fd, std::move(open.link), std::move(open.info),
                         places_.size(), {}});
    }
  }
}

/// Fills Place::first. kcmp gives an order, so the same ones are found by sorting; and that has been done before for
/// most when the tree stands still: then comparing each with the next is enough.
Result<void> DescriptorInventory::find_shared() {
  for (size_t at = 0; at < places_.size(); ++at) groups_[group_of(places_[at])].push_back(at);
  std::map<std::pair<int, int>, size_t> ranks;
  if (context_.walk.options.earlier != nullptr) {
    const auto& then = context_.walk.options.earlier->compared;
    for (size_t i = 0; i < then.size(); ++i) ranks.emplace(then[i], i);
  }
  for (auto& [link, group] : groups_) {
    if (group.size() == 1) continue;
    std::vector<bool> same(group.size(), true);
    const bool numbered = places_[group[0]].info.eventfd_id >= 0;
    if (!numbered) {
      auto rank = [&](size_t at) {
        auto known = ranks.find({places_[at].pid, places_[at].fd});
        return known != ranks.end() ? known->second : ranks.size();
      };
      if (!ranks.empty())
        std::stable_sort(group.begin(), group.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
      CKPT_TRY_ASSIGN(same, sort_by_kernel(group, !ranks.empty()));
      for (size_t at : group) out_.compared.emplace_back(places_[at].pid, places_[at].fd);
    }
    for (size_t i = 1, begin = 0; i < group.size(); ++i) {
      if (!same[i]) begin = i;
      if (begin == i) continue;
      // The first of them in the list speaks for all.
      const size_t first = std::min(places_[group[begin]].first, group[i]);
      for (size_t j = begin; j <= i; ++j) places_[group[j]].first = first;
    }
  }
  return {};
}

/// Which of the group is the same as the one before it.
Result<std::vector<bool>> DescriptorInventory::sort_by_kernel(std::vector<size_t>& group, bool sorted_before) const {
  std::vector<bool> same(group.size());
  auto ordered = [&] {
    bool out = true;
    for (size_t i = 1; i < group.size(); ++i) {
      const long order = compare(places_[group[i - 1]], places_[group[i]]);
      same[i] = order == 0;
      out = out && (order == 0 || order == 1);
    }
    return out;
  };
  if (sorted_before && ordered()) return same;
  // The answers of a running tree may contradict each other: std::sort and std::stable_sort run past the end then, the
  // merges of a list do not.
  constexpr size_t kWorthAThread = 128;  // a call takes a microsecond or more
  using Pairs = std::set<std::pair<size_t, size_t>>;
  std::array<Pairs, 2> equal;
  auto less = [this, &equal](size_t half) {
    return [this, &pairs = equal[half]](size_t a, size_t b) {
      const long order = compare(places_[a], places_[b]);
      if (order == 0) pairs.insert(std::minmax(a, b));
      return order == 1;
    };
  };
  const auto middle = group.begin() + static_cast<ptrdiff_t>(group.size() / 2);
  std::array<std::list<size_t>, 2> halves{{{group.begin(), middle}, {middle, group.end()}}};
  WorkerPool* const pool = group.size() >= kWorthAThread ? context_.walk.pool : nullptr;
  CKPT_TRY(side_by_side(pool, halves.size(), [&](size_t i) { return halves[i].sort(less(i)), Result<void>(); }));
  CKPT_TRY(merge_halves(pool, halves, less));
  group.assign(halves[0].begin(), halves[0].end());
  // Neighbours have been compared with each other when the merges brought them together.
  for (size_t i = 1; i < group.size(); ++i) {
    const std::pair<size_t, size_t> pair = std::minmax(group[i - 1], group[i]);
    same[i] = equal[0].count(pair) != 0 || equal[1].count(pair) != 0;
  }
  return same;
}

/// A place that was added after the others were compared.
void DescriptorInventory::join_group(size_t at) {
  Place& place = places_[at];
  std::vector<size_t>& group = groups_[group_of(place)];
  auto next = std::lower_bound(group.begin(), group.end(), at,
                               [this](size_t a, size_t b) { return compare(places_[a], places_[b]) == 1; });
  place.first = next != group.end() && compare(places_[*next], place) == 0 ? places_[*next].first : at;
  group.insert(next, at);
}

Result<void> DescriptorInventory::add(size_t at) {
  const Place& place = places_[at];
  const state::InMounts there(context_.walk.mounts_of(place.process));
  CKPT_TRY_ASSIGN(int index, find_or_describe(at));
  if (place.info.locks > 0) CKPT_TRY(take_locks(place, index));
  if (index < 0) return {};
  Descriptor& descriptor = out_.image.descriptors[static_cast<size_t>(index)];
  store::FdSlot slot{static_cast<int>(place.process), place.fd, (place.info.flags & O_CLOEXEC) != 0};
  if (store::facts_of(descriptor.kind).opened_by_process && !descriptor.fds.empty() &&
      descriptor.fds[0].process != slot.process) {
    context_.block(place, place.link + ", which two processes share: not supported");
  }
  descriptor.fds.push_back(slot);
  return {};
}

namespace {

/// Whether somebody could be told about what happens to it: other kinds' file operations have no fasync.
bool has_owner(const Descriptor& d) {
  if ((d.flags & O_ASYNC) != 0) return true;
  return store::facts_of(d.kind).has_owner && (d.flags & O_PATH) == 0;
}

/// F_SETOWN and F_SETSIG.
void take_owner(int theirs, Descriptor& d) {
  f_owner_ex owner{};
  if (::fcntl(theirs, F_GETOWN_EX, &owner) == 0) d.owner_type = owner.type, d.owner_pid = owner.pid;
  int signal = ::fcntl(theirs, F_GETSIG);
  d.owner_signal = signal > 0 ? signal : 0;
}

}  // namespace

namespace {

/// To a name that leads to it in another mount namespace than the first process's only.
bool is_bound_elsewhere(int socket) {
  if (state::looked_into() < 0) return false;
  const UniqueFd file(::ioctl(socket, SIOCUNIXFILE));
  struct stat st {
  }, there{};
  std::error_code ec;
  const std::filesystem::path path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", file.get()), ec);
  if (!file || ec || ::fstat(file.get(), &st) != 0) return false;
  const state::InMounts first(-1);
  return !state::stat_in_tree(path, there, false) || there.st_dev != st.st_dev || there.st_ino != st.st_ino;
}

}  // namespace

/// The index of the open file description behind a descriptor, -1: it cannot be carried.
Result<int> DescriptorInventory::find_or_describe(size_t at) {
  const Place& place = places_[at];
  std::optional<int>& known = places_[place.first].description;
  if (known) return *known;
  Descriptor descriptor;
  descriptor.flags = place.info.flags & ~O_CLOEXEC;
  descriptor.offset = place.info.position;
  CKPT_TRY_ASSIGN(bool supported, classify(place, descriptor));
  const int index = supported ? static_cast<int>(out_.image.descriptors.size()) : -1;
  known = index;
  if (!supported) return index;
  const DescriptorKind kind = descriptor.kind;
  const bool takes_owner = context_.frozen() && has_owner(descriptor);
  UniqueFd theirs;
  if (takes_owner || kind == DescriptorKind::kSocket) {
    CKPT_TRY_ASSIGN(theirs, DescriptorContext::duplicate(place));
  }
  if (kind == DescriptorKind::kSocket && is_bound_elsewhere(theirs.get()))
    context_.block(place, fmt::format("a bound unix socket {}", kInOtherMounts));
  if (takes_owner) take_owner(theirs.get(), descriptor);
  out_.image.descriptors.push_back(std::move(descriptor));
  if (kind == DescriptorKind::kSocket) sockets_.add(place, std::move(theirs), index);
  if (kind == DescriptorKind::kTerminal) CKPT_TRY(terminals_.add(place, index));
  return index;
}

/// A lease is of use to whom the kernel tells that somebody wants the file: F_SETOWN, F_SETSIG.
Result<void> DescriptorInventory::take_lease(const Place& place, const store::FileLock& lease, Descriptor& descriptor) {
  if (descriptor.file >= 0 && out_.image.files[static_cast<size_t>(descriptor.file)].deleted)
    return context_.block(place, "a lease on a file that was deleted, which is not supported"), Result<void>();
  descriptor.locks.push_back(lease);
  if (!context_.frozen()) return {};
  CKPT_TRY_ASSIGN(UniqueFd theirs, DescriptorContext::duplicate(place));
  take_owner(theirs.get(), descriptor);
  return {};
}

/// Locks but POSIX ones are the description's, and every process that shares it shows them; POSIX locks are the
/// process's.
Result<void> DescriptorInventory::take_locks(const Place& place, int index) {
  CKPT_TRY_ASSIGN(std::string text, DescriptorContext::fdinfo(place));
  auto locks = parse_locks(text);
  if (!locks) return context_.block(place, locks.error()), Result<void>();
  if (index < 0) return {};
  Descriptor& descriptor = out_.image.descriptors[static_cast<size_t>(index)];
  const int mode = descriptor.flags & O_ACCMODE;
  for (const store::FileLock& lock : *locks) {
    if (lock.kind == store::LockKind::kLease) {
      if (descriptor.fds.empty()) CKPT_TRY(take_lease(place, lock, descriptor));
    } else if (lock.kind != store::LockKind::kPosix) {
      if (descriptor.fds.empty()) descriptor.locks.push_back(lock);
    } else if (lock.write ? mode != O_RDONLY : mode != O_WRONLY) {  // every descriptor of the file shows it
      out_.image.processes[place.process].locks.push_back({place.fd, lock});
    }
  }
  return {};
}

/// A descriptor found in a socket's queue: it leads to a description that is known, or to one that is nowhere else.
Result<int> DescriptorInventory::take_right(UniqueFd fd) {
  const int pid = ::getpid();
  if (!own_pidfd_) {
    CKPT_TRY_ASSIGN(own_pidfd_, proc::open_pidfd(pid));
  }
  CKPT_TRY_ASSIGN(std::string link, proc::read_link(pid, fmt::format("fd/{}", fd.get())));
  CKPT_TRY_ASSIGN(proc::FdInfo info, proc::read_fdinfo(pid, fd.get()));
  const size_t at = places_.size();
  places_.push_back({0, pid, own_pidfd_.get(), fd.get(), std::move(link), std::move(info), at, {}});
  rights_.push_back(std::move(fd));
  join_group(at);
  return find_or_describe(at);
}

Result<bool> DescriptorInventory::classify(const Place& place, Descriptor& d) {
  const std::string& link = place.link;
  if (link.starts_with("pipe:[")) return pipes_.take_pipe(place, d);
  if (link.starts_with("anon_inode:")) return classify_anonymous(place, d);
  if (link.starts_with("socket:[")) {
    d.kind = DescriptorKind::kSocket;
    return true;
  }
  if (link.starts_with("/memfd:")) {
    d.kind = DescriptorKind::kMemfd;
    CKPT_TRY_ASSIGN(d.shared_memory, context_.walk.shared_memory.add_memfd(link, place.access()));
    return true;
  }
  if (!link.starts_with("/")) return context_.block(place, "of a kind that is not known (" + link + ")"), false;
  CKPT_TRY_ASSIGN(struct stat st, context_.stat_behind(place));
  if (S_ISCHR(st.st_mode)) return take_device(context_, place, st, d);
  if (link.starts_with("/proc/")) return take_proc_file(context_, place, st, d);
  if (S_ISFIFO(st.st_mode)) return pipes_.take_fifo(place, st, d);
  if (S_ISREG(st.st_mode)) {
    CKPT_TRY_ASSIGN(bool queue, posix_queues_.holds(place, st));
    if (queue) return posix_queues_.take(place, d);
  }
  if (S_ISBLK(st.st_mode)) return context_.block(place, "a block device (" + link + "), which is not supported"), false;
  return take_file(context_, place, st, d);
}

Result<bool> DescriptorInventory::classify_anonymous(const Place& place, Descriptor& d) {
  const std::string_view kind = std::string_view(place.link).substr(std::string_view("anon_inode:").size());
#define CKPT_TAKE(Type, member, inode)       \
  if (kind == inode) {                       \
    d.kind = store::DescriptorKind::k##Type; \
    CKPT_TRY(take_##member(place, d));       \
    return true;                             \
  }
  CKPT_PLAIN_KINDS(CKPT_TAKE)
#undef CKPT_TAKE
  if ((kind == "inotify" || kind == "[fanotify]") && state::looked_into() >= 0)
    return context_.block(place, fmt::format("{} {}", kind, kInOtherMounts)), false;
  if (kind == "inotify" || kind == "[fanotify]") return watches_.take(place, kind == "inotify", d);
  if (kind == "[pidfd]") return take_pidfd(context_, place, d);
  if (kind == kIoUring) return io_urings_.take(place, d);
  return context_.block(place, fmt::format("{}, which is not supported", kind)), false;
}

Result<void> inventory_descriptors(Walk& walk) { return DescriptorInventory(walk).run(); }

}  // namespace ckpt::capture
