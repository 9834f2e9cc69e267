/* ibv_pair.h: both ends of a connection of the ibv network over emulated verbs (verbs_fake.h), driven by one
 * thread through the network's table: setup, and a stream of messages between them whose every byte is
 * compared. For the tests of that network. */
#ifndef TUTTI_TESTS_IBV_PAIR_H
#define TUTTI_TESTS_IBV_PAIR_H

#include "backends/ibv/ib.h"
#include "verbs_fake.h"

enum { PAIR_SECONDS_MOST = 30, PAIR_MESSAGES = 40, PAIR_BYTES_MOST = 20000, PAIR_DEPTH = 8 };
extern const struct net_ops *pair_ops;
extern uint32_t pair_receiver_device; /* the sender's is 0 */

/* NULL: unset. */
void pair_set(const char *name, const char *value);
/* Continues from one test to the next, so that no two tests share a number. */
void pair_settings(const char *qps, const char *split, const char *threshold);
/* What both ends are told (struct net_peer). */
void pair_set_class(uint32_t traffic_class);
/* Returns the number of devices. */
uint32_t pair_world_open(const struct fake_verbs_options *options);
void pair_world_close(void);
/* CMocka setup and teardown of each test: nothing may be left over. */
int pair_setup(void **state);
int pair_teardown(void **state);

struct pair {
  struct net_handle handle;
  void *listener, *send, *receive;
  void *send_memory, *receive_memory; /* registrations */
  void *send_rest_memory, *receive_rest_memory;
  bool device; /* received data is in device memory */
  uint8_t sent[PAIR_DEPTH * PAIR_BYTES_MOST], received[PAIR_DEPTH * PAIR_BYTES_MOST];
  uint8_t sent_rest[PAIR_DEPTH * PAIR_BYTES_MOST],
      received_rest[PAIR_DEPTH * PAIR_BYTES_MOST]; /* second parts */
};
/* The results of both ends; the receiver is NULL if it was not made. */
void pair_open(struct pair *pair, ncclResult_t results[2]);
void pair_close(struct pair *pair);

/* Messages in groups whose size is drawn from a seed. */
struct stream {
  struct pair *pair;
  uint64_t seed;
  uint32_t group;
  bool splits; /* messages in two parts at either end, or both, if the group is one */
  uint32_t sent, send_done, posted, arrived; /* messages; posted and arrived count whole groups */
  void *sends[PAIR_MESSAGES];
  void *receives[PAIR_MESSAGES]; /* by the first message of a group */
  size_t sizes[IB_GROUP_MAX];    /* of the group that has arrived */
  void *flush;                   /* the flush of that group, if in flight */
  ncclResult_t results[2];
  char why[2][1024];
};
uint8_t *stream_place(uint8_t *buffer, uint32_t message);
void stream_begin(struct stream *stream, struct pair *pair, uint64_t seed, uint32_t group);
/* Progresses one end, if it has not failed. */
void stream_turn_sender(struct stream *stream);
void stream_turn_receiver(struct stream *stream);
bool stream_is_through(const struct stream *stream);
/* Until all has arrived, or both ends have failed; a failed end is closed, as its process would do. */
void stream_run(struct stream *stream);
/* An idle end must still notice the other end, as between operations. */
ncclResult_t stream_idle(void *connection);

#endif
