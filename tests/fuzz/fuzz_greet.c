/* fuzz_greet.c: any bytes as what a stranger says to an acceptor, in pieces, with and without TUTTI_SECRET.
 * With it nobody gets in; without it only a whole and right hello does. The first byte of an input says
 * which, the second how long the pieces are. */
/* sources: base/ */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/greet.h"
#include "base/param.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HELLO_BYTES 64
#define INPUT_MOST 4096 /* fits a socket's buffer */

static void judge(const struct greeting *greeting, enum greet_state state, size_t said) {
  if (state != GREET_DONE) return;
  if (greet_secret() || said < HELLO_BYTES) abort();
  if (greeting->kind < GREET_CHECK_IN || greeting->kind > GREET_SHARE) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct greeting greeting;
  enum greet_state state = GREET_MORE;
  int pair[2];
  if (size < 2 || size > INPUT_MOST) return 0;
  if (data[0] & 1) setenv("TUTTI_SECRET", "not to be guessed", 1);
  else unsetenv("TUTTI_SECRET");
  param_reset();
  const size_t piece = data[1] > 0 ? data[1] : size;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) abort();
  greet_begin(&greeting, pair[1]);
  for (size_t at = 2; at < size && state == GREET_MORE; at += piece) {
    const size_t bytes = size - at < piece ? size - at : piece;
    if (write(pair[0], data + at, bytes) != (ssize_t)bytes) abort();
    state = greet_step(&greeting);
    judge(&greeting, state, at - 2 + bytes);
  }
  close(pair[0]);
  if (state == GREET_MORE && greet_step(&greeting) != GREET_GONE) abort();
  close(pair[1]);
  return 0;
}
