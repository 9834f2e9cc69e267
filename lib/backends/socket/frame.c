/* frame.c: converts frames and endpoints to bytes and back, and cuts messages. All hosts of a communicator
 * must have the same byte order, so numbers are sent as they lie in memory; a host of the other order fails
 * the magic's check.
 */
#include "backends/socket/frame.h"

#include <string.h>

#include "base/hash.h"

#define FRAME_MAGIC 0x7469
#define ENDPOINT_MAGIC 0x74757474692d6e32ull
#define INLINE_BYTES_MAX (1u << 20)

void frame_write(const struct frame *frame, uint8_t out[FRAME_BYTES]) {
  const uint16_t magic = FRAME_MAGIC, kind = (uint16_t)frame->kind;
  memcpy(out, &magic, 2);
  memcpy(out + 2, &kind, 2);
  memcpy(out + 4, &frame->number, 4);
  memcpy(out + 8, &frame->bytes, 8);
}

const char *frame_read(const uint8_t in[FRAME_BYTES], uint32_t number, struct frame *frame) {
  uint16_t magic, kind;
  struct frame read;
  memcpy(&magic, in, 2);
  memcpy(&kind, in + 2, 2);
  memcpy(&read.number, in + 4, 4);
  memcpy(&read.bytes, in + 8, 8);
  if (magic != FRAME_MAGIC) return "no frame of ours";
  if (kind < FRAME_MESSAGE || kind > FRAME_CREDIT) return "a frame of an unknown kind";
  read.kind = (enum frame_kind)kind;
  if (read.number != number) return "a frame out of its turn";
  if (read.kind == FRAME_MESSAGE && read.bytes > MESSAGE_BYTES_MAX) return "a message longer than any may be";
  *frame = read;
  return NULL;
}

struct endpoint_bytes {
  uint64_t magic;
  struct endpoint endpoint;
};
_Static_assert(sizeof(struct endpoint_bytes) <= NET_HANDLE_BYTES - sizeof(void *),
               "an endpoint fits into a handle, and leaves space for a plugin's pointer");

void endpoint_write(const struct endpoint *endpoint, struct net_handle *handle) {
  const struct endpoint_bytes bytes = {ENDPOINT_MAGIC, *endpoint};
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, &bytes, sizeof bytes);
}

bool endpoint_read(const struct net_handle *handle, struct endpoint *endpoint) {
  struct endpoint_bytes bytes;
  memcpy(&bytes, handle->bytes, sizeof bytes);
  const struct endpoint *read = &bytes.endpoint;
  if (bytes.magic != ENDPOINT_MAGIC || read->address.port == 0) return false;
  if (read->address.family != 4 && read->address.family != 6) return false;
  if (read->data_sockets > DATA_SOCKETS_MAX || read->threads > read->data_sockets) return false;
  if (read->inline_bytes > INLINE_BYTES_MAX || read->whole_bytes < read->inline_bytes) return false;
  if (read->task_bytes == 0) return false;
  *endpoint = *read;
  return true;
}

uint64_t endpoint_key(const struct endpoint *endpoint, uint64_t comm_key, uint32_t index) {
  return (hash_scramble(endpoint->number ^ (comm_key * HASH_STEP)) & ~0xffull) | index;
}

struct cut message_cut(const struct endpoint *endpoint, size_t bytes) {
  struct cut cut = {bytes, 0, 0};
  if (endpoint->data_sockets == 0 || bytes <= endpoint->whole_bytes) return cut;
  const size_t rest = bytes - endpoint->inline_bytes;
  const size_t even = (rest + endpoint->data_sockets - 1) / endpoint->data_sockets;
  cut.stream_bytes = endpoint->inline_bytes;
  cut.task_bytes = even > endpoint->task_bytes ? even : endpoint->task_bytes;
  cut.tasks = (uint32_t)((rest + cut.task_bytes - 1) / cut.task_bytes);
  return cut;
}
