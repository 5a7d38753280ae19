#include "lib/flash/client/snapshot.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/checked.h"
#include "lib/base/threads.h"

namespace ckpt::flash {

namespace {

/// What an access of the program has to wait for. It moves as a whole, and a huge page is not split.
constexpr uint64_t kUnit = kPageTable;
constexpr uint64_t kWorthIt = 256 << 10;             ///< parts below this are copied at once
constexpr int64_t kMappings = 3;                     ///< that a piece costs which lies apart from others
constexpr int64_t kReserved = 3'000;                 ///< mappings for what is touched out of order
constexpr uint64_t kProtected = uint64_t{64} << 20;  ///< bytes by one call, so that several threads share the work

#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif

/// Up to the next multiple of `step` among addresses, and not beyond the end.
uint64_t bytes_to_boundary(const std::byte* at, const std::byte* end, uint64_t step) {
  return std::min<uint64_t>(step - reinterpret_cast<uint64_t>(at) % step, static_cast<uint64_t>(end - at));
}

/// Also the kernel's own accesses, read(2) into a tensor for instance, must wait: what serves those of the program
/// alone will not do.
UniqueFd open_userfault(uint64_t features) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  if (!fd) {
    UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device) fd.reset(::ioctl(device.get(), _IO(0xAA, 0x00), O_CLOEXEC | O_NONBLOCK));
  }
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (fd && ::ioctl(fd.get(), UFFDIO_API, &api) != 0) fd.reset();
  return fd;
}

bool write_protect(int fd, std::byte* from, uint64_t bytes, bool on) {
  uffdio_writeprotect request{};
  request.range = {reinterpret_cast<uint64_t>(from), bytes};
  request.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
  int done;
  do done = ::ioctl(fd, UFFDIO_WRITEPROTECT, &request);
  while (done != 0 && errno == EAGAIN);
  return done == 0;
}

}  // namespace

bool Snapshot::open() {
  fault_ = open_userfault(UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_UNPOPULATED);
  protects_ = static_cast<bool>(fault_);
  if (!fault_) fault_ = open_userfault(UFFD_FEATURE_EVENT_REMAP);
  news_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return fault_ && news_;
}

bool Snapshot::register_for(uint64_t mode, const Range& range) const {
  uffdio_register request{};
  request.range = {reinterpret_cast<uint64_t>(range.home), range.bytes};
  request.mode = mode;
  return ::ioctl(fault_.get(), UFFDIO_REGISTER, &request) == 0;
}

/// Registers the whole pages of a part, and makes units of them. False: they cannot be held.
bool Snapshot::hold(const CopyPart& part, const Mappings& mappings) {
  auto* from = static_cast<std::byte*>(const_cast<void*>(part.from));
  auto* begin = reinterpret_cast<std::byte*>(align_up(reinterpret_cast<uintptr_t>(from), uintptr_t{kPage}));
  auto* end =
      reinterpret_cast<std::byte*>(align_down(reinterpret_cast<uintptr_t>(from) + part.bytes, uintptr_t{kPage}));
  if (part.bytes < kWorthIt || begin >= end) return false;
  // Two parts over the same pages (tied weights): the second is copied at once.
  for (const Range& range : ranges_) {
    if (begin < range.home + range.bytes && range.home < end) return false;
  }
  // At home what lies beside it becomes a mapping of its own.
  if (spare_mappings_.load() < kReserved) return false;
  const bool moves = mappings.private_anonymous(begin, end);
  const Range range{begin, static_cast<uint64_t>(end - begin), units_.size(), moves, nullptr};
  if (!moves && !protects_) return false;
  if (!register_for(moves ? UFFDIO_REGISTER_MODE_MISSING : UFFDIO_REGISTER_MODE_WP, range)) return false;
  auto* to = static_cast<std::byte*>(part.to);
  for (std::byte* at = begin; at < end; at = units_.back().home + units_.back().bytes)
    units_.push_back({at, to + (at - from), bytes_to_boundary(at, end, kUnit), ranges_.size()});
  ranges_.push_back(range);
  spare_mappings_ -= kMappings;
  protected_bytes_ += range.bytes;
  return true;
}

/// By one thread: another would have to be told of each page table that moves (half the speed, measured).
bool Snapshot::move_or_protect(unsigned threads) {
  for (Range& range : ranges_) {
    if (!range.moves) continue;
    range.away = move_away(fault_.get(), range.home, range.bytes);
    if (range.away != nullptr) continue;
    range.moves = false;
    if (!protects_ || !register_for(UFFDIO_REGISTER_MODE_WP, range)) return false;
  }
  return protect(threads);
}

/// What was not moved away.
bool Snapshot::protect(unsigned threads) const {
  std::vector<std::pair<std::byte*, uint64_t>> calls;
  for (const Range& range : ranges_) {
    if (range.moves) continue;
    for (std::byte *at = range.home, *end = at + range.bytes; at < end; at += calls.back().second)
      calls.emplace_back(at, bytes_to_boundary(at, end, kProtected));
  }
  std::atomic<bool> failed{false};
  in_threads(threads, calls.size(), [&](size_t i) {
    if (!write_protect(fault_.get(), calls[i].first, calls[i].second, true)) failed.store(true);
  });
  return !failed.load();
}

std::unique_ptr<Snapshot> Snapshot::begin(const std::vector<CopyPart>& parts, unsigned threads,
                                          std::function<void()> done) {
  std::unique_ptr<Snapshot> out(new Snapshot);
  if (!out->open()) return nullptr;
  const Mappings mappings = Mappings::read();
  out->spare_mappings_ = mappings.spare();
  std::vector<CopyPart> at_once;
  for (const CopyPart& part : parts) {
    if (!out->hold(part, mappings)) {
      at_once.push_back(part);
      continue;
    }
    const Range& range = out->ranges_.back();
    const auto* from = static_cast<const std::byte*>(part.from);
    const auto head = static_cast<uint64_t>(range.home - from), tail = part.bytes - head - range.bytes;
    at_once.push_back({part.to, from, head});
    at_once.push_back({static_cast<std::byte*>(part.to) + (part.bytes - tail), from + (part.bytes - tail), tail});
  }
  if (out->ranges_.empty()) return nullptr;
  out->states_ = std::vector<std::atomic<uint8_t>>(out->units_.size());
  // Who serves is there before the first page is held: the program's other threads run.
  Snapshot* self = out.get();
  if (!start_thread(out->server_, [self] { self->serve(); })) return nullptr;
  if (!out->move_or_protect(threads)) return nullptr;  // the destructor lets go
  out->tell_server(out->held_);
  copy_all(at_once, threads);
  out->start_copiers(threads, std::move(done));
  return out;
}

void Snapshot::start_copiers(unsigned threads, std::function<void()> done) {
  for (unsigned i = 0; i < std::max(1u, threads); ++i) {
    std::thread copier;
    if (!start_thread(copier, [this] { copy_units(); })) break;
    copiers_.push_back(std::move(copier));
  }
  auto finish = [this, done = std::move(done)] {
    copy_units();  // where there was no room for threads
    for (std::thread& copier : copiers_) copier.join();
    tell_server(ending_);
    server_.join();
    close();
    done();
    finished_.store(true);
  };
  if (!start_thread(finisher_, finish)) finish();
}

Snapshot::~Snapshot() {
  if (finisher_.joinable()) finisher_.join();
  if (!fault_) return;
  // It did not come to copying.
  if (server_.joinable()) {
    tell_server(ending_);
    server_.join();
  }
  for (const Unit& unit : units_) {
    if (ranges_[unit.range].away != nullptr) let_go(unit, true);
  }
  close();
}

/// Nothing is registered any more, even if a child has the descriptor.
void Snapshot::close() {
  for (const Range& range : ranges_) {
    uffdio_range where{reinterpret_cast<uint64_t>(range.home), range.bytes};
    ::ioctl(fault_.get(), UFFDIO_UNREGISTER, &where);
  }
  fault_.reset();
  for (const auto& [begin, bytes] : left_) ::munmap(begin, bytes);
  no_forks_.end();
}

void Snapshot::wait() {
  if (finisher_.joinable()) finisher_.join();
}

void Snapshot::copy_units() {
  for (size_t unit = next_++; unit < units_.size(); unit = next_++) copy(unit, true);
}

/// Once; whoever comes second finds it taken.
void Snapshot::copy(size_t number, bool in_order) {
  uint8_t todo = 0;
  if (!states_[number].compare_exchange_strong(todo, 1)) return;
  const Unit& unit = units_[number];
  const Range& range = ranges_[unit.range];
  const std::byte* from = range.moves ? range.away + (unit.home - range.home) : unit.home;
  copy_all({{unit.to, from, unit.bytes}}, 1);
  states_[number].store(2);
  let_go(unit, in_order);
}

/// What moved back joins what lies beside it, so they are counted again before it is said that there are none.
bool Snapshot::has_spare_mappings() {
  if (spare_mappings_.fetch_sub(kMappings) >= kMappings) return true;
  if (refused_++ % 64 != 0) return false;
  spare_mappings_ = Mappings::read().spare() - kMappings;
  return spare_mappings_.load() >= 0;
}

/// Out of order, a unit that moves back may lie apart from others. Where too many do, copies come back.
void Snapshot::let_go(const Unit& unit, bool in_order) {
  const Range& range = ranges_[unit.range];
  if (!range.moves) {
    (void)write_protect(fault_.get(), unit.home, unit.bytes, false);
    return;
  }
  std::byte* away = range.away + (unit.home - range.home);
  if (in_order || has_spare_mappings()) {
    if (move_back(fault_.get(), unit.home, away, unit.bytes)) return;
  } else {
    copy_back(fault_.get(), unit.home, away, unit.bytes);
  }
  const std::lock_guard lock(leaving_);
  left_.emplace_back(away, unit.bytes);
}

void Snapshot::tell_server(std::atomic<bool>& what) {
  what.store(true);
  const uint64_t one = 1;
  (void)!::write(news_.get(), &one, sizeof one);
}

/// Answers accesses to held pages until all is copied. What comes before all is held waits for that: its page may not
/// be away yet. Moving away is an event, too, which mremap waits for to be read.
void Snapshot::serve() {
  std::vector<uint64_t> early;
  pollfd wait[2] = {{fault_.get(), POLLIN, 0}, {news_.get(), POLLIN, 0}};
  for (;;) {
    if (::poll(wait, 2, -1) < 0 && errno != EINTR) return;
    uint64_t news;
    if (wait[1].revents != 0) (void)!::read(news_.get(), &news, sizeof news);
    if (ending_.load()) return;
    uffd_msg messages[16];
    const ssize_t got = ::read(fault_.get(), messages, sizeof messages);
    for (ssize_t i = 0; i * static_cast<ssize_t>(sizeof(uffd_msg)) < got; ++i) {
      if (messages[i].event == UFFD_EVENT_PAGEFAULT) early.push_back(messages[i].arg.pagefault.address);
    }
    if (!held_.load()) continue;
    for (const uint64_t address : early) serve_fault(address);
    early.clear();
  }
}

void Snapshot::serve_fault(uint64_t address) {
  auto* place = reinterpret_cast<std::byte*>(align_down(address, kPage));
  for (const Range& range : ranges_) {
    if (place < range.home || place >= range.home + range.bytes) continue;
    const uint64_t before = reinterpret_cast<uint64_t>(range.home) / kUnit;
    const size_t unit = range.first + reinterpret_cast<uint64_t>(place) / kUnit - before;
    // One that another thread copies is let go by that one.
    if (states_[unit].load() != 2)
      copy(unit, false);
    else if (!range.moves)
      let_go(units_[unit], false);
    return;
  }
}

}  // namespace ckpt::flash
