/* driver_memory.h (simt): what the driver knows of an address that cuMemMap has mapped. */
#ifndef TUTTI_TESTS_SIMT_DRIVER_MEMORY_H
#define TUTTI_TESTS_SIMT_DRIVER_MEMORY_H

#include <cuda.h>

struct driver_memory {
  uint64_t range, range_bytes, range_id; /* of cuMemAddressReserve */
  uint64_t base, bytes;                  /* of cuMemMap; 0 bytes: nothing is mapped there */
  uint64_t block_id;                     /* of cuMemCreate: never reused */
  unsigned int types;                    /* of handles */
};

/* False for an address that is in no range. */
bool driver_memory_find(uint64_t address, struct driver_memory *found);
/* The file of what is mapped there; false if it is not all of one mapping. */
bool driver_memory_file(uint64_t address, size_t bytes, uint64_t *base, int *file);

#endif
