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

constexpr uint64_t kPage = 4096;
/// What a write of the program has to wait for: a huge page, which is protected in a hundredth of the time that its
/// small ones take (0.3 ms a GiB and 30, measured), and is not split where it is let go as a whole.
constexpr uint64_t kUnit = uint64_t{2} << 20;
constexpr uint64_t kWorthIt = 256 << 10;             ///< parts below this are copied at once
constexpr uint64_t kProtected = uint64_t{64} << 20;  ///< bytes by one call, so that several threads share the work

#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif

/// Up to the next multiple of `step` among addresses, and not beyond the end.
uint64_t bytes_to_boundary(const std::byte* at, const std::byte* end, uint64_t step) {
  return std::min<uint64_t>(step - reinterpret_cast<uint64_t>(at) % step, static_cast<uint64_t>(end - at));
}

/// Also the kernel's own writes, read(2) into a tensor for instance, must wait: what serves writes of the program
/// alone will not do. Pages that nothing was written to yet must be protected, too (Linux 6.4).
UniqueFd open_userfault() {
  UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  if (!fd) {
    UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device) fd.reset(::ioctl(device.get(), _IO(0xAA, 0x00), O_CLOEXEC | O_NONBLOCK));
  }
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_UNPOPULATED;
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

/// Registers the whole pages of a part, and makes units of them. False: they cannot be protected.
bool Snapshot::protect(const CopyPart& part) {
  auto* from = static_cast<std::byte*>(const_cast<void*>(part.from));
  auto* begin = reinterpret_cast<std::byte*>(align_up(reinterpret_cast<uintptr_t>(from), uintptr_t{kPage}));
  auto* end =
      reinterpret_cast<std::byte*>(align_down(reinterpret_cast<uintptr_t>(from) + part.bytes, uintptr_t{kPage}));
  if (part.bytes < kWorthIt || begin >= end) return false;
  // Two parts over the same pages (tied weights): the second is copied at once.
  for (const Range& range : ranges_) {
    if (begin < range.from + range.bytes && range.from < end) return false;
  }
  uffdio_register request{};
  request.range = {reinterpret_cast<uint64_t>(begin), static_cast<uint64_t>(end - begin)};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  if (::ioctl(fault_.get(), UFFDIO_REGISTER, &request) != 0) return false;
  ranges_.push_back({begin, static_cast<uint64_t>(end - begin), units_.size()});
  auto* to = static_cast<std::byte*>(part.to);
  for (std::byte* at = begin; at < end; at = units_.back().from + units_.back().bytes)
    units_.push_back({at, to + (at - from), bytes_to_boundary(at, end, kUnit)});
  protected_bytes_ += request.range.len;
  return true;
}

std::unique_ptr<Snapshot> Snapshot::begin(const std::vector<CopyPart>& parts, unsigned threads,
                                          std::function<void()> done) {
  std::unique_ptr<Snapshot> out(new Snapshot);
  out->fault_ = open_userfault();
  out->stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!out->fault_ || !out->stop_) return nullptr;
  std::vector<CopyPart> at_once;
  for (const CopyPart& part : parts) {
    if (!out->protect(part)) {
      at_once.push_back(part);
      continue;
    }
    const Range& range = out->ranges_.back();
    const auto* from = static_cast<const std::byte*>(part.from);
    const auto head = static_cast<uint64_t>(range.from - from), tail = part.bytes - head - range.bytes;
    at_once.push_back({part.to, from, head});
    at_once.push_back({static_cast<std::byte*>(part.to) + (part.bytes - tail), from + (part.bytes - tail), tail});
  }
  if (out->ranges_.empty()) return nullptr;
  out->states_ = std::vector<std::atomic<uint8_t>>(out->units_.size());
  // Who serves is there before the first page is protected: the program's other threads run.
  Snapshot* self = out.get();
  if (!start_thread(out->server_, [self] { self->serve(); })) return nullptr;
  std::vector<std::pair<std::byte*, uint64_t>> calls;
  for (const Range& range : out->ranges_) {
    for (std::byte *at = range.from, *end = at + range.bytes; at < end; at += calls.back().second)
      calls.emplace_back(at, bytes_to_boundary(at, end, kProtected));
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  auto work = [&] {
    for (size_t i = next++; i < calls.size(); i = next++) {
      if (!write_protect(self->fault_.get(), calls[i].first, calls[i].second, true)) failed.store(true);
    }
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min<size_t>(threads, calls.size()); ++i) {
    std::thread helper;
    if (!start_thread(helper, work)) break;
    helpers.push_back(std::move(helper));
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failed.load()) return nullptr;  // the destructor lets go of what was protected
  copy_all(at_once, threads);
  out->next_ = 0;
  for (unsigned i = 0; i < std::max(1u, threads); ++i) {
    std::thread copier;
    if (!start_thread(copier, [self] { self->copy_units(); })) break;
    out->copiers_.push_back(std::move(copier));
  }
  auto finish = [self, done = std::move(done)] {
    self->copy_units();  // where there was no room for threads
    for (std::thread& copier : self->copiers_) copier.join();
    const uint64_t one = 1;
    (void)!::write(self->stop_.get(), &one, sizeof one);
    self->server_.join();
    self->fault_.reset();  // nothing is registered any more
    done();
    self->finished_.store(true);
  };
  if (!start_thread(out->finisher_, finish)) finish();
  return out;
}

Snapshot::~Snapshot() {
  if (finisher_.joinable()) {
    finisher_.join();
  } else if (server_.joinable()) {
    const uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    server_.join();
  }
}

void Snapshot::wait() {
  if (finisher_.joinable()) finisher_.join();
}

void Snapshot::copy_units() {
  for (size_t unit = next_++; unit < units_.size(); unit = next_++) copy(unit);
}

/// Once; whoever comes second finds it taken.
void Snapshot::copy(size_t number) {
  uint8_t todo = 0;
  if (!states_[number].compare_exchange_strong(todo, 1)) return;
  const Unit& unit = units_[number];
  copy_all({{unit.to, unit.from, unit.bytes}}, 1);
  states_[number].store(2);
  unprotect(unit);
}

void Snapshot::unprotect(const Unit& unit) const { (void)write_protect(fault_.get(), unit.from, unit.bytes, false); }

/// Answers writes to protected pages until all is copied.
void Snapshot::serve() {
  pollfd wait[2] = {{fault_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  for (;;) {
    if (::poll(wait, 2, -1) < 0 && errno != EINTR) return;
    if (wait[1].revents != 0) return;
    uffd_msg messages[16];
    const ssize_t got = ::read(fault_.get(), messages, sizeof messages);
    for (ssize_t i = 0; i * static_cast<ssize_t>(sizeof(uffd_msg)) < got; ++i) {
      if (messages[i].event == UFFD_EVENT_PAGEFAULT) serve_fault(messages[i].arg.pagefault.address);
    }
  }
}

void Snapshot::serve_fault(uint64_t address) {
  auto* place = reinterpret_cast<std::byte*>(align_down(address, kPage));
  for (const Range& range : ranges_) {
    if (place < range.from || place >= range.from + range.bytes) continue;
    const uint64_t before = reinterpret_cast<uint64_t>(range.from) / kUnit;
    const size_t unit = range.first + reinterpret_cast<uint64_t>(place) / kUnit - before;
    // Protected while `begin` still runs, it is copied now; one that another thread copies is let go by that one.
    if (states_[unit].load() == 2)
      unprotect(units_[unit]);
    else
      copy(unit);
    return;
  }
}

}  // namespace ckpt::flash
