// io_uring by its system calls, as a library would use it: what it believes of a ring (its own counters, offsets,
// addresses) is kept in its memory.
#pragma once

#include <linux/io_uring.h>

#include "target.h"

#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1U << 16)
#endif

struct uring {
  int fd;
  struct io_uring_params p;
  char *sq, *cq;  // both queues; the same where one mapping has both
  struct io_uring_sqe* sqes;
  unsigned sq_tail, cq_head;  // what this program has added and taken
};

static inline unsigned* uring_sq(struct uring* r, unsigned offset) { return (unsigned*)(r->sq + offset); }
static inline unsigned* uring_cq(struct uring* r, unsigned offset) { return (unsigned*)(r->cq + offset); }

/// False with errno: there is no such ring here.
static inline bool uring_make(struct uring* r, unsigned entries, unsigned flags, bool apart) {
  memset(r, 0, sizeof *r);
  r->p.flags = flags;
  r->fd = (int)syscall(SYS_io_uring_setup, entries, &r->p);
  if (r->fd < 0) return false;
  bool array = (flags & IORING_SETUP_NO_SQARRAY) == 0;
  size_t cq = r->p.cq_off.cqes + r->p.cq_entries * sizeof(struct io_uring_cqe);
  size_t sq = array ? r->p.sq_off.array + r->p.sq_entries * sizeof(unsigned) : cq;
  const int prot = PROT_READ | PROT_WRITE;
  r->sq = mmap(NULL, sq > cq ? sq : cq, prot, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);
  r->cq = apart ? mmap(NULL, cq, prot, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_CQ_RING) : r->sq;
  r->sqes = mmap(NULL, r->p.sq_entries * sizeof *r->sqes, prot, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
  CHECK(r->sq != MAP_FAILED && r->cq != MAP_FAILED && (void*)r->sqes != MAP_FAILED);
  for (unsigned i = 0; array && i < r->p.sq_entries; ++i) uring_sq(r, r->p.sq_off.array)[i] = i;
  return true;
}

static inline struct io_uring_sqe* uring_next(struct uring* r, int opcode, uint64_t data) {
  struct io_uring_sqe* sqe = &r->sqes[r->sq_tail++ & (r->p.sq_entries - 1)];
  memset(sqe, 0, sizeof *sqe);
  sqe->opcode = (uint8_t)opcode;
  sqe->user_data = data;
  return sqe;
}

/// Hands the last `count` over, and waits for as many completions.
static inline void uring_submit(struct uring* r, unsigned count, unsigned wait) {
  __atomic_store_n(uring_sq(r, r->p.sq_off.tail), r->sq_tail, __ATOMIC_RELEASE);
  long got;
  do got = syscall(SYS_io_uring_enter, r->fd, count, wait, wait != 0 ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
  while (got < 0 && errno == EINTR);
  CHECK_EQUAL(got, count);
}

static inline bool uring_take(struct uring* r, struct io_uring_cqe* out) {
  if (__atomic_load_n(uring_cq(r, r->p.cq_off.tail), __ATOMIC_ACQUIRE) == r->cq_head) return false;
  struct io_uring_cqe* cqes = (struct io_uring_cqe*)(r->cq + r->p.cq_off.cqes);
  *out = cqes[r->cq_head & (r->p.cq_entries - 1)];
  __atomic_store_n(uring_cq(r, r->p.cq_off.head), ++r->cq_head, __ATOMIC_RELEASE);
  return true;
}

/// The next completion is there and is this one.
static inline void uring_expect(struct uring* r, uint64_t data, int result) {
  struct io_uring_cqe cqe;
  CHECK(uring_take(r, &cqe));
  CHECK_EQUAL(cqe.user_data, data);
  CHECK_EQUAL(cqe.res, result);
}

static inline void uring_no_ops(struct uring* r, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    uring_next(r, IORING_OP_NOP, i);
    uring_submit(r, 1, 1);
    uring_expect(r, i, 0);
  }
}
