/* joiner.c: see joiner.h. */
#include "joiner.h"

#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"

void joiner_environment(const char *name, ...) {
  va_list arguments;
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv("NCCL_SOCKET_RETRY_CNT", "2", 1);
  setenv("TUTTI_INIT_TIMEOUT_SECONDS", "20", 1);
  unsetenv("TUTTI_PEER_TIMEOUT_SECONDS");
  unsetenv("TUTTI_SECRET");
  unsetenv("NCCL_COMM_ID");
  va_start(arguments, name);
  for (; name; name = va_arg(arguments, const char *)) setenv(name, va_arg(arguments, const char *), 1);
  va_end(arguments);
  param_reset();
  log_reset();
}

struct bootstrap_id joiner_id(void) {
  ncclUniqueId id;
  struct bootstrap_id content;
  memset(&content, 0, sizeof content);
  if (bootstrap_id_create(&id) != ncclSuccess) return content;
  bootstrap_id_read(&id, "test", 0, &content);
  return content;
}

void joiner_fill(struct joiner *parties, uint32_t count, uint32_t each, const struct bootstrap_id *id) {
  for (uint32_t i = 0; i < count; i++) {
    struct joiner *party = &parties[i];
    memset(party, 0, sizeof *party);
    party->call.call = "test";
    party->call.key = id->nonce;
    party->call.root_count = 1;
    party->call.seat_count = count * each;
    party->call.signature = 77;
    party->call.fixed = id->fixed;
    party->call.lasting = id->lasting;
    party->roots[0] = id->root;
    party->seat_count = each;
    for (uint32_t seat = 0; seat < each; seat++) party->seats[seat] = i * each + seat;
    party->result = ncclInProgress;
  }
}

static void step(const struct joiner *party, uint32_t number) {
  if (party->die_at == number) kill(getpid(), SIGKILL);
}

/* A card tells its seat, and has a length of its own. */
static uint32_t card_fill(uint8_t *card, uint32_t seat) {
  const uint32_t bytes = 4 + seat * 13 % 300;
  memset(card, (int)(seat + 1), bytes);
  memcpy(card, &seat, sizeof seat);
  return bytes;
}

static bool cards_check(const struct gather *gather, uint32_t seat_count) {
  uint8_t expected[512];
  const struct gather_seat *seats = gather_seats(gather);
  for (uint32_t seat = 0; seat < seat_count; seat++) {
    if (seats[seat].card_bytes != card_fill(expected, seat)) return false;
    if (memcmp(seats[seat].card, expected, seats[seat].card_bytes) != 0) return false;
    if ((uintptr_t)seats[seat].card % 8 != 0 || seats[seat].party >= gather_party_count(gather)) return false;
    if (gather_address(gather, seats[seat].party)->port == 0) return false;
  }
  return true;
}

static void party_lost(void *argument, uint32_t lost, uint64_t key, ncclResult_t code, const char *text) {
  struct joiner *party = (struct joiner *)argument;
  party->lost_key = key;
  party->lost_party = lost;
  party->lost_code = code;
  snprintf(party->lost_text, sizeof party->lost_text, "%s", text);
  __atomic_add_fetch(&party->lost_count, 1, __ATOMIC_RELEASE);
}

static ncclResult_t party_finish(struct joiner *party, struct gather *gather) {
  char reason[sizeof party->reason] = "";
  if (party->own_result != ncclSuccess) snprintf(reason, sizeof reason, "rank %u failed", party->seats[0]);
  ncclResult_t result = gather_agree(gather, party->own_result, reason, sizeof reason);
  step(party, 5);
  if (result == ncclSuccess) result = gather_agree(gather, ncclSuccess, reason, sizeof reason);
  snprintf(party->reason, sizeof party->reason, "%s", reason);
  step(party, 6);
  if (result == ncclSuccess) result = gather_watch(gather, party_lost, party, &party->watch);
  return result;
}

static ncclResult_t seats_check_in(struct gather *gather, const struct joiner *party, uint32_t first,
                                   uint32_t end) {
  uint8_t card[512];
  for (uint32_t i = first; i < end; i++)
    TRY(gather_check_in(gather, party->seats[i], card, card_fill(card, party->seats[i])));
  return ncclSuccess;
}

struct latecomer {
  struct gather *gather;
  const struct joiner *party;
  os_thread thread;
};

static void *latecomer_body(void *argument) {
  const struct latecomer *late = (const struct latecomer *)argument;
  os_sleep_ms(late->party->late_ms);
  seats_check_in(late->gather, late->party, late->party->seat_count - 1, late->party->seat_count);
  return NULL;
}

void joiner_run(struct joiner *party) {
  struct gather *gather = NULL;
  struct gather_call call = party->call;
  call.roots = party->roots;
  os_sleep_ms(party->delay_ms);
  step(party, 1);
  ncclResult_t result = gather_open(&call, &gather);
  const bool late = result == ncclSuccess && party->late_ms > 0;
  struct latecomer latecomer = {gather, party, 0};
  if (result == ncclSuccess) result = seats_check_in(gather, party, 0, party->seat_count - late);
  if (late && !os_thread_start(&latecomer.thread, latecomer_body, &latecomer)) abort();
  step(party, 2);
  if (result == ncclSuccess) result = gather_wait(gather, party->reason, sizeof party->reason);
  if (late) os_thread_join(latecomer.thread);
  step(party, 3);
  if (result == ncclSuccess) {
    party->cards_good = cards_check(gather, call.seat_count);
    party->party_count = gather_party_count(gather);
    party->party = gather_own_party(gather);
    step(party, 4);
    result = party_finish(party, gather);
  }
  gather_close(gather);
  if (!party->stays) {
    watch_leave(party->watch);
    party->watch = NULL;
  }
  __atomic_store_n(&party->result, result, __ATOMIC_RELEASE);
}

static void *party_body(void *argument) {
  joiner_run((struct joiner *)argument);
  return NULL;
}

void joiner_threads_start(struct joiner *parties, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (!os_thread_start(&parties[i].thread, party_body, &parties[i])) abort();
  }
}

void joiner_threads_join(struct joiner *parties, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) os_thread_join(parties[i].thread);
}

struct joiner *joiner_shared(uint32_t count) {
  return (struct joiner *)mmap(NULL, count * sizeof(struct joiner), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void joiner_fork(struct joiner *party) {
  const pid_t pid = fork(); /* not into the memory that both share */
  if (pid != 0) {
    party->pid = pid;
    return;
  }
  joiner_run(party);
  while (party->stays && __atomic_load_n(&party->die_at, __ATOMIC_ACQUIRE) != UINT32_MAX) os_sleep_ms(5);
  watch_leave(party->watch);
  _exit(0);
}

bool joiner_wait_lost(struct joiner *party, uint32_t timeout_ms) {
  for (uint32_t waited = 0; waited < timeout_ms; waited += 5) {
    if (__atomic_load_n(&party->lost_count, __ATOMIC_ACQUIRE) > 0) return true;
    os_sleep_ms(5);
  }
  return false;
}

uint32_t joiner_descriptors(void) {
  uint32_t count = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (folder && readdir(folder)) count++;
  if (folder) closedir(folder);
  return count;
}
