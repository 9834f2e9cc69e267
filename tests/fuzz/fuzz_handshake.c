/* fuzz_handshake.c: any bytes as an unauthenticated connection to a server, in pieces, with and without
 * TUTTI_SECRET. With a secret every connection is refused; without one only a complete and valid hello is
 * accepted. The first byte of an input selects the case, the second the size of the pieces. */
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

#define HELLO_BYTES 64
#define INPUT_MOST 4096 /* fits a socket's buffer */

static void state_check(const struct handshake *handshake, enum handshake_state state, size_t said) {
  if (state != HANDSHAKE_DONE) return;
  if (handshake_secret() || said < HELLO_BYTES) abort();
  if (handshake->kind < HANDSHAKE_CHECK_IN || handshake->kind > HANDSHAKE_SHARE) abort();
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
  handshake_begin(&handshake, pair[1]);
  for (size_t at = 2; at < size && state == HANDSHAKE_MORE; at += piece) {
    const size_t bytes = size - at < piece ? size - at : piece;
    if (write(pair[0], data + at, bytes) != (ssize_t)bytes) abort();
    state = handshake_step(&handshake);
    state_check(&handshake, state, at - 2 + bytes);
  }
  close(pair[0]);
  if (state == HANDSHAKE_MORE && handshake_step(&handshake) != HANDSHAKE_GONE) abort();
  close(pair[1]);
  return 0;
}
