// What is done with a call before it passes, while a client has asked for it: bytes that it may write are set aside
// (copy-on-write), it waits for memory that is not filled yet, it is written down. Only owned allocations count.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "plugins/interposer/allocations.h"
#include "plugins/interposer/api_lock.h"

namespace ckpt::interposer {

using Word = uint64_t;

struct Bytes {
  CUdeviceptr start = 0;
  uint64_t size = 0;
};

/// What a call may do, as its arguments tell: a pointer to a kernel stands for the whole of its allocation.
struct Access {
  std::vector<Bytes> reads, writes;
  bool unknown = false;  ///< cannot be told
  bool replayable = false;
  CUstream stream = nullptr;
  std::string record;    ///< for `replay`
};
Access access_of(size_t index, const Word* words);
/// Of the call that `access` is of, for people: the kernel's as it was compiled, cut to some hundred bytes.
std::string name_of(const Access& access, size_t index);
/// Runs a recorded call again, to its end: what ordered it behind others of other streams is not recorded.
CUresult replay(const std::string& record);

/// Called inside the API lock, before the call goes on; leaves the API lock while it waits.
void before_call(ThreadState* self, size_t index, const Word* words);

/// Before an owned allocation ends, or may; only while the API lock is watched. Where it has ended: `filled`.
void before_free(const Allocation& allocation);

// For the agent; the API is locked where that matters.
void begin_cow(uint64_t budget);
/// Ranges that are to be saved before something writes them: whole pieces of 64 KiB.
void want(const std::vector<Bytes>& ranges);
struct Saved {
  Bytes original;
  uint64_t buffer, buffer_size, offset;
};
void saved_so_far(std::vector<Saved>* saved, std::vector<Bytes>* missed);
CUresult export_saved(uint64_t buffer, int* fd);
void end_cow();

void begin_fill(const std::vector<uint64_t>& ids);
std::set<uint64_t> unfilled();
/// What waiting calls need and no demand has named yet.
std::vector<uint64_t> demands();
/// Calls that waited for it alone go on.
void filled(uint64_t id);

struct Recorded {
  uint64_t sequence;
  Access access;
  std::string name;  ///< of the kernel, else of the driver's function
};
void begin_recording(uint64_t limit);
/// False: there were more than the limit.
bool recorded(uint64_t from, size_t count, std::vector<Recorded>* out);
void end_recording();

void reset_watch_after_fork();

}  // namespace ckpt::interposer
