/* odd_rank.c: a process that checks in as a rank of a communicator with a wrong value: another version,
 * another list of ids, another number of ranks. Then it reads the root's answer.
 *
 *   odd_rank FILE RANK SIZE version|ids|none
 *   odd_rank dial PORT      authenticates to the listener, once for each kind of connection
 *
 * FILE has the unique id. Prints `rank R init error CODE: SENTENCE` with the root's answer. Status: 3: the
 * root reported an error; 1: anything else; 2: misuse. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nccl.h>

#include "base/handshake.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "core/bootstrap/bootstrap.h"
#include "core/bootstrap/wire.h"

#define BODY_MOST (1u << 20)

/* signature: as ncclCommInitRank computes it for this one id. */
static bool id_read(const char *path, struct bootstrap_id *content, uint64_t *signature) {
  ncclUniqueId id;
  size_t bytes = 0;
  for (int i = 0; i < 1000; i++) {
    char *text = os_file_read(path, &bytes);
    const bool whole = text != NULL && bytes == sizeof id;
    if (whole) memcpy(&id, text, sizeof id);
    os_free(text);
    if (whole) *signature = hash_bytes(HASH_SEED, &id, sizeof id);
    if (whole) return bootstrap_id_read(&id, "odd_rank", 0, content) == ncclSuccess;
    os_sleep_ms(10);
  }
  return false;
}

static ncclResult_t check_in(int fd, struct seal *seal, const struct bootstrap_id *id, uint64_t signature,
                             uint32_t rank, uint32_t size, const char *oddity, const struct sock_wait *wait) {
  struct wire_check_in said;
  memset(&said, 0, sizeof said);
  said.uid = said.process = os_entropy();
  said.key = id->nonce;
  said.version = NCCL_VERSION_CODE + (strcmp(oddity, "version") == 0);
  said.signature = strcmp(oddity, "ids") == 0 ? ~signature : signature;
  said.rank_count = size;
  said.pid = (uint32_t)os_pid();
  said.first = 1;
  said.address = sock_local(fd);
  said.first_root = id->root;
  snprintf(said.host, sizeof said.host, "odd");
  TRY(wire_send(fd, seal, FRAME_CHECK_IN, &said, sizeof said, wait));
  return wire_send(fd, seal, FRAME_RANKS, &rank, sizeof rank, wait);
}

static int dial(const char *port) {
  struct sock_address to;
  char place[64];
  snprintf(place, sizeof place, "127.0.0.1:%s", port);
  if (sock_address_parse(place, "odd_rank", &to) != ncclSuccess) return 2;
  for (int kind = HANDSHAKE_CHECK_IN; kind <= HANDSHAKE_DATA; kind++) {
    const struct secret guessed = {{7}};
    const struct sock_wait wait = {os_time_ns() + UINT64_C(5000000000), NULL, "the odd rank at"};
    int fd = -1;
    const bool welcome = sock_connect(&to, &wait, &fd) == ncclSuccess &&
                         handshake_dial(fd, (enum handshake_kind)kind, secret_name(&guessed), &guessed, &wait,
                                        NULL, NULL) == ncclSuccess;
    printf("kind %d: %s\n", kind, welcome ? "welcome" : log_last_error());
    sock_close(fd);
  }
  return 0;
}

/* Until the root reports the failure. */
static ncclResult_t hear(int fd, struct seal *seal, uint32_t rank, const struct sock_wait *wait) {
  static char body[BODY_MOST + 1];
  for (;;) {
    struct frame_head head;
    struct wire_fail fail;
    TRY(wire_receive(fd, seal, &head, body, BODY_MOST, wait));
    if (head.kind != FRAME_FAIL || head.bytes < sizeof fail) continue;
    memcpy(&fail, body, sizeof fail);
    body[head.bytes] = '\0';
    printf("rank %u init error %d: %s\n", rank, fail.code, body + sizeof fail);
    return ncclSuccess;
  }
}

int main(int argc, char **argv) {
  struct bootstrap_id id;
  struct session session;
  uint64_t signature;
  const struct sock_wait wait = {os_time_ns() + UINT64_C(20000000000), NULL, "the odd rank at"};
  int fd = -1;
  if (argc == 3 && strcmp(argv[1], "dial") == 0) return dial(argv[2]);
  if (argc != 5) return 2;
  const uint32_t rank = (uint32_t)atoi(argv[2]), size = (uint32_t)atoi(argv[3]);
  if (!id_read(argv[1], &id, &signature)) return 1;
  ncclResult_t result = sock_connect(&id.root, &wait, &fd);
  if (result == ncclSuccess)
    result = handshake_dial(fd, HANDSHAKE_CHECK_IN, id.nonce, &id.secret, &wait, &session, NULL);
  if (result == ncclSuccess) result = check_in(fd, &session.out, &id, signature, rank, size, argv[4], &wait);
  if (result == ncclSuccess) puts("checked in");
  fflush(stdout);
  if (result == ncclSuccess) result = hear(fd, &session.in, rank, &wait);
  sock_close(fd);
  if (result != ncclSuccess) printf("odd_rank: %s\n", log_last_error());
  return result == ncclSuccess ? 3 : 1;
}
