/* shm.h: pages of the host that the devices of several processes access: shared memory (base/share.h) that
 * each process registers with CUDA. Called with cuda_mutex held, within a scope of a device. It knows neither
 * connections nor settings. */
#ifndef TUTTI_BACKENDS_CUDA_SHM_H
#define TUTTI_BACKENDS_CUDA_SHM_H

#include "base/share.h"

struct shm_pages {
  void *host;                   /* NULL: none */
  uint8_t *device;              /* where devices access them; NULL: not registered */
  uint64_t bytes, mapped_bytes; /* bytes: those that are registered; mapped_bytes: all of the block */
};

/* Pages of this process, zeroed, and the ticket by which others map them. */
ncclResult_t cuda_shm_make(uint64_t bytes, struct shm_pages *pages, struct share_ticket *ticket);
/* The first `bytes` of another process's block. `whose` names it in messages. */
ncclResult_t cuda_shm_map(const struct share_ticket *ticket, uint64_t bytes, const char *whose,
                          struct shm_pages *pages);
/* Both are registered afterwards; pages that are already are left as they are. */
ncclResult_t cuda_shm_register(struct shm_pages *pages, const char *whose);
/* Devices access the pages no more; a later cuda_shm_register() registers them again. */
void cuda_shm_unregister(struct shm_pages *pages);
/* They end when no kernel of this process uses the pages any more. Pages without address are allowed. */
void cuda_shm_free(struct shm_pages *pages);
void cuda_shm_unmap(struct shm_pages *pages);

#endif
