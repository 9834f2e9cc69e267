/* test_pxn_call.c: a process's answers to requests of other ranks to send for them (PXN), valid and invalid.
 * test_pxn.sh tests the whole. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <assert.h>
#include <string.h>

#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"

/* Rank 0 is in this process, rank 1 in another process of this host, rank 2 behind a network. */
enum { RANKS = 3, NAME_BYTES = sizeof(struct device_conn_name), WORDS = 4 };

struct question {
  uint32_t words[WORDS]; /* kind, requesting rank, receiver, device */
  uint32_t peer, channel, conn;
  uint8_t proto, sends, pad[2];
  struct remote_listener listener;
};
static_assert(offsetof(struct question, listener) == WORDS * 4 + NAME_BYTES, "as it travels");

static struct comm_shared shared = {.rank_count = RANKS};
static struct remote_rank ranks[RANKS] = {
    {0, 0, 0, NULL, {0, {0}}}, {1, 0, 0, NULL, {0, {0}}}, {2, 2, 0, NULL, {0, {0}}}};
static struct ncclComm *comms[RANKS]; /* rank 0 has destroyed its communicator */
static struct remote remote = {.shared = &shared, .ranks = ranks, .comms = comms};

static const struct question good = {.words = {REMOTE_CALL_PXN, 1, 0, 0},
                                     .peer = 2,
                                     .channel = 63,
                                     .conn = 1,
                                     .proto = PROTO_SIMPLE,
                                     .sends = 1};

static ncclResult_t answer(const void *question, uint32_t bytes, uint64_t *made) {
  static uint8_t reply[CONTROL_REPLY_MOST];
  uint32_t reply_bytes = 0;
  const ncclResult_t result = remote_pxn_answer(&remote, question, bytes, reply, &reply_bytes);
  if (result != ncclSuccess) return result;
  assert_in_range(reply_bytes, sizeof *made, CONTROL_REPLY_MOST);
  memcpy(made, reply, sizeof *made);
  return ncclSuccess;
}

/* A process that cannot send for others says so; this is not a failure. */
static void test_refusal(void **state) {
  uint64_t made = 1;
  (void)state;
  assert_int_equal(answer(&good, sizeof good, &made), ncclSuccess);
  assert_int_equal(made, 0);
}

static void test_nonsense(void **state) {
  struct question bad[11];
  uint64_t made;
  (void)state;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) bad[i] = good;
  bad[0].words[1] = RANKS;
  bad[1].words[1] = 2; /* shares no memory with rank 0 */
  bad[2].words[1] = 0;
  bad[3].words[2] = 1; /* not in this process */
  bad[4].words[2] = UINT32_MAX;
  bad[5].peer = RANKS;
  bad[6].peer = 0; /* reachable without a network */
  bad[7].channel = PLAN_CHANNELS_MAX;
  bad[8].conn = 4;
  bad[9].proto = PROTO_LL;
  bad[10].sends = 0;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_int_equal(answer(&bad[i], sizeof bad[i], &made), ncclRemoteError);
  for (uint32_t bytes = 0; bytes < 2 * sizeof good; bytes++)
    if (bytes != sizeof good) assert_int_equal(answer(bad, bytes, &made), ncclRemoteError);
}

int main(void) {
  os_mutex_init(&remote.lock);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_refusal),
      cmocka_unit_test(test_nonsense),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
