/* ibv_pair.h: both ends of a connection of the ibv net over emulated verbs (verbs_fake.h), driven by one
 * thread through the net's table: how they are made, and a stream of messages between them, of which every
 * byte is compared. For the net's own tests. */
#ifndef TUTTI_TESTS_IBV_PAIR_H
#define TUTTI_TESTS_IBV_PAIR_H

#include "backends/ibv/ib.h"
#include "verbs_fake.h"

enum { PAIR_SECONDS_MOST = 30, PAIR_MESSAGES = 40, PAIR_BYTES_MOST = 20000, PAIR_DEPTH = 8 };
extern const struct net_ops *pair_ops;
extern uint32_t pair_receiver_device; /* the sender's is 0 */

/* NULL: unset. */
void pair_set(const char *name, const char *value);
/* From 0 on, all of them, so that no test has another's. */
void pair_settings(const char *qps, const char *split, const char *threshold);
/* How many devices there are. */
uint32_t pair_world_open(const struct fake_verbs_options *options);
void pair_world_close(void);
/* CMocka's, around each test: nothing is left over. */
int pair_setup(void **state);
int pair_teardown(void **state);

struct pair {
  struct net_handle handle;
  void *listener, *send, *receive;
  void *send_memory, *receive_memory; /* registrations */
  void *send_rest_memory, *receive_rest_memory;
  bool device; /* what is received lies in device memory */
  uint8_t sent[PAIR_DEPTH * PAIR_BYTES_MOST], received[PAIR_DEPTH * PAIR_BYTES_MOST];
  uint8_t sent_rest[PAIR_DEPTH * PAIR_BYTES_MOST],
      received_rest[PAIR_DEPTH * PAIR_BYTES_MOST]; /* second parts */
};
/* Results of both ends; the receiver is NULL where it was not made. */
void pair_open(struct pair *pair, ncclResult_t results[2]);
void pair_close(struct pair *pair);

/* Messages in groups of as many as a seed says. */
struct stream {
  struct pair *pair;
  uint64_t seed;
  uint32_t group;
  bool splits; /* messages in two parts at either end, or both, where the group is one */
  uint32_t sent, send_done, posted, arrived; /* messages; posted and arrived count whole groups */
  void *sends[PAIR_MESSAGES];
  void *receives[PAIR_MESSAGES]; /* by the first message of a group */
  size_t sizes[IB_GROUP_MAX];    /* of the group that has come */
  void *flush;                   /* of it, where it is under way */
  ncclResult_t results[2];
  char why[2][1024];
};
uint8_t *stream_place(uint8_t *buffer, uint32_t message);
void stream_begin(struct stream *stream, struct pair *pair, uint64_t seed, uint32_t group);
/* A turn of an end, where it is well. */
void stream_turn_sender(struct stream *stream);
void stream_turn_receiver(struct stream *stream);
bool stream_is_through(const struct stream *stream);
/* Until all has come, or both ends have failed; an end that fails is closed, as its process would. */
void stream_run(struct stream *stream);
/* An end that has nothing to do, as between operations, hears of the other all the same. */
ncclResult_t stream_idle(void *connection);

#endif
