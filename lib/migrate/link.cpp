#include "lib/migrate/link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "lib/base/clock.h"

namespace ckpt::migrate {

namespace {

constexpr uint32_t kMagic = 0x314d4b43;  // "CKM1"
constexpr int kSliceMs = 100;

/// Little-endian, as all of it.
struct Header {
  uint32_t magic = kMagic;
  uint8_t kind = 0, name_length = 0;
  uint16_t zero = 0;
  uint32_t length = 0, zero_too = 0;
  uint64_t offset = 0;
};
static_assert(sizeof(Header) == 24);

}  // namespace

Link::Link(UniqueFd in, UniqueFd out, std::string peer, Limits limits, const Cancel* cancel)
    : in_(std::move(in)), out_(std::move(out)), peer_(std::move(peer)), limits_(limits), cancel_(cancel) {
  constexpr size_t kLarge = 256 * 1024;
  const int flags = ::fcntl(out_.get(), F_GETFL);
  piece_ = flags >= 0 && (flags & O_NONBLOCK) != 0 ? kLarge : PIPE_BUF;
}

void Link::close() {
  std::lock_guard lock(mutex_);
  out_.reset();
  in_.reset();
}

Result<void> Link::check_cancel() const { return cancel_ == nullptr ? Result<void>() : cancel_->check(); }

bool Link::wait(int milliseconds) const {
  pollfd one{in_.get(), POLLIN, 0};
  return ::poll(&one, 1, milliseconds) > 0;
}

Result<void> Link::wait_for(int fd, short events, uint64_t since_us, const char* what) const {
  for (;;) {
    CKPT_TRY(check_cancel());
    pollfd one{fd, events, 0};
    const int ready = ::poll(&one, 1, kSliceMs);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return sys_error(peer_, "cannot be waited for");
    if (monotonic_us() - since_us > limits_.silence_us)
      return fail(Code::kBusy, peer_, fmt::format("{} for {} seconds", what, limits_.silence_us / 1'000'000));
  }
}

/// Sleeps as long as the limit on the rate demands it.
void Link::throttle(size_t bytes) {
  constexpr uint64_t kBurstUs = 20'000;
  if (limits_.bytes_per_second == 0) return;
  const uint64_t now = monotonic_us();
  next_us_ = std::max(next_us_, now > kBurstUs ? now - kBurstUs : 0);
  next_us_ += static_cast<uint64_t>(static_cast<double>(bytes) * 1e6 / static_cast<double>(limits_.bytes_per_second));
  constexpr uint64_t kSliceUs = 100'000;
  for (uint64_t at = now; at < next_us_ && check_cancel(); at = monotonic_us())
    ::usleep(static_cast<useconds_t>(std::min(next_us_ - at, kSliceUs)));
}

Result<void> Link::write(ByteSpan data) {
  constexpr size_t kPaced = 64 * 1024;
  uint64_t moved_us = monotonic_us();
  while (!data.empty()) {
    const size_t most = limits_.bytes_per_second == 0 ? piece_ : std::min(piece_, kPaced);
    const size_t want = std::min(most, data.size());
    CKPT_TRY(wait_for(out_.get(), POLLOUT, moved_us, "has taken nothing"));
    const ssize_t done = ::write(out_.get(), data.data(), want);
    if (done < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (done < 0 && errno == EPIPE) return fail(Code::kIo, peer_, "has ended the connection");
    if (done < 0) return sys_error(peer_, "cannot be sent anything");
    sent_.fetch_add(static_cast<uint64_t>(done), std::memory_order_relaxed);
    throttle(static_cast<size_t>(done));
    data = data.subspan(static_cast<size_t>(done));
    moved_us = monotonic_us();
  }
  return {};
}

Result<void> Link::send(Kind kind, ByteSpan payload, std::string_view name, uint64_t offset) {
  CKPT_ASSERT(payload.size() <= kMostPayload && name.size() <= kMostName);
  Header header;
  header.kind = static_cast<uint8_t>(kind), header.name_length = static_cast<uint8_t>(name.size());
  header.length = static_cast<uint32_t>(payload.size()), header.offset = offset;
  std::vector<std::byte> first(sizeof header + name.size());
  std::memcpy(first.data(), &header, sizeof header);
  if (!name.empty()) std::memcpy(first.data() + sizeof header, name.data(), name.size());
  constexpr size_t kSmall = 4096;
  const bool joined = payload.size() <= kSmall;
  if (joined) first.insert(first.end(), payload.begin(), payload.end());
  std::lock_guard lock(mutex_);
  // What follows half a frame is none.
  if (broken_) return *broken_;
  if (!out_) return fail(Code::kIo, peer_, "has ended the connection");
  Result<void> done = write(first);
  if (done && !joined) done = write(payload);
  if (!done) broken_ = done.error();
  return done;
}

Result<void> Link::read(MutableByteSpan out, bool at_begin) {
  uint64_t moved_us = monotonic_us();
  for (size_t at = 0; at < out.size();) {
    CKPT_TRY(wait_for(in_.get(), POLLIN, moved_us, "has said nothing"));
    const ssize_t got = ::read(in_.get(), out.data() + at, out.size() - at);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return sys_error(peer_, "cannot be heard");
    if (got == 0 && at == 0 && at_begin) return fail(Code::kNotFound, peer_, "has ended the connection");
    if (got == 0) return fail(Code::kCorrupt, peer_, "has ended the connection in the middle of a frame");
    at += static_cast<size_t>(got);
    moved_us = monotonic_us();
  }
  return {};
}

Result<Frame> Link::receive() {
  Header header;
  CKPT_TRY(read({reinterpret_cast<std::byte*>(&header), sizeof header}, true));
  if (header.magic != kMagic) {
    return Error(Code::kCorrupt, peer_, "sends what is no frame of a migration")
        .with_hint("what a shell's start-up files print there gets in the way");
  }
  const bool known = header.kind >= static_cast<uint8_t>(Kind::kHello) &&
                     header.kind <= static_cast<uint8_t>(Kind::kAll);
  if (!known || header.zero != 0 || header.zero_too != 0 || header.length > kMostPayload ||
      header.name_length > kMostName)
    return fail(Code::kCorrupt, peer_, "sends a frame that claims what no frame has");
  Frame out;
  out.kind = static_cast<Kind>(header.kind), out.offset = header.offset;
  out.name.resize(header.name_length);
  CKPT_TRY(read({reinterpret_cast<std::byte*>(out.name.data()), out.name.size()}, false));
  out.payload.resize(header.length);
  CKPT_TRY(read(out.payload, false));
  return out;
}

}  // namespace ckpt::migrate
