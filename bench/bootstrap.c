/* bootstrap.c: how long it takes processes to find each other, and how many bytes: N parties of S seats each,
 * as threads of this process or as processes forked from it, check in with one root, exchange their cards,
 * agree, watch each other and leave. Prints one line: parties, seats, and by phase the slowest party's
 * milliseconds, and bytes of all.
 *
 *   bootstrap threads|processes PARTIES [SEATS [CARD_BYTES [ROOTS]]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "core/bootstrap/bootstrap.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/gather.h"
#include "core/bootstrap/root.h"

#define CARD_MOST 4096

struct party {
  struct gather_cost cost;
  uint64_t watch_ns, leave_ns;
  bool good;
};

static uint32_t party_count, seats_each = 1, card_bytes = 256, root_count = 1;
static struct bootstrap_id ids[64];
static struct party *parties; /* shared with the processes */

static void nobody_lost(void *argument, uint32_t party, uint64_t key, ncclResult_t code, const char *text) {
  (void)key;
  (void)code;
  fprintf(stderr, "party %u heard of the loss of %u: %s\n", *(uint32_t *)argument, party, text);
}

static bool cards_good(const struct gather *gather) {
  for (uint32_t seat = 0; seat < party_count * seats_each; seat++) {
    const struct gather_seat *found = &gather_seats(gather)[seat];
    uint32_t value;
    if (found->card_bytes != card_bytes) return false;
    memcpy(&value, found->card, sizeof value);
    if (value != seat * 7 + 1) return false;
  }
  return gather_party_count(gather) == party_count;
}

static void fail(uint32_t index, const char *what, const char *reason) {
  fprintf(stderr, "party %u: %s: %s\n", index, what, reason);
}

static void party_run(uint32_t index) {
  struct sock_address roots[64];
  char reason[512] = "";
  uint8_t card[CARD_MOST] = {0};
  struct gather *gather = NULL;
  struct watch *watch = NULL;
  struct party *party = &parties[index];
  for (uint32_t i = 0; i < root_count; i++) roots[i] = ids[i].root;
  const struct gather_call call = {.call = "bench",
                                   .key = ids[0].nonce,
                                   .roots = roots,
                                   .root_count = root_count,
                                   .seat_count = party_count * seats_each,
                                   .signature = 1};
  if (gather_open(&call, &gather) != ncclSuccess) {
    fail(index, "gather_open", "see the log");
    return;
  }
  for (uint32_t i = 0; i < seats_each; i++) {
    const uint32_t seat = index * seats_each + i, value = seat * 7 + 1;
    memcpy(card, &value, sizeof value);
    gather_check_in(gather, seat, card, card_bytes);
  }
  party->good = gather_wait(gather, reason, sizeof reason) == ncclSuccess;
  if (party->good) party->good = cards_good(gather);
  if (party->good) party->good = gather_agree(gather, ncclSuccess, reason, sizeof reason) == ncclSuccess;
  const uint64_t begin_ns = os_time_ns();
  if (party->good) party->good = gather_watch(gather, nobody_lost, &index, &watch) == ncclSuccess;
  party->cost = gather_costs(gather);
  gather_close(gather);
  party->watch_ns = os_time_ns() - begin_ns;
  if (!party->good) fail(index, "gather", reason);
  watch_leave(watch);
  party->leave_ns = os_time_ns() - begin_ns - party->watch_ns;
}

static void *party_body(void *argument) {
  party_run((uint32_t)((struct party *)argument - parties));
  return NULL;
}

static void run_threads(void) {
  os_thread *threads = (os_thread *)calloc(party_count, sizeof *threads);
  for (uint32_t i = 0; i < party_count; i++) {
    if (!os_thread_start(&threads[i], party_body, &parties[i])) {
      perror("thread");
      exit(1);
    }
  }
  for (uint32_t i = 0; i < party_count; i++) os_thread_join(threads[i]);
  free(threads);
}

static void run_processes(void) {
  pid_t *children = (pid_t *)calloc(party_count, sizeof *children);
  for (uint32_t i = 0; i < party_count; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      party_run(i);
      _exit(0);
    }
  }
  for (uint32_t i = 0; i < party_count; i++) waitpid(children[i], NULL, 0);
  free(children);
}

static bool report(const char *how, uint64_t wall_ns) {
  struct gather_cost most = {0};
  uint64_t sent = 0, watch_ns = 0, leave_ns = 0;
  bool good = true;
  most.root_bytes = root_bytes(ids[0].nonce);
  for (uint32_t i = 0; i < party_count; i++) {
    const struct gather_cost *cost = &parties[i].cost;
    good = good && parties[i].good;
    if (cost->check_in_ns > most.check_in_ns) most.check_in_ns = cost->check_in_ns;
    if (cost->exchange_ns > most.exchange_ns) most.exchange_ns = cost->exchange_ns;
    if (cost->agree_ns > most.agree_ns) most.agree_ns = cost->agree_ns;
    if (cost->root_bytes > most.root_bytes) most.root_bytes = cost->root_bytes;
    if (parties[i].watch_ns > watch_ns) watch_ns = parties[i].watch_ns;
    if (parties[i].leave_ns > leave_ns) leave_ns = parties[i].leave_ns;
    sent += cost->sent_bytes;
    most.rounds = cost->rounds;
  }
  printf(
      "%-9s %5u parties %u seats %4u-byte cards %2u rounds  wall %8.1f  check_in %8.1f  exchange %8.1f  "
      "agree %7.1f  watch %6.1f  leave %6.1f ms  root %9llu  parties %10llu bytes %s\n",
      how, party_count, seats_each, card_bytes, most.rounds, wall_ns / 1e6, most.check_in_ns / 1e6,
      most.exchange_ns / 1e6, most.agree_ns / 1e6, watch_ns / 1e6, leave_ns / 1e6,
      (unsigned long long)most.root_bytes, (unsigned long long)sent, good ? "ok" : "FAILED");
  return good;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s threads|processes PARTIES [SEATS [CARD_BYTES [ROOTS]]]\n", argv[0]);
    return 2;
  }
  party_count = (uint32_t)atoi(argv[2]);
  if (argc > 3) seats_each = (uint32_t)atoi(argv[3]);
  if (argc > 4) card_bytes = (uint32_t)atoi(argv[4]);
  if (argc > 5) root_count = (uint32_t)atoi(argv[5]);
  parties = (struct party *)mmap(NULL, party_count * sizeof *parties, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (uint32_t i = 0; i < root_count; i++) {
    ncclUniqueId id;
    if (bootstrap_id_create(&id) != ncclSuccess) return 1;
    if (bootstrap_id_read(&id, "bench", 0, &ids[i]) != ncclSuccess) return 1;
  }
  const uint64_t begin_ns = os_time_ns();
  if (strcmp(argv[1], "threads") == 0) run_threads();
  else run_processes();
  const bool good = report(argv[1], os_time_ns() - begin_ns);
  for (uint32_t i = 0; i < root_count; i++) bootstrap_id_over(ids[i].nonce);
  return good ? 0 : 1;
}
