/* What libckpt-openmpi.so and libckpt-mpich.so offer to ckpt: the few calls of MPI that it needs, behind an interface
   that does not depend on the implementation, whose handles differ. Each returns 0 or an error of MPI; one thread calls
   them. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_mpi {
  uint32_t version; /* CKPT_MPI_VERSION */
  int (*start)(uint32_t* rank, uint32_t* size);
  int (*send)(uint32_t to, uint32_t tag, const void* data, uint32_t bytes, void** request);
  int (*receive)(uint32_t from, uint32_t tag, void* into, uint32_t bytes, void** request);
  /* Releases the request, also after an error. */
  int (*wait)(void* request);
  /* Of each rank so many bytes as `sizes` says, one after the other. */
  int (*gather)(const void* mine, uint32_t bytes, void* all, const uint32_t* sizes);
  void (*describe)(int error, char* text, uint32_t room);
  int (*finish)(void);
};

#define CKPT_MPI_VERSION 2
/* The only symbol. */
const struct ckpt_mpi* ckpt_mpi_interface(void);

#ifdef __cplusplus
}
#endif
