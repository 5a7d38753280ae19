// The stream between both ends of a migration: frames, man/ckpt-migrate.7.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::migrate {

/// What a frame is. Numbers are part of the format.
enum class Kind : uint8_t {
  kHello = 1,  ///< to the receiver: JSON, who comes and with what
  kReady = 2,  ///< from it: JSON
  kData = 3,   ///< bytes of a file, which come in order
  kEnd = 4,    ///< of a file: its size as the offset, its XXH3-128 in 32 hex digits
  kMake = 5,   ///< all files are there: make the processes
  kMade = 6,   ///< they are made, and stand still: JSON
  kGo = 7,     ///< let them go
  kRuns = 8,   ///< they have been let go
  kNot = 9,    ///< it is over: before `kRuns` nothing was let go, after it pages are lost; JSON, an error
  kAlive = 10, ///< still at work
  kDone = 11,  ///< the source has ended
  kLater = 12, ///< of a file of pages: its size as the offset; its bytes come by units, in any order
  kWant = 13,  ///< from the receiver: the unit of that file at that offset comes next
  kAll = 14,   ///< from it: all units have come
};

struct Frame {
  Kind kind = Kind::kAlive;
  std::string name;
  uint64_t offset = 0;
  std::vector<std::byte> payload;

  std::string_view text() const { return as_text(payload); }
};

/// `send` from any thread, `receive` from one.
class Link {
 public:
  struct Limits {
    uint64_t silence_us = 30'000'000;  ///< longest time in which no byte moves
    uint64_t bytes_per_second = 0;     ///< sent at most; 0: no limit
  };
  static constexpr uint64_t kMostPayload = uint64_t{1} << 20;
  static constexpr size_t kMostName = 64;

  /// `peer`: for messages. `cancel`, which may be null, breaks off every wait.
  Link(UniqueFd in, UniqueFd out, std::string peer, Limits limits, const Cancel* cancel);

  /// kIo: nobody reads any more, or for too long; kInterrupted.
  Result<void> send(Kind kind, ByteSpan payload = {}, std::string_view name = {}, uint64_t offset = 0);
  /// kNotFound: the stream ended between two frames; kCorrupt: what comes is no frame, or ends in one; kBusy: nothing
  /// came for too long; kInterrupted.
  Result<Frame> receive();
  /// Waits until something can be received, or the time has passed.
  bool wait(int milliseconds) const;

  /// From here on nothing breaks off a wait but its end.
  void ignore_cancel() { cancel_ = nullptr; }
  uint64_t silence_us() const { return limits_.silence_us; }
  void set_silence(uint64_t us) { limits_.silence_us = us; }
  void close();
  int in() const { return in_.get(); }
  const std::string& peer() const { return peer_; }
  uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }

 private:
  Result<void> check_cancel() const;
  Result<void> write(ByteSpan data);
  Result<void> read(MutableByteSpan out, bool at_begin);
  Result<void> wait_for(int fd, short events, uint64_t since_us, const char* what) const;
  void throttle(size_t bytes);

  UniqueFd in_, out_;
  const std::string peer_;
  Limits limits_;
  const Cancel* cancel_;
  std::mutex mutex_;             ///< of what is sent
  std::optional<Error> broken_;  ///< what a send has failed with: so do all after it
  size_t piece_;                 ///< most bytes of a write that cannot block once poll(2) has allowed it
  std::atomic<uint64_t> sent_{0};
  uint64_t next_us_ = 0;
};

}  // namespace ckpt::migrate
