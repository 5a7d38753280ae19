/* Built once for each MPI whose headers are there. It names no library: ckpt has loaded that before, for all to see, as
   Open MPI's own plug-ins want it. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plugins/mpi/api.h"

static MPI_Comm world;

static int start(uint32_t* rank, uint32_t* size) {
  int provided = 0, r = 0, n = 0, error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
  if (error != MPI_SUCCESS) return error;
  if (provided < MPI_THREAD_FUNNELED) return MPI_ERR_OTHER;
  error = MPI_Comm_dup(MPI_COMM_WORLD, &world);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(world, &r);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(world, &n);
  *rank = (uint32_t)r;
  *size = (uint32_t)n;
  return error;
}

/* A request of MPI is an integer in one implementation and a pointer in the other. */
static int keep(int error, MPI_Request* one, void** request) {
  if (error != MPI_SUCCESS) free(one);
  else *request = one;
  return error;
}

static int send_bytes(uint32_t to, uint32_t tag, const void* data, uint32_t bytes, void** request) {
  MPI_Request* one = malloc(sizeof *one);
  if (one == NULL || bytes > INT_MAX) {
    free(one);
    return MPI_ERR_OTHER;
  }
  return keep(MPI_Isend(data, (int)bytes, MPI_BYTE, (int)to, (int)tag, world, one), one, request);
}

static int receive_bytes(uint32_t from, uint32_t tag, void* into, uint32_t bytes, void** request) {
  MPI_Request* one = malloc(sizeof *one);
  if (one == NULL || bytes > INT_MAX) {
    free(one);
    return MPI_ERR_OTHER;
  }
  return keep(MPI_Irecv(into, (int)bytes, MPI_BYTE, (int)from, (int)tag, world, one), one, request);
}

static int wait_for(void* request) {
  const int error = MPI_Wait(request, MPI_STATUS_IGNORE);
  free(request);
  return error;
}

/* MPI waits by spinning, on a core that the job may need: others may come much later. */
static int wait_asleep(int error, MPI_Request* request) {
  const long longest_ns = 1000000;
  struct timespec pause = {0, 20000};
  int done = 0;
  while (error == MPI_SUCCESS && (error = MPI_Test(request, &done, MPI_STATUS_IGNORE)) == MPI_SUCCESS && !done) {
    nanosleep(&pause, NULL);
    pause.tv_nsec = 2 * pause.tv_nsec < longest_ns ? 2 * pause.tv_nsec : longest_ns;
  }
  return error;
}

static int gather(const void* mine, uint32_t bytes, void* all, const uint32_t* sizes) {
  int ranks = 0, error = MPI_Comm_size(world, &ranks);
  if (error != MPI_SUCCESS) return error;
  int* counts = malloc(2 * (size_t)ranks * sizeof *counts);
  if (counts == NULL) return MPI_ERR_NO_MEM;
  uint64_t total = 0;
  for (int i = 0; i < ranks; ++i) {
    counts[i] = (int)sizes[i];
    counts[ranks + i] = (int)total;
    total += sizes[i];
  }
  MPI_Request request;
  error = total > INT_MAX ? MPI_ERR_COUNT
                          : wait_asleep(MPI_Iallgatherv(mine, (int)bytes, MPI_BYTE, all, counts, counts + ranks,
                                                        MPI_BYTE, world, &request),
                                        &request);
  free(counts);
  return error;
}

static void describe(int error, char* text, uint32_t room) {
  char words[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(error, words, &length) != MPI_SUCCESS) length = 0;
  snprintf(text, room, "%.*s", length, words);
}

static int finish(void) { return MPI_Finalize(); }

__attribute__((visibility("default"))) const struct ckpt_mpi* ckpt_mpi_interface(void) {
  static const struct ckpt_mpi kInterface = {CKPT_MPI_VERSION, start,  send_bytes, receive_bytes,
                                             wait_for,         gather, describe,   finish};
  return &kInterface;
}
