// io_uring instances in which nothing is in flight: what the manifest says of them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace ckpt::store {

/// What a program can notice of how a ring was set up, beyond its size: IORING_SETUP_SUBMIT_ALL (5.18),
/// IORING_SETUP_CQE_MIXED (6.18), IORING_SETUP_SQE_MIXED (6.19).
inline constexpr uint32_t kUringFlags = 1u << 7 | 1u << 18 | 1u << 19;

/// A view of a ring: the mapping of that process that begins there.
struct IoUringView {
  int process = 0;  ///< index into TreeImage::processes
  uint64_t start = 0;
  bool operator==(const IoUringView&) const = default;
};

/// A registered buffer (IORING_REGISTER_BUFFERS); both 0: an empty slot.
struct IoUringBuffer {
  uint64_t address = 0, length = 0;
  bool operator==(const IoUringBuffer&) const = default;
};

/// A number by which a thread enters the ring without its descriptor (IORING_REGISTER_RING_FDS).
struct IoUringNumber {
  int tid = 0;
  uint32_t number = 0;
  bool operator==(const IoUringNumber&) const = default;
};

/// How many workers of the kernel a thread may have at once (IORING_REGISTER_IOWQ_MAX_WORKERS).
struct IoUringWorkers {
  int tid = 0;
  uint32_t bounded = 0, unbounded = 0;  ///< for requests that end soon, and for others; 0: without a limit
  bool operator==(const IoUringWorkers&) const = default;
};

/// Credentials that requests may name (IORING_REGISTER_PERSONALITY).
struct IoUringPersonality {
  uint32_t number = 1;
  std::array<uint32_t, 4> uid{}, gid{};  ///< real, effective, saved, of files
  std::vector<uint32_t> groups;
  uint64_t capabilities = 0;  ///< effective
  bool operator==(const IoUringPersonality&) const = default;
};

/// What alone is allowed (IORING_REGISTER_RESTRICTIONS): bit N for number N.
struct IoUringRestrictions {
  uint64_t registrations = 0, requests = 0;
  uint32_t flags_allowed = 0, flags_required = 0;  ///< IOSQE_*
  bool operator==(const IoUringRestrictions&) const = default;
};

/// The kernel's thread that looks for requests (IORING_SETUP_SQPOLL).
struct IoUringPoller {
  uint32_t idle_ms = 0;  ///< before it sleeps
  int processor = -1;    ///< which it is bound to, -1: none
  int ring = -1;         ///< whose thread it is: index into TreeImage::io_urings of an earlier one; -1: its own
  bool operator==(const IoUringPoller&) const = default;
};

/// Counters run from 0 and wrap at 2^32. The kernel keeps its own, which a new ring reaches by no-ops.
struct IoUring {
  uint32_t sq_entries = 0, cq_entries = 0;  ///< powers of 2
  uint32_t sqe_size = 64, cqe_size = 16;    ///< bytes of an entry: IORING_SETUP_SQE128, IORING_SETUP_CQE32
  bool no_array = false;                    ///< IORING_SETUP_NO_SQARRAY
  uint32_t submitted = 0;  ///< requests taken from the submission queue
  uint32_t completed = 0;  ///< completions put into the completion queue: fewer where requests were dropped
  uint64_t rings_size = 0;  ///< bytes of the content that are both queues; the rest are the submission entries
  uint64_t content_offset = 0, content_size = 0;
  std::vector<int> files;               ///< registered: indices into TreeImage::descriptors, -1: an empty slot
  std::vector<IoUringBuffer> buffers;   ///< registered, addresses in `process`
  int process = 0;                      ///< index into TreeImage::processes of the first that has it open
  std::vector<IoUringView> views;
  std::vector<IoUringNumber> numbers;
  int eventfd = -1;             ///< told of completions: index into TreeImage::descriptors, -1: none
  bool eventfd_async = false;   ///< of those alone that were not there at once (IORING_REGISTER_EVENTFD_ASYNC)
  uint32_t flags = 0;           ///< IORING_SETUP_*: those of kUringFlags
  bool disabled = false;        ///< it was made with IORING_SETUP_R_DISABLED, and is not enabled yet
  std::vector<IoUringPoller> poller;              ///< at most one
  std::vector<IoUringPersonality> personalities;  ///< by number
  std::vector<IoUringRestrictions> restrictions;  ///< at most one
  std::vector<uint64_t> file_tags, buffer_tags;   ///< parallel to files and buffers, or empty
  std::vector<IoUringWorkers> workers;            ///< of threads that have not as many as a new ring gives them
  /// A restore can do nothing else with it, which an older ckpt does not know.
  bool needs_more() const {
    return flags != 0 || disabled || !poller.empty() || !personalities.empty() || !restrictions.empty() ||
           !file_tags.empty() || !buffer_tags.empty();
  }
  bool operator==(const IoUring&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<IoUringView> v) {
  a.number("process", v.process, 0);
  a.hex("start", v.start);
}

template <class A>
void describe(A& a, typename A::template Of<IoUringBuffer> b) {
  a.hex("address", b.address);
  a.number("length", b.length);
}

template <class A>
void describe(A& a, typename A::template Of<IoUringNumber> n) {
  a.number("tid", n.tid, 1);
  a.number("number", n.number, 0, 15);
}

template <class A>
void describe(A& a, typename A::template Of<IoUringWorkers> w) {
  a.number("tid", w.tid, 1);
  a.number("bounded", w.bounded);
  a.number("unbounded", w.unbounded);
}

template <class A>
void describe(A& a, typename A::template Of<IoUringPersonality> p) {
  a.number("number", p.number, 1, 65535);
  a.numbers("uid", p.uid);
  a.numbers("gid", p.gid);
  a.numbers("groups", p.groups);
  a.hex("capabilities", p.capabilities);
}

template <class A>
void describe(A& a, typename A::template Of<IoUringRestrictions> r) {
  a.hex("registrations", r.registrations);
  a.hex("requests", r.requests);
  a.number("flags_allowed", r.flags_allowed, 0, 255);
  a.number("flags_required", r.flags_required, 0, 255);
}

template <class A>
void describe(A& a, typename A::template Of<IoUringPoller> p) {
  a.number("idle_ms", p.idle_ms);
  a.number("processor", p.processor, -1);
  a.number("ring", p.ring, -1);
}

template <class A>
void describe(A& a, typename A::template Of<IoUring> u) {
  a.number("sq_entries", u.sq_entries, 1, 32768);
  a.number("cq_entries", u.cq_entries, 1, 65536);
  a.number("sqe_size", u.sqe_size, 64, 128);
  a.number("cqe_size", u.cqe_size, 16, 32);
  a.flag("no_array", u.no_array);
  a.number("submitted", u.submitted);
  a.number("completed", u.completed);
  a.number("rings_size", u.rings_size);
  a.number("content_offset", u.content_offset);
  a.number("content_size", u.content_size);
  a.numbers("files", u.files);
  a.list("buffers", u.buffers);
  a.number("process", u.process, 0);
  a.list("views", u.views);
  a.list("numbers", u.numbers);
  a.optional().number("eventfd", u.eventfd, -1);
  a.optional().flag("eventfd_async", u.eventfd_async);
  a.optional().number("flags", u.flags);
  a.optional().flag("disabled", u.disabled);
  a.optional().list("poller", u.poller);
  a.optional().list("personalities", u.personalities);
  a.optional().list("restrictions", u.restrictions);
  a.optional().hexes("file_tags", u.file_tags);
  a.optional().hexes("buffer_tags", u.buffer_tags);
  a.optional().list("workers", u.workers);
}

}  // namespace ckpt::store
