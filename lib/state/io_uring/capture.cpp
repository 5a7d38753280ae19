#include "lib/state/io_uring/capture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
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

/// Empty: nothing that a look from outside can find.
std::string refused(const proc::UringInfo& info) {
  if (info.poller >= 0)
    return "[io_uring] with a thread of the kernel that polls it (IORING_SETUP_SQPOLL), which is not supported yet";
  if (info.has_personalities) return "[io_uring] with registered credentials, which is not supported";
  return "";
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
  std::string why = info ? refused(*info) : "[io_uring]: " + info.error().text();
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
  std::vector<std::byte> content;
  uint32_t dropped = 0;
  if (auto taken = take_content(ring.get(), out, content, dropped); !taken)
    return context_.block(place, "[io_uring]: " + taken.error().text()), false;
  auto eventfd = look_for_eventfd(ring.get(), out);
  if (!eventfd) return context_.block(place, eventfd.error().message), false;
  check_flight(place, *info, dropped);
  // Nothing tells which pages they are in that a device or the kernel writes to.
  if (!out.buffers.empty() || is_new(place)) context_.out.statuses[place.process][0].has_pinned_pages = true;
  d.kind = store::DescriptorKind::kIoUring;
  d.object = static_cast<int>(context_.out.image.io_urings.size());
  context_.out.image.io_urings.push_back(std::move(out));
  context_.out.io_uring_contents.push_back(std::move(content));
  found_.push_back({place, st.st_ino, *std::move(info), *eventfd});
  return true;
}

/// In the kernel's memory, where a ring may have one: there is nothing else that tells which. Whoever may not ask
/// (IORING_SETUP_SINGLE_ISSUER) is told that, and the threads of the process are asked later.
Result<uint64_t> UringCollector::look_for_eventfd(int ring, IoUring& out) {
  const bool asked = ::syscall(SYS_io_uring_register, ring, IORING_REGISTER_EVENTFD, nullptr, 1) < 0;
  const int answer = asked ? errno : 0;
  if (std::string why = refused_by_registration(-answer); !why.empty()) return fail(Code::kUnsupported, "", why);
  if (answer != EBUSY && answer != EEXIST) return uint64_t{0};
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
  if (found || answer == EEXIST) return found.value_or(0);
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

Result<void> UringCollector::take_content(int fd, IoUring& ring, std::vector<std::byte>& content, uint32_t& dropped) {
  if (!layout_) {
    CKPT_TRY_ASSIGN(layout_, state::uring_layout());
  }
  CKPT_TRY(state::find_shape(fd, *layout_, ring));
  CKPT_TRY_ASSIGN(UringMemory memory, UringMemory::map(fd, ring, *layout_));
  ring.rings_size = state::queues_size(ring, *layout_);
  ring.content_size = ring.rings_size + state::entries_size(ring);
  content.resize(ring.content_size);
  const MutableByteSpan whole(content);
  CKPT_TRY(memory.read(whole.first(ring.rings_size), whole.subspan(ring.rings_size)));
  std::memcpy(&dropped, content.data() + layout_->sq.dropped, sizeof dropped);
  return {};
}

/// While the tree runs its counters change between being read: then only what is known to wait for others counts.
void UringCollector::check_flight(const Place& place, const proc::UringInfo& info, uint32_t dropped) {
  const UringFlight flight = in_flight(info, dropped);
  if (context_.frozen() && !flight.is_countable) {
    return context_.block(place,
                          "[io_uring] with more completions than requests (multishot or zero copy): whether "
                          "any is in flight cannot be told");
  }
  if (context_.frozen() ? flight.requests == 0 : info.polled.empty()) return;
  context_.block(place, waits_for(info, flight.requests));
  context_.out.blockers.back().passes = true;
}

void UringCollector::block(size_t index, std::string what) { context_.block(found_[index].place, std::move(what)); }

Result<void> UringCollector::settle(const std::deque<Place>& places) {
  find_views();
  for (size_t i = 0; i < found_.size(); ++i) {
    find_files(i, places);
    if (found_[i].eventfd != 0) find_eventfd(i, places);
  }
  return {};
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
      if (slot.process == process) out.push_back({slot.fd, d.object});
    }
  }
  return out;
}

namespace {

constexpr uint64_t kRegisteredRing = 1 << 4;  // IORING_ENTER_REGISTERED_RING, 5.18
constexpr uint64_t kMostNumbers = 16;         // IO_RINGFD_REG_MAX

}  // namespace

/// None of these calls does anything. A ring is entered with nothing to do; and no eventfd is given, which the kernel
/// tells (EFAULT) after whether there is one already (EBUSY).
UringQuestions::UringQuestions(proc::CallList& calls, const std::vector<RingPlace>& rings) : rings_(rings) {
  if (rings.empty()) return;
  for (uint64_t i = 0; i < kMostNumbers; ++i)
    numbers_.push_back(calls.add("enter an io_uring", SYS_io_uring_enter, {i, 0, 0, kRegisteredRing, 0, 0}));
  for (const RingPlace& place : rings) {
    const auto fd = static_cast<uint64_t>(place.fd);
    enabled_.push_back(calls.add("enter an io_uring", SYS_io_uring_enter, {fd, 0, 0, 0, 0, 0}));
    eventfds_.push_back(calls.add("ask an io_uring for its eventfd", SYS_io_uring_register,
                                  {fd, IORING_REGISTER_EVENTFD, 0, 1, 0, 0}));
  }
}

std::string refused_by_registration(int64_t answer) {
  if (answer == -EACCES) return "[io_uring] with restrictions (IORING_REGISTER_RESTRICTIONS), which are not supported";
  return "";
}

Result<void> UringQuestions::take(const proc::CallList& calls, int tid, store::TreeImage& tree) const {
  auto refuse = [](std::string what) { return fail(Code::kUnsupported, "", std::move(what)); };
  for (size_t i = 0; i < eventfds_.size(); ++i) {
    const int64_t answer = calls.result(eventfds_[i]);
    if (std::string why = refused_by_registration(answer); !why.empty()) return refuse(std::move(why));
    if (answer == -EBUSY && tree.io_urings[static_cast<size_t>(rings_[i].ring)].eventfd < 0)
      return refuse(kToldEventfd);
  }
  for (size_t call : enabled_) {
    if (calls.result(call) == -EBADFD) return refuse("[io_uring] that is not enabled yet, which is not supported");
  }
  for (size_t i = 0; i < numbers_.size(); ++i) {
    if (calls.result(numbers_[i]) < 0) continue;
    const int ring = rings_[0].ring;
    if (std::any_of(rings_.begin(), rings_.end(), [&](const RingPlace& other) { return other.ring != ring; }))
      return refuse("[io_uring]: one of several has been given a number (IORING_REGISTER_RING_FDS), and which one, "
                    "nothing tells");
    tree.io_urings[static_cast<size_t>(ring)].numbers.push_back({tid, static_cast<uint32_t>(i)});
  }
  return {};
}

}  // namespace ckpt::capture
