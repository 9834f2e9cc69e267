/* redop.h: reduction operators: those that a communicator has created, and how each maps to a kernel's. */
#ifndef TUTTI_CORE_REDOP_H
#define TUTTI_CORE_REDOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct ncclComm;

struct redop {
  ncclRedOp_t handle;
  bool live;
  ncclDataType_t dtype;
  uint64_t bits;             /* the scalar, read at creation */
  const void *device_scalar; /* NULL if it was read at creation */
  const void *caller;        /* who created it */
};

struct redop_table {
  struct redop *rows;
  uint32_t count;
  uint32_t created; /* operators created so far; makes handles of reused rows differ */
};

struct redop_resolved {
  uint8_t op;         /* the kernel's: enum work_op */
  uint64_t op_arg;    /* its argument, 0 if it is at `scalar` */
  const void *scalar; /* on the device, to be read when the operation begins; NULL: op_arg has it */
};

/* The kernel's operator for `op` on `dtype`. ncclInvalidArgument: unknown operator, or one of another type or
 * communicator. */
ncclResult_t redop_resolve(struct ncclComm *comm, const char *call, ncclRedOp_t op, ncclDataType_t dtype,
                           struct redop_resolved *resolved);
/* Where a user's operator's scalar is on the device; NULL: it has none there. */
const void *redop_scalar(const struct redop_table *table, ncclRedOp_t op);
/* The bits of a user's operator's scalar if it was read at creation; else 0. */
uint64_t redop_factor(const struct redop_table *table, ncclRedOp_t op);
void redop_table_free(struct redop_table *table);

#endif
