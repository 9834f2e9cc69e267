/* test_stall.c: a process's answers when another process asks why an operation makes no progress, for valid
 * and invalid requests. test_stall.sh tests the whole. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"
#include "core/stall/stall.h"

#define RANKS 3
#define WORDS 6 /* of a request: kind, rank, peer, channel, connection, bytes of flags */

static struct comm_shared shared = {.rank_count = RANKS};
static struct remote_rank ranks[RANKS];
static struct ncclComm *comms[RANKS];
static struct proxy_comm *proxies[RANKS];
static uint64_t left[RANKS] = {7, 8, 9};
static struct remote remote = {
    .shared = &shared, .ranks = ranks, .comms = comms, .proxies = proxies, .left = left};

static int set_up(void **state) {
  (void)state;
  ranks[1].process_index = 1; /* in another process */
  os_mutex_init(&remote.lock);
  return 0;
}

static ncclResult_t answer(const void *question, uint32_t bytes, uint32_t *reply_bytes) {
  static uint8_t reply[CONTROL_REPLY_MOST];
  *reply_bytes = 0;
  const ncclResult_t result = stall_answer(&remote, question, bytes, reply, reply_bytes);
  if (result == ncclSuccess) assert_int_equal(*(const uint64_t *)(const void *)reply, left[0]);
  return result;
}

static void test_answer(void **state) {
  const uint32_t good[WORDS] = {REMOTE_CALL_STALL, 0, 2, 63, 3, 0x00010001};
  uint32_t bytes;
  (void)state;
  assert_int_equal(answer(good, sizeof good, &bytes), ncclSuccess);
  assert_true(bytes > 0 && bytes <= CONTROL_REPLY_MOST);
}

static void test_nonsense(void **state) {
  static const uint32_t bad[][WORDS] = {
      {REMOTE_CALL_STALL, RANKS, 2, 0, 0, 0},      {REMOTE_CALL_STALL, 1, 2, 0, 0, 0},
      {REMOTE_CALL_STALL, 0, RANKS, 0, 0, 0},      {REMOTE_CALL_STALL, 0, 2, 64, 0, 0},
      {REMOTE_CALL_STALL, 0, 2, 0, 4, 0},          {REMOTE_CALL_STALL, 0, 2, 0, 0, 3},
      {REMOTE_CALL_STALL, UINT32_MAX, 2, 0, 0, 0}, {REMOTE_CALL_STALL, 0, UINT32_MAX, 0, 0, 0},
  };
  uint32_t bytes;
  (void)state;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_int_equal(answer(bad[i], sizeof bad[i], &bytes), ncclRemoteError);
  for (uint32_t size = 0; size < sizeof bad; size++) {
    if (size == sizeof bad[0]) continue;
    assert_int_equal(answer(bad, size, &bytes), ncclRemoteError);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_answer, set_up),
      cmocka_unit_test_setup(test_nonsense, set_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
