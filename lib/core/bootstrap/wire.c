/* wire.c: see wire.h. */
#include "core/bootstrap/wire.h"

#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "base/text.h"

#define RANGES_SHOWN 8

void wire_put(struct wire_writer *writer, const void *data, size_t bytes) {
  if (writer->failed || bytes == 0) return;
  const size_t wanted = writer->used + bytes;
  if (!array_grow_long(&writer->bytes, &writer->capacity, wanted < 512 ? 512 : wanted, 1)) {
    wire_free(writer);
    writer->failed = true;
    return;
  }
  memcpy(writer->bytes + writer->used, data, bytes);
  writer->used += bytes;
}

void wire_free(struct wire_writer *writer) {
  os_free(writer->bytes);
  memset(writer, 0, sizeof *writer);
}

bool wire_take(struct wire_reader *reader, void *data, size_t bytes) {
  if (reader->left < bytes) return false;
  if (data && bytes > 0) memcpy(data, reader->at, bytes);
  reader->at += bytes;
  reader->left -= bytes;
  return true;
}

void wire_take_text(struct wire_reader *reader, char *out, size_t out_bytes) {
  const size_t bytes = reader->left < out_bytes - 1 ? reader->left : out_bytes - 1;
  if (bytes > 0) memcpy(out, reader->at, bytes);
  out[bytes] = '\0';
  text_clean(out, out_bytes);
  reader->at += reader->left;
  reader->left = 0;
}

ncclResult_t wire_send(int fd, struct seal *seal, enum frame_kind kind, const void *body, uint32_t bytes,
                       const struct sock_wait *wait) {
  const struct frame_head head = {bytes, (uint16_t)kind, 0};
  const size_t whole = sizeof head + bytes + SEAL_BYTES;
  uint8_t *frame = (uint8_t *)os_alloc(whole);
  if (!frame) return log_no_memory("%s: a message of %u bytes", wait->what, bytes);
  memcpy(frame, &head, sizeof head);
  if (bytes > 0) memcpy(frame + sizeof head, body, bytes);
  seal_close(seal, &head, sizeof head, frame + sizeof head, bytes, frame + sizeof head + bytes);
  const ncclResult_t result = sock_send(fd, frame, whole, wait);
  os_free(frame);
  return result;
}

ncclResult_t wire_receive(int fd, struct seal *seal, struct frame_head *head, void *body, uint32_t body_most,
                          const struct sock_wait *wait) {
  uint8_t tag[SEAL_BYTES];
  TRY(sock_receive(fd, head, sizeof *head, wait));
  if (head->bytes > body_most)
    return log_fail(ncclRemoteError,
                    "%s: a message of %u bytes arrived, at most %u were expected; load the "
                    "same library everywhere",
                    wait->what, head->bytes, body_most);
  TRY(sock_receive(fd, body, head->bytes, wait));
  TRY(sock_receive(fd, tag, sizeof tag, wait));
  if (seal_open(seal, head, sizeof *head, (uint8_t *)body, head->bytes, tag)) return ncclSuccess;
  return log_fail(ncclRemoteError, "%s: a message was changed on the way", wait->what);
}

const char *wire_ranks_text(const uint8_t *taken, bool which, uint32_t rank_count, char *text, size_t bytes) {
  uint32_t shown = 0, left = 0;
  size_t used = 0;
  text[0] = '\0';
  for (uint32_t begin = 0, i; begin < rank_count; begin = i + 1) {
    i = begin;
    if ((taken[begin] != 0) != which) continue;
    while (i + 1 < rank_count && (taken[i + 1] != 0) == which) i++;
    if (shown == RANGES_SHOWN || used + 32 > bytes) {
      left += i - begin + 1;
      continue;
    }
    used += (size_t)snprintf(text + used, bytes - used, "%s%u", shown > 0 ? ", " : "", begin);
    if (i > begin) used += (size_t)snprintf(text + used, bytes - used, "-%u", i);
    shown++;
  }
  if (left > 0) snprintf(text + used, bytes - used, " and %u more", left);
  return text;
}
