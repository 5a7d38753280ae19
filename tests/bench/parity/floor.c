/* What the bytes of `ckpt protect` cost without it, by the same MPI: each rank reads its file once and
   send            sends it in blocks, to one rank after the other (what xor over N nodes sends)
   send2           the same, twice over (rs with two parities)
   reduce_scatter  takes part in MPI_Reduce_scatter_block with MPI_BXOR over all of it
   Rank 0 prints seconds, from barrier to barrier. usage: floor MODE FILE_PREFIX */
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { kBlock = 1 << 20 };

static int rank, ranks;

static size_t read_block(int fd, char* out, size_t offset, size_t size) {
  const ssize_t got = pread(fd, out, size, (off_t)offset);
  if (got < 0) MPI_Abort(MPI_COMM_WORLD, 1);
  return (size_t)got;
}

static void send_all(int fd, size_t size, int times) {
  /* Two blocks under way, as ckpt has them. */
  char* buffers[4];
  MPI_Request requests[4] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  for (int i = 0; i < 4; ++i) buffers[i] = malloc(kBlock);
  size_t number = 0;
  for (size_t at = 0; at < size; at += kBlock, ++number) {
    const int slot = (int)(number % 2), shift = 1 + (int)(number % (size_t)(ranks - 1));
    MPI_Waitall(2, requests + 2 * slot, MPI_STATUSES_IGNORE);
    read_block(fd, buffers[2 * slot], at, kBlock);
    for (int i = 0; i < times; ++i) {
      MPI_Waitall(2, requests + 2 * slot, MPI_STATUSES_IGNORE);
      MPI_Irecv(buffers[2 * slot + 1], kBlock, MPI_BYTE, (rank + ranks - shift) % ranks, slot, MPI_COMM_WORLD,
                &requests[2 * slot]);
      MPI_Isend(buffers[2 * slot], kBlock, MPI_BYTE, (rank + shift) % ranks, slot, MPI_COMM_WORLD,
                &requests[2 * slot + 1]);
    }
  }
  MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

static void reduce_scatter(int fd, size_t size) {
  char* all = malloc((size_t)kBlock * (size_t)ranks);
  char* mine = malloc(kBlock);
  const size_t step = (size_t)kBlock * (size_t)ranks;
  for (size_t at = 0; at < size; at += step) {
    memset(all, 0, step);
    read_block(fd, all, at, step);
    MPI_Reduce_scatter_block(all, mine, kBlock / 8, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  char name[4096];
  snprintf(name, sizeof name, "%s%d/data", argc > 2 ? argv[2] : "", rank);
  const int fd = open(name, O_RDONLY);
  struct stat st;
  if (argc != 3 || ranks < 2 || fd < 0 || fstat(fd, &st) != 0) MPI_Abort(MPI_COMM_WORLD, 2);
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  if (strcmp(argv[1], "reduce_scatter") == 0) reduce_scatter(fd, (size_t)st.st_size);
  else send_all(fd, (size_t)st.st_size, strcmp(argv[1], "send2") == 0 ? 2 : 1);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) printf("%.6f\n", MPI_Wtime() - start);
  MPI_Finalize();
  return 0;
}
