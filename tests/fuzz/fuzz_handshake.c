/* fuzz_handshake.c: any bytes as a connection to a server that proves nothing, in pieces, with and without
 * TUTTI_SECRET. None is accepted. The first byte of an input selects the case, the second the size of the
 * pieces. */
/* sources: base/ */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/handshake.h"
#include "base/param.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MOST 4096 /* fits a socket's buffer */

/* Every second key is known. */
static bool secret_find(void *argument, enum handshake_kind kind, uint64_t key, struct secret *secret) {
  (void)argument, (void)kind;
  if (!secret_draw(secret)) abort();
  return key % 2 == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct handshake handshake;
  enum handshake_state state = HANDSHAKE_MORE;
  int pair[2];
  if (size < 2 || size > INPUT_MOST) return 0;
  if (data[0] & 1) setenv("TUTTI_SECRET", "not to be guessed", 1);
  else unsetenv("TUTTI_SECRET");
  param_reset();
  const size_t piece = data[1] > 0 ? data[1] : size;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) abort();
  handshake_begin(&handshake, pair[1], secret_find, NULL);
  for (size_t at = 2; at < size && state == HANDSHAKE_MORE; at += piece) {
    const size_t bytes = size - at < piece ? size - at : piece;
    if (write(pair[0], data + at, bytes) != (ssize_t)bytes) abort();
    state = handshake_step(&handshake);
    if (state == HANDSHAKE_DONE) abort();
  }
  close(pair[0]);
  if (state == HANDSHAKE_MORE && handshake_step(&handshake) != HANDSHAKE_GONE) abort();
  close(pair[1]);
  return 0;
}
