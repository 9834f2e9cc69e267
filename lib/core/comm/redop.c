/* redop.c: a communicator's table of operators. A handle has its row and a stamp, so that destroyed, foreign
 * and invented handles are detected. Kernels see only six operators. Does not know collectives. */
#include "core/comm/redop.h"

#include <string.h>

#include "base/array.h"
#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"
#include "core/api.h"
#include "core/comm/comm.h"
#include "kernels/kernels.h"

#define REDOP_ROWS_MAX (1u << 15)
#define REDOP_ROWS_FIRST 4

static ncclRedOp_t redop_handle(const struct ncclComm *comm, uint32_t row, uint32_t created) {
  uint64_t stamp = (comm->comm_id * 31 + comm->rank) * 31 + created;
  stamp = (stamp * 0x9e3779b97f4a7c15ull) >> 50; /* 14 bits */
  return (ncclRedOp_t)(ncclNumOps + (stamp * REDOP_ROWS_MAX | row));
}

static struct redop *redop_find(const struct redop_table *table, ncclRedOp_t op) {
  const uint32_t row = ((uint32_t)op - ncclNumOps) % REDOP_ROWS_MAX;
  if ((int)op < (int)ncclNumOps || row >= table->count) return NULL;
  struct redop *found = &table->rows[row];
  return found->live && found->handle == op ? found : NULL;
}

uint64_t redop_factor(const struct redop_table *table, ncclRedOp_t op) {
  const struct redop *found = redop_find(table, op);
  return found && !found->device_scalar ? found->bits : 0;
}

static ncclResult_t redop_grow(struct ncclComm *comm) {
  struct redop_table *table = &comm->redops;
  const uint32_t count = table->count > 0 ? 2 * table->count : REDOP_ROWS_FIRST;
  if (count > REDOP_ROWS_MAX)
    return log_fail(
        ncclSystemError,
        "ncclRedOpCreatePreMulSum: rank %u of comm '%s' has %u operators, as many as there can be; "
        "destroy those that are no longer used",
        comm->rank, comm->name, table->count);
  if (!array_resize(&table->rows, count, sizeof *table->rows))
    return log_no_memory("ncclRedOpCreatePreMulSum: rank %u of comm '%s': an operator beside %u others",
                         comm->rank, comm->name, table->count);
  memset(table->rows + table->count, 0, (count - table->count) * sizeof *table->rows);
  table->count = count;
  return ncclSuccess;
}

static ncclResult_t redop_take_row(struct ncclComm *comm, uint32_t *row) {
  uint32_t index = 0;
  while (index < comm->redops.count && comm->redops.rows[index].live) index += 1;
  if (index == comm->redops.count) TRY(redop_grow(comm));
  *row = index;
  return ncclSuccess;
}

void redop_table_free(struct redop_table *table) {
  os_free(table->rows);
  table->rows = NULL;
  table->count = 0;
}

const void *redop_scalar(const struct redop_table *table, ncclRedOp_t op) {
  const struct redop *found = redop_find(table, op);
  return found ? found->device_scalar : NULL;
}

/* ---- Resolving ---- */

static bool dtype_is_float(ncclDataType_t dtype) { return dtype >= ncclFloat16; }

static bool dtype_is_signed(ncclDataType_t dtype) {
  return dtype == ncclInt8 || dtype == ncclInt32 || dtype == ncclInt64;
}

/* Floats are multiplied by 1/n before the sum, integers divided by n after it. */
static struct redop_resolved redop_average(uint32_t rank_count, ncclDataType_t dtype) {
  if (dtype_is_float(dtype))
    return (struct redop_resolved){OP_PRE_MUL_SUM, kernel_from_double((uint8_t)dtype, 1.0 / rank_count),
                                   NULL};
  return (struct redop_resolved){OP_SUM_POST_DIV, (uint64_t)rank_count << 1 | dtype_is_signed(dtype), NULL};
}

static ncclResult_t redop_resolve_own(struct ncclComm *comm, const char *call, ncclRedOp_t op,
                                      ncclDataType_t dtype, struct redop_resolved *resolved) {
  const struct redop *row = redop_find(&comm->redops, op);
  if (!row) {
    return log_fail(ncclInvalidArgument,
                    "%s: rank %u of comm '%s': %d is neither a built-in operator nor one that this "
                    "communicator has: it was destroyed, or is another communicator's; create it with "
                    "ncclRedOpCreatePreMulSum on this communicator",
                    call, comm->rank, comm->name, (int)op);
  }
  if (row->dtype != dtype) {
    return log_fail(ncclInvalidArgument,
                    "%s: rank %u of comm '%s': the operator was created for %s and is used on %s; "
                    "create one for each type",
                    call, comm->rank, comm->name, kernel_type_name((uint8_t)row->dtype),
                    kernel_type_name((uint8_t)dtype));
  }
  *resolved = (struct redop_resolved){OP_PRE_MUL_SUM, row->bits, row->device_scalar};
  return ncclSuccess;
}

ncclResult_t redop_resolve(struct ncclComm *comm, const char *call, ncclRedOp_t op, ncclDataType_t dtype,
                           struct redop_resolved *resolved) {
  if (op < 0 || (int)op >= (int)ncclNumOps) return redop_resolve_own(comm, call, op, dtype, resolved);
  /* Sum, product, maximum and minimum have the same numbers in both enums. */
  *resolved =
      op == ncclAvg ? redop_average(comm->rank_count, dtype) : (struct redop_resolved){(uint8_t)op, 0, NULL};
  return ncclSuccess;
}

/* ---- Entry points ---- */

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm) {
  static const char *const call = "ncclRedOpCreatePreMulSum";
  TRY(comm_check_ready(comm, call));
  if (!op || !scalar) {
    return log_fail(ncclInvalidArgument, "%s: rank %u of comm '%s': %s is NULL", call, comm->rank, comm->name,
                    op ? "scalar" : "op");
  }
  if (kernel_type_bytes((uint8_t)datatype) == 0 || (unsigned)datatype >= ncclNumTypes) {
    return log_fail(ncclInvalidArgument, "%s: rank %u of comm '%s': %d is no ncclDataType_t", call,
                    comm->rank, comm->name, (int)datatype);
  }
  if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
    return log_fail(ncclInvalidArgument, "%s: rank %u of comm '%s': %d is no ncclScalarResidence_t", call,
                    comm->rank, comm->name, (int)residence);
  }
  uint32_t index = 0;
  TRY(redop_take_row(comm, &index));
  struct redop *row = &comm->redops.rows[index];
  memset(row, 0, sizeof *row);
  row->live = true;
  row->caller = CALL_PLACE;
  row->dtype = datatype;
  if (residence == ncclScalarDevice) row->device_scalar = scalar;
  else memcpy(&row->bits, scalar, kernel_type_bytes((uint8_t)datatype));
  row->handle = redop_handle(comm, index, comm->redops.created++);
  *op = row->handle;
  return ncclSuccess;
}
API_EXPORT(RedOpCreatePreMulSum);

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  TRY(comm_check_handle(comm, "ncclRedOpDestroy"));
  if ((int)op >= 0 && (int)op < (int)ncclNumOps) {
    return log_fail(ncclInvalidArgument,
                    "ncclRedOpDestroy: rank %u of comm '%s': %d is a built-in operator; only those "
                    "of ncclRedOpCreatePreMulSum are destroyed",
                    comm->rank, comm->name, (int)op);
  }
  struct redop *row = redop_find(&comm->redops, op);
  if (!row) {
    return log_fail(ncclInvalidArgument,
                    "ncclRedOpDestroy: rank %u of comm '%s' has no operator %d; it is another "
                    "communicator's, or was destroyed",
                    comm->rank, comm->name, (int)op);
  }
  row->live = false;
  return ncclSuccess;
}
API_EXPORT(RedOpDestroy);
