/* test_ibv_wires.c: links under the ibv network that go down and up repeatedly, by seeds, in emulated verbs:
 * ports of either end go down for as long as retries last, or longer; the ends' control messages arrive late
 * and in pieces, as if the socket used the same links; and each end pauses for a while, so that it notices a
 * change long before or after the other. Everything arrives once, and no end hangs. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/os.h"
#include "base/param.h"
#include "ibv_pair.h"

enum { SEEDS = 400, HELD_BYTES = 1 << 16, POLLS = 4096 };
static struct pair pair;
static struct stream stream;

/* ---- the sockets between both ends ---- */

static struct forwarder {
  int outer[2], inner[2]; /* the ends' own descriptors, and this side of them */
  uint8_t bytes[2][HELD_BYTES];
  size_t count[2]; /* of held bytes, by sender */
  uint64_t turn, held_until[2], seed, lag;
} forwarder;

static int spare_descriptor(int fd) {
  const int copy = dup(fd);
  assert_true(copy >= 0);
  return copy;
}

/* Whether both ends are ready and no control message is on its way. */
static bool pair_is_quiet(void) {
  struct ib_end *const ends[] = {(struct ib_end *)pair.send, (struct ib_end *)pair.receive};
  char byte;
  for (int side = 0; side < 2; side++)
    if (ib_end_poll(ends[side]) != ncclSuccess) fail_msg("%s", log_own_error());
  for (int side = 0; side < 2; side++)
    if (ends[side]->phase != IB_READY || recv(ends[side]->wire.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
      return false;
  return true;
}

/* The ends keep their descriptor numbers. Both are polled: where this process was stopped for longer than
 * TUTTI_IB_SILENCE_MS, they connect once more, which takes both. */
static void forwarder_open(uint64_t seed, uint64_t lag) {
  const uint64_t end = os_time_ns() + PAIR_SECONDS_MOST * 1000000000ull;
  while (!pair_is_quiet())
    if (os_time_ns() > end) fail_msg("seed %llu: the ends are not ready", (unsigned long long)seed);
  const struct ib_end *ends[] = {(struct ib_end *)pair.send, (struct ib_end *)pair.receive};
  memset(&forwarder, 0, sizeof forwarder);
  forwarder.seed = seed;
  forwarder.lag = lag;
  for (int side = 0; side < 2; side++) {
    int both[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both), 0);
    forwarder.outer[side] = spare_descriptor(ends[side]->wire.fd);
    assert_true(dup2(both[0], ends[side]->wire.fd) >= 0);
    close(both[0]);
    forwarder.inner[side] = both[1];
  }
}

static void forwarder_close(void) {
  for (int side = 0; side < 2; side++) close(forwarder.inner[side]), close(forwarder.outer[side]);
}

static uint64_t forwarder_draw(uint64_t what) {
  return hash_scramble(hash_scramble(forwarder.seed + what) ^ (forwarder.turn * HASH_STEP));
}

/* An end's messages are held, then forwarded in pieces, in order. */
static void forwarder_side(int side) {
  uint8_t *held = forwarder.bytes[side];
  const ssize_t got = recv(forwarder.inner[side], held + forwarder.count[side],
                           HELD_BYTES - forwarder.count[side], MSG_DONTWAIT);
  const uint64_t drawn = forwarder_draw((uint64_t)side);
  if (got > 0) {
    if (forwarder.count[side] == 0) forwarder.held_until[side] = forwarder.turn + drawn % (forwarder.lag + 1);
    forwarder.count[side] += (size_t)got;
  }
  if (forwarder.count[side] == 0 || forwarder.turn < forwarder.held_until[side]) return;
  const size_t part = (drawn >> 20) % 3 == 0 ? 1 + (drawn >> 24) % 40 : forwarder.count[side];
  const size_t most = part < forwarder.count[side] ? part : forwarder.count[side];
  const ssize_t sent = send(forwarder.inner[1 - side], held, most, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent <= 0) return;
  forwarder.count[side] -= (size_t)sent;
  memmove(held, held + sent, forwarder.count[side]);
  forwarder.held_until[side] = forwarder.turn + (drawn >> 32) % (forwarder.lag / 4 + 1);
}

static void forwarder_turn(void) {
  forwarder.turn++;
  for (int side = 0; side < 2; side++) forwarder_side(side);
}

/* ---- runs ---- */

static const char *const phases[] = {"dialing",       "handshake",    "info out", "info in", "drain",
                                     "reconnect out", "reconnect in", "link",     "path",    "go",
                                     "ready"};

static void makes_no_progress(uint64_t seed) {
  const struct ib_end *ends[] = {(struct ib_end *)pair.send, (struct ib_end *)pair.receive};
  fail_msg(
      "seed %llu: no end: %u sent, %u done, %u posted, %u arrived; sender %s, %llu times, receiver %s, %llu",
      (unsigned long long)seed, stream.sent, stream.send_done, stream.posted, stream.arrived,
      phases[ends[0]->phase], (unsigned long long)ends[0]->reconnect.generation, phases[ends[1]->phase],
      (unsigned long long)ends[1]->reconnect.generation);
}

/* Each end pauses now and then. */
static void run(uint64_t seed, uint64_t away) {
  const uint64_t end = os_time_ns() + PAIR_SECONDS_MOST * 1000000000ull;
  uint64_t back[2] = {0, 0};
  while (!stream_is_through(&stream)) {
    forwarder_turn();
    for (int side = 0; side < 2; side++) {
      const uint64_t drawn = forwarder_draw(16 + (uint64_t)side);
      if (forwarder.turn < back[side]) continue;
      if (drawn % 50 == 0) back[side] = forwarder.turn + (drawn >> 8) % (away + 1);
      if (side == 0) stream_turn_sender(&stream);
      else stream_turn_receiver(&stream);
    }
    if (os_time_ns() > end) makes_no_progress(seed);
  }
}

/* Two ports at each end. */
static void world_begin(uint64_t seed, bool reconnect, uint32_t forgets) {
  char qps[8];
  const uint64_t drawn = hash_scramble(seed * HASH_STEP + 1);
  struct fake_verbs_options options = {
      .seed = seed, .devices = 4, .ports = 1, .fault = reconnect ? VERBS_PORT_RETURNS : VERBS_CUT};
  options.delay_most = (uint32_t)(drawn >> 4) % 12;
  options.not_ready = (uint32_t)(drawn >> 8) % 30;
  options.fault_at = 10 + (drawn >> 16) % 60;
  options.flaps = reconnect ? 1 + (drawn >> 24) % 6 : 0;
  options.forgets = forgets;
  snprintf(qps, sizeof qps, "%u", 1 + (unsigned)(drawn >> 28) % 3);
  pair_settings(qps, (drawn >> 32) % 2 != 0 ? "1" : NULL, NULL);
  pair_set("TUTTI_IB_RECONNECT", reconnect ? "1000" : NULL);
  pair_set("TUTTI_IB_PATH_MS", "300");
  pair_set("TUTTI_IB_RETURN_MS", "0");
  pair_set("TUTTI_IB_SILENCE_MS", forgets > 0 ? "20" : NULL);
  pair_set("NCCL_NET_FORCE_MERGE", "fake_0,fake_1;fake_2,fake_3");
  pair_set("NCCL_IB_MERGE_NICS", "0");
  pair_receiver_device = 1;
  param_reset();
  assert_int_equal(pair_world_open(&options), 2);
}

struct tally {
  uint64_t reconnect, forgotten;
};

static void seeded(uint64_t seed, uint32_t forgets, struct tally *tally) {
  ncclResult_t results[2];
  const uint64_t drawn = hash_scramble(seed * HASH_STEP + 2);
  world_begin(seed, true, forgets);
  pair_open(&pair, results);
  forwarder_open(seed, drawn % 3 * 40);
  stream_begin(&stream, &pair, seed, 1u << (drawn >> 8) % 4);
  stream.splits = (drawn >> 16) % 2 != 0;
  run(seed, (drawn >> 24) % 3 * 200);
  if (stream.arrived < PAIR_MESSAGES || stream.send_done < PAIR_MESSAGES)
    fail_msg("seed %llu: '%s' and '%s'", (unsigned long long)seed, stream.why[0], stream.why[1]);
  tally->reconnect += ((struct ib_end *)pair.send)->reconnect.generation;
  tally->forgotten += fake_verbs_stats().forgotten;
  pair_close(&pair);
  forwarder_close();
  pair_receiver_device = 0;
  pair_world_close();
}

static void test_wires(void **state) {
  struct tally tally = {0, 0};
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) seeded(seed, 0, &tally);
  print_message("%d runs, connected again %llu times\n", SEEDS, (unsigned long long)tally.reconnect);
  assert_true(tally.reconnect > 2 * SEEDS);
}

/* Devices that lose their retransmission timer: a queue pair that is silent for too long is reconnected,
 * unless a probe woke it. */
static void test_forgotten(void **state) {
  struct tally tally = {0, 0};
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS / 4; seed++) seeded(seed, 10, &tally);
  print_message("%d runs, connected again %llu times; devices forgot %llu times\n", SEEDS / 4,
                (unsigned long long)tally.reconnect, (unsigned long long)tally.forgotten);
  assert_true(tally.forgotten > SEEDS / 4);
}

/* If connections cannot be reconnected, the error says so; also where the process looks at them less often
 * than once in TUTTI_IB_SILENCE_MS. */
static void silent(bool seldom) {
  ncclResult_t results[2];
  world_begin(1, false, 100);
  pair_open(&pair, results);
  stream_begin(&stream, &pair, 1, 1);
  for (int still = 0; seldom && still < 500 && !stream_is_through(&stream); still++) {
    const uint32_t done = stream.send_done + stream.posted + stream.arrived;
    stream_turn_sender(&stream);
    stream_turn_receiver(&stream);
    if (done != stream.send_done + stream.posted + stream.arrived) still = 0;
    if (still < 200) continue;
    usleep(25000);
    for (int i = 0; i < POLLS; i++) ib_end_poll((struct ib_end *)(i % 2 == 0 ? pair.send : pair.receive));
  }
  if (seldom) assert_true(stream.results[0] != ncclSuccess || stream.results[1] != ncclSuccess);
  stream_run(&stream);
  const char *why = strstr(stream.why[0], "not even an error") != NULL ? stream.why[0] : stream.why[1];
  assert_non_null(strstr(why, "nothing has come of what is under way for 20 ms on queue pair "));
  assert_non_null(strstr(why, "TUTTI_IB_SILENCE_MS"));
  pair_close(&pair);
  pair_receiver_device = 0;
  pair_world_close();
}

static void test_silence(void **state) {
  (void)state;
  silent(false);
}

static void test_silence_seldom(void **state) {
  (void)state;
  silent(true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_wires, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_forgotten, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_silence, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_silence_seldom, pair_setup, pair_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
