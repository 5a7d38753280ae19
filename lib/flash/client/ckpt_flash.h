/* libckpt-flash: a trainer saves its state into the memory of its node's agent (ckpt agent), and gets it back from
 * there. C interface; no call may run beside another one of the same handle. Protocol and memory: ckpt-agent(7). */
#ifndef CKPT_FLASH_H
#define CKPT_FLASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_FLASH_VERSION 1
#define CKPT_FLASH_ANY_STEP UINT64_MAX

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* What calls return: 0, a status below 1000 (the exit codes of ckpt: 2 usage, 4 not found, 7 busy, 8 I/O, 9 no room)
 * or one of these. ckpt_flash_error has the words. */
#define CKPT_FLASH_SKIPPED 1000 /* the agent was busy, and CKPT_FLASH_SKIP was asked for */
#define CKPT_FLASH_LOST 1002    /* the agent is gone: start another one, then ckpt_flash_reconnect */

enum { CKPT_FLASH_SKIP = 0, CKPT_FLASH_WAIT = 1, CKPT_FLASH_FAIL = 2 }; /* if busy */
enum { CKPT_FLASH_BEST = 0, CKPT_FLASH_FROM_MEMORY = 1, CKPT_FLASH_FROM_STORAGE = 2 };
enum { CKPT_FLASH_LEVEL_MEMORY = 1, CKPT_FLASH_LEVEL_PARTNER = 2, CKPT_FLASH_LEVEL_STORAGE = 3 };
enum { CKPT_FLASH_NAME = 0, CKPT_FLASH_NUMBER = 1, CKPT_FLASH_INDEX = 2 }; /* kinds of steps */
/* Kinds of objects: a value, Megatron's common state, what only the same ranks load again. */
enum { CKPT_FLASH_VALUE = 0, CKPT_FLASH_COMMON = 1, CKPT_FLASH_PRIVATE = 2 };

typedef struct ckpt_flash ckpt_flash;

/* A step into the nested state dict: a dict's key that is text or a number, or a place in a list. */
typedef struct {
  int32_t kind;
  const char* name;
  int64_t number;
} ckpt_flash_step;

/* A tensor, or this rank's part of it. Row-major. */
typedef struct {
  const char* key;   /* unique among the ranks' tensors, but for parts and replicas of one */
  const char* dtype; /* "float32", "bfloat16", ...: torch's names */
  uint32_t dims;
  const uint64_t* shape;         /* of the part */
  const uint64_t* global_shape;  /* NULL: shape */
  const uint64_t* global_offset; /* NULL: zeros */
  uint32_t steps;
  const ckpt_flash_step* path; /* steps of them; none: the key itself */
} ckpt_flash_tensor;

/* What is no tensor: a file as torch.save makes it, in memory. */
typedef struct {
  const char* key;
  int32_t kind;
  uint32_t steps;
  const ckpt_flash_step* path;
  const void* data;
  uint64_t bytes; /* below 4 GiB */
} ckpt_flash_object;

typedef struct {
  size_t size;           /* sizeof(ckpt_flash_options) */
  const char* directory; /* of the checkpoints: it names the agent */
  const char* socket;    /* NULL: the agent's own place */
  uint32_t rank, world, local_world;
  uint32_t threads;      /* that copy; 0: one per core, 16 at most */
  uint32_t partner_copy; /* 1: the rank is of another node, and what is saved is a copy of its memory, kept for it */
} ckpt_flash_options;

typedef struct {
  uint64_t copy_us, total_us;
  uint64_t bytes;
  uint64_t newest_step;     /* that all ranks of this node have; CKPT_FLASH_ANY_STEP: none, or not known yet */
  uint64_t protected_bytes; /* of a snapshot: what is copied behind the trainer; 0: all was copied before the return */
} ckpt_flash_saved;

/* What a load gives: valid until ckpt_flash_unload, writable, of this process alone (the saved step stays as it is). */
typedef struct {
  uint64_t step;
  int32_t level;
  uint32_t tensors, objects;
  const ckpt_flash_tensor* tensor;
  void* const* data; /* one for each tensor */
  const ckpt_flash_object* object;
  uint64_t bytes, total_us;
  void* mapping;
} ckpt_flash_loaded;

/* 4: there is no agent. The handle is made in any case but 2 (usage), so that its error can be read. */
int ckpt_flash_open(const ckpt_flash_options* options, ckpt_flash** out);
/* To a new agent, which takes over the memory that this handle still holds. */
int ckpt_flash_reconnect(ckpt_flash* flash);
/* The words of the last call that failed. */
const char* ckpt_flash_error(const ckpt_flash* flash);

/* What will be saved: allocates the memory. `object_bytes`: of all objects together, about. It may be called again with
 * others; the same again costs little. Pages are made ready in the background from here on. */
int ckpt_flash_declare(ckpt_flash* flash, const ckpt_flash_tensor* tensors, uint32_t count, uint64_t object_bytes);
/* Waits until the pages are ready. */
int ckpt_flash_ready(ckpt_flash* flash);

/* begin, copy, commit in one. `data`: as many as tensors were declared. 9: the objects need more room than declared. */
int ckpt_flash_save(ckpt_flash* flash, uint64_t step, const void* const* data, const ckpt_flash_object* objects,
                    uint32_t count, int if_busy, uint64_t timeout_ms, int persist, ckpt_flash_saved* saved);
/* In steps, for those who copy by themselves: `places` gets where each tensor goes. Between begin and commit or abort
 * the buffer is the trainer's, and a trainer that dies leaves the step before. */
int ckpt_flash_begin(ckpt_flash* flash, uint64_t step, int if_busy, uint64_t timeout_ms, void** places);
/* Of those tensors whose `data` is not NULL. */
int ckpt_flash_copy(ckpt_flash* flash, const void* const* data);
int ckpt_flash_commit(ckpt_flash* flash, const ckpt_flash_object* objects, uint32_t count, int persist,
                      ckpt_flash_saved* saved);
int ckpt_flash_abort(ckpt_flash* flash);
/* Where the tensors of the last save (or snapshot) lie, until the next begin, declare or load. Waits for nothing. */
int ckpt_flash_places(const ckpt_flash* flash, void** places);

/* The step that a job of several nodes would go back to: no later save is written over it, until another is named. */
int ckpt_flash_keep(ckpt_flash* flash, uint64_t step);

/* A save that does not copy: returns once the pages of large tensors are held (userfaultfd, and the right to it):
 * private anonymous memory is moved away (Linux 5.7), and what the trainer touches comes back first; other memory is
 * write-protected (Linux 6.4). Threads of the library copy behind it. The tensors stay mapped until it is done, where
 * they are: what is mapped there instead would be lost. fork(3) waits for it, as does any later call but done and
 * error; a child made by clone(2) alone, with a copy of the memory, lacks what is away. Where the process has used up
 * its mappings (vm.max_map_count) pages come back as copies: what a device was given (cudaHostRegister, RDMA) is
 * another page then. Where it cannot be it is a save. */
int ckpt_flash_snapshot(ckpt_flash* flash, uint64_t step, const void* const* data, const ckpt_flash_object* objects,
                        uint32_t count, int if_busy, uint64_t timeout_ms, int persist, ckpt_flash_saved* saved);
/* 1: nothing is under way. The one call that another thread may make beside others of the handle. */
int ckpt_flash_done(const ckpt_flash* flash);
/* Waits until the step is complete in the agent's memory. */
int ckpt_flash_wait(ckpt_flash* flash, ckpt_flash_saved* saved);

/* 4: there is none. `path`: a checkpoint folder, for CKPT_FLASH_FROM_STORAGE; NULL: the newest. */
int ckpt_flash_load(ckpt_flash* flash, uint64_t step, int from, const char* path, ckpt_flash_loaded** out);
/* What another rank of this node has of a step in memory. It is not kept: to be copied before anybody saves again. */
int ckpt_flash_look(ckpt_flash* flash, uint32_t rank, uint64_t step, ckpt_flash_loaded** out);
void ckpt_flash_unload(ckpt_flash* flash, ckpt_flash_loaded* loaded);

/* `wait`: returns when the step is durable. */
int ckpt_flash_persist(ckpt_flash* flash, uint64_t step, const char* directory, int wait);
/* JSON, ckpt.agent/1; valid until the next call. */
int ckpt_flash_status(ckpt_flash* flash, const char** json);

/* The trainer ends in order: nobody takes it for dead. NULL is fine. What was loaded and not unloaded is copied and
 * stays; ckpt_flash_unload of it is the one call that may follow, and the last one frees the handle. */
void ckpt_flash_close(ckpt_flash* flash);
/* As close, but the agent takes the trainer for dead: it keeps its memory for the one that comes in its place. */
void ckpt_flash_leave(ckpt_flash* flash);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
