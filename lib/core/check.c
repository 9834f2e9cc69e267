/* check.c: checks the arguments of one call. Every message names the function, the rank, the communicator,
 * the count, what is wrong and what to do. Knows what each function reads and writes, but not how it is
 * executed.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/collective.h"
#include "kernels/kernels.h"

static ncclResult_t check_fail(const struct collective_call *call, ncclResult_t code, const char *objection) {
  return log_fail(code, "%s: rank %u of comm '%s': count %zu: %s", call->name, call->comm->rank,
                  call->comm->name, call->count, objection);
}

static ncclResult_t check_numbers(const struct collective_call *call) {
  const struct ncclComm *comm = call->comm;
  char text[128];
  if ((unsigned)call->dtype >= ncclNumTypes) {
    snprintf(text, sizeof text, "type %d is no ncclDataType_t", (int)call->dtype);
    return check_fail(call, ncclInvalidArgument, text);
  }
  if (call->peer < 0 || (uint32_t)call->peer >= comm->rank_count) {
    snprintf(text, sizeof text, "%s %d is no rank; ranks are 0..%u",
             call->func == FUNC_SEND || call->func == FUNC_RECV ? "peer" : "root", call->peer,
             comm->rank_count - 1);
    return check_fail(call, ncclInvalidArgument, text);
  }
  if (func_reduces(call->func) && (int)call->op < 0) {
    snprintf(text, sizeof text, "operator %d is no ncclRedOp_t", (int)call->op);
    return check_fail(call, ncclInvalidArgument, text);
  }
  if (call->count > SIZE_MAX / 2 / kernel_type_bytes((uint8_t)call->dtype) / comm->rank_count) {
    return check_fail(call, ncclInvalidArgument,
                      "more bytes than the address space has; counts are elements");
  }
  return ncclSuccess;
}

ncclResult_t check_memory(const struct ncclComm *comm, const char *which, const void *pointer, size_t bytes,
                          char text[CHECK_TEXT_BYTES]) {
  struct pointer_info info;
  memset(&info, 0, sizeof info);
  TRY(comm->ops->memory->query(pointer, &info));
  const size_t offset = info.base ? (size_t)((const char *)pointer - (const char *)info.base) : 0;
  if (info.freed)
    snprintf(text, CHECK_TEXT_BYTES, "%s %p was freed; free it when the last call that uses it has ended",
             which, pointer);
  else if (info.kind == POINTER_UNKNOWN)
    snprintf(text, CHECK_TEXT_BYTES,
             "%s %p is not memory of a device; allocate it with cudaMalloc or ncclMemAlloc", which, pointer);
  else if (info.kind == POINTER_DEVICE && info.device_index != comm->device_index)
    snprintf(text, CHECK_TEXT_BYTES, "%s %p is memory of device %u, the rank is on device %u", which, pointer,
             info.device_index, comm->device_index);
  else if (info.bytes > 0 && offset + bytes > info.bytes)
    snprintf(text, CHECK_TEXT_BYTES, "%s %p has %zu bytes left in its allocation, the call needs %zu", which,
             pointer, info.bytes - offset, bytes);
  return ncclSuccess;
}

/* NCCL_CHECK_POINTERS: the memory must be the device's, and large enough if its size is known. */
static ncclResult_t check_pointer(const struct collective_call *call, const char *which, const void *pointer,
                                  size_t bytes) {
  char text[CHECK_TEXT_BYTES] = "";
  TRY(check_memory(call->comm, which, pointer, bytes, text));
  return text[0] == '\0' ? ncclSuccess : check_fail(call, ncclInvalidArgument, text);
}

static ncclResult_t check_buffer(const struct collective_call *call, const char *which, const void *pointer,
                                 size_t blocks) {
  char text[96];
  if (blocks == 0 || call->count == 0) return ncclSuccess;
  if (!pointer) {
    snprintf(text, sizeof text, "%s is NULL; pass device memory", which);
    return check_fail(call, ncclInvalidArgument, text);
  }
  if (!call->comm->settings.check_pointers) return ncclSuccess;
  return check_pointer(call, which, pointer, blocks * call->count * kernel_type_bytes((uint8_t)call->dtype));
}

/* A scalar of ncclScalarDevice is read when the operation begins. */
static ncclResult_t check_scalar(const struct collective_call *call) {
  const void *scalar = collective_scalar(call);
  if (!scalar || !call->comm->settings.check_pointers) return ncclSuccess;
  return check_pointer(call, "the scalar of ncclRedOpCreatePreMulSum", scalar,
                       kernel_type_bytes((uint8_t)call->dtype));
}

static bool ranges_overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
  return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* The one way in which the call's buffers may overlap (nccl.h); NULL: none. */
static const char *in_place_rule(const struct collective_call *call, size_t block, bool *in_place) {
  const char *in = (const char *)call->in, *out = (const char *)call->out;
  const size_t own = (size_t)call->comm->rank * block;
  switch (call->func) {
    case FUNC_ALL_GATHER:
    case FUNC_GATHER: *in_place = in == out + own; return "sendbuff is recvbuff + rank * count";
    case FUNC_REDUCE_SCATTER:
    case FUNC_SCATTER: *in_place = out == in + own; return "recvbuff is sendbuff + rank * count";
    case FUNC_ALL_TO_ALL: *in_place = in == out && call->comm->rank_count == 1; return NULL;
    default: *in_place = in == out; return "sendbuff is recvbuff";
  }
}

static ncclResult_t check_overlap(const struct collective_call *call, size_t in_blocks, size_t out_blocks) {
  const size_t block = call->count * kernel_type_bytes((uint8_t)call->dtype);
  bool in_place = false;
  char text[192];
  if (!call->comm->settings.check_pointers || block == 0 || in_blocks == 0 || out_blocks == 0)
    return ncclSuccess;
  const char *rule = in_place_rule(call, block, &in_place);
  if (in_place ||
      !ranges_overlap((const char *)call->in, in_blocks * block, (const char *)call->out, out_blocks * block))
    return ncclSuccess;
  snprintf(text, sizeof text, "sendbuff %p and recvbuff %p overlap%s%s", call->in, call->out,
           rule ? ", and this is allowed only if " : "; this call cannot work in place", rule ? rule : "");
  return check_fail(call, ncclInvalidArgument, text);
}

ncclResult_t collective_check_stream(const struct collective_call *call) {
  const struct ncclComm *comm = call->comm;
  uint32_t device_index = comm->device_index;
  char text[192];
  if (!comm->settings.check_pointers) return ncclSuccess;
  const enum stream_place place = comm->ops->device->stream_place(call->stream, &device_index);
  if (place == STREAM_GONE) {
    snprintf(
        text, sizeof text,
        "stream %p is not a stream of this process, or was destroyed; destroy it behind the last call that "
        "uses it",
        call->stream);
    return check_fail(call, ncclInvalidArgument, text);
  }
  if (device_index == comm->device_index) return ncclSuccess;
  snprintf(
      text, sizeof text,
      "stream %p belongs to device %u, the rank is on device %u; create the stream with the rank's device "
      "selected",
      call->stream, device_index, comm->device_index);
  return check_fail(call, ncclInvalidArgument, text);
}

ncclResult_t collective_check(const struct collective_call *call) {
  size_t in_blocks, out_blocks;
  TRY(comm_check_ready(call->comm, call->name));
  TRY(check_numbers(call));
  TRY(collective_check_stream(call));
  collective_blocks(call, &in_blocks, &out_blocks);
  TRY(check_buffer(call, "sendbuff", call->in, in_blocks));
  TRY(check_buffer(call, "recvbuff", call->out, out_blocks));
  TRY(check_scalar(call));
  return check_overlap(call, in_blocks, out_blocks);
}
