/* counters.c: counters, tagged words, and what a lane may know from them. A counter's owner stores the true
 * value. A load returns what the lane has seen before plus one, up to the true value: a lane loads again
 * while it waits, so it continues with the least value that its wait admits. The executor's faults of the
 * catalogue are made here: a load returns too much, a store is left out, a size is wrong. */
#include <inttypes.h>

#include "check/executor.h"

/* Above any step. */
#define COUNTER_MUCH (UINT64_MAX / 2)

/* The lane waits for this unless what it has loaded is enough. */
static void wants(struct prim *prim, enum check_want want, const struct conn *conn) {
  prim->want = (uint8_t)want;
  prim->want_conn = (uint32_t)(conn - prim->engine->conns);
}

uint64_t seam_next_count(const struct prim *prim) {
  const struct lane *run = prim->run;
  const uint64_t begin = run->slice_index * run->slice_elements;
  const uint64_t rest = run->step.count > begin ? run->step.count - begin : 0;
  return rest < run->slice_elements ? rest : run->slice_elements;
}

/* ---- progress of lists ---- */

/* It grows only for a lane that could not continue with what it had seen: other loads repeat what it knows.
 */
static uint64_t list_load(struct prim *prim, const uint64_t *address) {
  struct check_lane *lane = prim->lane;
  const struct lane *run = prim->run;
  struct check_lane *other = list_named(prim->engine, lane, (uint32_t)(address - run->progress));
  const uint32_t index = (uint32_t)(other - prim->engine->lanes);
  if (lane->seen_list != index + 1) {
    lane->seen_list = index + 1;
    const uint64_t known = list_known(prim->engine, lane, other);
    lane->list_seen = known > 0 ? run->progress_begin + known : 0;
    lane->stuck_on_list = false;
  }
  if (lane->list_seen < *address) {
    lane->list_seen += lane->stuck_on_list;
    prim->list_may_show_more = true;
  }
  prim->want = WANT_LIST;
  prim->want_conn = index;
  return lane->list_seen < *address ? lane->list_seen : *address;
}

static bool is_progress(const struct prim *prim, const uint64_t *address) {
  const struct lane *run = prim->run;
  return lane_is_list(run) && run->progress != 0 && address >= run->progress &&
         address < run->progress + prim->engine->list_count;
}

/* ---- counters ---- */

/* Faults that do not wait for data. */
static bool skips_data(const struct prim *prim) {
  return seam_fault(prim, FAULT_NO_WAIT) ||
         (seam_fault(prim, FAULT_EMPTY_NOT_AWAITED) && seam_is_simple(prim) && seam_next_count(prim) == 0);
}

uint64_t prim_load_tail(const uint64_t *address) {
  struct prim *prim = prim_now;
  if (is_progress(prim, address)) return list_load(prim, address);
  struct conn *conn = words_of(address)->conn;
  if (prim->engine->input->fault != FAULT_NONE && skips_data(prim)) return COUNTER_MUCH;
  wants(prim, WANT_DATA, conn);
  if (conn->tail_seen < *address) {
    conn->tail_seen += 1;
    prim->revealed = true;
  }
  return conn->tail_seen;
}

uint64_t prim_load_head(const uint64_t *address) {
  struct prim *prim = prim_now;
  struct conn *conn = words_of(address)->conn;
  const bool slot = prim->run->has_step, more = slot && seam_fault(prim, FAULT_SLOT_TOO_MANY);
  if (prim->opens) return conn->head_seen + more;
  if (!slot && seam_fault(prim, FAULT_INPUT_ENDS_EARLY)) return COUNTER_MUCH;
  wants(prim, slot ? WANT_SLOT : WANT_READ, conn);
  if (conn->head_seen < *address) {
    conn->head_seen += 1;
    prim->revealed = true;
  }
  return conn->head_seen + more - (slot && conn->head_seen > 0 && seam_fault(prim, FAULT_SLOT_TOO_FEW));
}

static bool counter_grows(struct prim *prim, uint64_t before, uint64_t now, uint32_t peer) {
  return now >= before || engine_fail(prim->engine, CHECK_SLOT, prim->lane, peer,
                                      "sets a counter back from %" PRIu64 " to %" PRIu64, before, now);
}

void prim_store_tail(struct prim *prim, uint64_t *address, uint64_t value) {
  struct check_engine *engine = prim->engine;
  if (is_progress(prim, address)) {
    if (!counter_grows(prim, *address, value, UINT32_MAX)) return;
    *address = value;
    list_report(engine, prim->lane);
    return;
  }
  struct conn *conn = words_of(address)->conn;
  if (conn->written < value) {
    engine_fail(engine, CHECK_SLOT, prim->lane, conn->receiver,
                "announces step %" PRIu64 " to rank %u before it has written it", conn->written,
                conn->receiver);
    return;
  }
  if (seam_fault(prim, FAULT_EMPTY_NOT_POSTED) && lane_flight(prim->run, 0)->move.count == 0) return;
  if (!counter_grows(prim, *address, value, conn->receiver)) return;
  *address = value;
  seam_wake(engine, &conn->waiting_receiver);
}

void prim_store_head(struct prim *prim, uint64_t *address, uint64_t value) {
  struct conn *conn = words_of(address)->conn;
  if (prim->opens && seam_fault(prim, FAULT_NO_ROUNDING)) return;
  if (prim->opens && conn->read < value) conn->read = value; /* steps that rounding skips */
  if (conn->read < value) {
    engine_fail(prim->engine, CHECK_SLOT, prim->lane, conn->sender,
                "frees step %" PRIu64 " of the connection from rank %u before it has read it", conn->read,
                conn->sender);
    return;
  }
  if (!prim->opens && seam_fault(prim, FAULT_NEVER_FREE)) return;
  if (!counter_grows(prim, *address, value, conn->sender)) return;
  *address = value;
  seam_wake(prim->engine, &conn->waiting_sender);
}

/* ---- tagged words ---- */

void prim_tagged_store(struct prim *prim, struct tagged_word *word, uint32_t tag, uint64_t value) {
  struct conn_words *words = words_of(word);
  struct conn *conn = words->conn;
  struct check_engine *engine = prim->engine;
  if (word == &words->sender.offer) {
    if (conn->offer_made) {
      engine_fail(engine, CHECK_MATCH, prim->lane, conn->sender,
                  "offers its output to rank %u, which has not taken the address of the last one",
                  conn->sender);
      return;
    }
    conn->offer_made = true;
    seam_wake(engine, &conn->waiting_sender);
  } else if (word == &words->receiver.source) {
    if (conn->source_made) {
      engine_fail(engine, CHECK_MATCH, prim->lane, conn->receiver,
                  "shows its input to rank %u, which has not taken the address of the last one",
                  conn->receiver);
      return;
    }
    conn->source_made = true;
    if (seam_fault(prim, FAULT_INPUT_HIDDEN)) value = 0;
    seam_wake(engine, &conn->waiting_receiver);
  } else if (word != &words->sender.offer_bytes) { /* announces a size */
    const uint64_t step = prim->run->send[conn->send_link].posted;
    if (word != &words->receiver.source_bytes && step >= conn->head_seen + engine->slots) {
      engine_fail(engine, CHECK_SLOT, prim->lane, conn->receiver,
                  "announces a size to rank %u with step %" PRIu64 " when only steps below %" PRIu64
                  " are known to be free",
                  conn->receiver, step, conn->head_seen + engine->slots);
      return;
    }
    value += seam_fault(prim, FAULT_WRONG_SIZE);
    seam_wake(engine, &conn->waiting_receiver);
  }
  word->halves[0] = tag;
  word->halves[1] = value;
}

/* What faults load without waiting; false if there is no such fault. */
static bool tagged_load_faulty(struct prim *prim, const struct conn_words *words,
                               const struct tagged_word *word, uint64_t *value) {
  const bool source = word == &words->receiver.source || word == &words->receiver.source_bytes;
  const bool announced = !source && word >= words->receiver.announced;
  if (!(source && seam_fault(prim, FAULT_INPUT_NOT_AWAITED)) && !(announced && skips_data(prim)))
    return false;
  *value = word == &words->receiver.source ? 0 : lane_agreed_bytes(prim->lane->part);
  return true;
}

bool prim_tagged_load(const struct tagged_word *word, uint32_t tag, uint64_t *value) {
  struct prim *prim = prim_now;
  const struct conn_words *words = words_of(word);
  struct conn *conn = words->conn;
  const bool offer = word == &words->sender.offer || word == &words->sender.offer_bytes;
  const bool source = word == &words->receiver.source;
  if (prim->engine->input->fault != FAULT_NONE && tagged_load_faulty(prim, words, word, value)) return true;
  wants(prim,
        offer                                             ? WANT_OFFER
        : source || word == &words->receiver.source_bytes ? WANT_INPUT
                                                          : WANT_DATA,
        conn);
  if (word->halves[0] != tag) return false;
  *value = word->halves[1];
  if (word == &words->sender.offer) conn->offer_made = false;
  if (!source) return true;
  conn->source_made = false;
  if (*value != 0)
    *value += seam_fault(prim, FAULT_INPUT_ELSEWHERE) * (uint64_t)prim->lane->work->element_bytes;
  return true;
}

/* ---- a new connection ---- */

static void word_set(struct tagged_word *word, uint64_t step) {
  word->halves[0] = (uint32_t)step; /* the tag of the step before: that of none which follows */
  word->halves[1] = 0;
}

bool executor_take_words(struct check_engine *engine, uint32_t count) {
  uint8_t *words = (uint8_t *)arena_take_raw(&engine->arena, ((size_t)count + 1) * CONN_WORDS_BYTES);
  engine->words = words ? words_of(words + CONN_WORDS_BYTES - 1) : NULL;
  return words != NULL;
}

/* As if it had been in use up to the first step. */
void executor_bind_conn(struct check_engine *engine, struct conn *conn) {
  const uint64_t first = engine->input->first_step;
  struct conn_words *words = (struct conn_words *)engine->words + (conn - engine->conns);
  struct fifo_sender *sender = &words->sender;
  struct fifo_receiver *receiver = &words->receiver;
  words->conn = conn;
  conn->words = words;
  sender->head = sender->send_step = receiver->tail = receiver->recv_step = first;
  for (uint32_t i = 0; i < 2; i++) sender->send_line[i] = receiver->recv_line[i] = first;
  word_set(&sender->offer, first);
  word_set(&sender->offer_bytes, first);
  word_set(&receiver->source, first);
  word_set(&receiver->source_bytes, first);
  for (uint32_t i = 0; i < FIFO_SLOTS_MAX; i++) word_set(&receiver->announced[i], first);
}
