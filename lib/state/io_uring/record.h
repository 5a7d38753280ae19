// io_uring instances in which nothing is in flight: what the manifest says of them.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::store {

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
}

}  // namespace ckpt::store
