/* collective.h: the collectives that the benchmark knows, each as one row: names, sizes in nccl-tests'
 * convention, bus bandwidth factor, in-place rule; and the NCCL calls of one rank. */
#ifndef TUTTI_SIM_COLLECTIVE_H
#define TUTTI_SIM_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api.h"
#include "oracle.h"

/* The place of the other buffer when one buffer is used for both. */
enum in_place_rule {
  IN_PLACE_SAME,            /* send == receive */
  IN_PLACE_SEND_AT_RANK,    /* send == receive + rank * count */
  IN_PLACE_RECEIVE_AT_RANK, /* receive == send + rank * count */
  IN_PLACE_NONE             /* the operation has no in-place form */
};

/* One rank's part of one call. */
struct collective_call {
  const void *send;
  void *receive;
  size_t count; /* as NCCL's call takes it */
  ncclDataType_t type;
  ncclRedOp_t op;
  int root, rank, rank_count;
  ncclComm_t comm;
  cudaStream_t stream;
};

struct collective {
  enum collective_id id;
  const char *name;
  bool has_op, has_root;
  bool is_split; /* the size is that of all ranks' parts together; each part is cut to 16 bytes */
  enum in_place_rule in_place;
  double (*factor)(
      double rank_count); /* bus bandwidth = algorithm bandwidth * factor (NCCL's doc/PERFORMANCE.md) */
};

/* By nccl-tests' name, with or without "_perf"; NULL if unknown. */
const struct collective *collective_find(const char *name);
const struct collective *collective_at(size_t index); /* NULL past the end */

/* Calls the NCCL in use (api.h). */
ncclResult_t collective_launch(const struct collective *collective, const struct collective_call *call);

/* The library's number of the function (enum work_func). */
uint8_t collective_func(const struct collective *collective);

/* The count argument of the call for a size in bytes, and the actual size of this count. */
size_t collective_count(const struct collective *collective, size_t size_bytes, size_t type_bytes,
                        uint32_t rank_count);
size_t collective_bytes(const struct collective *collective, size_t count, size_t type_bytes,
                        uint32_t rank_count);

#endif
