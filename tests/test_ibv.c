/* test_ibv.c: the ibv network over emulated verbs, only through its table, both ends driven by one thread:
 * messages, groups, errors of every kind by seeds, no leak afterwards; and the choice of ports and GIDs. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/os.h"
#include "base/param.h"
#include "ibv_pair.h"

enum { SEEDS = 500 };
static const struct fake_verbs_options calm = {.seed = 1, .devices = 1, .ports = 1, .delay_most = 3};
static struct pair pair;
static struct stream stream;

static void test_streams(void **state) {
  static const char *const worlds[][3] = {
      {NULL, NULL, NULL}, {"4", NULL, NULL}, {"4", "1", NULL}, {"1", NULL, "100"}, {"3", "1", "0"}};
  (void)state;
  for (size_t which = 0; which < sizeof worlds / sizeof worlds[0]; which++)
    for (uint32_t group = 1; group <= IB_GROUP_MAX; group *= 2) {
      ncclResult_t results[2];
      pair_settings(worlds[which][0], worlds[which][1], worlds[which][2]);
      assert_int_equal(pair_world_open(&calm), 1);
      pair_open(&pair, results);
      const struct fake_verbs_stats before = fake_verbs_stats();
      stream_begin(&stream, &pair, which * 10 + group, group);
      stream_run(&stream);
      assert_int_equal(stream.arrived, PAIR_MESSAGES);
      const struct fake_verbs_stats after = fake_verbs_stats();
      assert_int_equal(after.qps, before.qps);
      assert_int_equal(after.memories_made, before.memories_made);
      pair_close(&pair);
      pair_world_close();
    }
}

/* Messages of two parts at either end, or both: every byte arrives at its place. */
static void test_parts(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 40; seed++) {
    ncclResult_t results[2];
    pair_settings(seed % 2 != 0 ? "3" : NULL, seed % 4 != 0 ? "1" : NULL, seed % 3 != 0 ? "100" : NULL);
    pair_world_open(&calm);
    pair_open(&pair, results);
    assert_int_equal(pair_ops->takes_parts(pair.send), NET_PARTS_REGISTERED);
    stream_begin(&stream, &pair, seed, 1);
    stream.splits = true;
    stream_run(&stream);
    assert_int_equal(stream.arrived, PAIR_MESSAGES);
    pair_close(&pair);
    pair_world_close();
  }
}

/* A message of another size than expected is stored whole at the first part's place; a cancelled one writes
 * nothing afterwards. */
static void test_parts_odd(void **state) {
  ncclResult_t results[2];
  void *receive = NULL, *send = NULL;
  bool done = false;
  size_t got = 0;
  (void)state;
  pair_settings(NULL, NULL, NULL);
  pair_world_open(&calm);
  pair_open(&pair, results);
  const struct net_part to = {pair.received, 500, pair.receive_memory};
  memset(pair.received, 0xee, 500);
  memset(pair.sent, 7, 300);
  while (receive == NULL)
    assert_int_equal(pair_ops->irecv_parts(pair.receive, &to, 532, pair.received_rest, 600,
                                           pair.receive_rest_memory, &receive),
                     ncclSuccess);
  while (send == NULL)
    assert_int_equal(pair_ops->isend(pair.send, pair.sent, 300, 0, pair.send_memory, &send), ncclSuccess);
  while (!done) assert_int_equal(pair_ops->test(receive, &done, &got), ncclSuccess);
  assert_int_equal(got, 300);
  assert_memory_equal(pair.received_rest, pair.sent, 300);
  for (size_t i = 0; i < 500; i++) assert_int_equal(pair.received[i], 0xee);
  for (receive = NULL; receive == NULL;)
    assert_int_equal(pair_ops->irecv_parts(pair.receive, &to, 532, pair.received_rest, 600,
                                           pair.receive_rest_memory, &receive),
                     ncclSuccess);
  pair_ops->part_move(receive, NULL);
  assert_int_equal(pair_ops->test(receive, &done, NULL), ncclRemoteError);
  struct ib_end *end = (struct ib_end *)pair.receive;
  sock_close(end->wire.fd); /* as if it had closed */
  end->wire.fd = -1;
  for (send = NULL; send == NULL && results[0] == ncclSuccess;)
    results[0] = pair_ops->isend(pair.send, pair.sent, 532, 0, pair.send_memory, &send);
  for (done = false; !done && results[0] == ncclSuccess;) results[0] = pair_ops->test(send, &done, NULL);
  for (size_t i = 0; i < 500; i++) assert_int_equal(pair.received[i], 0xee);
  pair_close(&pair);
  pair_world_close();
}

/* Ports of one NIC are merged: every message uses both. */
static void test_ports(void **state) {
  struct fake_verbs_options options = calm;
  struct net_properties properties;
  ncclResult_t results[2];
  (void)state;
  options.devices = 2;
  options.one_nic = true;
  pair_settings("2", NULL, NULL);
  assert_int_equal(pair_world_open(&options), 1);
  assert_int_equal(pair_ops->properties(0, &properties), ncclSuccess);
  assert_string_equal(properties.name, "fake_0:1+fake_1:1");
  pair_open(&pair, results);
  assert_int_equal(((struct ib_end *)pair.send)->qp_count, 4);
  assert_int_equal(((struct ib_end *)pair.send)->stripes, 2);
  stream_begin(&stream, &pair, 5, 1);
  stream_run(&stream);
  assert_int_equal(stream.arrived, PAIR_MESSAGES);
  assert_int_equal(fake_verbs_stats().notifications, 2 * PAIR_MESSAGES);
  pair_close(&pair);
  pair_world_close();
}

/* The attributes with which each end's queue pair was made ready. */
static void made_ready(uint8_t classes[2], uint32_t makers[2]) {
  struct ib_end *ends[] = {(struct ib_end *)pair.send, (struct ib_end *)pair.receive};
  for (int side = 0; side < 2; side++)
    classes[side] = fake_verbs_attributes(ends[side]->qps[0].qp, &makers[side])->ah_attr.grh.traffic_class;
}

static void test_classes(void **state) {
  static const struct {
    const char *data, *clear;
    uint32_t asked; /* class of the communicator plus 1 */
    uint8_t classes[2];
  } rows[] = {{NULL, NULL, 0, {0, 0}},    {"96", NULL, 0, {96, 96}},     {"96", "160", 0, {96, 160}},
              {NULL, "0", 0, {0, 0}},     {NULL, NULL, 106, {105, 105}}, {"96", NULL, 106, {96, 96}},
              {NULL, "160", 1, {0, 160}}, {"0", NULL, 106, {0, 0}}};
  ncclResult_t results[2];
  uint8_t classes[2];
  uint32_t makers[2];
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    pair_settings(NULL, NULL, NULL);
    pair_set("NCCL_IB_TC", rows[i].data);
    pair_set("NCCL_IB_FIFO_TC", rows[i].clear);
    pair_set_class(rows[i].asked);
    param_reset();
    pair_world_open(&calm);
    pair_open(&pair, results);
    made_ready(classes, makers);
    assert_memory_equal(classes, rows[i].classes, sizeof classes);
    pair_close(&pair);
    pair_world_close();
  }
  pair_set_class(0);
}

static void test_class_too_large(void **state) {
  const struct net_peer peer = {7, 0, 1, "pair", NULL, 257};
  struct net_handle handle;
  void *listener = NULL;
  (void)state;
  pair_settings(NULL, NULL, NULL);
  pair_world_open(&calm);
  assert_int_equal(pair_ops->listen(0, &peer, &handle, &listener), ncclInvalidArgument);
  assert_non_null(strstr(log_own_error(), "pair: config.trafficClass is 256; the most that RoCE has"));
  pair_world_close();
}

/* Both ends use the options that both devices have: each lacks one bit. */
static void test_makers_options(void **state) {
  struct fake_verbs_options options = calm;
  ncclResult_t results[2];
  uint8_t classes[2];
  uint32_t makers[2];
  (void)state;
  options.devices = 2;
  options.makers = 0xff;
  for (int asked = 0; asked < 2; asked++) {
    pair_settings(NULL, NULL, NULL);
    pair_set("NCCL_IB_ECE_ENABLE", asked ? NULL : "0");
    param_reset();
    assert_int_equal(pair_world_open(&options), 2);
    pair_receiver_device = 1;
    pair_open(&pair, results);
    pair_receiver_device = 0;
    made_ready(classes, makers);
    assert_int_equal(makers[0], asked ? 0xfc : 0xfe);
    assert_int_equal(makers[1], asked ? 0xfc : 0xfd);
    stream_begin(&stream, &pair, 3, 1);
    stream_run(&stream);
    assert_int_equal(stream.arrived, PAIR_MESSAGES);
    pair_close(&pair);
    pair_world_close();
  }
}

/* A device reports an error while nothing else has failed. */
static void test_events_returned(void **state) {
  ncclResult_t results[2];
  (void)state;
  for (int returned = 0; returned < 2; returned++) {
    ncclResult_t result = ncclSuccess;
    pair_settings(NULL, NULL, NULL);
    pair_set("NCCL_IB_RETURN_ASYNC_EVENTS", returned ? "1" : "0");
    param_reset();
    pair_world_open(&calm);
    pair_open(&pair, results);
    ((struct ib_end *)pair.send)->event = IBV_EVENT_QP_REQ_ERR;
    for (int i = 0; i < 2000 && result == ncclSuccess; i++) {
      void *request = NULL;
      result = pair_ops->isend(pair.send, pair.sent, 1, 0, pair.send_memory, &request);
    }
    assert_int_equal(result, returned ? ncclSystemError : ncclSuccess);
    if (returned) assert_non_null(strstr(log_own_error(), "QP_REQ_ERR"));
    pair_close(&pair);
    pair_world_close();
  }
}

/* Many more calls than slots: numbers continue. */
static void test_wraps(void **state) {
  ncclResult_t results[2];
  (void)state;
  pair_settings("2", NULL, NULL);
  pair_world_open(&calm);
  pair_open(&pair, results);
  for (uint32_t round = 0; round < 10; round++) {
    stream_begin(&stream, &pair, round, 1);
    stream_run(&stream);
    assert_int_equal(stream.arrived, PAIR_MESSAGES);
  }
  pair_close(&pair);
  pair_world_close();
}

/* Both ends name both sizes; messages posted before still arrive. */
static void too_long(uint32_t group) {
  ncclResult_t results[2], result = ncclSuccess;
  void *data[2], *registrations[2], *receive = NULL, *send = NULL;
  const size_t capacity[2] = {100, 100};
  const int tags[2] = {0, 1};
  bool done = false;
  pair_world_open(&calm);
  pair_open(&pair, results);
  for (int i = 0; i < 2; i++)
    data[i] = stream_place(pair.received, (uint32_t)i), registrations[i] = pair.receive_memory;
  while (receive == NULL)
    assert_int_equal(pair_ops->irecv(pair.receive, group, data, capacity, tags, registrations, &receive),
                     ncclSuccess);
  while (result == ncclSuccess)
    result = pair_ops->isend(pair.send, pair.sent, 101, (int)group - 1, pair.send_memory, &send);
  assert_int_equal(result, ncclInvalidUsage);
  assert_non_null(strstr(log_own_error(), "101 bytes"));
  assert_non_null(strstr(log_own_error(), "space for 100"));
  result = ncclSuccess;
  while (result == ncclSuccess) result = pair_ops->test(receive, &done, NULL);
  assert_false(done);
  assert_int_equal(result, ncclInvalidUsage);
  assert_non_null(strstr(log_own_error(), "rank 1 receiving from rank 0"));
  assert_non_null(strstr(log_own_error(), "101 bytes"));
  assert_non_null(strstr(log_own_error(), "space for 100"));
  pair_close(&pair);
  pair_world_close();
}

static void test_too_long(void **state) {
  (void)state;
  pair_settings(NULL, NULL, NULL);
  too_long(1);
  too_long(2);
}

/* An unreachable peer is named within the configured time. */
static void test_no_route(void **state) {
  struct fake_verbs_options options = calm;
  ncclResult_t results[2];
  (void)state;
  options.no_route = true;
  pair_settings("2", NULL, NULL);
  pair_set("TUTTI_IB_PATH_MS", "50");
  pair_set("NCCL_IB_RETRY_CNT", "7");
  param_reset();
  pair_world_open(&options);
  pair_open(&pair, results);
  assert_int_equal(results[0], ncclRemoteError);
  assert_non_null(strstr(log_own_error(), "2 of 2 queue pairs"));
  assert_non_null(strstr(log_own_error(), "fake_0:1"));
  assert_non_null(strstr(log_own_error(), "::ffff:10.0.0.1"));
  pair_close(&pair);
  pair_world_close();
}

/* A registration within another one reuses it. */
static void test_regions(void **state) {
  ncclResult_t results[2];
  void *inner = NULL;
  (void)state;
  pair_settings(NULL, NULL, NULL);
  pair_world_open(&calm);
  pair_open(&pair, results);
  const uint64_t made = fake_verbs_stats().memories_made;
  assert_int_equal(pair_ops->register_memory(pair.send, pair.sent + 5000, 100, NET_MEMORY_HOST, &inner),
                   ncclSuccess);
  assert_int_equal(fake_verbs_stats().memories_made, made);
  assert_ptr_equal(inner, pair.send_memory);
  assert_int_equal(pair_ops->unregister_memory(pair.send, inner), ncclSuccess);
  assert_int_not_equal(pair_ops->register_memory(pair.send, pair.sent, 8, NET_MEMORY_CUDA, &inner),
                       ncclSuccess);
  pair_close(&pair);
  pair_world_close();
}

/* Device memory by its address or by a descriptor, over one port and two: complete after a flush. */
static void test_device_memory(void **state) {
  struct fake_verbs_options options = calm;
  struct net_properties properties;
  (void)state;
  options.gpus = true;
  options.one_nic = true;
  pair_settings("2", NULL, NULL);
  for (options.devices = 1; options.devices <= 2; options.devices++)
    for (uint32_t group = 1; group <= 2; group++) {
      ncclResult_t results[2];
      pair.device = true;
      pair_world_open(&options);
      assert_int_equal(pair_ops->properties(0, &properties), ncclSuccess);
      assert_true(properties.memory_cuda && properties.memory_dmabuf);
      pair_open(&pair, results);
      stream_begin(&stream, &pair, 3, group);
      stream_run(&stream);
      assert_int_equal(stream.arrived, PAIR_MESSAGES);
      assert_int_equal(fake_verbs_stats().qps, 2 * 2 * options.devices + options.devices);
      pair_close(&pair);
      pair_world_close();
    }
  pair.device = false;
}

/* ---- faults by seeds ---- */

static bool is_fatal(enum fake_verbs_fault fault) {
  return fault != VERBS_SOUND && fault != VERBS_LOSES && fault != VERBS_CUT_SHORTLY &&
         fault != VERBS_PORT_FLAPS;
}

/* The end that detects the fault reports the device's error; the other at least names its peer. */
static void errors_check(const struct stream *stream, enum fake_verbs_fault fault) {
  static const char *const words[VERBS_FAULTS] = {
      [VERBS_CUT] = "RETRY_EXC",     [VERBS_PORT_DOWN] = "RETRY_EXC",     [VERBS_PORT_RETURNS] = "RETRY_EXC",
      [VERBS_QP_FATAL] = "QP_FATAL", [VERBS_QP_STOPS] = "GENERAL_ERR",    [VERBS_UNHEARD] = "RETRY_EXC",
      [VERBS_ACCESS] = "REM_ACCESS", [VERBS_DEVICE_FATAL] = "fatal error"};
  bool told = false;
  for (int side = 0; side < 2; side++) {
    if (stream->results[side] == ncclSuccess) continue;
    if (strstr(stream->why[side], side == 0 ? "rank 0 sending to rank 1" : "rank 1 receiving from rank 0") ==
        NULL)
      fail_msg("fault %d: nobody is named: %s", fault, stream->why[side]);
    told |= strstr(stream->why[side], words[fault]) != NULL;
    told |= strstr(stream->why[side], "this port is down") != NULL;
    told |= strstr(stream->why[side], "its port is about to be down") != NULL;
    told |= fault == VERBS_DEVICE_FATAL && strstr(stream->why[side], "RETRY_EXC") != NULL; /* the other's */
    told |= strstr(stream->why[side], "a flush of device memory failed") != NULL;
  }
  if (!told && stream->arrived + stream->send_done < 2 * PAIR_MESSAGES)
    fail_msg("seed %llu, fault %d: nobody says why: '%s' and '%s'", (unsigned long long)stream->seed, fault,
             stream->why[0], stream->why[1]);
}

/* `again`: connections may be made again. */
static bool may_break(const struct fake_verbs_options *options, bool reconnect) {
  const enum fake_verbs_fault fault = options->fault;
  if (!reconnect || fault == VERBS_ACCESS || fault == VERBS_DEVICE_FATAL) return is_fatal(fault);
  return options->devices == 1 &&
         (fault == VERBS_CUT || fault == VERBS_PORT_DOWN || fault == VERBS_PORT_RETURNS);
}

static bool is_at_first_ports(const struct ib_end *end) {
  for (uint32_t i = 0; i < end->qp_count; i++)
    if (end->qps[i].outlet != i % end->device->port_count) return false;
  return end->phase == IB_READY;
}

/* A port that is up again is used again, at both ends. *returned: the connection had left it. */
static void come_back(uint64_t seed, uint32_t *returned) {
  const uint64_t end = os_time_ns() + PAIR_SECONDS_MOST * 1000000000ull;
  const struct ib_end *ends[] = {(struct ib_end *)pair.send, (struct ib_end *)pair.receive};
  *returned += !is_at_first_ports(ends[0]);
  while (!is_at_first_ports(ends[0]) || !is_at_first_ports(ends[1])) {
    assert_int_equal(stream_idle(pair.send), ncclSuccess);
    assert_int_equal(stream_idle(pair.receive), ncclSuccess);
    if (os_time_ns() > end) fail_msg("seed %llu: the connection does not go back", (unsigned long long)seed);
  }
  stream_begin(&stream, &pair, seed, 1);
  stream_run(&stream);
  if (stream.arrived < PAIR_MESSAGES || stream.send_done < PAIR_MESSAGES)
    fail_msg("seed %llu, back again: '%s' and '%s'", (unsigned long long)seed, stream.why[0], stream.why[1]);
}

struct tally {
  uint32_t broken, returned;
};

static void seeded(uint64_t seed, bool reconnect, struct tally *tally) {
  char qps[8], threshold[8];
  ncclResult_t results[2];
  const uint64_t drawn = hash_scramble(seed * HASH_STEP);
  struct fake_verbs_options options = {.seed = seed, .devices = 1, .ports = 1};
  options.delay_most = (uint32_t)(drawn >> 4) % 12;
  options.not_ready = (uint32_t)(drawn >> 8) % 30;
  options.fault = (enum fake_verbs_fault)(seed % VERBS_FAULTS);
  options.fault_at = 10 + (drawn >> 16) % 150;
  options.devices = 1 + (drawn >> 24) % 2;
  options.one_nic = true;
  options.infiniband = (drawn >> 25) % 2 != 0;
  snprintf(qps, sizeof qps, "%u", 1 + (unsigned)(drawn >> 28) % 3);
  snprintf(threshold, sizeof threshold, "%u", (unsigned)(drawn >> 32) % 9000);
  pair_settings(qps, (drawn >> 27) % 2 != 0 ? "1" : NULL, (drawn >> 26) % 2 != 0 ? threshold : NULL);
  pair_set("NCCL_IB_USE_INLINE", (drawn >> 48) % 2 != 0 ? "1" : NULL);
  const bool failover = (drawn >> 58) % 2 != 0; /* another name of the same setting */
  pair_set("TUTTI_IB_RECONNECT", reconnect && !failover ? "4" : NULL);
  pair_set("NCCL_IB_RESILIENCY_PORT_FAILOVER", reconnect && failover ? "1" : NULL);
  pair_set("TUTTI_IB_PATH_MS", reconnect ? "300" : NULL);
  pair_set("TUTTI_IB_RETURN_MS", "0");
  if (options.devices == 2 && (drawn >> 56) % 2 != 0) { /* each end has its own two ports */
    options.devices = 4;
    pair_set("NCCL_NET_FORCE_MERGE", "fake_0,fake_1;fake_2,fake_3");
    pair_set("NCCL_IB_MERGE_NICS", "0");
    pair_receiver_device = 1;
  }
  param_reset();
  pair.device = (drawn >> 52) % 3 == 0;
  options.gpus = pair.device;
  pair_world_open(&options);
  pair_open(&pair, results);
  stream_begin(&stream, &pair, seed, 1u << (drawn >> 40) % 4);
  stream.splits = (drawn >> 44) % 2 != 0;
  stream_run(&stream);
  const bool whole = stream.arrived == PAIR_MESSAGES && stream.send_done == PAIR_MESSAGES;
  if (!whole && !may_break(&options, reconnect))
    fail_msg("seed %llu, fault %d: '%s' and '%s'", (unsigned long long)seed, options.fault, stream.why[0],
             stream.why[1]);
  if (!whole && !reconnect) errors_check(&stream, options.fault);
  tally->broken += !whole;
  if (reconnect && options.fault == VERBS_PORT_RETURNS && options.devices > 1)
    come_back(seed, &tally->returned);
  pair_close(&pair);
  pair.device = false;
  pair_receiver_device = 0;
  pair_world_close();
}

static void test_seeds(void **state) {
  struct tally tally = {0, 0};
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) seeded(seed, false, &tally);
  print_message("%d runs, %u of them ended by a fault\n", SEEDS, tally.broken);
  assert_true(tally.broken > SEEDS / 4 && tally.broken < SEEDS);
}

/* Queue pairs that fail, links that are cut, ports that go down: nothing is lost or duplicated. A port that
 * is up again is used again. */
static void test_reconnect(void **state) {
  struct tally tally = {0, 0};
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) seeded(seed, true, &tally);
  print_message("%d runs, %u of them ended by a fault, %u left a port and went back\n", SEEDS, tally.broken,
                tally.returned);
  assert_true(tally.broken > 0 && tally.broken < SEEDS / 2);
  assert_true(tally.returned > SEEDS / 100);
}

/* A device that takes its time to destroy the old queue pairs does not keep the new ones from working. */
static void test_slow_destroy(void **state) {
  struct fake_verbs_options options = calm;
  ncclResult_t results[2];
  (void)state;
  options.fault = VERBS_QP_STOPS;
  options.fault_at = 20;
  pair_settings("2", NULL, NULL);
  pair_set("TUTTI_IB_RECONNECT", "4");
  param_reset();
  pair_world_open(&options);
  pair_open(&pair, results);
  fake_verbs_hold_destroys(true);
  stream_begin(&stream, &pair, 5, 1);
  stream_run(&stream);
  const struct ib_end *ends[] = {(struct ib_end *)pair.send, (struct ib_end *)pair.receive};
  assert_int_equal(stream.arrived + stream.send_done, 2 * PAIR_MESSAGES);
  assert_true(ends[0]->reconnect.generation > 0);
  assert_non_null(ends[0]->retired);
  assert_int_equal(fake_verbs_stats().qps, 2 * (ends[0]->qp_count + ends[1]->qp_count));
  fake_verbs_hold_destroys(false);
  pair_close(&pair);
  assert_int_equal(fake_verbs_stats().qps, 0);
  pair_world_close();
}

/* A connection made while a port is down avoids it, and one made later does not. */
static void test_beside(void **state) {
  struct fake_verbs_options options = calm;
  ncclResult_t results[2];
  uint32_t down = 0;
  (void)state;
  options.devices = 2;
  options.one_nic = true;
  options.fault = VERBS_PORT_RETURNS;
  options.fault_at = 20;
  pair_settings("2", NULL, NULL);
  pair_set("TUTTI_IB_RECONNECT", "4");
  pair_set("TUTTI_IB_RETURN_MS", "-1");
  param_reset();
  pair_world_open(&options);
  for (int round = 0; round < 3; round++) {
    pair_open(&pair, results);
    assert_int_equal(results[0], ncclSuccess);
    const struct ib_end *ends[] = {(struct ib_end *)pair.send, (struct ib_end *)pair.receive};
    for (int side = 0; side < 2; side++)
      for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(ends[side]->qps[i].outlet, round == 1 ? 1 - down : i % 2);
    stream_begin(&stream, &pair, 3, 1);
    stream_run(&stream);
    assert_int_equal(stream.arrived + stream.send_done, 2 * PAIR_MESSAGES);
    down = ends[0]->device->ports[1].of->port_down[1];
    while (round == 1 && ends[0]->device->ports[down].of->port_down[1] != 0)
      assert_int_equal(stream_idle(pair.send), ncclSuccess);
    for (uint32_t i = 0; i < 4 && round < 2; i++) /* -1: they stay */
      assert_int_equal(ends[0]->qps[i].outlet, 1 - down);
    pair_close(&pair);
  }
  pair_world_close();
}

/* A receiver that has everything may close before the sender knows: its messages count as done. */
static void test_bye(void **state) {
  struct fake_verbs_options options = calm;
  ncclResult_t results[2];
  void *receive = NULL, *send = NULL, *data = pair.received, *registration;
  const size_t capacity = 100;
  const int tag = 0;
  bool done = false;
  (void)state;
  options.delay_most = 2000; /* acknowledgements come late, or after the receiver's end */
  pair_settings(NULL, NULL, NULL);
  pair_set("TUTTI_IB_PATH_MS", "20000");
  param_reset();
  pair_world_open(&options);
  pair_open(&pair, results);
  registration = pair.receive_memory;
  while (receive == NULL)
    assert_int_equal(pair_ops->irecv(pair.receive, 1, &data, &capacity, &tag, &registration, &receive),
                     ncclSuccess);
  while (send == NULL)
    assert_int_equal(pair_ops->isend(pair.send, pair.sent, 77, 0, pair.send_memory, &send), ncclSuccess);
  while (!done) assert_int_equal(pair_ops->test(receive, &done, NULL), ncclSuccess);
  assert_int_equal(pair_ops->unregister_memory(pair.receive, pair.receive_memory), ncclSuccess);
  assert_int_equal(pair_ops->unregister_memory(pair.receive, pair.receive_rest_memory), ncclSuccess);
  assert_int_equal(pair_ops->unregister_memory(pair.send, pair.send_memory), ncclSuccess);
  assert_int_equal(pair_ops->unregister_memory(pair.send, pair.send_rest_memory), ncclSuccess);
  assert_int_equal(pair_ops->close_recv(pair.receive), ncclSuccess);
  pair.receive = NULL;
  for (done = false; !done;) assert_int_equal(pair_ops->test(send, &done, NULL), ncclSuccess);
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) result = pair_ops->isend(pair.send, pair.sent, 77, 0, NULL, &send);
  assert_int_equal(result, ncclRemoteError);
  assert_non_null(strstr(log_own_error(), "closed the connection"));
  pair_close(&pair);
  pair_world_close();
}

/* ---- choices ---- */

static void test_lists(void **state) {
  (void)state;
  assert_true(ib_list_allows("", "mlx5_0", 1));
  assert_true(ib_list_allows("mlx5", "mlx5_0", 1));
  assert_false(ib_list_allows("=mlx5", "mlx5_0", 1));
  assert_true(ib_list_allows("=mlx5_0:1,mlx5_1", "mlx5_0", 1));
  assert_false(ib_list_allows("=mlx5_0:1,mlx5_1", "mlx5_0", 2));
  assert_true(ib_list_allows("mlx5_0:1,mlx5_1", "mlx5_1", 2));
  assert_false(ib_list_allows("^mlx5_0", "mlx5_0", 1));
  assert_true(ib_list_allows("^mlx5_0", "mlx5_1", 1));
  assert_true(ib_list_allows("^=mlx5_1", "mlx5_10", 1));
  assert_false(ib_list_allows("^mlx5_1", "mlx5_10", 1));
}

static struct gid_entry gid(enum gid_kind kind, const char *text) {
  struct sock_address address;
  struct gid_entry entry;
  char at[64];
  memset(&entry, 0, sizeof entry);
  entry.kind = kind;
  snprintf(at, sizeof at, strchr(text, ':') != NULL ? "[%s]:1" : "%s:1", text);
  assert_int_equal(sock_address_parse(at, "a test", &address), ncclSuccess);
  memcpy(entry.gid.raw + (address.family == 4 ? 12 : 0), address.bytes, address.family == 4 ? 4 : 16);
  if (address.family == 4) entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
  return entry;
}

static void test_gids(void **state) {
  const struct gid_entry entries[] = {gid(GID_ROCE1, "fe80::1"),  gid(GID_ROCE2, "fe80::1"),
                                      gid(GID_ROCE1, "10.1.0.1"), gid(GID_ROCE2, "10.1.0.1"),
                                      gid(GID_ROCE2, "10.2.0.1"), gid(GID_ROCE2, "2001:db8::1"),
                                      {.kind = GID_NONE}};
  struct gid_wishes wishes = {.index = -1, .roce_version = 2, .family = 4};
  char why[GID_WHY_BYTES];
  (void)state;
  assert_int_equal(gid_choose(entries, 7, true, &wishes, why), 3);
  assert_non_null(strstr(why, "GID 3 (::ffff:10.1.0.1, RoCE v2), the first that fits of 6"));
  wishes.family = 6;
  assert_int_equal(gid_choose(entries, 7, true, &wishes, why), 5);
  assert_int_equal(gid_choose(entries, 5, true, &wishes, why), 1);
  assert_non_null(strstr(why, "link-local"));
  wishes.family = 4;
  wishes.roce_version = 1;
  assert_int_equal(gid_choose(entries, 7, true, &wishes, why), 2);
  assert_int_equal(gid_choose(entries, 2, true, &wishes, why), 0);
  assert_non_null(strstr(why, "the nearest to"));
  wishes.index = 6;
  assert_int_equal(gid_choose(entries, 7, true, &wishes, why), -1);
  assert_non_null(strstr(why, "NCCL_IB_GID_INDEX=6 is empty"));
  pair_set("NCCL_IB_ADDR_RANGE", "10.2.0.0/16");
  pair_set("NCCL_IB_ROCE_VERSION_NUM", NULL);
  param_reset();
  assert_int_equal(gid_wishes_read(&wishes), ncclSuccess);
  assert_int_equal(gid_choose(entries, 7, true, &wishes, why), 4);
  pair_set("NCCL_IB_ADDR_RANGE", "10.2.0.0/40");
  param_reset();
  assert_int_equal(gid_wishes_read(&wishes), ncclInvalidUsage);
  pair_set("NCCL_IB_ADDR_RANGE", NULL);
  param_reset();
  assert_int_equal(gid_choose(entries, 0, true, &wishes, why), -1);
}

static void test_devices(void **state) {
  struct fake_verbs_options options = calm;
  struct net_properties properties;
  uint32_t count = 9;
  (void)state;
  options.devices = 2;
  options.ports = 2;
  pair_settings(NULL, NULL, NULL);
  assert_int_equal(pair_world_open(&options), 2); /* two NICs with two ports each, merged */
  pair_world_close();
  pair_set("NCCL_IB_HCA", "=fake_1:2");
  param_reset();
  assert_int_equal(pair_world_open(&options), 1);
  assert_int_equal(pair_ops->properties(0, &properties), ncclSuccess);
  assert_string_equal(properties.name, "fake_1:2");
  assert_int_equal(properties.speed_mbps, 400000);
  assert_int_equal(properties.max_recvs, 8);
  assert_int_equal(pair_ops->properties(1, &properties), ncclInvalidArgument);
  pair_world_close();
  pair_set("NCCL_IB_HCA", NULL);
  pair_set("NCCL_NET_FORCE_MERGE", "nobody;fake_1:2,fake_0:1;fake_2,fake_3");
  pair_set("NCCL_IB_MERGE_NICS", "0");
  param_reset();
  options.devices = 4;
  assert_int_equal(pair_world_open(&options), 4); /* merged 0:1 with 1:2, then 0:2, 1:1, the rest */
  assert_int_equal(pair_ops->properties(0, &properties), ncclSuccess);
  assert_string_equal(properties.name, "fake_0:1+fake_1:2");
  assert_int_equal(pair_ops->properties(3, &properties), ncclSuccess);
  assert_string_equal(properties.name, "fake_2:1+fake_2:2+fake_3:1+fake_3:2");
  pair_world_close();
  pair_set("NCCL_IB_MERGE_NICS", NULL);
  pair_set("NCCL_IB_DISABLE", "1");
  param_reset();
  assert_int_equal(pair_ops->devices(&count), ncclSuccess);
  assert_int_equal(count, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_lists, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_gids, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_devices, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_streams, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_parts, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_parts_odd, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_ports, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_classes, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_class_too_large, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_makers_options, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_events_returned, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_wraps, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_too_long, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_no_route, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_regions, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_device_memory, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_slow_destroy, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_beside, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_bye, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_seeds, pair_setup, pair_teardown),
      cmocka_unit_test_setup_teardown(test_reconnect, pair_setup, pair_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
