/* schedule_oracle.h: runs the steps of all ranks of one ring collective together, on symbols instead of
 * numbers, and compares every step and every output with the algorithm's definition. An element holds "the
 * left fold of the inputs of `length` ranks along the ring from ring index `first`, at element `element`";
 * any other value fails at once, so a lost, doubled or reordered contribution is found. Queues between
 * neighbours are unbounded and in order.
 *
 * One run covers all interleavings of the same case: ranks share only queues with one producer and one
 * consumer. The exception is a direct store into a neighbour's output. `lazy` covers it: a rank is furthest
 * behind the others if it moves only when no other rank can. Waiting for slots is not modelled. */
#ifndef TUTTI_TESTS_SCHEDULE_ORACLE_H
#define TUTTI_TESTS_SCHEDULE_ORACLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "schedule/ring.h"

#define ORACLE_RANKS_MAX 17
#define ORACLE_ELEMENTS_MAX 1024 /* elements of a rank's larger buffer */
#define ORACLE_MESSAGES_MAX 512  /* on one link during one case */
#define ORACLE_CHUNK_MAX 64
#define ORACLE_LOOPS_MAX 32
#define ORACLE_EMPTY UINT64_MAX /* nothing was ever written here */
#define ORACLE_NOBODY UINT32_MAX

struct oracle_case {
  uint8_t func;
  uint32_t rank_count, root, element_bytes;
  size_t count, chunk_count;
  uint32_t channel_count; /* the count is divided into this many nearly even parts */
  uint32_t in_place;      /* set of ranks whose input and output share memory */
  uint32_t ring_stride;   /* rank at ring position p is p * ring_stride mod rank_count */
  bool direct;            /* final values are stored into the receiver's output at the send */
  uint32_t lazy;          /* the rank that moves only when no other can, or ORACLE_NOBODY */
};

struct oracle_message {
  size_t count, out_offset;
  bool final;
  uint64_t values[ORACLE_CHUNK_MAX];
};

struct oracle_rank {
  struct work work;
  struct ring_iter iter;
  struct step step;
  bool has_step;
  uint32_t step_count;
  uint32_t received, sent; /* messages taken from the link of the rank before, and put on it by that rank */
  uint64_t *in, *out;
  uint64_t memory[2][ORACLE_ELEMENTS_MAX];
  uint8_t writes[ORACLE_ELEMENTS_MAX]; /* number of writes of each output element */
  struct oracle_message messages[ORACLE_MESSAGES_MAX];
};

struct oracle {
  const struct oracle_case *test;
  uint32_t channel_index;
  size_t part_offset, part_count;
  uint32_t ring[ORACLE_RANKS_MAX], position[ORACLE_RANKS_MAX];
  uint32_t loop_count;
  struct {
    size_t begin, chunk;
  } loops[ORACLE_LOOPS_MAX];          /* begin: elements of the part */
  uint8_t first[ORACLE_ELEMENTS_MAX]; /* all-reduce: ring index where the fold of a part's element begins */
  struct oracle_rank ranks[ORACLE_RANKS_MAX];
};

static inline void oracle_fail(const struct oracle *o, uint32_t rank, const char *what) {
  static const char *const names[] = {"broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"};
  const struct oracle_case *t = o->test;
  fail_msg(
      "%s n=%u root=%u element=%u count=%zu chunk=%zu channel %u of %u in_place=%#x stride=%u direct=%d "
      "lazy=%d: "
      "rank %u step %u: %s",
      names[t->func], t->rank_count, t->root, t->element_bytes, t->count, t->chunk_count, o->channel_index,
      t->channel_count, t->in_place, t->ring_stride, t->direct, (int)t->lazy, rank, o->ranks[rank].step_count,
      what);
}

static inline void oracle_expect(const struct oracle *o, uint32_t rank, bool good, const char *what) {
  if (!good) oracle_fail(o, rank, what);
}

/* ---- symbols ---- */

static inline uint64_t oracle_value(size_t element, uint32_t first, uint32_t length, bool post) {
  return (uint64_t)element << 32 | (uint64_t)first << 16 | length << 8 | (post ? 1u : 0u);
}

static inline uint64_t oracle_fold(const struct oracle *o, uint32_t rank, uint64_t partial, uint64_t own) {
  const uint32_t n = o->test->rank_count;
  const uint32_t first = (partial >> 16) & 0xff, length = (partial >> 8) & 0xff, next = (own >> 16) & 0xff;
  oracle_expect(o, rank, partial >> 32 == own >> 32, "combines two different elements");
  oracle_expect(o, rank, (partial & 1) == 0, "combines a value that was final");
  oracle_expect(o, rank, length < n && (first + length) % n == next, "combines out of ring order, or twice");
  return partial + (1u << 8);
}

/* ---- the algorithm's definition ---- */

static inline size_t oracle_loop_chunk(const struct oracle *o, size_t done) {
  const struct oracle_case *t = o->test;
  const size_t rest = o->part_count - done, n = t->rank_count;
  if (t->func != FUNC_ALL_REDUCE) return rest < t->chunk_count ? rest : t->chunk_count;
  if (rest >= n * t->chunk_count) return t->chunk_count;
  size_t chunk = rest / n + (rest % n != 0);
  while (chunk * t->element_bytes % 16 != 0) chunk++;
  return chunk < t->chunk_count ? chunk : t->chunk_count;
}

static inline uint32_t oracle_loop_steps(const struct oracle_case *t) {
  if (t->func == FUNC_ALL_REDUCE) return 2 * t->rank_count - 1;
  return t->func == FUNC_ALL_GATHER || t->func == FUNC_REDUCE_SCATTER ? t->rank_count : 1;
}

/* The loops of the part; and for each element the ring index at which its fold begins: after the rank whose
 * index along the ring is the chunk's. */
static inline void oracle_setup_loops(struct oracle *o) {
  const uint32_t n = o->test->rank_count, chunks = o->test->func == FUNC_ALL_REDUCE ? n : 1;
  o->loop_count = 0;
  for (size_t done = 0; done < o->part_count; done += chunks * o->loops[o->loop_count++].chunk) {
    const size_t chunk = oracle_loop_chunk(o, done);
    assert_true(o->loop_count < ORACLE_LOOPS_MAX);
    o->loops[o->loop_count].begin = done;
    o->loops[o->loop_count].chunk = chunk;
    for (size_t i = 0; i < chunks * chunk && done + i < o->part_count; i++)
      o->first[done + i] = (uint8_t)((i / chunk + 1) % n);
  }
}

/* The expected output element `index` of a rank; ORACLE_EMPTY if the rank has no output. */
static inline uint64_t oracle_output(const struct oracle *o, uint32_t rank, size_t index) {
  const struct oracle_case *t = o->test;
  const uint32_t n = t->rank_count, root = o->position[t->root];
  switch (t->func) {
    case FUNC_ALL_REDUCE: return oracle_value(index, o->first[index - o->part_offset], n, true);
    case FUNC_ALL_GATHER: return oracle_value(index % t->count, o->position[index / t->count], 1, false);
    case FUNC_REDUCE_SCATTER:
      return oracle_value(rank * t->count + index, (o->position[rank] + 1) % n, n, true);
    case FUNC_BROADCAST: return oracle_value(index, root, 1, false);
    default: return rank == t->root ? oracle_value(index, (root + 1) % n, n, true) : ORACLE_EMPTY;
  }
}

enum {
  ORACLE_SEND = STEP_COPY_IN | STEP_SEND,
  ORACLE_COPY_SEND = STEP_COPY_IN | STEP_KEEP | STEP_SEND,
  ORACLE_RECV = STEP_RECV | STEP_KEEP,
  ORACLE_RECV_COPY_SEND = STEP_RECV | STEP_KEEP | STEP_SEND,
  ORACLE_RECV_REDUCE_SEND = STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_SEND,
  ORACLE_RECV_REDUCE_COPY = STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP,
  ORACLE_RECV_REDUCE_COPY_SEND = STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP | STEP_SEND
};

/* The primitive at 1-based call `call` of a loop, and (all-reduce: chunk along the ring; all-gather and
 * reduce-scatter: the ring index of the block) in *block. */
static inline uint32_t oracle_primitive(const struct oracle *o, uint32_t rank, uint32_t call,
                                        uint32_t *block) {
  const struct oracle_case *t = o->test;
  const uint32_t n = t->rank_count, own = o->position[rank], from_root = (own + n - o->position[t->root]) % n;
  const bool in_place = (t->in_place >> rank & 1) != 0;
  *block = 0;
  switch (t->func) {
    case FUNC_ALL_REDUCE:
      *block = (own + 2 * n - call) % n;
      if (call == 1) return ORACLE_SEND;
      if (call < n) return ORACLE_RECV_REDUCE_SEND;
      if (call == n) return ORACLE_RECV_REDUCE_COPY_SEND;
      return call < 2 * n - 1 ? ORACLE_RECV_COPY_SEND : ORACLE_RECV;
    case FUNC_ALL_GATHER:
      *block = (own + n + 1 - call) % n;
      if (call == 1) return in_place ? ORACLE_SEND : ORACLE_COPY_SEND;
      return call < n ? ORACLE_RECV_COPY_SEND : ORACLE_RECV;
    case FUNC_REDUCE_SCATTER:
      *block = (own + n - call) % n;
      if (call == 1) return ORACLE_SEND;
      return call < n ? ORACLE_RECV_REDUCE_SEND : ORACLE_RECV_REDUCE_COPY;
    case FUNC_BROADCAST:
      if (from_root == 0) return in_place ? ORACLE_SEND : ORACLE_COPY_SEND;
      return from_root < n - 1 ? ORACLE_RECV_COPY_SEND : ORACLE_RECV;
    default:
      if (from_root == 1) return ORACLE_SEND;
      return from_root == 0 ? ORACLE_RECV_REDUCE_COPY : ORACLE_RECV_REDUCE_SEND;
  }
}

/* Whether this call sends the receiver's result: the second half of all-reduce, and collectives that only
 * move data. */
static inline bool oracle_sends_final(const struct oracle_case *t, uint32_t call) {
  if (t->func == FUNC_ALL_REDUCE) return call >= t->rank_count;
  return t->func == FUNC_ALL_GATHER || t->func == FUNC_BROADCAST;
}

/* Compares every member of a step with the tables above. */
static inline void oracle_check_step(const struct oracle *o, uint32_t rank) {
  const struct oracle_rank *r = &o->ranks[rank];
  const struct oracle_case *t = o->test;
  const struct step *step = &r->step;
  const uint32_t loop_steps = oracle_loop_steps(t), loop = r->step_count / loop_steps;
  oracle_expect(o, rank, loop < o->loop_count, "is a step too many");
  const size_t done = o->loops[loop].begin, chunk = o->loops[loop].chunk;
  uint32_t block;
  const uint32_t call = r->step_count % loop_steps + 1, primitive = oracle_primitive(o, rank, call, &block);
  const bool all_reduce = t->func == FUNC_ALL_REDUCE;
  const size_t begin = done + (all_reduce ? block * chunk : 0);
  const size_t rest = begin < o->part_count ? o->part_count - begin : 0;
  const size_t near = o->part_offset + begin, far = near + (all_reduce ? 0 : o->ring[block] * t->count);
  const uint32_t actions = STEP_RECV | STEP_SEND | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP;
  oracle_expect(o, rank, (step->flags & actions) == primitive, "is not the primitive of this call");
  if (primitive & STEP_SEND)
    oracle_expect(o, rank, ((step->flags & STEP_SEND_FINAL) != 0) == oracle_sends_final(t, call),
                  "is wrong about final");
  oracle_expect(o, rank, step->recv_links == ((primitive & STEP_RECV) ? 1 : 0),
                "has the wrong receive links");
  oracle_expect(o, rank, step->send_links == ((primitive & STEP_SEND) ? 1 : 0), "has the wrong send links");
  oracle_expect(o, rank, step->count == (rest < chunk ? rest : chunk), "has the wrong count");
  oracle_expect(o, rank, step->in_offset == (t->func == FUNC_REDUCE_SCATTER ? far : near), "reads elsewhere");
  oracle_expect(o, rank, step->out_offset == (t->func == FUNC_ALL_GATHER ? far : near), "writes elsewhere");
}

/* ---- running ---- */

static inline void oracle_write(struct oracle *o, uint32_t rank, size_t index, uint64_t value) {
  struct oracle_rank *r = &o->ranks[rank];
  const size_t elements =
      o->test->func == FUNC_ALL_GATHER ? o->test->rank_count * o->test->count : o->test->count;
  oracle_expect(o, rank, index < elements, "writes behind the output");
  oracle_expect(o, rank, value == oracle_output(o, rank, index), "writes what is not the result");
  r->out[index] = value;
  r->writes[index] += 1;
}

static inline uint64_t oracle_read(const struct oracle *o, uint32_t rank, size_t index) {
  const size_t elements =
      o->test->func == FUNC_REDUCE_SCATTER ? o->test->rank_count * o->test->count : o->test->count;
  oracle_expect(o, rank, index < elements, "reads behind the input");
  const uint64_t value = o->ranks[rank].in[index];
  oracle_expect(o, rank, value == oracle_value(index, o->position[rank], 1, false),
                "reads input that was overwritten");
  return value;
}

/* Element `index` of the step: the rank's input combined with the received data. */
static inline uint64_t oracle_combine(const struct oracle *o, uint32_t rank,
                                      const struct oracle_message *message, size_t index) {
  const struct oracle_rank *r = &o->ranks[rank];
  const struct step *step = &r->step;
  uint64_t value = ORACLE_EMPTY;
  if (step->flags & STEP_COPY_IN) value = oracle_read(o, rank, step->in_offset + index);
  if (message != NULL) {
    if (o->test->direct && message->final)
      oracle_expect(o, rank, r->out[step->out_offset + index] == message->values[index],
                    "lost a direct store");
    value = step->flags & STEP_REDUCE ? oracle_fold(o, rank, message->values[index], value)
                                      : message->values[index];
  }
  if (step->flags & STEP_POST_OP) {
    oracle_expect(o, rank, (value & 1) == 0 && (value >> 8 & 0xff) == o->test->rank_count,
                  "ends what is not complete");
    value |= 1;
  }
  return value;
}

/* The oldest message for this rank, compared with the step that receives it. */
static inline const struct oracle_message *oracle_take(struct oracle *o, uint32_t rank) {
  struct oracle_rank *r = &o->ranks[rank];
  const struct oracle_message *message = &r->messages[r->received++];
  oracle_expect(o, rank, message->count == r->step.count, "receives another count than was sent");
  oracle_expect(o, rank, message->final == ((r->step.flags & STEP_RECV_FINAL) != 0),
                "RECV_FINAL is not SEND_FINAL");
  if (message->final)
    oracle_expect(o, rank, message->out_offset == r->step.out_offset, "final data lands elsewhere");
  return message;
}

static inline struct oracle_message *oracle_put(struct oracle *o, uint32_t rank, uint32_t next) {
  const struct step *step = &o->ranks[rank].step;
  struct oracle_rank *to = &o->ranks[next];
  oracle_expect(o, rank, to->sent < ORACLE_MESSAGES_MAX, "the oracle's queue is full");
  struct oracle_message *message = &to->messages[to->sent++];
  message->count = step->count;
  message->out_offset = step->out_offset;
  message->final = (step->flags & STEP_SEND_FINAL) != 0;
  return message;
}

static inline void oracle_send(struct oracle *o, uint32_t next, struct oracle_message *message, size_t index,
                               uint64_t value) {
  message->values[index] = value;
  if (!message->final) return;
  oracle_expect(o, next, value == oracle_output(o, next, message->out_offset + index),
                "is sent as final and is not");
  if (o->test->direct) oracle_write(o, next, message->out_offset + index, value);
}

/* One step of one rank; false if it has none left or its data has not arrived. */
static inline bool oracle_move(struct oracle *o, uint32_t rank) {
  struct oracle_rank *r = &o->ranks[rank];
  const struct step *step = &r->step;
  const uint32_t next = r->work.send_peer[0];
  if (!r->has_step || ((step->flags & STEP_RECV) && r->received == r->sent)) return false;
  oracle_check_step(o, rank);
  const struct oracle_message *arrived = step->flags & STEP_RECV ? oracle_take(o, rank) : NULL;
  struct oracle_message *sent = step->flags & STEP_SEND ? oracle_put(o, rank, next) : NULL;
  const bool there_already = o->test->direct && arrived != NULL && arrived->final;
  for (size_t i = 0; i < step->count; i++) {
    const uint64_t value = oracle_combine(o, rank, arrived, i);
    if ((step->flags & STEP_KEEP) && !there_already) oracle_write(o, rank, step->out_offset + i, value);
    if (sent != NULL) oracle_send(o, next, sent, i, value);
  }
  r->step_count += 1;
  r->has_step = ring_next(&r->iter, &r->work, &r->step);
  return true;
}

static inline bool oracle_move_others(struct oracle *o) {
  bool moved = false;
  for (uint32_t rank = 0; rank < o->test->rank_count; rank++)
    while (rank != o->test->lazy && oracle_move(o, rank)) moved = true;
  return moved;
}

/* ---- setup, and the final comparison ---- */

static inline void oracle_setup_memory(struct oracle *o, uint32_t rank) {
  const struct oracle_case *t = o->test;
  struct oracle_rank *r = &o->ranks[rank];
  const size_t in_elements = t->func == FUNC_REDUCE_SCATTER ? t->rank_count * t->count : t->count;
  const size_t out_elements = t->func == FUNC_ALL_GATHER ? t->rank_count * t->count : t->count;
  r->in = r->memory[0];
  r->out = r->memory[1];
  if (t->in_place >> rank & 1) {
    r->in = r->out = r->memory[0];
    if (t->func == FUNC_ALL_GATHER) r->in += rank * t->count;
    if (t->func == FUNC_REDUCE_SCATTER) r->out += rank * t->count;
  }
  assert_true(in_elements <= ORACLE_ELEMENTS_MAX && out_elements <= ORACLE_ELEMENTS_MAX);
  for (size_t i = 0; i < out_elements; i++) r->out[i] = ORACLE_EMPTY;
  for (size_t i = 0; i < in_elements; i++) r->in[i] = oracle_value(i, o->position[rank], 1, false);
  memset(r->writes, 0, out_elements);
}

static inline void oracle_setup_work(struct oracle *o, uint32_t rank) {
  const struct oracle_case *t = o->test;
  struct oracle_rank *r = &o->ranks[rank];
  const uint32_t n = t->rank_count, own = o->position[rank];
  memset(&r->work, 0, sizeof r->work);
  r->work.func = t->func;
  r->work.algo = ALGO_RING;
  r->work.element_bytes = (uint8_t)t->element_bytes;
  r->work.rank = rank;
  r->work.rank_count = n;
  r->work.ring_index = own;
  r->work.root = t->root;
  r->work.flags = t->in_place >> rank & 1 ? (uint32_t)WORK_IN_PLACE : 0;
  r->work.send_peer[0] = o->ring[(own + 1) % n];
  r->work.recv_peer[0] = o->ring[(own + n - 1) % n];
  r->work.count = t->count;
  r->work.part_offset = o->part_offset;
  r->work.part_count = o->part_count;
  r->work.chunk_count = t->chunk_count;
  r->work.ring_ranks = o->ring;
  r->received = r->sent = r->step_count = 0;
  ring_cut(&r->work);
  ring_begin(&r->iter, &r->work);
  r->has_step = ring_next(&r->iter, &r->work, &r->step);
}

static inline void oracle_run_channel(struct oracle *o) {
  const uint32_t n = o->test->rank_count;
  oracle_setup_loops(o);
  for (uint32_t rank = 0; rank < n; rank++) oracle_setup_work(o, rank);
  while (oracle_move_others(o) || (o->test->lazy < n && oracle_move(o, o->test->lazy))) {}
  for (uint32_t rank = 0; rank < n; rank++) {
    const struct oracle_rank *r = &o->ranks[rank];
    oracle_expect(o, rank, !r->has_step, "waits for data for ever");
    oracle_expect(o, rank, r->received == r->sent, "leaves data in its queue");
    oracle_expect(o, rank, r->step_count == o->loop_count * oracle_loop_steps(o->test), "took too few steps");
  }
}

/* Output elements of the part: each was written once and has the result, or had the result from the start. */
static inline void oracle_check_part(struct oracle *o, uint32_t rank) {
  const struct oracle_case *t = o->test;
  const struct oracle_rank *r = &o->ranks[rank];
  const bool in_place = (t->in_place >> rank & 1) != 0;
  const uint32_t blocks = t->func == FUNC_ALL_GATHER ? t->rank_count : 1;
  for (uint32_t block = 0; block < blocks; block++) {
    const bool own =
        t->func == FUNC_ALL_GATHER ? block == rank : t->func == FUNC_BROADCAST && rank == t->root;
    const bool none = t->func == FUNC_REDUCE && rank != t->root;
    const uint8_t writes = none || (own && in_place) ? 0 : 1;
    for (size_t i = 0; i < o->part_count; i++) {
      const size_t index = block * t->count + o->part_offset + i;
      oracle_expect(o, rank, r->writes[index] == writes, "did not write an output element exactly once");
      oracle_expect(o, rank, none || r->out[index] == oracle_output(o, rank, index),
                    "has a wrong output element");
    }
  }
}

/* Runs one case on all its channels in turn: channels touch only their own part (checked step by step). */
static inline void oracle_run(struct oracle *o, const struct oracle_case *test) {
  const uint32_t n = test->rank_count;
  o->test = test;
  for (uint32_t i = 0; i < n; i++) {
    o->ring[i] = i * test->ring_stride % n;
    o->position[o->ring[i]] = i;
  }
  for (uint32_t rank = 0; rank < n; rank++) oracle_setup_memory(o, rank);
  for (uint32_t channel = 0; channel < test->channel_count; channel++) {
    o->channel_index = channel;
    o->part_offset = test->count * channel / test->channel_count;
    o->part_count = test->count * (channel + 1) / test->channel_count - o->part_offset;
    oracle_run_channel(o);
    for (uint32_t rank = 0; rank < n; rank++) oracle_check_part(o, rank);
  }
}

#endif
