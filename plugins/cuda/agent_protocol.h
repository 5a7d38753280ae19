// What ckpt and the agent inside a process started by `ckpt run` say to each other: a unix SOCK_SEQPACKET socket, one
// request and one reply at a time, both a Message and up to kMaxPayload bytes, in the machine's own byte order. A
// descriptor goes along as SCM_RIGHTS where it is said. The agent takes one client at a time, of its own user or root.
//
// The address: in the abstract namespace "ckpt-agent-PID-RANDOM" (listed in /proc/PID/net/unix), or, where the process
// has CKPT_RUN_DIR, the file agent-PID in that folder, which is its user's own and 0700. PID is as the process sees
// itself.
//
// The API stays locked and memory stays away only while somebody answers for it:
// - A client that goes away (its socket ends) is cleaned up after: copies set aside are dropped, released memory is put
// back
//   from the descriptors that the agent keeps, the API is unlocked. Only what is nowhere to be had (the client has said
//   `kForget`), and fresh memory for which no client has unlocked the API, keep the API locked until a client brings
//   it: the program never runs over memory or content that is not there. Calls that wait for memory that is not filled
//   wait on, for a client that fills it.
// - In a program that ends the API is unlocked when its client goes away, whatever is missing.
// - `kHold` ends the conversation for a freeze: the agent forgets, closes every socket and waits, API locked. An image
//   taken then holds no socket and no descriptor of the agent. (A client that is gone before it could be told of it has
//   gone away.) In a new life (another start time of the process), or when the lease is up, it listens again, at a new
//   address. Only its own running time counts: while it stands still or lies in an image, nothing runs out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt::agent {

inline constexpr uint32_t kMagic = 0x41504b43;  // "CKPA"
inline constexpr uint32_t kVersion = 4;
inline constexpr size_t kMaxPayload = 60 << 10;
inline constexpr char kAddressPrefix[] = "ckpt-agent-";

enum class Type : uint32_t {
  kHello,        ///< payload: HelloReply
  kDeviceUuid,   ///< a: ordinal; payload: 16 bytes
  kAllocations,  ///< a: the first index; reply a: how many there are; payload: AllocationReply each
  kExport,       ///< a: id; reply with a descriptor
  kLockApi,    ///< a: timeout, microseconds
  kDrain,        ///< a: timeout, microseconds
  kUnlockApi,  ///< kNotMapped while an allocation is without memory. Memory attached fresh has its content, or waits to
              ///< be filled
  kRelease,  ///< payload: ids; reply a: how many were done. The agent keeps the memory by a descriptor until kForget or
             ///< kHold
  kAttach,   ///< a: id; with a descriptor, or without: what the agent keeps, or fresh memory, which the client fills
  kForget,   ///< what the agent keeps of released memory: from here on the client has it
  kHold,     ///< a: lease, milliseconds of the agent's own running time. The reply is the last word; a: address of four
             ///< bytes, zero: kWoken there ends the wait, any other change begins the lease anew
  kBeginCow,     ///< a: budget in bytes; nothing is wanted yet
  kSaved,        ///< a: the first index; reply a: how many are saved, b: how many missed; payload: SavedReply each
  kMissed,       ///< a: the first index; payload: RangeReply each
  kExportSaved,  ///< a: buffer; reply with a descriptor
  kEndCow,
  kBeginFill,       ///< payload: ids
  kDemand,          ///< a: timeout, microseconds (at most kMaxDemandWait); payload: ids
  kFilled,          ///< a: id
  kBeginRecording,  ///< a: limit
  kRecorded,        ///< a: the first index; reply a: how many there are; payload: RecordReply and what follows it, each
  kEndRecording,
  kReplay,    ///< payload: a record
  kWanted,    ///< after kBeginCow, the API still locked. payload: RangeReply each, saved before they are written
  kRenew,     ///< a: id; memory that was attached by a descriptor becomes the target's own, drained
  kContexts,  ///< payload: int32_t each, the ordinal of its device
  kRenewAny,  ///< the same, whatever memory it is
  kCount,
};
inline constexpr uint64_t kMaxDemandWait = 2000;
inline constexpr uint32_t kWoken = ~uint32_t{0};

enum class Status : uint32_t {
  kDone,
  kBusy,
  kNotFound,
  kUnsupported,
  kNotMapped,
  kNoRoom,
  kMalformed,
  kVersion,
  kDriver
};

struct Message {
  uint32_t magic = kMagic, version = kVersion;
  Type type = Type::kHello;
  uint32_t sequence = 0;
  Status status = Status::kDone;  ///< of replies
  int32_t driver_error = 0;       ///< CUresult, with kDriver and where it tells more
  uint64_t a = 0, b = 0;
};
static_assert(sizeof(Message) == 40);

enum class Kind : uint32_t {
  kOwned,     ///< by the agent: can be exported, released, attached
  kNative,    ///< of cuMemAlloc, small or where the device cannot do better
  kManaged,   ///< of cuMemAllocManaged
  kPool,      ///< stream-ordered
  kMapped,    ///< mapped by the program itself with cuMemMap
  kPinned,    ///< host memory that devices write to
  kForeign,   ///< another process's, by cuIpcOpenMemHandle
  kImported,  ///< by a handle of cuMemImportFromShareableHandle, of a pool that was imported, or of another API
};

struct HelloReply {
  int32_t pid = 0;             ///< as the process sees itself
  int32_t driver_version = 0;
  uint64_t start_time = 0;     ///< /proc/self/stat's
  uint32_t contexts = 0, captures = 0;
  uint32_t api_locked = 0, released = 0;  ///< how many are without memory
};

struct AllocationReply {
  uint64_t id = 0, address = 0, size = 0;  ///< owned: as mapped
  uint64_t asked = 0;                      ///< as the program asked
  Kind kind = Kind::kOwned;
  int32_t device = 0;
  uint32_t released = 0;
  uint32_t unfilled =
      0;  ///< without its content: a client has said kBeginFill and not kFilled, or has attached fresh memory
};

struct RangeReply {
  uint64_t start = 0, size = 0;
};

struct SavedReply {
  RangeReply original;
  uint64_t buffer = 0, buffer_size = 0, offset = 0;
};

/// Behind it: its reads, its writes (RangeReply each), the record, its name.
struct RecordReply {
  uint64_t sequence = 0;
  uint32_t reads = 0, writes = 0, record_size = 0, replayable = 0;
  uint64_t name_size = 0;
};

}  // namespace ckpt::agent
