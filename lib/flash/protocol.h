// What trainers and their agent say to each other, and how the memory that they share is laid out: man/ckpt-agent.7.
// Included by the client library too, which has no dependency but the C library.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ckpt::flash {

constexpr uint32_t kMagic = 0x4c46'4b43;  ///< "CKFL", little endian
constexpr uint16_t kProtocolVersion = 1;
constexpr uint64_t kAnyStep = UINT64_MAX;

// Limits: what a message, a layout or a segment may claim.
constexpr size_t kMostText = 4096;  ///< bytes behind a message
constexpr uint32_t kMostRanks = 4096;
constexpr uint64_t kMostLayoutBytes = uint64_t{256} << 20;
constexpr uint64_t kMostTensors = 4'000'000;
constexpr uint64_t kMostSegmentBytes = uint64_t{1} << 46;

enum class Type : uint16_t {
  kHello = 1,    ///< rank, world, local_world; flags: kPartnerCopy
  kDeclare = 2,  ///< value: bytes for objects; a descriptor: the layout. Reply: the segment's descriptor
  kAdopt = 3,    ///< a descriptor: a segment that an agent before this one made
  kBegin = 4,    ///< step; flags: IfBusy; value: milliseconds to wait. Reply: value[0] the buffer
  kCommit = 5,   ///< step, value: buffer; flags: kPersistThis
  kAbort = 6,    ///< value: buffer
  kLoad = 7,     ///< step or kAnyStep; flags: LoadFrom. Reply: values buffer, level, pinned; the segment's descriptor
  kRelease = 8,  ///< value: buffer, which is no longer mapped
  kPersist = 9,  ///< step or kAnyStep; flags: kWait; text: a folder, empty: the agent's own
  kStatus = 10,  ///< reply: text, JSON
  kBye = 11,     ///< the trainer ends in order
  kKeep = 12,    ///< step: no save is written over it, until another is named
};

enum class IfBusy : uint32_t { kSkip = 0, kWait = 1, kFail = 2 };
enum class LoadFrom : uint32_t { kBest = 0, kMemory = 1, kStorage = 2 };
enum class Level : uint64_t { kNone = 0, kMemory = 1, kPartner = 2, kStorage = 3 };
constexpr uint32_t kPartnerCopy = 1;  ///< of kHello: the rank is of another node; what is saved is a copy of its memory
constexpr uint32_t kPersistThis = 1;  ///< of kCommit: the step is to be persisted once every rank has it
constexpr uint32_t kWait = 1;         ///< of kPersist: the reply comes when it is durable

/// Of a reply: 0, an exit code of ckpt, or one of these.
constexpr int32_t kSkipped = 1000;  ///< of kBegin: busy, and the trainer wants to go on
constexpr int32_t kPinned = 1001;   ///< of kBegin: the trainer itself maps what would be overwritten (kRelease)

struct Request {
  uint32_t magic = kMagic;
  uint16_t version = kProtocolVersion;
  uint16_t type = 0;
  uint64_t id = 0;  ///< the reply has the same
  uint32_t rank = 0, world = 0, local_world = 0, flags = 0;
  uint64_t step = 0, value = 0;
  uint32_t text_bytes = 0, reserved = 0;
};
static_assert(sizeof(Request) == 56);

struct Reply {
  uint32_t magic = kMagic;
  uint16_t version = kProtocolVersion;
  uint16_t type = 0;
  uint64_t id = 0;
  int32_t status = 0;
  uint32_t text_bytes = 0;
  uint64_t step = 0;
  uint64_t value[4] = {};
};
static_assert(sizeof(Reply) == 64);

// --- the segment ---

constexpr char kSegmentMagic[8] = {'C', 'K', 'P', 'T', 'S', 'E', 'G', '1'};
constexpr uint32_t kMostBuffers = 2;
constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kTensorAlignment = 64;
constexpr uint64_t kBufferAlignment = 4096;

/// One buffer. `sequence`: 0 nothing yet, odd being written, even complete.
struct alignas(64) Slot {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> objects_bytes;
  std::atomic<uint64_t> saved_us;  ///< CLOCK_REALTIME
};
static_assert(sizeof(Slot) == 64 && std::atomic<uint64_t>::is_always_lock_free);

/// The first page of a segment. Then the layout, then the buffers, each `data_bytes` of tensors and `objects_capacity`
/// of objects.
struct SegmentHeader {
  char magic[8];
  uint32_t version, buffers;
  uint32_t rank, world;
  uint64_t layout_offset, layout_bytes;
  uint64_t buffer_offset, buffer_stride;
  uint64_t data_bytes, objects_capacity;
  uint64_t segment_bytes;
  Slot slots[kMostBuffers];
};
static_assert(sizeof(SegmentHeader) <= kHeaderBytes);

}  // namespace ckpt::flash
