/* libckpt-flash: where a program may be stopped. C interface; of no use, and next to no cost, but with ckpt dump
 * --safe-point. */
#ifndef CKPT_SAFE_POINT_H
#define CKPT_SAFE_POINT_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* To be called where nothing is in flight: at the end of a minibatch, for instance. By one thread of a process, and by
 * all processes of a job equally often. A ckpt dump --safe-point waits until the program comes here; then this call
 * waits until the image has been taken. 1: it has waited, 0: it has not. It never waits for a ckpt that has ended for
 * longer than two seconds. */
int ckpt_safe_point(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
