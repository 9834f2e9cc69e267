/* net_pair.c: a sender and a receiver of a network, alternating in one thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "net_pair.h"
#include "random.h"

#define TURNS_MAX 20000000u
#define MESSAGES 48
#define MESSAGE_BYTES_MAX 300000u
#define UNDER_WAY 8
#define GROUP_MAX 4

static void pair_turn(struct net_pair *pair, uint32_t turn) {
  if (pair->turn != NULL) pair->turn();
  else if (turn % 64 == 63) os_yield();
  assert_true(turn < TURNS_MAX);
}

void net_pair_open(const struct net_ops *ops, uint32_t device, uint64_t comm_key, void (*turn)(void),
                   struct net_pair *pair) {
  const struct net_peer receiver = {comm_key, 1, 0, "test", NULL, 0},
                        sender = {comm_key, 0, 1, "test", NULL, 0};
  struct net_handle handle;
  memset(pair, 0, sizeof *pair);
  pair->ops = ops;
  pair->turn = turn;
  assert_int_equal(ops->listen(device, &receiver, &handle, &pair->listener), ncclSuccess);
  for (uint32_t i = 0; pair->send == NULL || pair->recv == NULL; i++) {
    if (pair->send == NULL)
      assert_int_equal(ops->connect(device, &sender, &handle, &pair->send), ncclSuccess);
    if (pair->recv == NULL) assert_int_equal(ops->accept(pair->listener, &pair->recv), ncclSuccess);
    pair_turn(pair, i);
  }
}

void net_pair_close(struct net_pair *pair) {
  if (pair->send != NULL) assert_int_equal(pair->ops->close_send(pair->send), ncclSuccess);
  if (pair->recv != NULL) assert_int_equal(pair->ops->close_recv(pair->recv), ncclSuccess);
  if (pair->listener != NULL) assert_int_equal(pair->ops->close_listen(pair->listener), ncclSuccess);
  pair->send = pair->recv = pair->listener = NULL;
}

/* ---- many messages ---- */

struct message {
  size_t bytes;
  uint8_t *from, *to;
};

struct exercise {
  struct net_pair *pair;
  struct message messages[MESSAGES];
  uint8_t *out, *in;
  void *out_registration, *in_registration;
  uint32_t group; /* receives per call */
  uint32_t sent, posted, sends_done, receives_done;
  void *sends[MESSAGES], *receives[MESSAGES];
};

static void exercise_fill(struct exercise *exercise, uint64_t seed) {
  static const size_t edges[] = {0, 1, 2, 127, 128, 129, 4096, 65536, 65537, MESSAGE_BYTES_MAX};
  uint64_t state = seed * 2 + 1;
  for (uint32_t i = 0; i < MESSAGES; i++) {
    struct message *message = &exercise->messages[i];
    const bool edge = i < sizeof edges / sizeof edges[0];
    message->bytes = edge ? edges[i] : random_below(&state, i % 2 == 0 ? 200 : 100000);
    message->from = exercise->out + (size_t)i * MESSAGE_BYTES_MAX;
    message->to = exercise->in + (size_t)i * MESSAGE_BYTES_MAX;
    for (size_t at = 0; at < message->bytes; at++) message->from[at] = (uint8_t)(random_bits(&state) >> 3);
  }
}

static void exercise_send(struct exercise *exercise) {
  struct net_pair *pair = exercise->pair;
  const struct message *message = &exercise->messages[exercise->sent];
  if (exercise->sent == MESSAGES || exercise->sent - exercise->sends_done >= UNDER_WAY) return;
  const int tag = (int)(exercise->sent % exercise->group);
  void **request = &exercise->sends[exercise->sent];
  assert_int_equal(
      pair->ops->isend(pair->send, message->from, message->bytes, tag, exercise->out_registration, request),
      ncclSuccess);
  exercise->sent += *request != NULL;
}

static void exercise_receive(struct exercise *exercise) {
  struct net_pair *pair = exercise->pair;
  void *data[GROUP_MAX], *registrations[GROUP_MAX];
  size_t bytes[GROUP_MAX];
  int tags[GROUP_MAX];
  if (exercise->posted == MESSAGES || exercise->posted - exercise->receives_done >= UNDER_WAY) return;
  for (uint32_t i = 0; i < exercise->group; i++) {
    data[i] = exercise->messages[exercise->posted + i].to;
    registrations[i] = exercise->in_registration;
    bytes[i] = MESSAGE_BYTES_MAX;
    tags[i] = (int)i;
  }
  void **request = &exercise->receives[exercise->posted];
  assert_int_equal(pair->ops->irecv(pair->recv, exercise->group, data, bytes, tags, registrations, request),
                   ncclSuccess);
  if (*request != NULL) exercise->posted += exercise->group;
}

static void exercise_test_send(struct exercise *exercise) {
  bool done = false;
  size_t bytes = 0;
  if (exercise->sends_done == exercise->sent) return;
  assert_int_equal(exercise->pair->ops->test(exercise->sends[exercise->sends_done], &done, &bytes),
                   ncclSuccess);
  if (!done) return;
  assert_int_equal(bytes, exercise->messages[exercise->sends_done].bytes);
  exercise->sends_done += 1;
}

static void exercise_flush(struct exercise *exercise, const struct message *message) {
  struct net_pair *pair = exercise->pair;
  void *data = message->to, *request = NULL;
  bool done = false;
  assert_int_equal(
      pair->ops->iflush(pair->recv, 1, &data, &message->bytes, &exercise->in_registration, &request),
      ncclSuccess);
  for (uint32_t i = 0; request != NULL && !done; i++) {
    assert_int_equal(pair->ops->test(request, &done, NULL), ncclSuccess);
    pair_turn(pair, i);
  }
}

static void exercise_test_receive(struct exercise *exercise) {
  const uint32_t first = exercise->receives_done;
  bool done = false;
  size_t bytes[GROUP_MAX];
  if (first == exercise->posted) return;
  assert_int_equal(exercise->pair->ops->test(exercise->receives[first], &done, bytes), ncclSuccess);
  if (!done) return;
  for (uint32_t i = 0; i < exercise->group; i++) {
    const struct message *message = &exercise->messages[first + i];
    assert_int_equal(bytes[i], message->bytes);
    assert_memory_equal(message->to, message->from, message->bytes);
  }
  exercise_flush(exercise, &exercise->messages[first]);
  exercise->receives_done += exercise->group;
}

static void exercise_run(struct exercise *exercise) {
  struct net_pair *pair = exercise->pair;
  const struct net_ops *ops = pair->ops;
  const size_t all = (size_t)MESSAGES * MESSAGE_BYTES_MAX;
  assert_int_equal(
      ops->register_memory(pair->send, exercise->out, all, NET_MEMORY_HOST, &exercise->out_registration),
      ncclSuccess);
  assert_int_equal(
      ops->register_memory(pair->recv, exercise->in, all, NET_MEMORY_HOST, &exercise->in_registration),
      ncclSuccess);
  for (uint32_t i = 0; exercise->sends_done < MESSAGES || exercise->receives_done < MESSAGES; i++) {
    exercise_send(exercise);
    exercise_receive(exercise);
    exercise_test_send(exercise);
    exercise_test_receive(exercise);
    pair_turn(pair, i);
  }
  assert_int_equal(ops->unregister_memory(pair->send, exercise->out_registration), ncclSuccess);
  assert_int_equal(ops->unregister_memory(pair->recv, exercise->in_registration), ncclSuccess);
}

void net_pair_exercise(struct net_pair *pair, uint32_t device, uint64_t seed) {
  struct exercise exercise;
  struct net_properties properties;
  memset(&exercise, 0, sizeof exercise);
  exercise.pair = pair;
  exercise.out = calloc(MESSAGES, MESSAGE_BYTES_MAX);
  exercise.in = calloc(MESSAGES, MESSAGE_BYTES_MAX);
  assert_non_null(exercise.out);
  assert_non_null(exercise.in);
  assert_int_equal(pair->ops->properties(device, &properties), ncclSuccess);
  exercise.group = properties.max_recvs >= 2 && seed % 2 == 1 ? 2 : 1;
  exercise_fill(&exercise, seed);
  exercise_run(&exercise);
  free(exercise.out);
  free(exercise.in);
}

/* ---- one message ---- */

static ncclResult_t one_post(struct net_pair *pair, const void *from, size_t bytes, void *to, size_t capacity,
                             void **requests) {
  const struct net_ops *ops = pair->ops;
  void *out = NULL, *in = NULL;
  const int tag = 0;
  TRY(ops->register_memory(pair->send, (void *)(uintptr_t)from, bytes, NET_MEMORY_HOST, &out));
  TRY(ops->register_memory(pair->recv, to, capacity, NET_MEMORY_HOST, &in));
  for (uint32_t i = 0; requests[0] == NULL || requests[1] == NULL; i++) {
    if (requests[0] == NULL) TRY(ops->isend(pair->send, from, bytes, tag, out, &requests[0]));
    if (requests[1] == NULL) TRY(ops->irecv(pair->recv, 1, &to, &capacity, &tag, &in, &requests[1]));
    pair_turn(pair, i);
  }
  return ncclSuccess;
}

ncclResult_t net_pair_send_one(struct net_pair *pair, const void *from, size_t bytes, void *to,
                               size_t capacity, size_t *got) {
  void *requests[2] = {NULL, NULL};
  bool sent = false, received = false;
  TRY(one_post(pair, from, bytes, to, capacity, requests));
  for (uint32_t i = 0; !sent || !received; i++) {
    if (!received) TRY(pair->ops->test(requests[1], &received, got));
    if (!sent) TRY(pair->ops->test(requests[0], &sent, NULL));
    pair_turn(pair, i);
  }
  return ncclSuccess;
}
