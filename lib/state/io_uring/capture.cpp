#include "lib/state/io_uring/capture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>

#include "lib/proc/kernel_memory.h"

namespace ckpt::capture {

using state::UringMemory;
using store::IoUring;

namespace {

constexpr const char* kToldEventfd =
    "[io_uring] that tells its completions to an eventfd, and which one can be seen in the kernel's memory alone";

/// Of requests that may wait for long (enum io_uring_op).
std::string name_of(int opcode) {
  switch (opcode) {
    case IORING_OP_POLL_ADD: return "poll";
    case IORING_OP_SENDMSG: return "sendmsg";
    case IORING_OP_RECVMSG: return "recvmsg";
    case IORING_OP_ACCEPT: return "accept";
    case IORING_OP_CONNECT: return "connect";
    case IORING_OP_READ: return "read";
    case IORING_OP_READV: return "readv";
    case IORING_OP_WRITE: return "write";
    case IORING_OP_WRITEV: return "writev";
    case IORING_OP_SEND: return "send";
    case IORING_OP_RECV: return "recv";
    default: return fmt::format("operation {}", opcode);
  }
}

/// Of a ring of which the kernel's memory tells nothing. Empty: nothing that a look from outside can find.
std::string refused(const proc::UringInfo& info) {
  if (info.poller >= 0) return "[io_uring] with a thread of the kernel that polls it (IORING_SETUP_SQPOLL)";
  if (info.has_personalities) return "[io_uring] with registered credentials";
  return "";
}

store::IoUringPersonality personality_of(uint32_t number, const proc::UringCredentials& credentials) {
  return {number, credentials.uid, credentials.gid, credentials.groups, credentials.capabilities};
}

bool may_register(const IoUring& ring, unsigned operation) {
  return ring.disabled || ring.restrictions.empty() || (ring.restrictions[0].registrations >> operation & 1) != 0;
}

std::string waits_for(const proc::UringInfo& info, uint32_t requests) {
  std::set<std::string> names;
  for (int opcode : info.polled) names.insert(name_of(opcode));
  std::string out = fmt::format("[io_uring] with {} request{} in flight", requests, requests == 1 ? "" : "s");
  if (!names.empty()) out += fmt::format(" ({})", fmt::join(names, ", "));
  return out;
}

}  // namespace

UringFlight in_flight(const proc::UringInfo& info, uint32_t dropped) {
  const auto left = static_cast<int32_t>(info.submitted - dropped - info.completed);
  UringFlight out;
  out.is_countable = left >= 0;
  out.requests = left > 0 ? static_cast<uint32_t>(left) : 0;
  out.requests = std::max(out.requests, static_cast<uint32_t>(info.polled.size() + (info.has_overflow ? 1 : 0)));
  return out;
}

Result<bool> UringCollector::take(const Place& place, store::Descriptor& d) {
  CKPT_TRY_ASSIGN(UniqueFd ring, DescriptorContext::duplicate(place));
  CKPT_TRY_ASSIGN(struct stat st, context_.stat_behind(place));
  auto info = proc::read_uring_info(place.pid, place.fd);
  std::string why = info ? "" : "[io_uring]: " + info.error().text();
  if (place.pid == ::getpid()) why = "[io_uring] in flight in a socket, which is not supported";
  if (!why.empty()) {
    context_.block(place, std::move(why));
    context_.out.blockers.back().passes = !info && info.error().code == Code::kBusy;
    return false;
  }
  IoUring out;
  out.sq_entries = info->sq_entries, out.cq_entries = info->cq_entries;
  out.submitted = info->submitted, out.completed = info->completed;
  out.process = static_cast<int>(place.process);
  for (const auto& [address, length] : info->buffers) out.buffers.push_back({address, length});
  if (!take_inside(place, ring.get(), *info, out)) return false;
  auto content = take_content(ring.get(), out);
  if (!content) return context_.block(place, "[io_uring]: " + content.error().text()), false;
  auto eventfd = look_for_eventfd(ring.get(), out);
  if (!eventfd) return context_.block(place, eventfd.error().message), false;
  check_flight(place, *info, *content);
  // Nothing tells which pages they are in that a device or the kernel writes to.
  if (!out.buffers.empty() || is_new(place)) context_.out.statuses[place.process][0].has_pinned_pages = true;
  d.kind = store::DescriptorKind::kIoUring;
  d.object = static_cast<int>(context_.out.image.io_urings.size());
  context_.out.image.io_urings.push_back(std::move(out));
  context_.out.io_uring_contents.push_back(std::move(content->bytes));
  found_.push_back({place, st.st_ino, *std::move(info), *eventfd});
  return true;
}

/// What the kernel's memory alone tells. Where that cannot be read the ring is taken for a plain one, unless something
/// else shows that it is none.
bool UringCollector::take_inside(const Place& place, int ring, const proc::UringInfo& info, IoUring& out) {
  constexpr uint32_t kNoArray = 1u << 16;  // IORING_SETUP_NO_SQARRAY, 6.6
  auto inside = proc::read_uring_in_kernel(ring);
  knows_shape_ = inside.has_value();
  if (!inside) {
    std::string why = refused(info);
    const bool passes = inside.error().code == Code::kBusy;
    if (why.empty() && !passes) return true;
    why = why.empty() ? "[io_uring]" : why + ", about which the kernel's memory alone tells enough";
    context_.block(place, why + ": " + inside.error().text());
    context_.out.blockers.back().passes = passes;
    return false;
  }
  if (!inside->other.empty())
    return context_.block(place, "[io_uring] with " + inside->other + ", which is not supported"), false;
  out.flags = inside->flags & store::kUringFlags;
  out.disabled = (inside->flags & IORING_SETUP_R_DISABLED) != 0;
  out.sqe_size = (inside->flags & IORING_SETUP_SQE128) != 0 ? 128 : 64;
  out.cqe_size = (inside->flags & IORING_SETUP_CQE32) != 0 ? 32 : 16;
  out.no_array = (inside->flags & kNoArray) != 0;
  for (const auto& [number, who] : inside->personalities) out.personalities.push_back(personality_of(number, who));
  const proc::UringRestrictions& r = inside->restrictions;
  if (inside->has_restrictions)
    out.restrictions.push_back({r.registrations, r.requests, r.flags_allowed, r.flags_required});
  auto fit = [](const auto& tags, size_t count) { return tags.empty() || tags.size() == count; };
  if (!fit(inside->file_tags, info.file_slots) || !fit(inside->buffer_tags, out.buffers.size())) {
    context_.block(place, "[io_uring] whose registrations are being changed");
    context_.out.blockers.back().passes = true;
    return false;
  }
  out.file_tags = std::move(inside->file_tags), out.buffer_tags = std::move(inside->buffer_tags);
  return info.poller < 0 || take_poller(place, *inside, out);
}

/// Its thread does all requests with the credentials that the process had when it made the ring.
bool UringCollector::take_poller(const Place& place, const proc::UringKernelInfo& inside, IoUring& out) {
  auto own = proc::credentials_in_kernel(place.pid, place.pidfd);
  if (!own) return context_.block(place, "[io_uring]: " + own.error().text()), false;
  if (*own != inside.credentials) {
    context_.block(place, "[io_uring] with a thread of the kernel that polls it (IORING_SETUP_SQPOLL) with other "
                          "credentials than the process has by now, which is not supported");
    return false;
  }
  out.poller.push_back({inside.idle_ms, inside.processor, -1});
  return true;
}

/// In the kernel's memory, where a ring may have one: there is nothing else that tells which. Whoever may not ask
/// (IORING_SETUP_SINGLE_ISSUER) is told that, and the threads of the process are asked later.
Result<uint64_t> UringCollector::look_for_eventfd(int ring, IoUring& out) {
  const bool asked = ::syscall(SYS_io_uring_register, ring, IORING_REGISTER_EVENTFD, nullptr, 1) < 0;
  const int answer = asked ? errno : 0;
  if (std::string why = refused_by_registration(-answer, out); !why.empty()) return fail(Code::kUnsupported, "", why);
  if (answer != EBUSY && answer != EEXIST && answer != EACCES) return uint64_t{0};
  auto look = [&]() -> Result<uint64_t> {
    CKPT_TRY_ASSIGN(const proc::KernelMemory* kernel, proc::KernelMemory::get());
    CKPT_TRY_ASSIGN(const uint64_t file, kernel->file_of(ring));
    CKPT_TRY_ASSIGN(const auto context, kernel->read<uint64_t>(file, "file", "private_data"));
    CKPT_TRY_ASSIGN(const auto told, kernel->read<uint64_t>(context, "io_ring_ctx", "io_ev_fd"));
    if (told == 0) return uint64_t{0};
    CKPT_TRY_ASSIGN(const auto async, kernel->read<uint32_t>(told, "io_ev_fd", "eventfd_async"));
    out.eventfd_async = (async & 1) != 0;
    return kernel->read<uint64_t>(told, "io_ev_fd", "cq_ev_fd");
  };
  auto found = look();
  if (found || answer != EBUSY) return found.value_or(0);
  return fail(Code::kUnsupported, "", std::string(kToldEventfd) + ": " + found.error().text());
}

/// Pre-copy did not wait for what was in flight in it.
bool UringCollector::is_new(const Place& place) const {
  const Inventory* earlier = context_.walk.options.earlier;
  const int process = earlier != nullptr ? earlier->find(place.pid) : -1;
  if (process < 0) return earlier != nullptr;
  const std::vector<RingPlace> known = rings_of(earlier->image, process);
  return std::none_of(known.begin(), known.end(), [&](const RingPlace& ring) { return ring.fd == place.fd; });
}

Result<UringCollector::Content> UringCollector::take_content(int fd, IoUring& ring) {
  constexpr uint32_t kNeedsWakeup = 1;  // IORING_SQ_NEED_WAKEUP
  if (!layout_) {
    CKPT_TRY_ASSIGN(layout_, state::uring_layout());
  }
  if (!knows_shape_) CKPT_TRY(state::find_shape(fd, *layout_, ring));
  CKPT_TRY_ASSIGN(UringMemory memory, UringMemory::map(fd, ring, *layout_));
  ring.rings_size = state::queues_size(ring, *layout_);
  ring.content_size = ring.rings_size + state::entries_size(ring);
  Content out;
  out.bytes.resize(ring.content_size);
  const MutableByteSpan whole(out.bytes);
  CKPT_TRY(memory.read(whole.first(ring.rings_size), whole.subspan(ring.rings_size)));
  std::memcpy(&out.dropped, out.bytes.data() + layout_->sq.dropped, sizeof out.dropped);
  std::memcpy(&out.tail, out.bytes.data() + layout_->sq.tail, sizeof out.tail);
  // Whether a thread that polls sleeps at the moment is no state of the ring.
  if (!ring.poller.empty()) {
    uint32_t flags = 0;
    std::memcpy(&flags, out.bytes.data() + layout_->sq.flags, sizeof flags);
    flags |= kNeedsWakeup;
    std::memcpy(out.bytes.data() + layout_->sq.flags, &flags, sizeof flags);
  }
  return out;
}

/// While the tree runs its counters change between being read: then only what is known to wait for others counts.
void UringCollector::check_flight(const Place& place, const proc::UringInfo& info, const Content& content) {
  const UringFlight flight = in_flight(info, content.dropped);
  if (context_.frozen() && !flight.is_countable) {
    return context_.block(place,
                          "[io_uring] with more completions than requests (multishot or zero copy): whether "
                          "any is in flight cannot be told");
  }
  const uint32_t unseen = info.poller >= 0 ? content.tail - info.submitted : 0;
  if (context_.frozen() ? flight.requests == 0 && unseen == 0 : info.polled.empty()) return;
  context_.block(place, waits_for(info, std::max(flight.requests, unseen)));
  context_.out.blockers.back().passes = true;
}

void UringCollector::block(size_t index, std::string what) { context_.block(found_[index].place, std::move(what)); }

Result<void> UringCollector::settle(const std::deque<Place>& places) {
  find_views();
  for (size_t i = 0; i < found_.size(); ++i) {
    find_files(i, places);
    if (found_[i].eventfd != 0) find_eventfd(i, places);
    check_restrictions(i);
  }
  find_pollers(places);
  return {};
}

/// A restore has to register it after requests were made, which is once the restrictions are in force.
void UringCollector::check_restrictions(size_t index) {
  constexpr unsigned kBuffersWithTags = 15;  // IORING_REGISTER_BUFFERS2
  const IoUring& ring = context_.out.image.io_urings[index];
  const unsigned buffers = ring.buffer_tags.empty() ? unsigned{IORING_REGISTER_BUFFERS} : kBuffersWithTags;
  const unsigned eventfd = ring.eventfd_async ? IORING_REGISTER_EVENTFD_ASYNC : IORING_REGISTER_EVENTFD;
  if (!ring.buffers.empty() && !may_register(ring, buffers))
    block(index, "[io_uring] with registered buffers and restrictions that forbid to register some");
  if (ring.eventfd >= 0 && !may_register(ring, eventfd))
    block(index, "[io_uring] with an eventfd and restrictions that forbid to register one");
  if (!ring.restrictions.empty() && ring.submitted != ring.completed && context_.frozen())
    block(index, "[io_uring] with restrictions and with requests that were dropped, which is not supported");
}

/// The thread is one of the process that made the ring.
void UringCollector::find_pollers(const std::deque<Place>& places) {
  std::vector<IoUring>& rings = context_.out.image.io_urings;
  for (size_t i = 0; i < found_.size(); ++i) {
    if (rings[i].poller.empty()) continue;
    const Place& own = found_[i].place;
    auto is_others = [&](const Place& other) {
      return other.process != own.process && places[other.first].pid == own.pid && places[other.first].fd == own.fd;
    };
    const bool mapped_elsewhere = std::any_of(rings[i].views.begin(), rings[i].views.end(),
                                              [&](const auto& view) { return view.process != rings[i].process; });
    if (mapped_elsewhere || std::any_of(places.begin(), places.end(), is_others))
      block(i, "[io_uring] with a thread of the kernel that polls it (IORING_SETUP_SQPOLL), which several processes "
               "have: not supported");
    for (size_t k = 0; k < i && rings[i].poller[0].ring < 0; ++k) {
      if (!rings[k].poller.empty() && found_[k].info.poller == found_[i].info.poller)
        rings[i].poller[0].ring = static_cast<int>(k);
    }
  }
}

/// Which of the tree's eventfds is the one in the kernel's memory.
void UringCollector::find_eventfd(size_t index, const std::deque<Place>& places) {
  auto is_it = [&](const Place& place) {
    auto kernel = proc::KernelMemory::get();
    auto own = DescriptorContext::duplicate(place);
    if (!kernel || !own) return false;
    auto file = (*kernel)->file_of(own->get());
    auto context = file ? (*kernel)->read<uint64_t>(*file, "file", "private_data") : file;
    return context && *context == found_[index].eventfd;
  };
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    if (place.first != i || place.link != "anon_inode:[eventfd]" || place.description.value_or(-1) < 0) continue;
    if (!is_it(place)) continue;
    context_.out.image.io_urings[index].eventfd = *place.description;
    return;
  }
  block(index, "[io_uring] that tells its completions to an eventfd which no descriptor leads to");
}

/// The inode is one for each ring.
void UringCollector::find_views() {
  store::TreeImage& image = context_.out.image;
  for (size_t p = 0; p < image.processes.size(); ++p) {
    for (size_t m = 0; m < image.processes[p].maps.size(); ++m) {
      const store::MemoryMap& map = image.processes[p].maps[m];
      if (map.kind != store::MappingKind::kIoUring) continue;
      const uint64_t inode = context_.out.vmas[p][m].inode;
      auto found = std::find_if(found_.begin(), found_.end(), [&](const Found& f) { return f.inode == inode; });
      const auto index = static_cast<size_t>(found - found_.begin());
      const bool is_whole = map.file_offset == state::kUringQueues || map.file_offset == state::kUringCompletions ||
                            map.file_offset == state::kUringEntries;
      if (!is_whole) {
        context_.out.block(p, fmt::format("mapping {:x}-{:x}", map.start, map.end),
                           "[io_uring] of which a part is unmapped or protected, which is not supported");
      } else if (found != found_.end()) {
        image.io_urings[index].views.push_back({static_cast<int>(p), map.start});
      } else if (!is_blocked(p)) {
        context_.out.block(p, fmt::format("mapping {:x}-{:x}", map.start, map.end),
                           "[io_uring] that no descriptor leads to, which is not supported");
      }
    }
  }
}

/// A reason against a ring of the process is told already: its mappings are none of their own.
bool UringCollector::is_blocked(size_t process) const {
  const std::string where = context_.out.blocker(process, "descriptor ", "").subject;
  return std::any_of(context_.out.blockers.begin(), context_.out.blockers.end(), [&](const Blocker& b) {
    return b.what.rfind(kIoUring, 0) == 0 && b.subject.rfind(where, 0) == 0;
  });
}

namespace {

/// Those that a restore makes before the rings.
bool can_be_registered(store::DescriptorKind kind) {
  switch (kind) {
    case store::DescriptorKind::kExternal:
    case store::DescriptorKind::kProcFile:
    case store::DescriptorKind::kPidfd:
    case store::DescriptorKind::kInotify:
    case store::DescriptorKind::kFanotify:
    case store::DescriptorKind::kIoUring: return false;
    default: return true;
  }
}

}  // namespace

/// The kernel tells the paths of registered files: they are the descriptors of the process that have the same one.
void UringCollector::find_files(size_t index, const std::deque<Place>& places) {
  const Found& found = found_[index];
  std::vector<int>& files = context_.out.image.io_urings[index].files;
  files.assign(found.info.file_slots, -1);
  for (const auto& [slot, path] : found.info.files) {
    std::set<int> descriptions;
    for (const Place& place : places) {
      const std::optional<int>& known = places[place.first].description;
      if (place.process == found.place.process && place.link == path && known && *known >= 0)
        descriptions.insert(*known);
    }
    if (descriptions.size() != 1) {
      return block(index, fmt::format("[io_uring] with {} registered, which is open {}: which file is meant cannot be "
                                      "told",
                                      path, descriptions.empty() ? "nowhere else" : "more than once"));
    }
    files[slot] = *descriptions.begin();
    const store::Descriptor& file = context_.out.image.descriptors[static_cast<size_t>(files[slot])];
    if (!can_be_registered(file.kind))
      return block(index, fmt::format("[io_uring] with {} registered, a {}, which is not supported", path,
                                      store::facts_of(file.kind).label));
  }
}

std::vector<RingPlace> rings_of(const store::TreeImage& tree, int process) {
  std::vector<RingPlace> out;
  for (const store::Descriptor& d : tree.descriptors) {
    if (d.kind != store::DescriptorKind::kIoUring) continue;
    for (const store::FdSlot& slot : d.fds) {
      if (slot.process == process)
        out.push_back({slot.fd, d.object, !tree.io_urings[static_cast<size_t>(d.object)].poller.empty()});
    }
  }
  return out;
}

namespace {

constexpr uint64_t kRegisteredRing = 1 << 4;  // IORING_ENTER_REGISTERED_RING, 5.18
constexpr uint64_t kMostNumbers = 16;         // IO_RINGFD_REG_MAX
constexpr unsigned kMostWorkers = 19, kNumbers = 20, kNoNumbers = 21;  // IORING_REGISTER_IOWQ_MAX_WORKERS, _RING_FDS

using WorkerLimits = std::array<uint32_t, 2>;

/// As the first ring of a thread gives it (io_init_wq_offload of Linux).
bool is_given_by(const IoUring& ring, const WorkerLimits& limits, int tid) {
  rlimit processes{};
  if (::prlimit(tid, RLIMIT_NPROC, nullptr, &processes) != 0) return false;
  // The kernel tells a limit that is no positive int as none.
  const auto most = static_cast<int32_t>(processes.rlim_cur);
  const auto processors = static_cast<uint32_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  return limits == WorkerLimits{std::min(ring.sq_entries, 4 * processors), static_cast<uint32_t>(std::max(most, 0))};
}

}  // namespace

/// None of these calls changes anything. A ring is entered with nothing to do; no eventfd is given, which the kernel
/// tells (EFAULT) after whether there is one already (EBUSY); and limits of 0 leave those of the thread as they are. A
/// ring with a polling thread is not asked for these: that waits for a lock which its thread has as long as it polls.
UringQuestions::UringQuestions(proc::CallList& calls, const std::vector<RingPlace>& rings) : rings_(rings) {
  const uint64_t numbers = rings.empty() ? 1 : kMostNumbers;
  for (uint64_t i = 0; i < numbers; ++i)
    numbers_.push_back(calls.add("enter an io_uring", SYS_io_uring_enter, {i, 0, 0, kRegisteredRing, 0, 0}));
  for (const RingPlace& place : rings) {
    const auto fd = static_cast<uint64_t>(place.fd);
    enabled_.push_back(calls.add("enter an io_uring", SYS_io_uring_enter, {fd, 0, 0, 0, 0, 0}));
    eventfds_.push_back(calls.add("ask an io_uring for its eventfd", SYS_io_uring_register,
                                  {fd, IORING_REGISTER_EVENTFD, 0, 1, 0, 0}));
    workers_.emplace_back();
    if (!place.polled)
      workers_.back() = calls.add("ask an io_uring for the limits of its workers", SYS_io_uring_register,
                                  {fd, kMostWorkers, 0, 2, 0, 0}, sizeof(WorkerLimits), proc::kThird);
  }
}

std::string refused_by_registration(int64_t answer, const IoUring& ring) {
  if (answer != -EACCES || !ring.restrictions.empty()) return "";
  return "[io_uring] with restrictions (IORING_REGISTER_RESTRICTIONS), which the kernel's memory alone tells";
}

/// They are the thread's, whatever ring is asked. To set them by a ring sets them
/// for all threads that use it: so those with other limits go by another ring.
Result<void> UringQuestions::take_workers(const proc::CallList& calls, int tid, store::TreeImage& tree) const {
  auto ring_at = [&](size_t i) -> IoUring& { return tree.io_urings[static_cast<size_t>(rings_[i].ring)]; };
  bool is_told = false, has_place = false;
  for (size_t i = 0; i < workers_.size() && !has_place; ++i) {
    IoUring& ring = ring_at(i);
    if (!workers_[i] || calls.result(*workers_[i]) < 0) continue;
    const auto limits = calls.written<WorkerLimits>(*workers_[i]);
    bool given = limits == WorkerLimits{};  // it has never used a ring
    for (size_t other = 0; other < rings_.size(); ++other) given = given || is_given_by(ring_at(other), limits, tid);
    if (given) continue;
    const bool can_be_set = may_register(ring, kMostWorkers) && may_register(ring, kNumbers) &&
                            may_register(ring, kNoNumbers);
    const bool is_free = ring.workers.empty() ||
                         (ring.workers[0].bounded == limits[0] && ring.workers[0].unbounded == limits[1]);
    is_told = true, has_place = can_be_set && is_free;
    if (has_place) ring.workers.push_back({tid, limits[0], limits[1]});
  }
  if (!is_told || has_place) return {};
  return fail(Code::kUnsupported, fmt::format("thread {}", tid),
              "[io_uring] with limits of its workers (IORING_REGISTER_IOWQ_MAX_WORKERS) that no ring could give back");
}

Result<void> UringQuestions::take(const proc::CallList& calls, int tid, store::TreeImage& tree) const {
  auto refuse = [&](std::string what) {
    return fail(Code::kUnsupported, fmt::format("thread {}", tid), std::move(what));
  };
  auto ring_at = [&](size_t i) -> IoUring& { return tree.io_urings[static_cast<size_t>(rings_[i].ring)]; };
  for (size_t i = 0; i < eventfds_.size(); ++i) {
    const int64_t answer = calls.result(eventfds_[i]);
    if (std::string why = refused_by_registration(answer, ring_at(i)); !why.empty()) return refuse(std::move(why));
    if (answer == -EBUSY && ring_at(i).eventfd < 0) return refuse(kToldEventfd);
  }
  for (size_t i = 0; i < enabled_.size(); ++i) {
    if (calls.result(enabled_[i]) == -EBADFD && !ring_at(i).disabled)
      return refuse("[io_uring] that is not enabled yet, which the kernel's memory alone tells more about");
  }
  for (size_t i = 0; i < numbers_.size(); ++i) {
    if (calls.result(numbers_[i]) < 0) continue;
    if (rings_.empty()) return refuse("[io_uring] that a thread enters by a number, and no descriptor leads to");
    const int ring = rings_[0].ring;
    if (!may_register(ring_at(0), kNumbers))
      return refuse("[io_uring] with a number and restrictions that forbid to register one");
    if (std::any_of(rings_.begin(), rings_.end(), [&](const RingPlace& other) { return other.ring != ring; }))
      return refuse("[io_uring]: one of several has been given a number (IORING_REGISTER_RING_FDS), and which one, "
                    "nothing tells");
    tree.io_urings[static_cast<size_t>(ring)].numbers.push_back({tid, static_cast<uint32_t>(i)});
  }
  return take_workers(calls, tid, tree);
}

}  // namespace ckpt::capture
