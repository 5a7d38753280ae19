// The memory of devices as it is named from outside: addresses that nobody here dereferences, ranges, allocations of a
// target, launches that a target recorded.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::device {

/// An address in a device's address space, of whichever process. Two processes that map the same memory have two of
/// them.
struct Address {
  uint64_t value = 0;
  auto operator<=>(const Address&) const = default;
  Address operator+(uint64_t bytes) const { return {value + bytes}; }
  uint64_t operator-(Address other) const { return value - other.value; }
};

struct Range {
  Address start;
  uint64_t size = 0;
  Address end() const { return start + size; }
  bool contains(Address at) const { return at >= start && at < end(); }
  bool contains(const Range& other) const { return other.start >= start && other.end() <= end(); }
  bool overlaps(const Range& other) const { return start < other.end() && other.start < end(); }
  bool operator==(const Range&) const = default;
};

/// Who answers for the bytes of an allocation.
enum class MemoryKind {
  kOwned,   ///< made by the interposer through the virtual memory calls: exported, released, attached; ckpt saves it
  kNative,  ///< small or foreign: the driver's own checkpoint saves it
  kPinned,  ///< page-locked host memory: saved with the process; a device writes it unseen by the kernel's dirty bits
};

/// One allocation of a target. Owned ones begin and end at multiples of the device's granularity, so of kMinChunk.
struct Allocation {
  uint64_t id = 0;       ///< never used twice in the life of the target
  Address address;       ///< the target's
  uint64_t size = 0;
  int device = 0;        ///< ordinal in the target; `Target::device_uuid` names it
  MemoryKind kind = MemoryKind::kOwned;
  bool released = false; ///< the address range is kept, no memory is behind it
  Range range() const { return {address, size}; }
  bool operator==(const Allocation&) const = default;
};

/// One launch, copy or fill of memory that a target recorded.
struct Launch {
  uint64_t sequence = 0;  ///< order of submission in the target; launches of several streams that depend on each
                          ///< other are ordered by it, too
  std::vector<Range> reads, writes; ///< as its arguments say: `writes` may be written, not must be; a lie is possible
  bool replayable = false;          ///< the target can run it again: no host callback, no argument in host memory
  std::string record;               ///< what `Target::replay` needs; opaque, may be stored in an image
  std::string name;                 ///< of the kernel or the driver's function, for people
  bool operator==(const Launch&) const = default;
};

}  // namespace ckpt::device
