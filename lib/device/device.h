// The seam between the capture pipeline and accelerators: one device with memory, streams and hashing, as ckpt itself
// uses it. The process whose memory is captured is a `Target` (target.h). Implemented by plugins/cuda over the driver,
// and by tests/support/emulated over host memory.
//
// Work on a stream is asynchronous and in order; what it refers to (buffers, host memory, hash arrays) must live until
// an event behind it, or the stream itself, has been waited for. An error of the work comes out there. Errors: kNoRoom
// (out of device or pinned memory), kBusy (not within the time), kIo (the device is lost: nothing of it works again),
// kUnsupported. Objects may be used by any thread, one at a time; a Device by several at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/device/hash.h"
#include "lib/device/memory.h"

namespace ckpt::device {

struct Properties {
  std::string uuid;  ///< "GPU-" and 32 hexadecimal digits in five groups
  std::string name;
  std::string driver;  ///< version, for people
  uint64_t total_bytes = 0;
  uint64_t granularity = 0;  ///< of owned memory: sizes and addresses are multiples; a power of two, at least kMinChunk
};

struct MemoryInfo {
  uint64_t free_bytes = 0, total_bytes = 0;
};

/// Device memory of ckpt's own: allocated, or imported from a target. Freeing it with work on it that has not been
/// waited for is a bug of the caller (the driver's unmap does not wait).
class Buffer {
 public:
  virtual ~Buffer() = default;
  /// In ckpt's own address space of the device.
  virtual Range range() const = 0;
  /// The memory as a descriptor, for a target to attach or another process to import; it keeps the memory alive.
  virtual Result<UniqueFd> export_fd() = 0;
};

/// Page-locked host memory, which devices copy to and from at full speed.
class HostBuffer {
 public:
  virtual ~HostBuffer() = default;
  virtual MutableByteSpan bytes() = 0;
  /// The same memory as the device addresses it.
  virtual Range device_range() const = 0;
};

/// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() = 0;
  /// Until everything before it is done. The first error of that work, or kBusy.
  virtual Result<void> wait(uint64_t timeout_us) = 0;
};

class Stream {
 public:
  /// Waits for what is on it.
  virtual ~Stream() = default;

  /// The host memory is of a HostBuffer; other memory is allowed and slow.
  virtual Result<void> copy_to_host(MutableByteSpan to, Range from) = 0;
  virtual Result<void> copy_to_device(Range to, ByteSpan from) = 0;
  virtual Result<void> copy(Address to, Range from) = 0;
  /// Hashes of the chunks of `range`, its size a multiple of `chunk`, into `out` (one a chunk, in a HostBuffer).
  virtual Result<void> hash(Range range, uint64_t chunk, std::span<ChunkHash> out) = 0;
  /// Gathers: the chunks at `from`, of `chunk` bytes each, into one run at `to` (device memory, or a HostBuffer as the
  /// device addresses it), and the hash of EXACTLY the bytes that arrive: each byte is read once, whatever writes it.
  /// `from` is taken over by the call.
  virtual Result<void> copy_and_hash(std::span<const Address> from, uint64_t chunk, Address to,
                                     std::span<ChunkHash> out) = 0;

  virtual Result<std::unique_ptr<Event>> record() = 0;
  /// What follows on this stream starts after the event, of whichever stream of the device.
  virtual Result<void> wait(Event& event) = 0;
  virtual Result<void> synchronize(uint64_t timeout_us) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const Properties& properties() const = 0;
  virtual Result<MemoryInfo> memory_info() = 0;
  /// Rounded up to the granularity. Not zeroed.
  virtual Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes) = 0;
  /// Memory that a target or another process exported, mapped here for reading and writing; `fd` may be closed
  /// afterwards.
  virtual Result<std::unique_ptr<Buffer>> import(int fd, uint64_t bytes) = 0;
  virtual Result<std::unique_ptr<HostBuffer>> allocate_pinned(uint64_t bytes) = 0;
  /// One that runs beside the target's work, not before it.
  virtual Result<std::unique_ptr<Stream>> create_stream() = 0;
};

}  // namespace ckpt::device
